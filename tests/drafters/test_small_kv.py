"""The small cache: which token is in which slot, that its draft is the target under a mask, and rows read anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decoding as loop
from specjax import drafters
from specjax.drafters import Sinks
from specjax.drafters.small_kv import held_position, slot_of
from specjax.models.relative import block_distance
from specjax.verify.token import token_level
from tests import battery
from tests.battery import Setting, prepare

GAMMA, KEPT, BUDGET = 3, 2, 8
WINDOW = BUDGET - KEPT


def test_slots_and_positions_are_inverse():
    """Against a ring that is filled token by token."""
    ring = [-1] * BUDGET
    slot_at = jax.jit(lambda position: slot_of(position, kept=KEPT, budget=BUDGET))
    held_after = jax.jit(lambda total: held_position(jnp.arange(BUDGET)[None], total, kept=KEPT, budget=BUDGET))
    for position in range(40):
        slot = slot_at(np.asarray([[position]], np.int32)).item()
        ring[slot] = position
        (held,) = held_after(np.asarray([position + 1], np.int32)).tolist()
        filled = min(position + 1, BUDGET)
        assert held[:filled] == ring[:filled]
        assert set(held[:filled]) == {
            p for p in range(position + 1) if p < KEPT or p > position - WINDOW or position < BUDGET
        }


def masked_distribution(family, model, cache, token, total, step):
    """The target's distribution after one token at position total + step, over its cache through a mask that hides what
    the small cache left out: written here apart from the drafter. Returns (log-probabilities [B,V], cache)."""
    slots = cache.layers[0].k.shape[2]
    slot = jnp.arange(slots)[None]
    held = (slot < KEPT) | (slot >= total[:, None] - WINDOW) | (total[:, None] <= BUDGET)
    visible = (held & (slot < total[:, None])) | ((slot >= total[:, None]) & (slot <= total[:, None] + step))
    at = (total + step)[:, None]
    module = model.module()
    if family == "t5":
        distance = slot[:, None] - at[..., None]
        out, layers = module.decode(token[:, None], visible[:, None], distance, cache.cross, cache.layers, total + step)
    else:
        out, layers = module.run(token[:, None], at, visible[:, None], cache.layers, total + step)
    return jax.nn.log_softmax(out.logits[:, 0]), cache._replace(layers=layers)


@pytest.mark.parametrize("family", battery.others_slow(battery.FAMILIES, ["llama"]))
def test_the_draft_is_the_target_under_a_mask(family):
    """Round by round on a ragged batch: every distribution of the chain, so every slot, every position, every copy."""
    model = battery.target(family)
    loaded = drafters.small_kv(model, gamma=GAMMA, budget=BUDGET, selection=Sinks(KEPT))
    decode, state, static = prepare(family, loaded, 1.0, setting=Setting(max_new=20))
    warp = loop.make_warp(decode.sampling, None)

    @jax.jit
    def both(params, state):
        draft, _, _ = loop.propose(loaded.drafter, params, loop.round_keys(state.key)[1], state, warp)
        cache, total, all_probs = state.cache, state.cache.length, []
        for step in range(GAMMA):
            probs, cache = masked_distribution(family, model, cache, draft.tokens[:, step], total, step)
            all_probs.append(probs)
        return draft.log_q[:, :GAMMA], jnp.stack(all_probs, 1)

    with jax.debug_key_reuse(False):
        seen = 0
        for _ in range(8):
            ours, reference = both(decode.draft, state)
            np.testing.assert_allclose(np.exp(ours), np.exp(reference), atol=2e-5)
            seen = max(seen, int(state.cache.length.max()))
            stream = loop.stream(decode, state, verify=token_level, **static)
            if np.asarray(state.stop).all():
                break
            state, _ = next(stream)
        assert seen > BUDGET + WINDOW  # the ring has gone round


def test_control_t5_requires_true_positions():
    """The control of the test above: distances by slot index are others once tokens were left out."""
    length, depth = jnp.asarray([8]), jnp.asarray([[12]])
    mask = jnp.ones((1, 1), bool)
    positions = jnp.asarray([[0, 1, 20, 15, 16, 17, 18, 19, 20, 21, 22]])
    true = block_distance(length, mask, depth, 11, positions)[0, 0]
    assert true[:9].tolist() == [-20, -19, 0, -5, -4, -3, -2, -1, 0]
    assert block_distance(length, mask, depth, 11)[0, 0, :9].tolist() != true[:9].tolist()


@pytest.mark.slow
def test_a_row_that_was_rolled_back_is_read_again():
    """A state that holds more than is committed, as after a rollback, drafts as a fresh one does."""
    model = battery.target("llama")
    loaded = drafters.small_kv(model, gamma=GAMMA, budget=BUDGET, selection=Sinks(KEPT))
    decode, state, static = prepare("llama", loaded, 1.0, setting=Setting(max_new=20))
    later = state
    for _ in range(3):
        later, _ = loop.one_round(decode, jax.tree.map(jnp.copy, later), verify=token_level, **static)
    warp = loop.make_warp(decode.sampling, None)
    propose = jax.jit(lambda s: loop.propose(loaded.drafter, decode.draft, loop.round_keys(s.key)[1], s, warp)[0])
    with jax.debug_key_reuse(False):
        fresh = propose(state)
        back = propose(state._replace(draft=later.draft))
        untold = propose(state._replace(draft=later.draft._replace(synced=state.cache.length)))
    np.testing.assert_array_equal(fresh.tokens, back.tokens)
    assert not np.array_equal(fresh.log_q, untold.log_q)  # the control: the ring holds other tokens by then


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"budget": 5, "gamma": 3}, "budget=5.*gamma=3"),
        ({"budget": 0}, "budget"),
        ({"budget": 8, "selection": drafters.SnapKV(window=8)}, "budget=8"),
        ({"budget": 16, "gamma": 2, "selection": drafters.SnapKV(window=8)}, "observed=32"),
    ],
)
def test_a_budget_that_is_too_small_is_refused(options, name):
    with pytest.raises(ValueError, match=name):
        drafters.small_kv(battery.target("opt"), **options)


@pytest.mark.parametrize("selection", [drafters.SnapKV(), drafters.Retrieval()])
def test_selections_by_head_refuse_t5(selection):
    with pytest.raises(ValueError, match="Sinks"):
        drafters.small_kv(battery.target("t5"), selection=selection)


def test_a_selection_names_the_number_that_is_out_of_range():
    with pytest.raises(ValueError, match="chunk"):
        drafters.Retrieval(chunk=0)
    with pytest.raises(ValueError, match="count"):
        Sinks(-1)
