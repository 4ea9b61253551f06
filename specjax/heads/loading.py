"""Reading a trained head from any published format."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from specjax import convert, sharding
from specjax.convert.sources import TensorSource
from specjax.heads.head import MEMBERS, OFFSETS, TOKEN_MAP, Head, HeadFormat, Kind, Stored
from specjax.heads.kinds import KINDS
from specjax.model import Model


def load_head(name: str | os.PathLike[str], target: Model) -> Head:
    """Reads a trained draft head in any published format, which is recognized from its config.json and tensors.

    EAGLE-1, EAGLE-2 and HASS; EAGLE-3; DFlash: as their authors publish them, and as the package `speculators` does.
    P-EAGLE: as `speculators` does. Medusa, its second version, and Medusa-2, in a folder with its target: as their
    authors publish them, and as vLLM reads them. MLP speculators. Falcon, experimental: as its authors' code names the
    tensors. SPIRe, experimental, as `train head` writes it.

    Args:
      name: a folder, "bundled/<name>", or a Hugging Face id, which is looked up in the local cache first; only an id
        uses the network.
      target: the model that it drafts for, from `specjax.load`. The head has its dtype and placement.

    Returns:
      The head, for `specjax.drafters.head`.

    Raises:
      FileNotFoundError: there is no such head.
      ValueError: an unknown format, tensors that do not match the configuration, or a head for another target.
    """
    folder = convert.local_folder(name, convert.HEAD_FORMATS)
    config = read_config(folder)
    source = convert.open_source(folder, convert.HEAD_FORMATS)
    try:
        kind, form = recognized(KINDS, config, source, folder)
        if target.encoder_decoder and not kind.encoder_decoder:
            raise ValueError(f"{folder}: a head of kind {kind.name} drafts for decoder-only models, not {target.name}")
        tensors = source.renamed({form.to_table(own): own for own in source.names()})
        tokens = draft_tokens(tensors, target, folder)
        stored = Stored(config, tensors.names(), tensors.shape, tokens, target)
        try:
            shape = form.read(stored)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None
        fmt = dataclasses.replace(target.fmt, stacked=False, int8_weights=False)
        abstract = jax.eval_shape(lambda: kind.init(jax.random.key(0), shape, fmt))
        place = None
        if target.mesh is not None:
            rules = sharding.shardings(abstract, target.mesh, kind.rules, fmt, kv_heads=1)
            by_path = {sharding.path_of(keys): one for keys, one in jax.tree_util.tree_leaves_with_path(rules)}
            place = lambda path, shape: by_path[path]
        vocabulary = (OFFSETS, MEMBERS, TOKEN_MAP)
        weights = tensors.renamed({name: name for name in tensors.names() if name not in vocabulary})
        if form.cut is not None and tokens is not None:
            weights = weights.cut(form.cut, tokens)
        params = convert.load_params(weights, kind.table(form, shape), abstract, fmt=fmt, place=place)
    finally:
        source.close()
    return Head(str(name), kind, shape, fmt, params, target, tokens, form.name)


def read_config(folder: Path) -> dict[str, Any]:
    """Contents of a head's config.json."""
    file = folder / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} is not a head: it has no config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is corrupted: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} is corrupted: not an object")
    return config


def recognized(
    kinds: Mapping[str, Kind], config: Mapping[str, Any], source: TensorSource, folder: Path
) -> tuple[Kind, HeadFormat]:
    """The kind and the format of the files."""
    names = source.names()
    for kind in kinds.values():
        for form in kind.formats:
            if form.recognizes(config, names):
                return kind, form
    raise ValueError(
        f"{folder} has no known head: its tensors are {', '.join(sorted(names)[:3])}, ... (kinds: {', '.join(kinds)})"
    )


def draft_tokens(source: TensorSource, target: Model, folder: Path) -> np.ndarray | None:
    """Target ids of the draft vocabulary, from a list of ids or from offsets."""
    name = next((name for name in (TOKEN_MAP, OFFSETS) if name in source.names()), None)
    if name is None:
        return None
    tokens = np.asarray(source.read(name))
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ValueError(f"{folder}: {name} is no list of whole numbers, but {tokens.dtype}{list(tokens.shape)}")
    tokens = tokens.astype(np.int64)
    if name == OFFSETS:
        tokens = tokens + np.arange(len(tokens))
    elif len(tokens) == target.vocab_size:
        return None  # vLLM does not read the map then
    ascending = tokens if name == OFFSETS else np.sort(tokens)
    if (np.diff(ascending) <= 0).any() or ascending[0] < 0 or ascending[-1] >= target.vocab_size:
        raise ValueError(f"{folder}: {name} does not name distinct tokens of {target.name}'s {target.vocab_size}")
    if MEMBERS in source.names() and source.shape(MEMBERS) != (target.vocab_size,):
        raise ValueError(
            f"{folder}: {MEMBERS} has the shape {list(source.shape(MEMBERS))}, and {target.name} has "
            f"{target.vocab_size} tokens"
        )
    return tokens.astype(np.int32)
