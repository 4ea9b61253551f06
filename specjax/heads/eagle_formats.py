"""File formats of EAGLE heads: what their authors publish, and what the package `speculators` writes and vLLM serves.

One meaning of a tap: number k is the residual stream that enters layer k of the target. Files of SGLang and NVIDIA
count the layer that it leaves, k - 1 (`eagle_config`); they are converted here.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.heads.eagle import EagleConfig
from specjax.heads.head import Head, HeadFormat, Stored, layers_of
from specjax.model import Model
from specjax.models import llama
from specjax.models.family import NameTable
from specjax.models.published import Published
from specjax.models.rope import UNSCALED

LAYER_NAMES = (
    *((f"layers.{{i}}.{hf}.weight", f"layers.{{i}}.{path}.kernel") for hf, path in llama.LINEAR_NAMES.items()),
    *((f"layers.{{i}}.{hf}.bias", f"layers.{{i}}.{path}.bias") for hf, path in llama.LINEAR_NAMES.items()),
    ("layers.{i}.self_attn.q_norm.weight", "layers.{i}.attn.q_norm.scale"),
    ("layers.{i}.self_attn.k_norm.weight", "layers.{i}.attn.k_norm.scale"),
    ("layers.{i}.post_attention_layernorm.weight", "layers.{i}.mlp_norm.scale"),
)
COMMON_NAMES = (
    ("embed_tokens.weight", "embed.table"),
    ("fc.weight", "fc.kernel"),
    ("fc.bias", "fc.bias"),
    *LAYER_NAMES,
)
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")  # of EAGLE-3 in `speculators`
IGNORED = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"rotary_emb\.inv_freq")
NAMES = NameTable(
    entries=(
        *COMMON_NAMES,
        ("layers.{i}.input_layernorm.weight", "layers.{i}.attn_norm.scale"),
        ("embedding_layernorm.weight", "embed_norm.scale"),
        ("pre_lm_head_layernorm.weight", "out_norm.scale"),
    ),
    ignored=IGNORED,
)
NAMES_3 = NameTable(
    entries=(
        ("layers.0.input_layernorm.weight", "embed_norm.scale"),
        ("layers.0.hidden_norm.weight", "hidden_norm.scale"),
        *COMMON_NAMES,
        ("layers.{i}.input_layernorm.weight", "layers.{i}.attn_norm.scale"),
        ("input_norm.weight", "input_norm.scale"),
        *((f"fc_norm.{tap}.weight", f"fc_norm.{tap}.scale") for tap in range(16)),
        ("norm.weight", "final_norm.scale"),
        ("lm_head.weight", "head.kernel"),
    ),
    ignored=IGNORED,
)


# What the configuration classes of transformers leave out of a file where it has their default.
CLASS_DEFAULTS = {
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "qwen3": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768,
    },
}  # fmt: skip

# --- reading ---------------------------------------------------------------------------------------------------------


def with_class_defaults(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that describe decoder layers, those that were left out included."""
    kind = layer.get("model_type") or "qwen3"
    return {"model_type": kind} | CLASS_DEFAULTS.get(kind, {}) | dict(layer)


def check_targets(shape: Any, stored: Stored, hidden: int) -> None:
    """Raises ValueError for a head of another target."""
    target = stored.target
    for name, own, wanted in (
        ("vocabulary", shape.vocab_size, target.vocab_size), ("hidden size", hidden, target.config.width),
    ):  # fmt: skip
        if own != wanted:
            raise ValueError(f"the head is for a target with {name} {own}, and {target.name} has {wanted}")


def layer_shape(published: Mapping[str, Any], stored: Stored) -> tuple[llama.LlamaConfig, int | None]:
    """The shape of the decoder layers, and their sliding window."""
    given = Published(published, "the configuration of the head")
    kind = given.word("model_type", "llama")
    kinds = given.entries.get("layer_types", [])
    window = None
    if "sliding_attention" in kinds:
        if set(kinds) != {"sliding_attention"}:
            raise ValueError(f"layer_types {sorted(set(kinds))} are mixed: heads with one kind are read")
        window = given.whole("sliding_window")
    elsewhere = {"model_type": "llama", "layer_types": [], "sliding_window": None}
    shape = llama.from_published(dict(published) | elsewhere)
    has = lambda end: any(name.endswith(end) for name in stored.names)
    return dataclasses.replace(
        shape, qkv_bias=has("self_attn.q_proj.bias"), o_bias=has("self_attn.o_proj.bias"),
        mlp_bias=has("mlp.up_proj.bias"), qk_norm=kind == "qwen3",
    ), window  # fmt: skip


def default_taps(layers: int) -> tuple[int, ...]:
    """The streams that EAGLE-3's code reads: low, middle and high."""
    return 2, layers // 2, layers - 3


def check_taps(taps: Sequence[int], target: Model) -> tuple[int, ...]:
    """Taps as streams entering a layer.

    Raises:
      ValueError: not ascending, or layers that the target lacks.
    """
    layers = layers_of(target)
    found = tuple(taps)
    if list(found) != sorted(set(found)) or not found or found[0] < 0 or found[-1] > layers:
        raise ValueError(
            f"the head reads the target's streams {list(found)}: they must ascend within 0..{layers}, the layers of "
            f"{target.name}"
        )
    return found


def drafted_tokens(stored: Stored, drafted: int) -> int:
    """Tokens that the head drafts.

    Raises:
      ValueError: its output matrix, its draft vocabulary and its configuration disagree.
    """
    known = len(stored.tokens) if stored.tokens is not None else stored.target.vocab_size
    noted = stored.config.get("draft_vocab_size", drafted)
    if not drafted == known == noted:
        raise ValueError(
            f"the head drafts {drafted} tokens, its table names {known}, and its configuration says {noted}"
        )
    return drafted


def read_eagle(stored: Stored) -> EagleConfig:
    """EAGLE-1, as its authors publish it."""
    shape, window = layer_shape(stored.config, stored)
    check_targets(shape, stored, shape.width)
    return EagleConfig(
        shape, shape.width, window=window, own_embedding="embed_tokens.weight" in stored.names,
        fc_bias="fc.bias" in stored.names,
    )  # fmt: skip


def read_speculators_eagle(stored: Stored) -> EagleConfig:
    """EAGLE-1, as `speculators` up to 0.3 wrote it."""
    given = Published(stored.config, "the configuration of the head")
    shape, window = layer_shape(given.part("transformer_layer_config").entries, stored)
    check_targets(shape, stored, shape.width)
    norms = given.flag("layernorms", False)
    return EagleConfig(
        shape, shape.width, window=window, own_embedding="embed_tokens.weight" in stored.names,
        fc_bias="fc.bias" in stored.names, embedding_norm=norms, input_norm=norms, out_norm=norms,
    )  # fmt: skip


def proposed_tokens(published: Mapping[str, Any], default: int) -> int:
    """Draft tokens per round that the package `speculators` noted."""
    envelope = Published(published, "the configuration of the head").part("speculators_config")
    methods = envelope.entries.get("proposal_methods") or [{}]
    return Published(methods[0], f"proposal_methods of {envelope.kind}").whole("speculative_tokens", default)


def mask_token(given: Published, stored: Stored) -> int:
    """The token of positions that are not written yet."""
    token, size = given.whole("mask_token_id", least=0), stored.target.vocab_size
    if token >= size:
        raise ValueError(f"mask_token_id is {token}, and {stored.target.name} has {size} tokens")
    return token


def read_eagle3(stored: Stored) -> EagleConfig:
    """EAGLE-3, as its authors, SGLang and NVIDIA publish it."""
    shape, window = layer_shape(stored.config, stored)
    part = Published(stored.config, "the configuration of the head").part("eagle_config")
    left = part.wholes("eagle_aux_hidden_state_layer_ids") if part.flag("use_aux_hidden_state", True) else None
    taps = default_taps(layers_of(stored.target)) if left is None else tuple(layer + 1 for layer in left)
    return _eagle3(stored, shape, window, taps)


def read_speculators_eagle3(stored: Stored) -> EagleConfig:
    """EAGLE-3 and 3.1, as `speculators` writes it."""
    given = Published(stored.config, "the configuration of the head")
    shape, window = layer_shape(with_class_defaults(given.part("transformer_layer_config").entries), stored)
    taps = given.wholes("eagle_aux_hidden_state_layer_ids") or default_taps(layers_of(stored.target))
    return _eagle3(stored, shape, window, taps, **{name: given.flag(name, False) for name in FLAGS})


def _eagle3(
    stored: Stored, shape: llama.LlamaConfig, window: int | None, taps: Sequence[int], **flags: bool
) -> EagleConfig:
    taps = check_taps(taps, stored.target)
    for needed in ("fc.weight", "lm_head.weight"):
        if needed not in stored.names:
            raise ValueError(f"the head has no tensor {needed}")
        if len(stored.shape(needed)) != 2:
            raise ValueError(f"{needed} of the head is no matrix: its shape is {list(stored.shape(needed))}")
    if "embed_tokens.weight" not in stored.names and shape.width != stored.target.config.width:
        raise ValueError(
            f"the head has no embed_tokens.weight, and its width {shape.width} is not that of {stored.target.name}, "
            f"{stored.target.config.width}, whose embedding it would read"
        )
    features, drafted = stored.shape("fc.weight")[1], stored.shape("lm_head.weight")[0]
    check_targets(shape, stored, features // len(taps))
    return EagleConfig(
        shape, features, taps, drafted_tokens(stored, drafted), window=window,
        own_embedding="embed_tokens.weight" in stored.names, fc_bias="fc.bias" in stored.names, **flags,
    )  # fmt: skip


# --- writing ---------------------------------------------------------------------------------------------------------


def layer_config(head: Head, *, model_type: str | None = None) -> dict[str, Any]:
    """The entries of a config.json that describe the decoder layers."""
    shape = head.config.layer
    kind = model_type or ("qwen3" if shape.qk_norm else "llama")
    return {
        "model_type": kind,
        "hidden_size": shape.width, "intermediate_size": shape.mlp_width, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_width,
        "hidden_act": shape.activation, "rms_norm_eps": shape.eps, "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_positions, "attention_bias": shape.qkv_bias,
        **({} if kind == "qwen3" else {"mlp_bias": shape.mlp_bias}), **window_entries(kind, head.config.windows),
    }  # fmt: skip


def window_entries(kind: str, windows: Sequence[int | None]) -> dict[str, Any]:
    """The entries of a config.json for the windows of the layers, as the class of this model type reads them."""
    window = max((size for size in windows if size), default=None)
    types = ["sliding_attention" if size else "full_attention" for size in windows]
    if kind == "qwen3":
        return {"layer_types": types, "sliding_window": window, "use_sliding_window": window is not None}
    return {"layer_types": types, "sliding_window": window} if window else {}


def flat_rope(shape: llama.LlamaConfig) -> dict[str, Any]:
    """The rotary entries of a config.json, in the older layout: EAGLE's authors accept `type` and `factor` alone."""
    scaling = shape.rope_scaling.published
    if scaling.keys() == {"rope_type", "factor"}:
        scaling = {"type": scaling["rope_type"], "factor": scaling["factor"]}
    return {"rope_theta": shape.rope_theta} | ({} if shape.rope_scaling == UNSCALED else {"rope_scaling": scaling})


def publish_original(head: Head) -> dict[str, Any]:
    """config.json in the form of EAGLE's authors.

    Raises:
      ValueError: norms or a window that this form cannot express.
    """
    config, shape = head.config, head.config.layer
    own = [name for name in (*FLAGS, "embedding_norm", "window") if getattr(config, name)]
    if own or shape.qk_norm:
        raise ValueError(
            f"the original format of EAGLE heads has no {(own or ['qk_norm'])[0]}: use format='speculators'"
        )
    entries = layer_config(head, model_type="llama") | flat_rope(shape) | {
        "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False, "initializer_range": 0.02,
        "use_cache": True,
    }  # fmt: skip
    if not config.taps:
        return entries | {"bias": config.fc_bias} | ({"qkv_bias": True} if shape.qkv_bias else {})
    entries |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": config.draft_vocab}
    if config.features // len(config.taps) != config.width:
        entries["target_hidden_size"] = config.features // len(config.taps)
    left = [tap - 1 for tap in config.taps]
    return entries | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": left, "use_aux_hidden_state": True}}


def envelope(head: Head, algorithm: str, architecture: str, tokens: int) -> dict[str, Any]:
    """The entries of a config.json that all heads of `speculators` have."""
    shape, published = head.config.layer, head.target.published or {}
    layer = layer_config(head) | {"rope_parameters": shape.rope_scaling.published | {"rope_theta": shape.rope_theta}}
    proposal = {
        "proposal_type": "greedy", "speculative_tokens": tokens, "accept_tolerance": 0.0, "verifier_accept_k": 1,
    }  # fmt: skip
    return {
        "architectures": [architecture], "speculators_model_type": algorithm, "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": algorithm, "default_proposal_method": "greedy", "proposal_methods": [proposal],
            "verifier": {"name_or_path": head.target.name, "architectures": published.get("architectures", [])},
        },
        "transformer_layer_config": layer, "tie_word_embeddings": False,
    }  # fmt: skip


def publish_speculators_eagle(head: Head) -> dict[str, Any]:
    """config.json of EAGLE-1 for `speculators` up to 0.3, whose transformers read the older rotary entries."""
    config, entries = head.config, envelope(head, "eagle", "EagleSpeculator", 5)
    return entries | {
        "speculators_version": "0.3.0", "transformer_layer_architecture": "LlamaDecoderLayer",
        "layernorms": config.embedding_norm, "fusion_bias": config.fc_bias,
        "transformer_layer_config": entries["transformer_layer_config"] | flat_rope(config.layer),
    }  # fmt: skip


def publish_speculators_eagle3(head: Head) -> dict[str, Any]:
    """config.json of EAGLE-3 for `speculators` and vLLM, with every flag.

    Raises:
      ValueError: a head narrower than its target, which the package does not support.
    """
    config = head.config
    hidden = config.features // len(config.taps)
    if hidden != config.width:
        raise ValueError(
            f"the package speculators does not support a head of width {config.width} for a target of width {hidden}: "
            "use format='original'"
        )
    return envelope(head, "eagle3", "Eagle3DraftModel", 3) | {
        "draft_vocab_size": config.draft_vocab, "eagle_aux_hidden_state_layer_ids": list(config.taps),
        "target_hidden_size": None, "embed_requires_grad": False,
        **{name: getattr(config, name) for name in FLAGS},
    }  # fmt: skip


# --- the formats -----------------------------------------------------------------------------------------------------


def written_by_speculators(kind: str):
    """`HeadFormat.recognizes` of a kind of the package `speculators`."""
    return lambda config, names: config.get("speculators_model_type") == kind


EAGLE_FORMATS = (
    HeadFormat(
        "speculators", written_by_speculators("eagle"), read_speculators_eagle, publish_speculators_eagle,
        (("fusion_fc.", "fc."), ("transformer.", "layers.0.")),
    ),
    HeadFormat(
        "original",
        lambda config, names: {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= set(names) - {"norm.weight"},
        read_eagle, publish_original,
    ),
)  # fmt: skip
EAGLE3_FORMATS = (
    HeadFormat("speculators", written_by_speculators("eagle3"), read_speculators_eagle3, publish_speculators_eagle3),
    HeadFormat(
        "original",
        lambda config, names: "midlayer.self_attn.q_proj.weight" in names,
        read_eagle3, publish_original, (("midlayer.", "layers.0."),),
    ),
)  # fmt: skip
