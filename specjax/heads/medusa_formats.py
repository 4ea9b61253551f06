"""File formats of Medusa heads: what their authors publish, and what vLLM serves.

    original    {k}.{l}.linear.weight|bias, {k}.{m}.weight     head k, blocks l < m; the second version has blocks alone
    Medusa-2    the same below medusa_head., with the weights of the target
    vllm        blocks.{k}.layers.{l}.weight|bias, lm_heads.{k}.weight, or one lm_head.weight

Heads and blocks are counted in the files: published configurations have wrong numbers.
"""

import os
import re
from collections.abc import Collection
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax import convert
from specjax.heads.eagle_formats import check_targets
from specjax.heads.head import TOKEN_MAP, Head, HeadFormat, Stored
from specjax.heads.medusa import MedusaConfig
from specjax.models.family import MEDUSA, NameTable

BLOCK, MATRIX = r"(\d+)\.(\d+)\.linear\.weight", r"(\d+)\.\d+\.weight"
VLLM_BLOCK, VLLM_MATRIX = r"blocks\.(\d+)\.layers\.(\d+)\.weight", r"lm_heads\.(\d+)\.weight"
SHARED = "lm_head.weight"
BESIDE = "medusa_heads."  # prefix that vLLM allows


# --- names -----------------------------------------------------------------------------------------------------------


def original_names(config: MedusaConfig) -> NameTable:
    """Names of the tensors, as the authors have them."""
    blocks = _blocks(config, "{head}.{block}.linear")
    matrices = [(f"{head}.{config.blocks}.weight", f"heads.{head}.kernel") for head in range(config.matrices)]
    return NameTable(entries=(*blocks, *matrices))


def medusa_2_names(config: MedusaConfig) -> NameTable:
    """The same, with the target's tensors ignored."""
    return NameTable(entries=original_names(config).entries, ignored=(r"(?!\d+\.).*",))


def vllm_names(config: MedusaConfig) -> NameTable:
    """Names of the tensors in vLLM, which ignores other output matrices."""
    matrices = [(f"lm_heads.{head}.weight", f"heads.{head}.kernel") for head in range(config.matrices)]
    alias: list[tuple[str, str]] = []
    if config.matrices == 1:  # under either name
        alias = [(SHARED, "heads.0.kernel")]
        matrices, alias = (alias, matrices) if config.shared_matrix else (matrices, alias)
    return NameTable(
        entries=(*_blocks(config, "blocks.{head}.layers.{block}"), *matrices), aliases=tuple(alias),
        ignored=(r"lm_heads?\..*",),
    )  # fmt: skip


def _blocks(config: MedusaConfig, name: str) -> list[tuple[str, str]]:
    found = []
    for head in range(config.heads):
        for block in range(config.blocks):
            own, path = name.format(head=head, block=block), f"blocks.{head}.{block}"
            found += [(f"{own}.weight", f"{path}.kernel"), (f"{own}.bias", f"{path}.bias")]
    return found


# --- reading ---------------------------------------------------------------------------------------------------------


def _matches(pattern: str, names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Name -> the numbers in it."""
    return {name: tuple(map(int, match.groups())) for name in names if (match := re.fullmatch(pattern, name))}


def _shape(stored: Stored, block: str, matrix: str, shared: bool = False) -> MedusaConfig:
    """The shape of the heads, from the names and shapes of their tensors.

    Args:
      block, matrix: patterns of names.
      shared: all heads have one output matrix.
    """
    blocks, matrices = _matches(block, stored.names), _matches(matrix, stored.names)
    own = [*matrices, *([SHARED] if shared and SHARED in stored.names else [])]
    heads = 1 + max(head for head, *_ in (*blocks.values(), *matrices.values()))
    vocabulary = stored.config.get("vocab_size", stored.shape(own[0])[0] if own else stored.target.vocab_size)
    shape = MedusaConfig(
        vocabulary, stored.shape([*blocks, *own][0])[1], heads,
        blocks=1 + max((index for _, index in blocks.values()), default=-1),
        matrices=0 if not own else 1 if shared else heads,
        draft_vocab=vocabulary if stored.tokens is None else len(stored.tokens),
        bias=any(name.removesuffix("weight") + "bias" in stored.names for name in blocks),
    )  # fmt: skip
    check_targets(shape, stored, shape.width)
    return shape


def read_original(stored: Stored) -> MedusaConfig:
    """Medusa-1 in both versions, and Medusa-2."""
    return _shape(stored, BLOCK, MATRIX)


def read_vllm(stored: Stored) -> MedusaConfig:
    """Medusa as vLLM reads it."""
    shared = stored.config.get("original_lm_head", False) or "lm_heads.0.weight" not in stored.names
    return _shape(stored, VLLM_BLOCK, VLLM_MATRIX, shared)


# --- writing ---------------------------------------------------------------------------------------------------------


def publish_original(head: Head) -> dict[str, Any]:
    """config.json in the form of the authors; "version" 2 has no output matrices.

    Raises:
      ValueError: a draft vocabulary, a shared output matrix or missing biases, which this form cannot express.
    """
    config = head.config
    faults = {
        "draft vocabulary": head.draft_tokens is not None, "shared output matrix": config.shared_matrix,
        "blocks without bias": not config.bias,
    }  # fmt: skip
    found = [name for name, there in faults.items() if there]
    if found:
        raise ValueError(f"the original format of Medusa heads has no {found[0]}: use format='vllm'")
    return {
        "base_model_name_or_path": head.target.name, "medusa_num_heads": config.heads,
        "medusa_num_layers": config.blocks, "transformers_version": "4.31.0",
        **({} if config.matrices else {"version": "2"}),
    }  # fmt: skip


def publish_vllm(head: Head) -> dict[str, Any]:
    """config.json for vLLM."""
    config = head.config
    return {
        "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": config.width,
        "vocab_size": config.vocab_size, "num_heads": config.heads, "num_hidden_layers": config.blocks,
        "medusa_fc_bias": config.bias, "truncated_vocab_size": config.draft_vocab,
        "original_lm_head": config.shared_matrix or not config.matrices,
    }  # fmt: skip


def vllm_tensors(head: Head) -> dict[str, np.ndarray]:
    """The draft vocabulary, and the target's output matrix if the heads use it: vLLM reads it from the head's file."""
    found = {} if head.draft_tokens is None else {TOKEN_MAP: head.draft_tokens.astype(np.int64)}
    if head.config.matrices:
        return found
    target = head.target
    ends = target.family.ends(target.config, target.fmt)(target.family.without_layers(target.params))
    matrix = ends.unembed(jnp.eye(head.config.width)[None])[0].T
    return found | {SHARED: np.asarray(matrix.astype(head.fmt.dtype))}


def save_together(head: Head, folder: str | os.PathLike[str]) -> None:
    """Writes a head and its target as one folder, Medusa-2's, which `specjax.load` and `specjax.load_head` read.

    Raises:
      ValueError: what this form cannot express, see `publish_original`.
    """
    target, own = head.target, publish_original(head)
    config = dict(target.described()) | {name: own[name] for name in own if name.startswith("medusa")}
    if target.eos:
        config["eos_token_id"] = list(target.eos)
    heads = convert.pending(head.params, original_names(head.config), head.fmt)
    written = target.text is not None and target.text.save_pretrained is not None
    convert.save_pretrained(
        folder, target.params, config, fmt=target.fmt, tokenizer=target.text if written else None,
        more={MEDUSA + one.name: one.fetch() for one in heads},
    )  # fmt: skip


# --- the formats -----------------------------------------------------------------------------------------------------


def _some(pattern: str):
    return lambda config, names: any(re.fullmatch(pattern, name) for name in names)


MEDUSA_FORMATS = (
    HeadFormat(
        "original", _some(re.escape(MEDUSA) + ".*"), read_original, publish_original, ((MEDUSA, ""),), medusa_2_names,
    ),
    HeadFormat("original", _some(f"{BLOCK}|{MATRIX}"), read_original, publish_original, table=original_names),
    HeadFormat(
        "vllm", _some(f"(?:{re.escape(BESIDE)})?{VLLM_BLOCK}"), read_vllm, publish_vllm, ((BESIDE, ""),), vllm_names,
        vllm_tensors, r"lm_heads?\..*",
    ),
)  # fmt: skip
