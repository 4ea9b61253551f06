"""Which slots a small cache keeps, by what the latest queries look at: SnapKV's votes and TriForce's chunks.

Both ask the target: its queries at the last committed tokens, of every layer, by one pass that writes nothing. Every
layer and key-value head keeps slots of its own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax import checks
from specjax.categorical import largest
from specjax.drafters.sparse import Choice
from specjax.models.attention import MASKED
from specjax.models.cache import KV, Cache
from specjax.programs import memoize
from specjax.types import Params, PyTree


@dataclasses.dataclass(frozen=True)
class SnapKV:
    """The slots that the last queries attend to most (Li et al. 2024, SnapKV, arXiv 2404.14469), and a window.

    Attention of the last `observed` tokens is summed over them and over the query heads that share a key, averaged over
    neighboring slots, and the best slots outside the window are kept.

    Attributes:
      window: latest tokens, always there.
      observed: tokens that vote; at most the budget.
      pool: slots that a vote is averaged over: whole phrases are kept rather than single tokens.
      every: committed tokens between two votes of a row; each costs one pass of the target.
    """

    window: int = 32
    observed: int = 32
    pool: int = 5
    every: int = 64

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            checks.integer(field.name, getattr(self, field.name), least=1)

    def kept(self, budget: int) -> int:
        return budget - self.window

    def choice(self, target: Any, kept: int) -> Choice:
        return _choice(self, target.family, target.config, target.fmt, kept, needs_decoder(self, target))

    def best(self, q: Float[Array, "B S H D"], kv: KV, total: Int[Array, "B"], before: Int[Array, "B"], kept: int):
        """[B,K,kept] slots of one layer."""
        slots, block = kv.k.shape[2], q.shape[1]
        scores = against(q, kv.k)
        slot = jnp.arange(slots, dtype=jnp.int32)
        own = total[:, None] - block + jnp.arange(block, dtype=jnp.int32)[None]
        visible = slot[None, None] <= own[..., None]
        weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, MASKED), axis=-1)
        votes = weights.sum((2, 3))
        votes = jax.lax.reduce_window(votes, 0.0, jax.lax.add, (1, 1, self.pool), (1, 1, 1), "SAME")
        votes = jnp.where(slot[None, None] < before[:, None, None], votes, MASKED)
        return largest(votes, min(kept, slots))[1].astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Retrieval:
    """The chunks whose mean key the last query meets best, the first chunk always, and a window (TriForce).

    Sun et al. 2024, arXiv 2404.11912. What of the budget is no whole chunk goes to the window.

    Attributes:
      window: latest tokens at the least. chunk: tokens of a chunk. observed: queries that are summed.
      every: committed tokens between two choices of a row; each costs one pass of the target.
    """

    window: int = 64
    chunk: int = 8
    observed: int = 1
    every: int = 32

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            checks.integer(field.name, getattr(self, field.name), least=1)

    def kept(self, budget: int) -> int:
        return (budget - self.window) // self.chunk * self.chunk

    def choice(self, target: Any, kept: int) -> Choice:
        return _choice(self, target.family, target.config, target.fmt, kept, needs_decoder(self, target))

    def best(self, q: Float[Array, "B S H D"], kv: KV, total: Int[Array, "B"], before: Int[Array, "B"], kept: int):
        """[B,K,kept] slots of one layer."""
        del total
        rows, heads, slots, width = kv.k.shape
        count = slots // self.chunk
        chunks = kv.k[:, :, : count * self.chunk].reshape(rows, heads, count, self.chunk, width)
        scores = against(q, chunks.mean(3)).sum((2, 3))
        number = jnp.arange(count, dtype=jnp.int32)
        whole = (number[None, None] + 1) * self.chunk <= before[:, None, None]
        scores = jnp.where(whole, scores, MASKED)
        scores = jnp.where((number == 0)[None, None], jnp.inf, scores)
        chosen = largest(scores, min(kept // self.chunk, count))[1].astype(jnp.int32)
        inside = jnp.arange(self.chunk, dtype=jnp.int32)
        return (chosen[..., None] * self.chunk + inside[None, None, None]).reshape(rows, heads, -1)


def needs_decoder(selection: Any, target: Any) -> Callable:
    """The target's observer.

    Raises:
      ValueError: an encoder-decoder target.
    """
    if target.encoder_decoder:
        raise ValueError(
            f"{type(selection).__name__} keeps other slots in every head, and {target.name} (encoder-decoder) adds a "
            "position bias that is one for all layers: use Sinks, whose slots are the same everywhere"
        )
    return target.family.observer


@memoize
def _choice(selection: SnapKV | Retrieval, family: Any, config: Any, fmt: Any, kept: int, observer: Callable) -> Choice:
    """One object for equal arguments, so that equal drafters share compiled code."""
    del family
    observe = observer(config, fmt)

    def pick(params: Params, tokens: Int[Array, "B O"], cache: Cache, before: Int[Array, "B"]) -> PyTree:
        queries = observe(params, tokens, cache)
        one = lambda q, kv: padded(selection.best(q, kv, cache.length, before, kept), kept)
        if isinstance(cache.layers, KV):
            return jax.lax.map(lambda layer: one(*layer), (queries, cache.layers))
        return tuple(one(q, kv) for q, kv in zip(queries, cache.layers, strict=True))

    return Choice(selection.observed, selection.every, pick)


def padded(slots: Int[Array, "B K M"], kept: int) -> Int[Array, "B K N"]:
    """`kept` slots of a cache that has fewer: no row of it can ever exceed the budget, so none is read."""
    return jnp.pad(slots, ((0, 0), (0, 0), (0, kept - slots.shape[2])))


def against(q: Float[Array, "B S H D"], k: Float[Array, "B K T D"]) -> Float[Array, "B K G S T"]:
    """Products of queries with the keys of their own key-value head, float32."""
    rows, block, heads, width = q.shape
    kv_heads = k.shape[1]
    q = q.reshape(rows, block, kv_heads, heads // kv_heads, width).transpose(0, 2, 3, 1, 4)
    flat = q.reshape(rows, kv_heads, -1, width).astype(k.dtype)
    out = jax.lax.dot_general(flat, k, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)
    return out.reshape(rows, kv_heads, heads // kv_heads, block, k.shape[2])
