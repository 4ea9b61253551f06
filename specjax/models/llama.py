"""The Llama family (Touvron et al. 2023, arXiv 2302.13971): RMS norms, rotary positions, gated MLP, grouped queries.

One file for Llama 1 to 3.2, Vicuna, TinyLlama, SmolLM2 and Qwen2 / 2.5 (which add biases to q, k and v).
"""

import dataclasses
import functools
import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, Int

from specjax.models import cache as caches
from specjax.models.attention import attend
from specjax.models.decoder import CausalLM
from specjax.models.family import (
    EMBEDDING_RULE,
    HEAD_RULE,
    VECTOR,
    Family,
    NameTable,
    Rule,
    Rules,
    bias_rules,
    kernel_rules,
)
from specjax.models.format import Format, default_format
from specjax.models.layers import ACTIVATIONS, ALL, Linear, RMSNorm, Table, check_activation, make_layers
from specjax.models.published import Published
from specjax.models.rope import UNSCALED, Llama3Scaling, RopeScaling, Rotation, read_scaling, rotate, rotation


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Shape of a model of the Llama family; hashable, so a static argument.

    Attributes:
      kv_heads: key-value heads, each shared by heads / kv_heads query heads.
      qkv_bias, o_bias, mlp_bias: which projections have biases.
      qk_norm: queries and keys are normed, by head (Qwen3).
      tied: the head is the embedding table.
      max_positions: trained length; rotary positions do not end there.
      rope_theta, rope_scaling: base of the rotary frequencies, and how they are stretched.
    """

    vocab_size: int = 32000
    width: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 32
    head_width: int = 128
    mlp_width: int = 11008
    max_positions: int = 4096
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = UNSCALED
    eps: float = 1e-5
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    activation: str = "silu"

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads cannot share {self.kv_heads} key-value heads evenly")
        if self.head_width % 2:
            raise ValueError(f"rotary positions turn halves of a head: head_width must be even, got {self.head_width}")
        check_activation(self.activation)

    @property
    def positions(self) -> int | None:
        """Positions that the rotary frequencies are defined for; None: any number."""
        return self.rope_scaling.positions


def sizes() -> dict[str, LlamaConfig]:
    """The published shapes, by family and size."""

    def shapes(table: Mapping[str, tuple[int, int, int, int, int]], **common: Any) -> dict[str, LlamaConfig]:
        return {
            name: LlamaConfig(
                width=width, layers=layers, heads=heads, kv_heads=kv, head_width=width // heads, mlp_width=mlp, **common
            )
            for name, (width, layers, heads, kv, mlp) in table.items()
        }

    seven, thirteen = (4096, 32, 32, 32, 11008), (5120, 40, 40, 40, 13824)
    eight, seventy = (4096, 32, 32, 8, 14336), (8192, 80, 64, 8, 28672)
    llama3 = {"vocab_size": 128256, "rope_theta": 500000.0}
    long = {**llama3, "max_positions": 131072}
    smol = {"vocab_size": 49152, "max_positions": 8192, "tied": True}
    qwen = {"max_positions": 32768, "rope_theta": 1e6, "eps": 1e-6, "qkv_bias": True}
    return {
        **shapes(
            {
                "llama-7b": seven, "llama-13b": thirteen,
                "llama-30b": (6656, 60, 52, 52, 17920), "llama-65b": (8192, 80, 64, 64, 22016),
            },
            max_positions=2048, eps=1e-6,
        ),
        **shapes({"llama-2-7b": seven, "llama-2-13b": thirteen, "llama-2-70b": seventy}),
        **shapes({"vicuna-7b": seven, "vicuna-13b": thirteen}),
        **shapes({"llama-3-8b": eight, "llama-3-70b": seventy}, max_positions=8192, **llama3),
        **shapes(
            {"llama-3.1-8b": eight, "llama-3.1-70b": seventy},
            rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192), **long,
        ),
        **shapes(
            {"llama-3.2-1b": (2048, 16, 32, 8, 8192), "llama-3.2-3b": (3072, 28, 24, 8, 8192)},
            rope_scaling=Llama3Scaling(32.0, 1.0, 4.0, 8192), tied=True, **long,
        ),
        **shapes({"tinyllama-1.1b": (2048, 22, 32, 4, 5632)}, max_positions=2048),
        **shapes(
            {"smollm2-135m": (576, 30, 9, 3, 1536), "smollm2-360m": (960, 32, 15, 5, 2560)},
            rope_theta=100000.0, **smol,
        ),
        **shapes({"smollm2-1.7b": (2048, 24, 32, 32, 8192)}, rope_theta=130000.0, **smol),
        **shapes(
            {
                "qwen2.5-0.5b": (896, 24, 14, 2, 4864), "qwen2.5-1.5b": (1536, 28, 12, 2, 8960),
                "qwen2.5-3b": (2048, 36, 16, 2, 11008),
            },
            vocab_size=151936, tied=True, **qwen,
        ),
        **shapes(
            {
                "qwen2.5-7b": (3584, 28, 28, 4, 18944), "qwen2.5-14b": (5120, 48, 40, 8, 13824),
                "qwen2.5-32b": (5120, 64, 40, 8, 27648), "qwen2.5-72b": (8192, 80, 64, 8, 29568),
            },
            vocab_size=152064, **qwen,
        ),
    }  # fmt: skip


def from_published(published: Mapping[str, Any]) -> LlamaConfig:
    """The shape that a published config.json describes (model types llama, mistral and qwen2).

    Args:
      published: the parsed config.json, older (`rope_theta`, `rope_scaling`) or newer (`rope_parameters`) layout.

    Raises:
      ValueError: a missing or wrong entry, an unknown rope scaling, or sliding-window attention, which full attention
        would get wrong.
    """
    kind = published["model_type"]
    given = Published(published, f"the configuration of a {kind} model")
    given.require("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    refuse_sliding_window(published, given)
    width, heads = given.whole("hidden_size"), given.whole("num_attention_heads")
    max_positions = given.whole("max_position_embeddings", 32768 if kind == "qwen2" else 2048)
    rope = _rope(published, given)
    biases = given if kind == "llama" else Published({}, given.kind)  # qwen2 has them on q, k and v, mistral nowhere
    return LlamaConfig(
        vocab_size=given.whole("vocab_size"),
        width=width,
        layers=given.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=given.whole("num_key_value_heads", heads),
        head_width=given.whole("head_dim", width // heads),
        mlp_width=given.whole("intermediate_size"),
        max_positions=max_positions,
        rope_theta=rope.real("rope_theta", given.real("rope_theta", 10000.0)),
        rope_scaling=read_scaling(rope, max_positions),
        eps=given.real("rms_norm_eps", 1e-6),
        qkv_bias=kind == "qwen2" or biases.flag("attention_bias", False),
        o_bias=biases.flag("attention_bias", False),
        mlp_bias=biases.flag("mlp_bias", False),
        tied=given.flag("tie_word_embeddings", False),
        activation=given.word("hidden_act", "silu"),
    )


def to_published(config: LlamaConfig) -> dict[str, Any]:
    """The contents of a config.json that transformers and `from_published` read as this shape.

    Raises:
      ValueError: norms of queries and keys, or biases, as in no implemented model type.
    """
    kind = "qwen2" if config.qkv_bias and not config.o_bias else "llama"
    if config.qk_norm or (config.o_bias and not config.qkv_bias) or (kind == "qwen2" and config.mlp_bias):
        raise ValueError("no model type has these biases and norms: give the model `published`, its config.json")
    biases = {"attention_bias": config.o_bias, "mlp_bias": config.mlp_bias}
    return {
        "architectures": ["Qwen2ForCausalLM" if kind == "qwen2" else "LlamaForCausalLM"], "model_type": kind,
        "vocab_size": config.vocab_size, "hidden_size": config.width, "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.layers, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads, "head_dim": config.head_width,
        "max_position_embeddings": config.max_positions, "rms_norm_eps": config.eps,
        "rope_parameters": {**config.rope_scaling.published, "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied, "hidden_act": config.activation, **(biases if kind == "llama" else {}),
    }  # fmt: skip


def _rope(published: Mapping[str, Any], given: Published) -> Published:
    """The rotary entries of a config.json, as transformers puts them together.

    `rope_scaling` comes before `rope_parameters`, and the trained length beside them before the one within.
    """
    rope = given.part("rope_scaling" if published.get("rope_scaling") else "rope_parameters")
    trained = given.entries.get("original_max_position_embeddings")
    return (
        rope if trained is None else Published(rope.entries | {"original_max_position_embeddings": trained}, rope.kind)
    )


def refuse_sliding_window(published: Mapping[str, Any], given: Published) -> None:
    """Raises ValueError if a config.json declares sliding-window attention, as Mistral v0.1 does.

    A model of type llama has no window: as in transformers, the entry is ignored there.
    """
    kind = published.get("model_type")
    window = published.get("sliding_window", 4096 if kind == "mistral" else None)
    if kind == "llama" or (kind == "qwen2" and not published.get("use_sliding_window", False)):
        window = None
    kinds = given.entries.get("layer_types", [])
    if not isinstance(kinds, list):
        raise ValueError(f"layer_types in {given.kind} must be a list, got {reprlib.repr(kinds)}")
    first = given.whole("max_window_layers", 0, least=0) if kind == "qwen2" else 0
    windowed = "sliding_attention" in kinds if kinds else first < given.whole("num_hidden_layers")
    if (kinds or window is not None) and windowed:
        raise ValueError(
            f"this {kind} checkpoint attends over a sliding window of {window} positions, which is not implemented: "
            "full attention would give other logits; use a checkpoint without sliding_window"
        )


class Attention(nnx.Module):
    """Grouped-query self-attention with rotary positions."""

    def __init__(self, config: LlamaConfig, fmt: Format, *, inputs: int | None = None, rngs: nnx.Rngs):
        queries, keys = config.heads * config.head_width, config.kv_heads * config.head_width
        make = functools.partial(Linear, inputs or config.width, fmt=fmt, bias=config.qkv_bias, std=0.02, rngs=rngs)
        self.head_width, self.fmt = config.head_width, fmt
        self.q, self.k, self.v = make(queries), make(keys), make(keys)
        std = 0.02 / (2 * config.layers) ** 0.5
        self.o = Linear(queries, config.width, fmt, bias=config.o_bias, std=std, rngs=rngs)
        norm = lambda: RMSNorm(config.head_width, config.eps) if config.qk_norm else None
        self.q_norm, self.k_norm = norm(), norm()

    def keys(self, x: Float[Array, "B S D"], turn: Rotation) -> Float[Array, "B S K W"]:
        k = self._split(self.k(x))
        return rotate(k if self.k_norm is None else self.k_norm(k), turn)

    def _split(self, a: Array) -> Array:
        return a.reshape(*a.shape[:2], -1, self.head_width)

    def queries(self, x: Float[Array, "B S D"], turn: Rotation) -> Float[Array, "B S H K"]:
        q = self._split(self.q(x))
        return rotate(q if self.q_norm is None else self.q_norm(q), turn)

    def values(self, x: Float[Array, "B S D"]) -> Float[Array, "B S K W"]:
        return self._split(self.v(x))

    def __call__(self, x, turn: Rotation, visible, layers, index, start):
        q, k, v = self.queries(x, turn), self.keys(x, turn), self.values(x)
        layers, kv = caches.write(layers, index, k, v, start)
        return self.o(attend(q, kv, visible, scale=self.head_width**-0.5, fmt=self.fmt)), layers


class MLP(nnx.Module):
    """Gate and up, their product through the activation, down."""

    def __init__(self, config: LlamaConfig, fmt: Format, *, rngs: nnx.Rngs):
        self.activation = ACTIVATIONS[config.activation]
        make = functools.partial(Linear, fmt=fmt, bias=config.mlp_bias, rngs=rngs)
        self.gate = make(config.width, config.mlp_width, std=0.02)
        self.up = make(config.width, config.mlp_width, std=0.02)
        self.down = make(config.mlp_width, config.width, std=0.02 / (2 * config.layers) ** 0.5)

    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block(nnx.Module):
    """One layer: norms before the sub-layers."""

    def __init__(self, config: LlamaConfig, fmt: Format, *, rngs: nnx.Rngs):
        self.attn_norm = RMSNorm(config.width, config.eps)
        self.attn = Attention(config, fmt, rngs=rngs)
        self.mlp_norm = RMSNorm(config.width, config.eps)
        self.mlp = MLP(config, fmt, rngs=rngs)

    def queries(self, x: Float[Array, "B S D"], turn: Rotation) -> Float[Array, "B S H K"]:
        return self.attn.queries(self.attn_norm(x), turn)

    def __call__(self, x, turn: Rotation, visible, layers, index, start):
        mixed, layers = self.attn(self.attn_norm(x), turn, visible, layers, index, start)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), layers


class Embed(nnx.Module):
    """Word table."""

    def __init__(self, config: LlamaConfig, fmt: Format, *, rngs: nnx.Rngs):
        self.tokens = Table(config.vocab_size, config.width, fmt, std=0.02, rngs=rngs)


class Llama(CausalLM):
    """A model of the Llama family as a Flax module.

    >>> import jax.numpy as jnp
    >>> config = LlamaConfig(50, width=16, layers=2, heads=4, kv_heads=2, head_width=4, mlp_width=32)
    >>> model = Llama(config, rngs=nnx.Rngs(0))
    >>> model(jnp.asarray([[2, 7, 11]])).shape
    (1, 3, 50)

    Args:
      config: shape of the model.
      fmt: layout of the weights; default: float32 in the layout of the platform.
      rngs: draws the weights from its `params` stream.
    """

    def __init__(self, config: LlamaConfig, fmt: Format | None = None, *, rngs: nnx.Rngs):
        fmt = fmt or default_format()
        self.config, self.fmt = config, fmt
        self.embed = Embed(config, fmt, rngs=rngs)
        self.final_norm = RMSNorm(config.width, config.eps)
        make = functools.partial(Linear, config.width, config.vocab_size, fmt, bias=False, std=0.02, rngs=rngs)
        self.head = None if config.tied else make()
        self.layers = make_layers(lambda rngs: Block(config, fmt, rngs=rngs), rngs, config.layers, fmt.stacked)

    def shared(self, positions: Int[Array, "B S"]) -> tuple[Rotation]:
        config = self.config
        turn = rotation(positions, theta=config.rope_theta, width=config.head_width, scaling=config.rope_scaling)
        return (turn,)

    def enter(self, tokens: Int[Array, "B S"], positions: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        del positions  # the layers turn by them
        return self.embed.tokens(tokens)

    def leave(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        return self.final_norm(x)

    def unembed(self, features: Float[Array, "B S D"], tokens: Int[Array, "N"] | slice = ALL) -> Float[Array, "B S V"]:
        return self.embed.tokens.logits(features, tokens) if self.head is None else self.head(features, tokens)


# --- the record ------------------------------------------------------------------------------------------------------

LINEAR_NAMES = {
    "self_attn.q_proj": "attn.q",
    "self_attn.k_proj": "attn.k",
    "self_attn.v_proj": "attn.v",
    "self_attn.o_proj": "attn.o",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}
NAMES = NameTable(
    entries=(
        ("embed_tokens.weight", "embed.tokens.table"),
        ("layers.{i}.input_layernorm.weight", "layers.{i}.attn_norm.scale"),
        ("layers.{i}.post_attention_layernorm.weight", "layers.{i}.mlp_norm.scale"),
        *((f"layers.{{i}}.{hf}.weight", f"layers.{{i}}.{path}.kernel") for hf, path in LINEAR_NAMES.items()),
        *((f"layers.{{i}}.{hf}.bias", f"layers.{{i}}.{path}.bias") for hf, path in LINEAR_NAMES.items()),
        ("norm.weight", "final_norm.scale"),
        ("lm_head.weight", "head.kernel"),
    ),
    prefixes=("model.", ""),
    bare=("lm_head.weight",),
    aliases=(("lm_head.weight", "embed.tokens.table"),),  # tied: used where only the head was written
    ignored=(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),  # buffers of old releases
)


def settle_ties(published: dict[str, Any], names: Collection[str], same: Callable[[str, str], bool]) -> dict[str, Any]:
    """Unties a stored head that differs from the embedding, as transformers 5 does."""
    both = ("lm_head.weight", "model.embed_tokens.weight")
    if published.get("tie_word_embeddings") is True and set(both) <= set(names) and not same(*both):
        return {**published, "tie_word_embeddings": False}
    return published


FAMILY = Family(
    name="llama",
    model=Llama,
    model_types=("llama", "mistral", "qwen2"),
    from_published=from_published,
    to_published=to_published,
    names=lambda published: NAMES,
    ties=settle_ties,
    rules=Rules(
        (
            EMBEDDING_RULE,
            HEAD_RULE,
            *kernel_rules(mlp="gate|up"),
            *bias_rules(mlp="gate|up"),
            Rule(r"layers\.(attn|mlp)_norm\.scale", (VECTOR,)),
            Rule(r"final_norm\.scale", (VECTOR,)),
        )
    ),
)
