"""Self-speculation with a small KV cache: the target drafts for itself and reads only a part of its past.

At long contexts a decoding step mostly reads the cache. The draft is the target with all its weights and a small cache
of `budget` committed slots, copied from the target's cache. A draft step reads `budget + gamma` slots, however long the
row is.

    slots      0 ..... kept-1 | kept ........... budget-1 | budget ........ budget+gamma-1
    content    kept slots     | the latest tokens, a ring | `pending` and the block it drafts

A `Selection` (select.py) chooses the kept slots: the first ones (`Sinks`), or those that recent queries attend to,
chosen again as decoding proceeds. As long as everything fits, everything is kept. The ring follows the target round by
round: position p is in slot kept + (p - kept) mod window, and committed keys and values replace those of the draft.
Keys and queries have their true positions.

MagicDec: Chen et al. 2024, arXiv 2408.11049. In a hierarchy: TriForce, Sun et al. 2024, arXiv 2404.11912.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax import checks, trees
from specjax.base import Drafter, LanguageModel, Prefilled
from specjax.decoding import run_if
from specjax.drafters.chain import write_chain
from specjax.drafters.loaded import LoadedDrafter, check_model
from specjax.drafters.select import SINKS, Choice, Selection
from specjax.drafters.writer import next_logits
from specjax.models import cache as caches
from specjax.models.cache import Cache
from specjax.programs import memoize
from specjax.types import Commit, PyTree

NEVER = -(2**30)  # a row whose kept slots have not been chosen, or whose ring must be copied again


def small_kv(target: Any, *, gamma: int = 4, budget: int = 256, selection: Selection = SINKS) -> LoadedDrafter:
    """Self-speculation with a small KV cache: the target drafts for itself and reads only a part of its past.

    A draft step reads budget + gamma slots of keys and values, however long the row is. By default these are the first
    four tokens and the latest 252 (StreamingLLM). Lossless with any lossless verifier of chains. For long contexts and
    large batches, where reading the cache dominates.

    MagicDec, Chen et al. 2024, arXiv 2408.11049, section 4; StreamingLLM, Xiao et al. 2023, arXiv 2309.17453.

    Args:
      target: the model that will be the target, from `specjax.load`; its weights are shared.
      gamma: draft tokens per round, at least 1.
      budget: committed slots that a draft step reads; at least gamma + 1 of them are left to the latest tokens.
      selection: which slots are kept beside the latest tokens: `Sinks`, `SnapKV`, or `Retrieval`.

    Returns:
      The drafter of this target.

    Raises:
      ValueError: a budget without room for a round, or a selection that does not support the target.

    >>> import specjax as sj
    >>> target = sj.load("bundled/opt-target")
    >>> drafter = sj.drafters.small_kv(target, gamma=4, budget=64, selection=sj.drafters.SnapKV(window=16))
    >>> drafter.name, drafter.drafter.borrows
    ('bundled/opt-target on 64 slots x4', True)
    """
    check_model("target", target, bounded=False)
    checks.integer("gamma", gamma, least=1)
    kept = check_budget(budget, selection, gamma)
    drafter = small_kv_drafter(target.lm, selection.choice(target, kept), gamma, budget, kept)
    return LoadedDrafter(f"{target.name} on {budget} slots x{gamma}", drafter, target.params, target)


def check_budget(budget: int, selection: Selection, gamma: int = 0) -> int:
    """The number of slots that the selection keeps.

    Raises:
      ValueError: a budget without slots to keep, or whose window does not hold a round of gamma + 1 tokens.
    """
    kept = selection.kept(checks.integer("budget", budget, least=1))
    if budget - kept < gamma + 1:
        raise ValueError(
            f"budget={budget} slots, {kept} of them kept, leave a window of {budget - kept}: a round of gamma={gamma} "
            f"needs {gamma + 1}; raise the budget or lower gamma"
        )
    return kept


class SmallKV(NamedTuple):
    """State of the draft between rounds."""

    layers: PyTree  # as the target's, of budget + gamma slots
    synced: Int[Array, "B"]  # committed tokens that the ring holds; NEVER: none, copy it again
    chosen: Int[Array, "B"]  # how many were committed when the kept slots were chosen
    recent: Int[Array, "B O"]  # the last tokens, `pending` the very last


@memoize
def small_kv_drafter(lm: LanguageModel, choice: Choice | None, gamma: int, budget: int, kept: int) -> Drafter:
    """A chain of gamma tokens that `lm` writes over `budget` slots: `kept` ones, and a window of the latest tokens."""
    window = budget - kept
    observed = 1 if choice is None else choice.observed

    def init(params, prompt, length, cache_len, prefilled: Prefilled):
        del params, cache_len
        cache = prefilled.cache
        ago = jnp.arange(observed, -1, -1, dtype=jnp.int32)[None]
        recent = jnp.take_along_axis(prompt, jnp.maximum(length[:, None] - 1 - ago, 0), axis=1)
        never = jnp.full_like(length, NEVER)
        return SmallKV(ring_of(cache), cache.length, never, recent)

    def ring_of(cache: Cache) -> PyTree:
        """The small cache copied again: everything if it fits, else the first positions and the latest."""
        slot = jnp.broadcast_to(jnp.arange(budget, dtype=jnp.int32)[None], (cache.length.shape[0], budget))
        at = held_position(slot, cache.length, kept=kept, budget=budget)
        return caches.with_room(caches.take_slots(cache.layers, at), gamma)

    def follow(state: SmallKV, cache: Cache) -> SmallKV:
        """Copies the slots that the target has committed since; a row that was rolled back is copied again."""
        stale = (state.synced < 0) | (state.synced > cache.length)
        layers = run_if(jnp.any(stale), lambda old: caches.where_rows(stale, ring_of(cache), old), state.layers)
        step = jnp.arange(gamma + 1, dtype=jnp.int32)[None]
        position = state.synced[:, None] + step
        fresh = (position < cache.length[:, None]) & ~stale[:, None]
        past = budget + gamma + step  # past the end: dropped
        slot = jnp.where(fresh, slot_of(position, kept=kept, budget=budget), past)
        layers = caches.put_slots(layers, caches.take_slots(cache.layers, position), slot)
        return state._replace(layers=layers, synced=cache.length, chosen=jnp.where(stale, NEVER, state.chosen))

    def choose(params, state: SmallKV, cache: Cache) -> SmallKV:
        """Chooses the kept slots of the rows that are due. Each has its own schedule: rows are independent."""
        if choice is None:
            return state
        pick = choice.pick
        due = (cache.length > budget) & (cache.length - state.chosen >= choice.every)

        def chosen_again(layers: PyTree) -> PyTree:
            at = pick(params, state.recent[:, :-1], cache, cache.length - window)
            return caches.put_front(layers, caches.take_slots(cache.layers, at), due)

        layers = run_if(jnp.any(due), chosen_again, state.layers)
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
        # `follow` detects the shorter cache. Tokens older than `recent` are not stored: until new ones are committed,
        # the oldest one replaces them, which makes the choice of slots worse; the output remains exact.
        del params, cache
        at = jnp.arange(observed + 1, dtype=jnp.int32)[None] - jnp.maximum(back - 1, 0)[:, None]
        recent = jnp.take_along_axis(state.recent, jnp.maximum(at, 0), axis=1)
        newest = jnp.where(back > 0, token, recent[:, -1])
        return state._replace(recent=recent.at[:, -1].set(newest))

    return Drafter(trees.chain(gamma), init, propose, commit, lm.vocab_size, borrows=True, rewind=rewind)


def slot_of(position: Int[Array, "B N"], *, kept: int, budget: int) -> Int[Array, "B N"]:
    """The slot of a position: the first ones fill the cache, the later ones go around the ring."""
    return jnp.where(position < budget, position, kept + (position - kept) % (budget - kept))


def held_position(slot: Int[Array, "B N"], total: Int[Array, "B"], *, kept: int, budget: int) -> Int[Array, "B N"]:
    """The position of the latest of `total` tokens that `slot_of` put into a slot below the budget."""
    last = total[:, None] - 1
    return jnp.where((slot < kept) | (last < budget), slot, last - (last - slot) % (budget - kept))
