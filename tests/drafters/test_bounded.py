"""Bounded caches: the model's own as long as everything fits, then the slots drawn in `bounded.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters
from specjax.drafters import Retrieval, Sinks
from specjax.drafters.bounded import over_bounded_cache
from specjax.models.cache import KV, put_slots
from tests import battery
from tests.battery import run, texts

BUDGET, KEPT, SLACK, BLOCK, GAMMA = 8, 2, 5, 4, 3


def bound(family, budget=BUDGET, **more):
    options = {"selection": Sinks(KEPT), "slack": SLACK, "block": BLOCK} | more
    return drafters.bounded(battery.target(family), budget=budget, **options)


@pytest.mark.parametrize("family", battery.others_slow(["t5", "opt", "llama"], ["opt"]))
def test_greedy_equals_plain(family):
    state = run(family, drafters.model(bound(family), gamma=GAMMA))
    assert texts(state) == battery.plain(family)
    assert 0 < state.totals.accepted.sum() < state.totals.tested.sum()


@pytest.mark.slow
def test_a_budget_for_the_whole_text_makes_a_perfect_draft():
    state = run("opt", drafters.model(bound("opt", 64), gamma=GAMMA))
    assert state.totals.accepted.sum() == state.totals.tested.sum() > 0


@pytest.mark.slow
def test_chunks_are_chosen_after_the_prompt():
    chosen = bound("opt", selection=Retrieval(window=3, chunk=2), budget=7)
    state = run("opt", drafters.model(chosen, gamma=GAMMA))
    assert texts(state) == battery.plain("opt")


def test_slots_through_advances_and_retreats():
    """Positions written as their own values, against a list: blocks are kept, taken back, and settle in their turn."""
    model = battery.target("opt")
    lm = model.lm

    def marked(params, tokens, cache, mask, depth, offset=0):
        """An extend that writes each token's position as its keys."""
        del params, mask
        at = (cache.length[:, None] + depth).astype(jnp.float32)
        k = jnp.broadcast_to(at[:, None, :, None], (tokens.shape[0], 2, tokens.shape[1], 8))
        slots = cache.length[:, None] + offset + jnp.arange(tokens.shape[1])[None]
        return cache.positions, cache._replace(layers=put_slots(cache.layers, (KV(k, k),) * 2, slots))

    small = over_bounded_cache(
        lm._replace(extend=marked), choice=None, budget=BUDGET, kept=KEPT, slack=SLACK, block=BLOCK
    )
    length = jnp.asarray([1, 4, 16])
    cache = jax.jit(small.prefill, static_argnums=3)(model.params, jnp.asarray(battery.prompts()[:3]), length, 0).cache
    for row, count in enumerate([0, 3, 15]):  # the prompt's keys are marked by hand
        slot = np.arange(cache.small.length[row])
        where = jnp.asarray(np.where(slot < KEPT, slot, slot + count - len(slot)), jnp.float32)
        assert len(slot) == min(count, BUDGET + SLACK)
        # of 15 tokens 13 are held: two fell out of the ring, which has turned by two
        if count > BUDGET + SLACK:
            tail, settled = slot[BUDGET:] + count - len(slot), count - SLACK
            ring = [settled - 1 - (settled - 1 - s) % (BUDGET - KEPT) for s in range(KEPT, BUDGET)]
            where = jnp.asarray([*range(KEPT), *ring, *tail], jnp.float32)
        layers = jax.tree.map(lambda a: a.at[row, :, : len(slot)].set(where[None, :, None]), cache.small.layers)  # noqa: B023
        cache = cache._replace(small=cache.small._replace(layers=layers))
    rng = np.random.default_rng(0)
    total, back = np.array([0, 3, 15]), np.zeros(3, int)
    mask, depth = jnp.tril(jnp.ones((BLOCK, BLOCK), bool)), jnp.arange(BLOCK, dtype=jnp.int32)
    extend, keep = jax.jit(small.extend), jax.jit(small.keep)
    for _ in range(60):
        positions, cache = extend(model.params, jnp.zeros((3, BLOCK), jnp.int32), cache, mask, depth)
        for row in range(3):
            used = int(cache.small.length[row])
            keys = np.asarray(cache.small.layers[1].k)[row, 1, :, 3]
            assert keys[: used + BLOCK].tolist() == np.asarray(positions)[row, : used + BLOCK].tolist()
            held = set(keys[:used].astype(int).tolist())
            assert len(held) == used
            assert held <= set(range(total[row]))
            newest = min(total[row], BUDGET - KEPT + SLACK - back[row])
            assert held >= set(range(min(total[row], KEPT))) | set(range(total[row] - newest, total[row]))
        n = rng.integers(1, BLOCK + 1, 3)
        cache = keep(cache, None, jnp.asarray(n))
        total, back = total + n, np.maximum(back - n, 0)
        n = rng.integers(0, np.minimum(SLACK - back, total) + 1)
        cache = keep(cache, None, jnp.asarray(-n))
        total, back = total - n, back + n
        assert cache.length.tolist() == total.tolist()
    assert total.min() > BUDGET


def test_invalid_combinations_raise():
    with pytest.raises(ValueError, match="budget"):
        drafters.bounded(battery.target("opt"), budget=4)
    with pytest.raises(ValueError, match="slack"):
        bound("opt", slack=0)
    with pytest.raises(ValueError, match="slack=6"):
        drafters.model(bound("opt"), gamma=6)
    inner = drafters.model(battery.draft("opt"), gamma=2)
    with pytest.raises(ValueError, match="slack=6"):
        drafters.cascade(bound("opt"), inner, gamma=4)
    with pytest.raises(ValueError, match="slack=7"):
        drafters.cascade(battery.draft("opt"), drafters.model(bound("opt"), gamma=2), gamma=3)
    for borrowing in (drafters.layer_skip, drafters.quantized, drafters.small_kv, drafters.bounded):
        with pytest.raises(ValueError, match="BoundedDraft"):
            borrowing(bound("opt"))
    with pytest.raises(ValueError, match="cache"):
        drafters.cascade(bound("opt", slack=20), drafters.layer_skip(battery.target("opt")))
    with pytest.raises(ValueError, match="block=1"):
        run("opt", drafters.model(bound("opt", block=1), gamma=1))
