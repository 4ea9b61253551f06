"""OPT (Zhang et al. 2022, arXiv 2205.01068): learned positions, ReLU, tied head, every published shape.

350m alone normalizes after each sub-layer, has no final norm, and projects its word embeddings to the model's width.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, Int

from specjax.models import cache as caches
from specjax.models.attention import attend
from specjax.models.decoder import CausalLM
from specjax.models.family import (
    EMBEDDING_RULE,
    VECTOR,
    WHOLE,
    Family,
    NameTable,
    Rule,
    Rules,
    bias_rules,
    kernel_rules,
)
from specjax.models.format import Format, default_format
from specjax.models.layers import ACTIVATIONS, ALL, LayerNorm, Linear, Table, check_activation, make_layers
from specjax.models.published import Published

POSITION_OFFSET = 2  # position p has row p + 2 of the table: a legacy of fairseq's padding index


@dataclasses.dataclass(frozen=True)
class OPTConfig:
    """Shape of an OPT model; names follow the published configuration where they are clear."""

    vocab_size: int = 50272
    width: int = 768
    embed_width: int = 768
    layers: int = 12
    heads: int = 12
    mlp_width: int = 3072
    max_positions: int = 2048
    pre_norm: bool = True
    activation: str = "relu"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a width of {self.width} evenly")
        check_activation(self.activation)

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def positions(self) -> int:
        """Size of the table of positions."""
        return self.max_positions


def sizes() -> dict[str, OPTConfig]:
    """The published shapes, 125m to 66b."""
    table = {
        "125m": (768, 12, 12), "1.3b": (2048, 24, 32), "2.7b": (2560, 32, 32), "6.7b": (4096, 32, 32),
        "13b": (5120, 40, 40), "30b": (7168, 48, 56), "66b": (9216, 64, 72),
    }  # fmt: skip
    shapes = {
        name: OPTConfig(width=d, embed_width=d, layers=n, heads=h, mlp_width=4 * d) for name, (d, n, h) in table.items()
    }
    shapes["350m"] = OPTConfig(width=1024, embed_width=512, layers=24, heads=16, mlp_width=4096, pre_norm=False)
    return shapes


class Attention(nnx.Module):
    """Multi-head self-attention with biases."""

    def __init__(self, config: OPTConfig, fmt: Format, *, rngs: nnx.Rngs):
        make = functools.partial(Linear, config.width, config.width, fmt, bias=True, rngs=rngs)
        self.head_width, self.fmt = config.head_width, fmt
        self.q, self.k, self.v = make(std=0.02), make(std=0.02), make(std=0.02)
        self.o = make(std=0.02 / (2 * config.layers) ** 0.5)

    def _split(self, a: Array) -> Array:
        return a.reshape(*a.shape[:2], -1, self.head_width)

    def queries(self, x: Float[Array, "B S D"]) -> Float[Array, "B S H K"]:
        return self._split(self.q(x))

    def keys(self, x: Float[Array, "B S D"]) -> Float[Array, "B S H K"]:
        return self._split(self.k(x))

    def values(self, x: Float[Array, "B S D"]) -> Float[Array, "B S H K"]:
        return self._split(self.v(x))

    def __call__(self, x, visible, layers, index, start):
        q, k, v = self.queries(x), self.keys(x), self.values(x)
        layers, kv = caches.write(layers, index, k, v, start)
        return self.o(attend(q, kv, visible, scale=self.head_width**-0.5, fmt=self.fmt)), layers


class MLP(nnx.Module):
    """Up, activation, down, with biases."""

    def __init__(self, config: OPTConfig, fmt: Format, *, rngs: nnx.Rngs):
        self.activation = ACTIVATIONS[config.activation]
        self.up = Linear(config.width, config.mlp_width, fmt, bias=True, std=0.02, rngs=rngs)
        std = 0.02 / (2 * config.layers) ** 0.5
        self.down = Linear(config.mlp_width, config.width, fmt, bias=True, std=std, rngs=rngs)

    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        return self.down(self.activation(self.up(x)))


class Block(nnx.Module):
    """One layer; norms before the sub-layers, or after them (350m)."""

    def __init__(self, config: OPTConfig, fmt: Format, *, rngs: nnx.Rngs):
        self.pre_norm = config.pre_norm
        self.attn_norm = LayerNorm(config.width, config.eps)
        self.attn = Attention(config, fmt, rngs=rngs)
        self.mlp_norm = LayerNorm(config.width, config.eps)
        self.mlp = MLP(config, fmt, rngs=rngs)

    def queries(self, x: Float[Array, "B S D"]) -> Float[Array, "B S H K"]:
        return self.attn.queries(self.attn_norm(x) if self.pre_norm else x)

    def __call__(self, x, visible, layers, index, start):
        mixed, layers = self.attn(self.attn_norm(x) if self.pre_norm else x, visible, layers, index, start)
        x = x + mixed if self.pre_norm else self.attn_norm(x + mixed)
        if self.pre_norm:
            return x + self.mlp(self.mlp_norm(x)), layers
        return self.mlp_norm(x + self.mlp(x)), layers


class Embed(nnx.Module):
    """Word table and learned positions."""

    def __init__(self, config: OPTConfig, fmt: Format, *, rngs: nnx.Rngs):
        make = functools.partial(Table, std=0.02, rngs=rngs)
        self.tokens = make(config.vocab_size, config.embed_width, fmt)
        self.positions = make(config.max_positions + POSITION_OFFSET, config.width, Format())


class OPT(CausalLM):
    """OPT as a Flax module.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> config = OPTConfig(vocab_size=50, width=16, embed_width=16, layers=2, heads=2, mlp_width=32)
    >>> model = OPT(config, rngs=nnx.Rngs(0))
    >>> model(jnp.asarray([[2, 7, 11]])).shape
    (1, 3, 50)

    It trains in any Flax loop:

    >>> import optax
    >>> optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=nnx.Param)
    >>> tokens = jax.random.randint(jax.random.key(0), (4, 9), 0, 50)
    >>> @nnx.jit
    ... def train_step(model, optimizer):
    ...     def loss(model):
    ...         logits = model(tokens[:, :-1])
    ...         return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
    ...     value, gradients = nnx.value_and_grad(loss)(model)
    ...     optimizer.update(model, gradients)
    ...     return value
    >>> losses = [float(train_step(model, optimizer)) for _ in range(10)]
    >>> losses[-1] < losses[0]
    True

    Args:
      config: shape of the model.
      fmt: layout of the weights; default: float32 in the layout of the platform.
      rngs: draws the weights from its `params` stream.
    """

    def __init__(self, config: OPTConfig, fmt: Format | None = None, *, rngs: nnx.Rngs):
        fmt = fmt or default_format()
        self.config, self.fmt = config, fmt
        self.embed = Embed(config, fmt, rngs=rngs)
        projected = config.embed_width != config.width
        make = functools.partial(Linear, fmt=fmt, bias=False, std=0.02, rngs=rngs)
        self.project_in = make(config.embed_width, config.width) if projected else None
        self.project_out = make(config.width, config.embed_width) if projected else None
        self.final_norm = LayerNorm(config.width, config.eps) if config.pre_norm else None
        self.layers = make_layers(lambda rngs: Block(config, fmt, rngs=rngs), rngs, config.layers, fmt.stacked)

    def enter(self, tokens: Int[Array, "B S"], positions: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        x = self.embed.tokens(tokens)
        if self.project_in is not None:
            x = self.project_in(x)
        return x + self.embed.positions(positions + POSITION_OFFSET)

    def leave(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        return x if self.final_norm is None else self.final_norm(x)

    def unembed(self, features: Float[Array, "B S D"], tokens: Int[Array, "N"] | slice = ALL) -> Float[Array, "B S V"]:
        return self.embed.tokens.logits(features if self.project_out is None else self.project_out(features), tokens)


def from_published(published: Mapping[str, Any]) -> OPTConfig:
    """The shape that a published config.json describes.

    Raises:
      ValueError: a missing or wrong entry, or a variant that no published OPT has (no biases, norms without
        parameters).
    """
    given = Published(published, "the configuration of an OPT model")
    given.require("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim")
    for name in ("enable_bias", "layer_norm_elementwise_affine", "tie_word_embeddings"):
        if not given.flag(name, True):
            raise ValueError(f"OPT with {name}=false is not supported: every published OPT has it true")
    if given.flag("_remove_final_layer_norm", False) and given.flag("do_layer_norm_before", True):
        raise ValueError("OPT with _remove_final_layer_norm=true is not supported: every published OPT has the norm")
    width = given.whole("hidden_size")
    return OPTConfig(
        vocab_size=given.whole("vocab_size"),
        width=width,
        embed_width=given.whole("word_embed_proj_dim", width),
        layers=given.whole("num_hidden_layers"),
        heads=given.whole("num_attention_heads"),
        mlp_width=given.whole("ffn_dim"),
        max_positions=given.whole("max_position_embeddings", 2048),
        pre_norm=given.flag("do_layer_norm_before", True),
        activation=given.word("activation_function", "relu"),
    )


def to_published(config: OPTConfig) -> dict[str, Any]:
    """The contents of a config.json that transformers and `from_published` read as this shape."""
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "word_embed_proj_dim": config.embed_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "ffn_dim": config.mlp_width,
        "max_position_embeddings": config.max_positions,
        "do_layer_norm_before": config.pre_norm,
        "activation_function": config.activation,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "bos_token_id": 2,
        "pad_token_id": 1,
        "eos_token_id": 2,
    }


# --- the record ------------------------------------------------------------------------------------------------------


def _affine(hf: str, path: str, first: str) -> tuple[tuple[str, str], ...]:
    """A linear map (first "kernel") or a norm (first "scale"), with its bias."""
    return ((f"{hf}.weight", f"{path}.{first}"), (f"{hf}.bias", f"{path}.bias"))


# OPTForCausalLM, or OPTModel with and without "model."
NAMES = NameTable(
    entries=(
        ("embed_tokens.weight", "embed.tokens.table"),
        ("embed_positions.weight", "embed.positions.table"),
        ("project_in.weight", "project_in.kernel"),
        ("project_out.weight", "project_out.kernel"),
        *_affine("layers.{i}.self_attn_layer_norm", "layers.{i}.attn_norm", "scale"),
        *_affine("layers.{i}.self_attn.q_proj", "layers.{i}.attn.q", "kernel"),
        *_affine("layers.{i}.self_attn.k_proj", "layers.{i}.attn.k", "kernel"),
        *_affine("layers.{i}.self_attn.v_proj", "layers.{i}.attn.v", "kernel"),
        *_affine("layers.{i}.self_attn.out_proj", "layers.{i}.attn.o", "kernel"),
        *_affine("layers.{i}.final_layer_norm", "layers.{i}.mlp_norm", "scale"),
        *_affine("layers.{i}.fc1", "layers.{i}.mlp.up", "kernel"),
        *_affine("layers.{i}.fc2", "layers.{i}.mlp.down", "kernel"),
        *_affine("final_layer_norm", "final_norm", "scale"),
    ),
    prefixes=("model.decoder.", "decoder.", ""),
    aliases=(("lm_head.weight", "embed.tokens.table"),),  # tied
    ignored=(r"(model\.)?decoder\.version",),
)

FAMILY = Family(
    name="opt",
    model=OPT,
    model_types=("opt",),
    from_published=from_published,
    to_published=to_published,
    names=lambda published: NAMES,
    rules=Rules(
        (
            EMBEDDING_RULE,
            Rule(r"embed\.positions\.table", (WHOLE,)),
            Rule(r"project_(in|out)\.kernel", (WHOLE,)),
            *kernel_rules(),
            *bias_rules(),
            Rule(r"layers\.(attn|mlp)_norm\.(scale|bias)", (VECTOR,)),
            Rule(r"final_norm\.(scale|bias)", (VECTOR,)),
        )
    ),
)
