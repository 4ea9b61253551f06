"""A model with a bounded KV cache: kept tokens, a ring of later ones, and a tail that can be rolled back.

The small cache of `small_kv.py` copies from the target's full cache; this model has no other cache. It is a small draft
model for long rows (StreamingLLM: Xiao et al. 2023, arXiv 2309.17453), or the target itself over retrieved chunks as
the middle of a hierarchy (TriForce: Sun et al. 2024, arXiv 2404.11912). The prompt is read whole, once; then the slots
are chosen.

    slots      0 ..... kept-1 | kept ..... budget-1 | budget .... budget+slack-1 | ........ + block
    content    kept slots     | a ring, settled     | the tail: the latest       | the block under test

A token moves from the tail into the ring, over its oldest token, once there are `slack` newer ones; until then it can
be rolled back. The kept slots are chosen once, after the prompt: choosing again would require keys that are gone.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax import checks
from specjax.base import LanguageModel, Prefilled
from specjax.drafters.loaded import check_model
from specjax.drafters.select import SINKS, Choice, Selection
from specjax.drafters.small_kv import check_budget, held_position, slot_of
from specjax.model import Model
from specjax.models import cache as caches
from specjax.models.cache import Cache
from specjax.programs import memoize


class BoundedCache(NamedTuple):
    """Slots as above; `small.length` counts those in use, `total` the committed tokens of the row."""

    small: Cache
    total: Int[Array, "B"]

    @property
    def length(self) -> Int[Array, "B"]:
        return self.total


@dataclasses.dataclass(frozen=True, eq=False)
class BoundedDraft:
    """A model over bounded caches. It only approximates the model, so it drafts and is never a target.

    Attributes:
      model: the model whose weights it runs.
      lm: pure functions over bounded caches.
      name: for reports.
    """

    model: Model
    lm: LanguageModel
    name: str
    bound: Callable[[LanguageModel], LanguageModel]

    def __repr__(self) -> str:
        return f"BoundedDraft({self.name!r})"

    def variant(self, *, capture: tuple[int, ...] = ()) -> LanguageModel:
        """Pure functions over the same caches that return the residual streams `capture`."""
        return self.bound(self.model.variant(capture=capture))

    family = property(lambda self: self.model.family)
    size = property(lambda self: self.model.size)
    params = property(lambda self: self.model.params)
    config = property(lambda self: self.model.config)
    fmt = property(lambda self: self.model.fmt)
    mesh = property(lambda self: self.model.mesh)
    rules = property(lambda self: self.model.rules)
    text = property(lambda self: self.model.text)
    vocab_size = property(lambda self: self.model.vocab_size)
    encoder_decoder = property(lambda self: self.model.encoder_decoder)


def bounded(
    draft: Any, *, budget: int = 256, selection: Selection = SINKS, slack: int = 32, block: int = 32
) -> BoundedDraft:
    """A draft model whose KV cache never grows: `model(bounded(small))`, or in a cascade.

    `cascade(bounded(target, budget=4096, selection=Retrieval()), model(bounded(small)))` under the target is TriForce.
    The result only approximates the model, so it drafts and is never a target; decoding remains lossless.

    StreamingLLM, Xiao et al. 2023, arXiv 2309.17453; TriForce, Sun et al. 2024, arXiv 2404.11912, section 4.

    Args:
      draft: a model from `specjax.load`.
      budget: slots of the kept and the settled tokens, at least 1 more than the selection keeps.
      selection: which slots are kept beside the latest tokens, chosen once, after the prompt: `Sinks`, `SnapKV`, or
        `Retrieval`.
      slack: tokens that can be rolled back; at least the number drafted in a round.
      block: longest block that is fed at once; at least the number drafted in a round, and one.

    Returns:
      The same weights over bounded caches, to be passed to drafters in place of the model.

    Raises:
      ValueError: a number below 1, or a budget without slots to keep or without a window.

    >>> import specjax as sj
    >>> draft = sj.drafters.bounded(sj.load("bundled/opt-draft"), budget=64)
    >>> sj.drafters.model(draft, gamma=4).name
    'bundled/opt-draft on 64 slots x4'
    """
    check_model("draft", draft, bounded=False)
    checks.integer("slack", slack, least=1)
    checks.integer("block", block, least=1)
    kept = check_budget(budget, selection)
    choice = selection.choice(draft, kept)
    bound = functools.partial(over_bounded_cache, choice=choice, budget=budget, kept=kept, slack=slack, block=block)
    return BoundedDraft(draft, bound(draft.lm), f"{draft.name} on {budget} slots", bound)


@memoize
def over_bounded_cache(
    lm: LanguageModel, *, choice: Choice | None, budget: int, kept: int, slack: int, block: int
) -> LanguageModel:
    """`lm` over bounded caches, with the contract of a `LanguageModel`; blocks have at most `block` tokens.

    `keep` may roll back at most `slack` tokens: the ring has overwritten older ones.
    """
    size = budget + slack + block

    def prefill(params, prompt: Int[Array, "B P"], length: Int[Array, "B"], cache_len: int) -> Prefilled:
        del cache_len
        slots = size if lm.encoder_decoder else max(prompt.shape[1], size)
        read = lm.prefill(params, prompt, length, slots)
        total = read.cache.length
        held = jnp.minimum(total, budget + slack)
        settled = total - jnp.maximum(held - budget, 0)
        at = positions_of(held, total, size)
        taken = caches.take_slots(read.cache.layers, at)
        if choice is not None:
            ago = jnp.arange(choice.observed, 0, -1, dtype=jnp.int32)[None]
            recent = jnp.take_along_axis(prompt, jnp.maximum(total[:, None] - ago, 0), axis=1)
            chosen = choice.pick(params, recent, read.cache, settled - (budget - kept))
            longer = settled > budget
            taken = caches.put_front(taken, caches.take_slots(read.cache.layers, chosen), longer)
        small = Cache(taken, held, read.cache.cross)
        return read._replace(cache=BoundedCache(small, total))

    def positions_of(held: Int[Array, "B"], total: Int[Array, "B"], slots: int) -> Int[Array, "B T"]:
        """The position that each slot holds or will hold."""
        tail = jnp.maximum(held - budget, 0)
        slot = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None], (held.shape[0], slots))
        ring = held_position(slot, total - tail, kept=kept, budget=budget)
        return jnp.where(slot < jnp.minimum(held, budget)[:, None], ring, slot + (total - held)[:, None])

    def extend(params, tokens: Int[Array, "B S"], cache: BoundedCache, mask, depth, offset: int = 0):
        if tokens.shape[1] + offset > block:
            raise ValueError(f"a block of {tokens.shape[1] + offset} tokens is more than block={block}: raise it")
        small, total = cache
        depth = jnp.broadcast_to(jnp.asarray(depth, jnp.int32), tokens.shape) + (total - small.length)[:, None]
        seen = small._replace(positions=positions_of(small.length, total, size))
        out, after = lm.extend(params, tokens, seen, mask, depth, offset)
        return out, BoundedCache(after._replace(positions=None), total)

    def keep(cache: BoundedCache, path: Int[Array, "B W"] | None, n: Int[Array, "B"]) -> BoundedCache:
        small = lm.keep(cache.small, path, n)
        return settle(BoundedCache(small, cache.total + n))

    def settle(cache: BoundedCache) -> BoundedCache:
        """Moves the oldest tokens of a tail longer than `slack` into the ring; the rest of the tail moves left."""
        small, total = cache
        tail = jnp.maximum(small.length - budget, 0)
        over = jnp.maximum(tail - slack, 0)[:, None]  # at most a block
        step = jnp.arange(block, dtype=jnp.int32)[None]
        oldest = caches.take_slots(small.layers, jnp.broadcast_to(budget + step, (total.shape[0], block)))
        # `block` may be more than the ring has slots: of two tokens for one slot, the later one counts
        ring = budget - kept
        counts = (step < over) & (step >= over - ring)
        slot = jnp.where(counts, slot_of((total - tail)[:, None] + step, kept=kept, budget=budget), size + step)
        layers = caches.put_slots(small.layers, oldest, slot)
        ahead = jnp.arange(slack, dtype=jnp.int32)[None]
        rest = caches.take_slots(small.layers, budget + ahead + over)
        layers = caches.put_slots(layers, rest, jnp.where(over > 0, budget + ahead, size + ahead))
        return BoundedCache(small._replace(layers=layers, length=small.length - over[:, 0]), total)

    return LanguageModel(prefill, extend, keep, lm.vocab_size, lm.encoder_decoder, lm.positions, slack)
