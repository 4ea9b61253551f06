"""Self-speculation on a small budget of keys and values: the target drafts for itself, and reads little of its past.

At long contexts a step is spent on reading the cache. The draft here is the target with all its weights, and a small
cache of `budget` committed slots whose keys and values are the target's own, copied out of its cache. So a draft step
reads `budget + gamma` slots, however long the row is; nothing longer is masked away.

    slots      0 ..... kept-1 | kept ........... budget-1 | budget ........ budget+gamma-1
    content    kept slots     | the latest tokens, a ring | `pending` and the block it drafts

A `Selection` says which slots are kept: the first ones (`Sinks`: Xiao et al. 2023, StreamingLLM, arXiv 2309.17453), or
those that recent queries look at (`select.py`), chosen anew as decoding goes. As long as everything fits, everything is
there. The ring follows the target round by round: position p is in slot kept + (p - kept) mod window, and what the
target committed replaces what the draft wrote. Keys carry their true positions, and queries have theirs.

MagicDec (Chen et al. 2024, arXiv 2408.11049) drafts so; TriForce (Sun et al. 2024, arXiv 2404.11912) in a hierarchy.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax import checks, trees
from specjax.base import Drafter, LanguageModel, Prefilled
from specjax.decoding import run_if
from specjax.drafters.chain import check_gamma, next_logits, write_chain
from specjax.models import cache as caches
from specjax.models.cache import Cache
from specjax.programs import memoize
from specjax.types import Commit, PyTree

NEVER = -(2**30)  # a row whose kept slots have not been chosen, or whose ring must be read anew


class Choice(NamedTuple):
    """What a selection does at run time.

    observed: how many of the last committed tokens it asks about; at least 1.
    every: committed tokens after which a row chooses anew.
    pick: (params, tokens [B,observed], cache, before [B]) -> positions below `before`, `kept` of each layer and head,
        as `cache.take_slots` wants them. Rows that hold fewer than kept + window tokens may get anything.
    """

    observed: int
    every: int
    pick: Callable[..., PyTree]


@runtime_checkable
class Selection(Protocol):
    """Which slots a small cache keeps beside the latest tokens: a hashable, static choice."""

    def kept(self, budget: int) -> int:
        """How many of the budget's slots it decides about; the others are the window of the latest tokens."""
        ...

    def choice(self, target: Any, kept: int) -> Choice | None:
        """How they are chosen; None: the first `kept` positions, for good."""
        ...


@dataclasses.dataclass(frozen=True)
class Sinks:
    """The first `count` tokens, which attention falls back to, whatever they say (StreamingLLM)."""

    count: int = 4

    def __post_init__(self) -> None:
        checks.integer("count", self.count, least=0)

    def kept(self, budget: int) -> int:
        del budget
        return self.count

    def choice(self, target: Any, kept: int) -> None:
        del target, kept


SINKS = Sinks()


class SmallKV(NamedTuple):
    """What the draft keeps from round to round."""

    layers: PyTree  # [..., B,K,budget+gamma,H], as the target's
    synced: Int[Array, "B"]  # committed tokens that the ring knows; NEVER: none, read it anew
    chosen: Int[Array, "B"]  # how many were committed when the kept slots were chosen
    recent: Int[Array, "B O"]  # the last tokens, `pending` the very last


def check_budget(budget: int, selection: Selection, gamma: int = 0) -> None:
    """Raises the ValueError of `check_window` without a model."""
    check_window(budget, selection.kept(budget), gamma)


def check_window(budget: int, kept: int, gamma: int = 0, *, least: int = 0) -> None:
    """Raises ValueError for fewer than `least` kept slots, or a window that cannot hold a round of gamma + 1 tokens."""
    window = budget - kept
    if kept < least or window < gamma + 1:
        raise ValueError(
            f"a budget of {budget} slots, {kept} of them kept, leaves a window of {window}: a round of gamma={gamma} "
            f"needs {gamma + 1}; raise the budget or lower gamma"
        )


@memoize
def small_kv(lm: LanguageModel, choice: Choice | None, gamma: int, budget: int, kept: int) -> Drafter:
    """A chain of gamma tokens that the target writes over `budget` slots: `kept` ones, and a window of the latest.

    Args:
      lm: the target. choice: see `Choice`; None keeps the first `kept` positions.

    Raises:
      ValueError: gamma below 1, or a window (budget - kept) that cannot hold a round.
    """
    check_gamma(gamma)
    check_window(budget, kept, gamma, least=0 if choice is None else 1)
    window = budget - kept
    observed = 1 if choice is None else choice.observed
    if observed > budget:
        raise ValueError(f"observed={observed} tokens are more than the budget of {budget} slots: observe fewer")

    def init(params, prompt, length, cache_len, prefilled: Prefilled):
        del params, cache_len
        cache = prefilled.cache
        ago = jnp.arange(observed, -1, -1, dtype=jnp.int32)[None]
        recent = jnp.take_along_axis(prompt, jnp.maximum(length[:, None] - 1 - ago, 0), axis=1)
        never = jnp.full_like(length, NEVER)
        return SmallKV(ring_of(cache), cache.length, never, recent)

    def ring_of(cache: Cache) -> PyTree:
        """The small cache read anew: everything where it fits, else the first positions and the latest."""
        slot = jnp.broadcast_to(jnp.arange(budget, dtype=jnp.int32)[None], (cache.length.shape[0], budget))
        taken = caches.take_slots(cache.layers, held_position(slot, cache.length, kept=kept, budget=budget))
        return jax.tree.map(lambda a: jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, gamma), (0, 0)]), taken)

    def follow(state: SmallKV, cache: Cache) -> SmallKV:
        """Copies what the target has committed since; a row that was taken back is read anew."""
        stale = (state.synced < 0) | (state.synced > cache.length)
        layers = run_if(
            jnp.any(stale),
            lambda old: jax.tree.map(lambda a, b: jnp.where(rows_of(stale, b), a, b), ring_of(cache), old),
            state.layers,
        )
        step = jnp.arange(gamma + 1, dtype=jnp.int32)[None]
        position = state.synced[:, None] + step
        fresh = (position < cache.length[:, None]) & ~stale[:, None]
        past = budget + gamma + step  # past the end: dropped
        slot = jnp.where(fresh, slot_of(position, kept=kept, budget=budget), past)
        layers = caches.put_slots(layers, caches.take_slots(cache.layers, position), slot)
        return state._replace(layers=layers, synced=cache.length, chosen=jnp.where(stale, NEVER, state.chosen))

    def choose(params, state: SmallKV, cache: Cache) -> SmallKV:
        """Fills the kept slots of the rows whose turn it is: each by its own count, so that no row hurries another."""
        if choice is None:
            return state
        pick = choice.pick
        due = (cache.length > budget) & (cache.length - state.chosen >= choice.every)

        def anew(layers: PyTree) -> PyTree:
            at = pick(params, state.recent[:, :-1], cache, cache.length - window)
            taken = caches.take_slots(cache.layers, at)

            def put(old, new):
                new = jnp.where(rows_of(due, new), new, old[..., :kept, :])
                return jax.lax.dynamic_update_slice_in_dim(old, new, 0, axis=old.ndim - 2)

            return jax.tree.map(put, layers, taken)

        layers = run_if(jnp.any(due), anew, state.layers)
        return state._replace(layers=layers, chosen=jnp.where(due, cache.length, state.chosen))

    def propose(params, key, state: SmallKV, pending, warp, cache: Cache):
        state = choose(params, follow(state, cache), cache)
        total = cache.length
        held = jnp.minimum(total, budget)
        left_out = (total - held)[:, None]
        slot = jnp.broadcast_to(jnp.arange(budget + gamma, dtype=jnp.int32)[None], (total.shape[0], budget + gamma))
        positions = jnp.where(
            slot < held[:, None], held_position(slot, total, kept=kept, budget=budget), slot + left_out
        )
        small = Cache(state.layers, held, cache.cross, positions)

        feed = lambda token, small: next_logits(lm, params, small, token, left_out)
        draft, small = write_chain(feed, None, small, pending, key, warp, gamma=gamma, vocab_size=lm.vocab_size)
        return draft, state._replace(layers=small.layers), cache

    def commit(params, state: SmallKV, committed: Commit, cache: Cache):
        del params, cache  # `follow` reads it when the next round begins
        tokens = jnp.concatenate([state.recent, committed.tokens], axis=1)
        at = committed.length[:, None] + jnp.arange(observed + 1, dtype=jnp.int32)[None]
        return state._replace(recent=jnp.take_along_axis(tokens, at, axis=1))

    def rewind(params, state: SmallKV, back, token, cache: Cache):
        # `follow` finds the cache shorter than it knew. Tokens older than `recent` are no longer known: until new ones
        # come in, the oldest replaces them, which makes the choice of slots worse and the output no less exact.
        del params, cache
        at = jnp.arange(observed + 1, dtype=jnp.int32)[None] - jnp.maximum(back - 1, 0)[:, None]
        recent = jnp.take_along_axis(state.recent, jnp.maximum(at, 0), axis=1)
        newest = jnp.where(back > 0, token, recent[:, -1])
        return state._replace(recent=recent.at[:, -1].set(newest))

    return Drafter(trees.chain(gamma), init, propose, commit, lm.vocab_size, borrows=True, rewind=rewind)


def rows_of(flags: Array, like: Array) -> Array:
    """Flags [B] shaped to select rows of keys or values [..., B,K,N,H]."""
    return flags.reshape((*(1 for _ in range(like.ndim - 4)), -1, 1, 1, 1))


def slot_of(position: Int[Array, "B N"], *, kept: int, budget: int) -> Int[Array, "B N"]:
    """Where a small cache puts the token at a position: the first ones fill it, the later ones go round the ring."""
    return jnp.where(position < budget, position, kept + (position - kept) % (budget - kept))


def held_position(slot: Int[Array, "B N"], total: Int[Array, "B"], *, kept: int, budget: int) -> Int[Array, "B N"]:
    """The position of the latest of `total` tokens that `slot_of` put into a slot below the budget."""
    last = total[:, None] - 1
    return jnp.where((slot < kept) | (last < budget), slot, last - (last - slot) % (budget - kept))
