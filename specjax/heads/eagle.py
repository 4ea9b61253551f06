"""EAGLE heads: one decoder layer over pairs of a target's feature and the token that follows it.

EAGLE-1, HASS   reads the target's last feature, and drafts features of its own: Li et al. 2024, arXiv 2401.15077;
                Zhang et al. 2024, arXiv 2408.15766 (the same head, trained otherwise)
EAGLE-3         reads three residual streams, and drafts from its own hidden states: Li et al. 2025,
                    arXiv 2503.01840

pair        0         1         ...   n-2                      after n committed tokens
feature     f_0       f_1       ...   f_n-2                    of the target, which has read t_0 .. t_n-2
token       t_1       t_2       ...   t_n-1, `pending`
drafts                                t_n, then from its own output at n-2 and t_n the next one, and so on
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specjax.models.format import Format
from specjax.models.layers import Linear, RMSNorm, Table
from specjax.models.llama import MLP, Attention, LlamaConfig
from specjax.models.rope import Rotation, rotation


@dataclasses.dataclass(frozen=True)
class EagleConfig:
    """Shape of an EAGLE head; hashable, so a static argument.

    Attributes:
      layer: of its decoder layers, a LlamaConfig; `vocab_size` is the target's.
      features: width of what it reads of the target at each position: all taps together.
      taps: residual streams of the target, as `Drafter.capture`; (): the last feature, as EAGLE-1.
      draft_vocab: tokens that it can draft; the target's vocabulary where it has no table of them.
      window: positions that attention reaches back; None: all.
      sinks: first positions that a window does not hide.
      own_embedding: it has its own embedding table; else it uses the target's.
      fc_bias: the fusing map has a bias.
      embedding_norm, input_norm, out_norm: EAGLE-1 as written by older versions of the package `speculators`: norms of
        the embedding, before the attention of the first layer, and before the target's head.
      norm_before_residual: EAGLE-3: the residual stream starts from the normed features.
      norm_before_fc: EAGLE-3: a norm over all taps together.
      fc_norm: EAGLE-3.1: a norm of each tap.
      norm_output: EAGLE-3: the next features are normed.
    """

    layer: Any
    features: int
    taps: tuple[int, ...] = ()
    draft_vocab: int = 0
    window: int | None = None
    sinks: int = 0
    own_embedding: bool = False
    fc_bias: bool = False
    embedding_norm: bool = False
    input_norm: bool = False
    out_norm: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @property
    def width(self) -> int:
        return self.layer.width

    @property
    def layers(self) -> int:
        return self.layer.layers

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer."""
        return (self.window,) * self.layers


# (attention module, its input, what turns by positions, index of the layer, state) -> (output, state). The state holds
# the caches, or in training the keys and values of earlier steps. The module is Llama's, or `spire.Reading`.
Attend = Callable[[Any, Array, Any, int, Any], tuple[Array, Any]]


class Layer(nnx.Module):
    """A layer of Llama, whose attention may read something other than its normed residual stream."""

    def __init__(
        self, config: LlamaConfig, fmt: Format, *, norm: bool = True, inputs: int | None = None, rngs: nnx.Rngs
    ):
        self.attn_norm = RMSNorm(config.width, config.eps) if norm else None
        self.attn = Attention(config, fmt, inputs=inputs, rngs=rngs)
        self.mlp_norm = RMSNorm(config.width, config.eps)
        self.mlp = MLP(config, fmt, rngs=rngs)

    def __call__(self, x, turn: Rotation, attend: Attend, index: int, state: Any, *, attended: Array | None = None):
        if attended is None:
            attended = x if self.attn_norm is None else self.attn_norm(x)
        mixed, state = attend(self.attn, attended, turn, index, state)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), state


class _EagleHead(nnx.Module):
    """What both heads share: the walk through the layers, and the embedding."""

    config: EagleConfig
    fmt: Format
    embed: Table | None
    layers: Any

    def embedding(self, ends: Any, tokens: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        return ends.embed.tokens(tokens) if self.embed is None else self.embed(tokens)

    def turn(self, positions: Int[Array, "B S"]) -> Rotation:
        layer = self.config.layer
        return rotation(positions, theta=layer.rope_theta, width=layer.head_width, scaling=layer.rope_scaling)


class Eagle(_EagleHead):
    """EAGLE-1. Features it drafts imitate the target's last feature, so the target's head reads them."""

    def __init__(self, config: EagleConfig, fmt: Format, *, rngs: nnx.Rngs):
        self.config, self.fmt = config, fmt
        layer, norm = config.layer, lambda wanted: RMSNorm(config.width, config.layer.eps) if wanted else None
        self.embed = Table(layer.vocab_size, config.width, fmt, std=0.02, rngs=rngs) if config.own_embedding else None
        self.embed_norm = norm(config.embedding_norm)
        self.fc = Linear(config.width + config.features, config.width, fmt, bias=config.fc_bias, std=0.02, rngs=rngs)
        make = lambda index: Layer(layer, fmt, norm=index > 0 or config.input_norm, rngs=rngs)
        self.layers = nnx.Dict({str(index): make(index) for index in range(layer.layers)})
        self.out_norm = norm(config.out_norm)

    def fuse(self, features: Float[Array, "B S _"], hiddens: tuple[Array, ...]) -> Float[Array, "B S D"]:
        """What the head reads of the target's hidden states, at each position."""
        del hiddens
        return features

    def enter(self, ends: Any, tokens: Int[Array, "B S"], given: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """The stream that enters the first layer."""
        embedded = self.embedding(ends, tokens)
        embedded = embedded if self.embed_norm is None else self.embed_norm(embedded)
        return self.fc(jnp.concatenate([embedded, given], -1))

    def __call__(
        self, ends: Any, tokens: Int[Array, "B S"], given: Float[Array, "B S D"], positions: Int[Array, "B S"],
        attend: Attend, state: Any,
    ) -> tuple[Float[Array, "B S D"], Any]:  # fmt: skip
        """Outputs for pairs of a token and what was `given` for the position before it, and the state of `attend`.

        Args:
          ends: the target without its layers (`Family.ends`).
        """
        x, turn = self.enter(ends, tokens, given), self.turn(positions)
        for index in range(self.config.layers):
            x, state = self.layers[str(index)](x, turn, attend, index, state)
        return x, state

    def next_given(self, out: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """What a drafted token's pair is given: the features that the head drafted."""
        return out

    def logits(self, ends: Any, out: Float[Array, "B S D"]) -> Float[Array, "B S V"]:
        """Logits over the draft vocabulary."""
        return ends.unembed(out if self.out_norm is None else self.out_norm(out))


class Eagle3(_EagleHead):
    """EAGLE-3: no features are imitated, and the head has its own output matrix."""

    def __init__(self, config: EagleConfig, fmt: Format, *, rngs: nnx.Rngs):
        self.config, self.fmt = config, fmt
        layer, width = config.layer, config.width
        self.embed = Table(layer.vocab_size, width, fmt, std=0.02, rngs=rngs) if config.own_embedding else None
        tap = config.features // len(config.taps)
        self.input_norm = RMSNorm(config.features, layer.eps) if config.norm_before_fc else None
        norms = {str(index): RMSNorm(tap, layer.eps) for index in range(len(config.taps))}
        self.fc_norm = nnx.Dict(norms) if config.fc_norm else None
        self.fc = Linear(config.features, width, fmt, bias=config.fc_bias, std=0.02, rngs=rngs)
        self.embed_norm, self.hidden_norm = RMSNorm(width, layer.eps), RMSNorm(width, layer.eps)
        first = Layer(layer, fmt, norm=False, inputs=2 * width, rngs=rngs)
        others = {str(index): Layer(layer, fmt, rngs=rngs) for index in range(1, layer.layers)}
        self.layers = nnx.Dict({"0": first, **others})
        self.final_norm = RMSNorm(width, layer.eps)
        self.head = Linear(width, config.draft_vocab, fmt, bias=False, std=0.02, rngs=rngs)

    def fuse(self, features: Float[Array, "B S _"], hiddens: tuple[Array, ...]) -> Float[Array, "B S D"]:
        del features
        if self.fc_norm is not None:
            hiddens = tuple(self.fc_norm[str(index)](tap) for index, tap in enumerate(hiddens))
        joined = jnp.concatenate(hiddens, -1)
        return self.fc(joined if self.input_norm is None else self.input_norm(joined))

    def __call__(
        self, ends: Any, tokens: Int[Array, "B S"], given: Float[Array, "B S D"], positions: Int[Array, "B S"],
        attend: Attend, state: Any,
    ) -> tuple[Float[Array, "B S D"], Any]:  # fmt: skip
        turn, normed = self.turn(positions), self.hidden_norm(given)
        attended = jnp.concatenate([self.embed_norm(self.embedding(ends, tokens)), normed], -1)
        x = normed if self.config.norm_before_residual else given
        x, state = self.layers["0"](x, turn, attend, 0, state, attended=attended)
        for index in range(1, self.config.layers):
            x, state = self.layers[str(index)](x, turn, attend, index, state)
        return x, state

    def next_given(self, out: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        return self.final_norm(out) if self.config.norm_output else out

    def logits(self, ends: Any, out: Float[Array, "B S D"]) -> Float[Array, "B S V"]:
        del ends
        return self.head(self.final_norm(out))
