"""From a name to a model ready to decode: configuration, weights straight into their place, tokenizer, end tokens."""

import json
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from specjax import convert, sharding, stores, text
from specjax.convert.assemble import Progress
from specjax.model import Model
from specjax.models.format import Format, default_format
from specjax.models.published import refuse_quantized
from specjax.types import Params


def load(
    name: str | Path,
    *,
    dtype: str = "float32",
    weights: str | None = None,
    cache_dtype: str | None = None,
    mesh: Mesh | None = None,
    replicate: bool = False,
    stacked: bool | None = None,
    platform: str | None = None,
    progress: Progress | None = None,
) -> Model:
    """Reads a model: tensor by tensor into the wanted dtype and place, about one copy in host memory.

    Args:
      name: a folder in Hugging Face's layout, a GGUF file, "bundled/<name>", a checkpoint of `specjax convert`, or a
        Hugging Face id (looked up in the local cache first). Folders may be in an object store, "gs://bucket/folder",
        of which each device's part is read by ranges. Only ids and stores use the network.
      dtype: of kernels and tables: "float32", "bfloat16" or "float16".
      weights: "int8": kernels and tables are stored in int8 with a scale for each output channel, a quarter of the
        memory of float32, and multiplied in `dtype`. Lossy: the output follows the distribution of the quantized model.
      cache_dtype: of keys and values; "int8", with a scale for each head and slot, is lossy in the same way, and free
        for a draft model, which changes only how many of its tokens are accepted. None: the platform's default.
      mesh: from `sharding.make_mesh`; each device is handed its own shard, and no host holds the whole model.
      replicate: under a mesh, the whole model on every device: what a small draft model wants.
      stacked: layers stacked and scanned, or separate and unrolled; default by platform.
      platform: "cpu", "gpu" or "tpu", whose layout of the weights is wanted, to save a checkpoint for other machines;
        None: that of JAX.
      progress: called after each parameter with the bytes read and the bytes in all.

    Raises:
      FileNotFoundError: there is no such checkpoint. ValueError: it is corrupted, of an unknown kind, or its tensors
        are not those of its configuration; the message names them.
    """
    if not isinstance(name, str | Path):
        raise ValueError(f"a model is named by a text or a path, got {type(name).__name__}")
    if mesh is not None:
        sharding.check_axes(mesh)
    if stores.is_remote(name) or Path(name).is_dir():
        from specjax import checkpoint as checkpoints  # imports orbax

        if checkpoints.is_checkpoint(name):
            _check_stored(name, checkpoints.about(name).fmt, dtype=dtype, weights=weights, stacked=stacked)
            return checkpoints.load_model(name, mesh=mesh, replicate=replicate, cache_dtype=cache_dtype)
    checkpoint = convert.locate(name)
    try:
        family = checkpoint.family
        eos = end_tokens(checkpoint.path, checkpoint.config)  # a corrupted file is reported before weights are read
        config = _shape(checkpoint, name)
        rules = sharding.replicated(family.rules) if replicate else family.rules
        split = None if mesh is None else sharding.attention_split(mesh, rules, config.kv_heads)
        fmt = default_format(
            dtype, weights=weights, cache_dtype=cache_dtype, sharded=mesh is not None, stacked=stacked, split=split,
            platform=platform,
        )  # fmt: skip
        abstract = family.abstract(config, fmt)
        place = None
        if mesh is not None:
            place = _placer(sharding.shardings(abstract, mesh, rules, fmt, kv_heads=config.kv_heads))
        tokenizer = _text(checkpoint)  # before the weights: while it is made, it takes more memory than afterwards
        table = family.names(checkpoint.config)
        params = convert.load_params(checkpoint.source, table, abstract, fmt=fmt, place=place, progress=progress)
    finally:
        checkpoint.source.close()
    return Model(
        name=str(name),
        family=family,
        config=config,
        fmt=fmt,
        params=params,
        text=tokenizer,
        eos=eos,
        mesh=mesh,
        rules=rules,
        published=checkpoint.config,
    )


def _check_stored(name: str | Path, fmt: Format, *, dtype: str, weights: str | None, stacked: bool | None) -> None:
    """Raises ValueError if a checkpoint is not stored as requested: it is read as it is."""
    stored = {"dtype": fmt.dtype, "weights": "int8" if fmt.int8_weights else None, "stacked": fmt.stacked}
    for option, wanted in {"dtype": dtype, "weights": weights, "stacked": stacked}.items():
        if wanted != stored[option] and not (option == "stacked" and wanted is None):
            raise ValueError(
                f"checkpoint {name} has {option} {stored[option]}, not {wanted}: load it with {option}="
                f"{stored[option]!r}, or convert the model again"
            )


def _shape(checkpoint: convert.Checkpoint, name: str | Path) -> Any:
    try:
        refuse_quantized(checkpoint.config)
        return checkpoint.family.from_published(checkpoint.config)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _placer(shardings: Params):
    by_path: dict[str, NamedSharding] = {}
    for keys, value in jax.tree_util.tree_flatten_with_path(shardings)[0]:
        by_path[sharding.path_of(keys)] = value
    return lambda path, shape: by_path[path]


def _text(checkpoint: convert.Checkpoint) -> text.Text | None:
    if (checkpoint.path / "tokenizer.json").is_file():
        return text.from_folder(checkpoint.path)
    tokenizer = checkpoint.tokenizer()
    return None if tokenizer is None else text.from_transformers(tokenizer)


def end_tokens(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that end a text: those of generation_config.json, which knows more of them, else of config.json.

    Raises:
      ValueError: the file is no JSON object, or names something that is no token.
    """
    file = path / "generation_config.json"
    found: Any = {}
    if file.is_file():
        try:
            found = json.loads(file.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} is corrupted: not JSON ({error})") from None
        if not isinstance(found, dict):
            raise ValueError(f"{file} is corrupted: not an object of settings")
    eos = found.get("eos_token_id", config.get("eos_token_id"))
    tokens = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if any(not isinstance(token, Integral) or isinstance(token, bool) for token in tokens):
        raise ValueError(f"{path} has eos_token_id {eos!r}: expected a token's number, or a list of them")
    return tuple(int(token) for token in tokens)
