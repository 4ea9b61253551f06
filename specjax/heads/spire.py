"""SPIRe: layers cut from the target, whose attention reads a short memory of streams instead of their own past.

    pair         0       1       ...   n-2         n-1             after n committed tokens
    memory       s_0     s_1     ...   s_n-2       m_n-1           of layer i. s: the stream that entered the target's
    token        t_1     t_2     ...   pending     t_n             layer that it copies; m: a mix of the draft's streams
    drafts                             t_n         t_n+1           at that position, with weights that are learned

Queries come from the token, keys and values from the memory of earlier positions: the first ones (sinks) and a window.
Neelam et al. 2025, arXiv 2504.06419. Experimental: the authors published no weights and no code of the draft.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specjax.heads.eagle import Attend, EagleConfig
from specjax.models import cache as caches
from specjax.models import llama, opt
from specjax.models.attention import attend
from specjax.models.format import Format
from specjax.models.layers import LayerNorm, RMSNorm

LAYERS = {llama.LlamaConfig: llama.Block, opt.OPTConfig: opt.Block}
NORMS = {llama.LlamaConfig: RMSNorm, opt.OPTConfig: LayerNorm}


@dataclasses.dataclass(frozen=True)
class SpireConfig(EagleConfig):
    """Shape of a SPIRe draft; hashable, so a static argument.

    Attributes:
      layer: of the target, with as many layers as there are taps: LlamaConfig, or OPTConfig with norms before layers.
    """

    @property
    def width(self) -> int:
        """The memories of all layers, and the stream that leaves the last one."""
        return (self.layers + 1) * self.layer.width


class Reading:
    """The attention of a layer, for `Attend`: its input is what queries come from beside what keys and values do.

    Args:
      turn: what the attention of the target's family takes beside them: for queries, and for keys.
    """

    def __init__(self, attn: Any):
        self.attn, self.o, self.head_width = attn, attn.o, attn.head_width

    def queries(self, x: Float[Array, "B S E"], turn: tuple[tuple, tuple]) -> Float[Array, "B S H K"]:
        return self.attn.queries(jnp.split(x, 2, axis=-1)[0], *turn[0])

    def keys(self, x: Float[Array, "B S E"], turn: tuple[tuple, tuple]) -> Float[Array, "B S K W"]:
        return self.attn.keys(jnp.split(x, 2, axis=-1)[1], *turn[1])

    def values(self, x: Float[Array, "B S E"]) -> Float[Array, "B S K W"]:
        return self.attn.values(jnp.split(x, 2, axis=-1)[1])

    def __call__(self, x, turn, visible, layers, index, start):
        layers, kv = caches.write(layers, index, self.keys(x, turn), self.values(x), start)
        scale = self.head_width**-0.5
        return self.o(attend(self.queries(x, turn), kv, visible, scale=scale, fmt=self.attn.fmt)), layers


class Spire(nnx.Module):
    """The draft; the embedding and the output matrix are the target's."""

    def __init__(self, config: SpireConfig, fmt: Format, *, rngs: nnx.Rngs):
        self.config, self.fmt = config, fmt
        kind = type(config.layer)
        self.layers = nnx.Dict(
            {str(index): LAYERS[kind](config.layer, fmt, rngs=rngs) for index in range(config.layers)}
        )
        self.mix = nnx.Param(jnp.zeros((config.layers, config.layers + 1), jnp.float32))
        self.final_norm = NORMS[kind](config.layer.width, config.layer.eps)

    def fuse(self, features: Float[Array, "B S D"], hiddens: tuple[Array, ...]) -> Float[Array, "B S F"]:
        """The memory of positions that the target has read; its last part is not read."""
        return jnp.concatenate([*hiddens, features], -1)

    def __call__(
        self, ends: Any, tokens: Int[Array, "B S"], given: Float[Array, "B S F"], positions: Int[Array, "B S"],
        attend: Attend, state: Any,
    ) -> tuple[Float[Array, "B S F"], Any]:  # fmt: skip
        """See `Eagle`: outputs are the memories of the tokens' own positions, and the last stream."""
        after = ends.clamp(positions + 1)  # a token stands one place behind the position whose memory it is given
        turn, x = (ends.shared(after), ends.shared(positions)), ends.enter(tokens, after)
        streams = [x]
        for index, memory in enumerate(jnp.split(given, self.config.layers + 1, axis=-1)[:-1]):
            layer = self.layers[str(index)]
            read = jnp.concatenate([layer.attn_norm(x), layer.attn_norm(memory)], -1)
            mixed, state = attend(Reading(layer.attn), read, turn, index, state)
            x = x + mixed
            x = x + layer.mlp(layer.mlp_norm(x))
            streams.append(x)
        weights = jax.nn.softmax(self.mix[...], axis=-1)
        mixes = jnp.einsum("ls,sbnd->lbnd", weights, jnp.stack(streams))
        return jnp.concatenate([*mixes, x], -1), state

    def next_given(self, out: Float[Array, "B S F"]) -> Float[Array, "B S F"]:
        return out

    def logits(self, ends: Any, out: Float[Array, "B S F"]) -> Float[Array, "B S V"]:
        return ends.unembed(self.final_norm(out[..., -self.config.layer.width :]))
