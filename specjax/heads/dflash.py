"""DFlash: a block of mask tokens, denoised in one pass over the target's features (Chen et al. 2026, arXiv 2602.06036).

    context   c_0   c_1   ...   c_n-2      fused features of the target, after n committed tokens: keys and values alone
    block     pending   mask   ...   mask  positions n-1, n, ...: sees the context and all of itself
    drafts              t_n    ...         the slot's own token; with `from_anchor` the next one, from `pending` on

Embedding and output matrix are the target's. Only the keys and values of the context stay in the cache.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from specjax.heads.eagle import Attend, Layer
from specjax.models import cache as caches
from specjax.models.format import Format
from specjax.models.layers import Linear, RMSNorm
from specjax.models.llama import LlamaConfig
from specjax.models.rope import Rotation, rotation


@dataclasses.dataclass(frozen=True)
class DFlashConfig:
    """Shape of a DFlash head; hashable, so a static argument.

    Attributes:
      layer: of its decoder layers; `vocab_size` is the target's.
      taps: residual streams of the target, as `Drafter.capture`.
      mask_token: what fills a block behind `pending`.
      block: slots of a block, `pending` included.
      windows: of each layer: positions before `pending` that attention reaches back to; None: all.
      causal: in layers with a window, slots of a block see only those before them.
      from_anchor: each slot drafts the token after its own, so that the slot of `pending` drafts too.
      draft_vocab: rows of its own output matrix; 0: it uses the target's.
    """

    layer: LlamaConfig
    taps: tuple[int, ...]
    mask_token: int
    block: int
    windows: tuple[int | None, ...]
    causal: bool = False
    from_anchor: bool = False
    draft_vocab: int = 0

    @property
    def width(self) -> int:
        return self.layer.width

    @property
    def drafting(self) -> slice:
        """The slots that draft."""
        return slice(0 if self.from_anchor else 1, self.block)

    @property
    def most(self) -> int:
        """Most tokens that it drafts in a round."""
        return self.block - self.drafting.start


class DFlash(nnx.Module):
    """The layers of Qwen3, over a context that is never in the residual stream."""

    def __init__(self, config: DFlashConfig, fmt: Format, *, rngs: nnx.Rngs):
        self.config, self.fmt = config, fmt
        layer, width = config.layer, config.width
        self.fc = Linear(len(config.taps) * width, width, fmt, bias=False, std=0.02, rngs=rngs)
        self.hidden_norm = RMSNorm(width, layer.eps)
        self.layers = nnx.Dict({str(index): Layer(layer, fmt, rngs=rngs) for index in range(layer.layers)})
        self.final_norm = RMSNorm(width, layer.eps)
        make = lambda rows: Linear(width, rows, fmt, bias=False, std=0.02, rngs=rngs)
        self.head = make(config.draft_vocab) if config.draft_vocab else None

    def turn(self, positions: Int[Array, "B S"]) -> Rotation:
        layer = self.config.layer
        return rotation(positions, theta=layer.rope_theta, width=layer.head_width, scaling=layer.rope_scaling)

    def fuse(self, hiddens: tuple[Float[Array, "B S D"], ...]) -> Float[Array, "B S D"]:
        """The context: what keys and values are computed of, at each position that the target has read."""
        return self.hidden_norm(self.fc(jnp.concatenate(hiddens, -1)))

    def read_context(self, hiddens: tuple[Float[Array, "B S D"], ...], layers: Any, start: Int[Array, "B"]) -> Any:
        """The caches with keys and values of the target's hidden states at positions `start`, `start` + 1, ..."""
        fused = self.fuse(hiddens)
        turn = self.turn(start[:, None] + jnp.arange(fused.shape[1], dtype=jnp.int32)[None])
        for index in range(self.config.layer.layers):
            attn = self.layers[str(index)].attn
            layers, _ = caches.write(layers, index, attn.keys(fused, turn), attn.values(fused), start)
        return layers

    def draft(
        self, ends: Any, pending: Int[Array, "B"], layers: Any, length: Int[Array, "B"]
    ) -> tuple[Float[Array, "B S D"], Any]:
        """Outputs of the slots of a block behind `length` positions of context, and the caches with the block."""
        config = self.config
        visible = {window: self.visible(window, layers, length) for window in set(config.windows)}

        def attend(attn, x, turn, index, layers):
            return attn(x, turn, visible[config.windows[index]], layers, index, length)

        return self(ends, pending[:, None], length[:, None], attend, layers)

    def __call__(
        self, ends: Any, pending: Int[Array, "B N"], positions: Int[Array, "B N"], attend: Attend, state: Any
    ) -> tuple[Float[Array, "B S D"], Any]:
        """Outputs of the slots of blocks, one behind the other, and the state of `attend`.

        Args:
          ends: the target without its layers (`Family.ends`).
          pending, positions: the first token of each block, and its position.
        """
        config = self.config
        slot = jnp.arange(config.block, dtype=jnp.int32)[None, None]
        turn = self.turn((positions[..., None] + slot).reshape(len(pending), -1))
        tokens = jnp.where(slot == 0, pending[..., None], config.mask_token).reshape(len(pending), -1)
        x = ends.embed.tokens(tokens)
        for index in range(config.layer.layers):
            x, state = self.layers[str(index)](x, turn, attend, index, state)
        return x, state

    def visible(self, window: int | None, layers: Any, length: Int[Array, "B"]):
        """What the slots of a block see: the window of the context, and the block, or the slots before them."""
        size, slots = self.config.block, caches.slot_count(layers)
        block = np.ones((size, size), bool)
        if window is None:
            return caches.visibility(length, jnp.asarray(block), slots, length.shape[0])
        block = np.tril(block) if self.config.causal else block
        near = jnp.arange(slots, dtype=jnp.int32)[None] >= length[:, None] - window
        return caches.visibility(length, jnp.asarray(block), slots, length.shape[0]) & near[:, None]

    def logits(self, ends: Any, out: Float[Array, "B S D"]) -> Float[Array, "B S V"]:
        """Logits over the draft vocabulary."""
        normed = self.final_norm(out)
        return ends.unembed(normed) if self.head is None else self.head(normed)
