"""Which slots a small KV cache keeps besides the latest tokens: the first ones, SnapKV's votes, TriForce's chunks.

SnapKV and Retrieval choose by the target's queries at the last committed tokens, in every layer, computed by one
forward pass that writes nothing. Every layer and key-value head keeps its own slots.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax import checks
from specjax.categorical import largest
from specjax.models import cache as caches
from specjax.models.attention import MASKED
from specjax.models.cache import KV, Cache
from specjax.programs import memoize
from specjax.types import Params, PyTree


class Choice(NamedTuple):
    """A selection at run time.

    observed: number of last committed tokens whose queries it reads; at least 1.
    every: committed tokens after which a row chooses again.
    pick: (params, tokens [B,observed], cache, before [B]) -> positions below `before`, `kept` of each layer and head,
        as `cache.take_slots` takes them; undefined for rows of fewer than kept + window tokens.
    """

    observed: int
    every: int
    pick: Callable[..., PyTree]


@runtime_checkable
class Selection(Protocol):
    """Which slots a small cache keeps besides the latest tokens: a hashable, static choice."""

    def kept(self, budget: int) -> int:
        """Number of slots of the budget that it chooses; the others are the window of the latest tokens.

        Raises:
          ValueError: a budget that leaves nothing to choose.
        """
        ...

    def choice(self, target: Any, kept: int) -> Choice | None:
        """How they are chosen; None: always the first `kept` positions."""
        ...


@dataclasses.dataclass(frozen=True)
class Sinks:
    """Keeps the first `count` tokens, which attention falls back to (StreamingLLM).

    Xiao et al. 2023, arXiv 2309.17453, section 3.2. All other slots of the budget hold the latest tokens.

    Attributes:
      count: tokens that are kept, at least 0.

    Raises:
      ValueError: a count below 0.

    >>> import specjax as sj
    >>> sj.drafters.Sinks(count=4).kept(budget=256)
    4
    """

    count: int = 4

    def __post_init__(self) -> None:
        checks.integer("count", self.count, least=0)

    def kept(self, budget: int) -> int:
        del budget
        return self.count

    def choice(self, target: Any, kept: int) -> None:
        del target, kept


SINKS = Sinks()


class _ByQueries(abc.ABC):
    """Base of SnapKV and Retrieval: the queries of the last `observed` tokens choose, again after `every` tokens."""

    observed: int
    every: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            checks.integer(name, value, least=1)

    def _checked(self, kept: int, budget: int) -> int:
        if kept < 1 or self.observed > budget:
            raise ValueError(
                f"budget={budget} is too small for {self}: it must exceed the window by a slot or chunk to keep, and "
                f"hold observed={self.observed} tokens"
            )
        return kept

    def choice(self, target: Any, kept: int) -> Choice:
        if target.encoder_decoder:
            raise ValueError(
                f"{type(self).__name__} keeps different slots in every head, but {target.name} (encoder-decoder) adds "
                "one position bias to all layers: use Sinks, which keeps the same slots everywhere"
            )
        return _choice(self, target.family, target.config, target.fmt, kept)

    @abc.abstractmethod
    def best(
        self, q: Float[Array, "B S Q H"], kv: KV, total: Int[Array, "B"], before: Int[Array, "B"], kept: int
    ) -> Array:
        """[B,K,at most kept] slots below `before` of one layer with `total` tokens, for queries of the last S."""


@dataclasses.dataclass(frozen=True)
class SnapKV(_ByQueries):
    """Keeps the slots that the last queries attend to most, and a window of the latest tokens (SnapKV).

    Attention of the last `observed` tokens is summed over them and over the query heads that share a key, averaged over
    neighboring slots, and the best slots outside the window are kept. Li et al. 2024, arXiv 2404.14469, section 4.
    Decoder-only models.

    Attributes:
      window: latest tokens that are always kept, at least 1 and below the budget.
      observed: last tokens whose queries vote, at least 1 and at most the budget.
      pool: neighboring slots that a vote is averaged over, at least 1, so that phrases are kept rather than tokens.
      every: committed tokens between two votes of a row, at least 1; each vote costs one target forward pass.

    Raises:
      ValueError: a number below 1.

    >>> import specjax as sj
    >>> sj.drafters.SnapKV(window=32).kept(budget=256)
    224
    """

    window: int = 32
    observed: int = 32
    pool: int = 5
    every: int = 64

    def kept(self, budget: int) -> int:
        return self._checked(budget - self.window, budget)

    def best(self, q: Float[Array, "B S Q H"], kv: KV, total: Int[Array, "B"], before: Int[Array, "B"], kept: int):
        scores = caches.products(q, kv.k)
        block, slots = scores.shape[-2:]
        slot = jnp.arange(slots, dtype=jnp.int32)
        own = total[:, None] - block + jnp.arange(block, dtype=jnp.int32)[None]
        visible = slot[None, None] <= own[..., None]
        weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, MASKED), axis=-1)
        votes = weights.sum((2, 3))
        votes = jax.lax.reduce_window(votes, 0.0, jax.lax.add, (1, 1, self.pool), (1, 1, 1), "SAME")
        votes = jnp.where(slot[None, None] < before[:, None, None], votes, MASKED)
        return largest(votes, min(kept, slots))[1].astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Retrieval(_ByQueries):
    """Keeps the chunks whose mean key matches the last queries best, the first chunk, and a window (TriForce).

    Sun et al. 2024, arXiv 2404.11912, section 4.1. Slots of the budget that do not fill a chunk go to the window.
    Decoder-only models.

    Attributes:
      window: latest tokens that are always kept, at least 1 and at least a chunk below the budget.
      chunk: tokens per chunk, at least 1.
      observed: last tokens whose queries are summed, at least 1 and at most the budget.
      every: committed tokens between two choices of a row, at least 1; each choice costs one target forward pass.

    Raises:
      ValueError: a number below 1.

    >>> import specjax as sj
    >>> sj.drafters.Retrieval(window=60, chunk=8).kept(budget=256)
    192
    """

    window: int = 64
    chunk: int = 8
    observed: int = 1
    every: int = 32

    def kept(self, budget: int) -> int:
        return self._checked((budget - self.window) // self.chunk * self.chunk, budget)

    def best(self, q: Float[Array, "B S Q H"], kv: KV, total: Int[Array, "B"], before: Int[Array, "B"], kept: int):
        del total
        scores = caches.products(q, caches.chunk_means(kv.k, self.chunk)).sum((2, 3))
        count = scores.shape[-1]
        number = jnp.arange(count, dtype=jnp.int32)
        whole = (number[None, None] + 1) * self.chunk <= before[:, None, None]
        scores = jnp.where(whole, scores, MASKED)
        scores = jnp.where((number == 0)[None, None], jnp.inf, scores)
        chosen = largest(scores, min(kept // self.chunk, count))[1].astype(jnp.int32)
        inside = jnp.arange(self.chunk, dtype=jnp.int32)
        return (chosen[..., None] * self.chunk + inside[None, None, None]).reshape(*chosen.shape[:2], -1)


@memoize
def _choice(selection: _ByQueries, family: Any, config: Any, fmt: Any, kept: int) -> Choice:
    """One object for equal arguments, so that equal drafters share compiled code."""
    observe = family.observer(config, fmt)

    def pick(params: Params, tokens: Int[Array, "B O"], cache: Cache, before: Int[Array, "B"]) -> PyTree:
        def one(kv: KV, q: Array) -> Array:
            slots = selection.best(q, kv, cache.length, before, kept)
            # A cache with fewer slots: no row can exceed the budget, so these are never read.
            return jnp.pad(slots, ((0, 0), (0, 0), (0, kept - slots.shape[2])))

        return caches.map_layers(one, cache.layers, observe(params, tokens, cache))

    return Choice(selection.observed, selection.every, pick)
