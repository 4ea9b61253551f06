"""File formats of DFlash heads: what its authors publish, and what the package `speculators` writes and vLLM serves.

One meaning of a tap: number k is the residual stream that enters layer k of the target. The authors' files count the
layer that it leaves, k - 1; they are converted here.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.heads import eagle_formats as eagle_files
from specjax.heads.dflash import DFlashConfig
from specjax.heads.head import Head, HeadFormat, Stored, layers_of
from specjax.models import llama
from specjax.models.family import NameTable
from specjax.models.published import Published

NAMES = NameTable(
    entries=(
        ("fc.weight", "fc.kernel"),
        ("hidden_norm.weight", "hidden_norm.scale"),
        *eagle_files.LAYER_NAMES,
        ("layers.{i}.input_layernorm.weight", "layers.{i}.attn_norm.scale"),
        ("norm.weight", "final_norm.scale"),
        ("lm_head.weight", "head.kernel"),
    ),
    # Copies of the target's weights; an output matrix is the head's own only with a draft vocabulary.
    ignored=(*eagle_files.IGNORED, r"embed_tokens\.weight", r"lm_head\.weight", r"verifier_(norm|lm_head)\.weight"),
)


# --- reading ---------------------------------------------------------------------------------------------------------


def default_left(layers: int, count: int) -> tuple[int, ...]:
    """The layers of the target whose outputs the authors' code reads, where the file does not name them."""
    if count == 1:
        return (layers // 2,)
    return tuple(round(1 + index * (layers - 4) / (count - 1)) for index in range(count))


def layers_and_windows(layer: Mapping[str, Any], stored: Stored) -> tuple[llama.LlamaConfig, tuple[int | None, ...]]:
    """The shape of the decoder layers, and the sliding window of each."""
    given = Published(layer, "the configuration of the head")
    shape, _ = eagle_files.layer_shape(dict(layer) | {"layer_types": []}, stored)
    eagle_files.check_targets(shape, stored, shape.width)
    shape = dataclasses.replace(shape, qk_norm=True)  # whatever the model type
    kinds = given.entries.get("layer_types") or ["full_attention"] * shape.layers
    if len(kinds) != shape.layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"layer_types of the head are {kinds}: {shape.layers} of full_attention or sliding_attention are read"
        )
    off = given.word("model_type", "qwen3") == "qwen3" and not given.flag("use_sliding_window", False)
    window = None if off or "sliding_window" not in given.entries else given.whole("sliding_window")
    return shape, tuple(window if kind == "sliding_attention" else None for kind in kinds)


def read_dflash(stored: Stored) -> DFlashConfig:
    """DFlash, as its authors publish it."""
    given = Published(stored.config, "the configuration of the head")
    part, layers = given.part("dflash_config"), layers_of(stored.target)
    expected = given.whole("num_target_layers", layers)
    if expected != layers:
        raise ValueError(f"the head is for a target with {expected} layers, and {stored.target.name} has {layers}")
    shape, windows = layers_and_windows(eagle_files.with_class_defaults(stored.config), stored)
    if any(windows):
        raise ValueError("layers with a sliding window are read in the format of speculators only: convert the head")
    left = part.wholes("target_layer_ids") or default_left(layers, shape.layers)
    if layers - 1 in left:
        raise ValueError(
            f"target_layer_ids are {list(left)}: of the last layer, {layers - 1}, this format means the normalized "
            "stream, which specjax does not tap"
        )
    block = part.whole("block_size") if "block_size" in part.entries else given.whole("block_size")
    return _dflash(stored, shape, windows, [layer + 1 for layer in left], part, block)


def read_speculators_dflash(stored: Stored) -> DFlashConfig:
    """DFlash, as `speculators` writes it."""
    given = Published(stored.config, "the configuration of the head")
    layer = eagle_files.with_class_defaults(given.part("transformer_layer_config").entries)
    shape, windows = layers_and_windows(layer, stored)
    taps = given.wholes("aux_hidden_state_layer_ids") or eagle_files.default_taps(layers_of(stored.target))
    return _dflash(
        stored, shape, windows, taps, given, given.whole("block_size", 8),
        causal=any(windows) and not given.flag("sliding_window_non_causal", False),
        from_anchor=given.flag("sample_from_anchor", False),
    )  # fmt: skip


def _dflash(
    stored: Stored, shape: llama.LlamaConfig, windows: tuple[int | None, ...], taps: Sequence[int], given: Published,
    block: int, **flags: bool,
) -> DFlashConfig:  # fmt: skip
    own = stored.tokens is not None
    if own and "lm_head.weight" not in stored.names:
        raise ValueError("the head has a draft vocabulary and no tensor lm_head.weight")
    drafted = eagle_files.drafted_tokens(stored, stored.shape("lm_head.weight")[0] if own else shape.vocab_size)
    return DFlashConfig(
        shape, eagle_files.check_taps(taps, stored.target), eagle_files.mask_token(given, stored), block, windows,
        draft_vocab=drafted if own else 0, **flags,
    )  # fmt: skip


# --- writing ---------------------------------------------------------------------------------------------------------


def publish_dflash(head: Head) -> dict[str, Any]:
    """config.json in the form of the authors, a flat one of Qwen3."""
    config, layers = head.config, layers_of(head.target)
    if config.from_anchor or config.draft_vocab or any(config.windows):
        raise ValueError(
            "the original format of DFlash has no draft vocabulary, no drafting from the anchor and no sliding window: "
            "save this head with format='speculators'"
        )
    if layers in config.taps:
        raise ValueError(
            f"in the original format of DFlash, layer {layers - 1} means the normalized stream, and this head taps the "
            "one before the norm: save it with format='speculators'"
        )
    return eagle_files.layer_config(head) | eagle_files.flat_rope(config.layer) | {
        "architectures": ["DFlashDraftModel"], "num_target_layers": layers, "block_size": config.block,
        "dflash_config": {"mask_token_id": config.mask_token, "target_layer_ids": [tap - 1 for tap in config.taps]},
        "attention_dropout": 0.0, "initializer_range": 0.02, "max_window_layers": config.layer.layers,
        "tie_word_embeddings": False, "use_cache": True,
    }  # fmt: skip


def publish_speculators_dflash(head: Head) -> dict[str, Any]:
    """config.json of DFlash for `speculators` and vLLM."""
    config = head.config
    return eagle_files.envelope(head, "dflash", "DFlashDraftModel", config.most) | {
        "draft_vocab_size": config.draft_vocab or config.layer.vocab_size,
        "aux_hidden_state_layer_ids": list(config.taps), "block_size": config.block,
        "mask_token_id": config.mask_token, "sample_from_anchor": config.from_anchor,
        # vLLM reads the flag for all layers, full attention included, which is never causal.
        "sliding_window_non_causal": not config.causal, "target_hidden_size": None,
    }  # fmt: skip


# --- the formats -----------------------------------------------------------------------------------------------------

DFLASH_FORMATS = (
    HeadFormat(
        "speculators", eagle_files.written_by_speculators("dflash"), read_speculators_dflash, publish_speculators_dflash
    ),
    HeadFormat("original", lambda config, names: "dflash_config" in config, read_dflash, publish_dflash),
)
