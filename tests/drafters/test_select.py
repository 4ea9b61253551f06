"""What SnapKV and retrieval keep, against their definitions in numpy, on the target's own queries and keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decoding as loop
from specjax import drafters
from specjax.drafters import Retrieval, SnapKV
from specjax.drafters.small_kv import slot_of
from specjax.models.cache import KV
from specjax.verify.token import token_level
from tests import battery
from tests.battery import Setting, prepare

RNG = np.random.default_rng(0)
ROWS, BLOCK, HEADS, SHARED, WIDTH, SLOTS = 2, 3, 4, 2, 5, 23
Q = RNG.normal(size=(ROWS, BLOCK, HEADS, WIDTH)).astype(np.float32)
K = RNG.normal(size=(ROWS, HEADS // SHARED, SLOTS, WIDTH)).astype(np.float32)
TOTAL, BEFORE = np.array([21, 17]), np.array([16, 12])


def arguments(kept):
    return jnp.asarray(Q), KV(jnp.asarray(K), jnp.asarray(K)), jnp.asarray(TOTAL), jnp.asarray(BEFORE), kept


def test_snapkv_by_its_definition():
    pool, kept = 3, 6
    got = np.asarray(SnapKV(window=5, observed=BLOCK, pool=pool, every=1).best(*arguments(kept)))
    for row in range(ROWS):
        for head in range(K.shape[1]):
            votes = np.zeros(SLOTS)
            for i in range(BLOCK):
                own = TOTAL[row] - BLOCK + i  # the query's own position
                for h in range(head * SHARED, (head + 1) * SHARED):
                    score = np.exp(K[row, head, : own + 1] @ Q[row, i, h])
                    votes[: own + 1] += score / score.sum()
            around = [votes[max(0, s - pool // 2) : s + pool // 2 + 1].sum() for s in range(BEFORE[row])]
            assert set(got[row, head]) == set(np.argsort(around)[-kept:])
            assert len(set(got[row, head])) == kept


def test_retrieval_by_its_definition():
    chunk, kept = 3, 9
    got = np.asarray(Retrieval(window=5, chunk=chunk, observed=BLOCK, every=1).best(*arguments(kept)))
    others = 0
    for row in range(ROWS):
        for head in range(K.shape[1]):
            query = Q[row, :, head * SHARED : (head + 1) * SHARED].sum((0, 1))
            whole = BEFORE[row] // chunk
            means = K[row, head, : whole * chunk].reshape(whole, chunk, WIDTH).mean(1)
            best = [0, *(1 + np.argsort(means[1:] @ query)[-(kept // chunk - 1) :])]
            others += np.argmin(means @ query) == 0  # chunk 0 is there although nothing looks at it
            assert set(got[row, head]) == {c * chunk + i for c in best for i in range(chunk)}
    assert others > 0


@pytest.mark.parametrize("family", battery.others_slow(["opt", "llama"], ["llama"]))
def test_observed_queries_are_the_models_own(family, monkeypatch):
    """Against those that attention is handed when the same tokens are read as a prompt."""
    from specjax.models import llama, opt

    model, seen = battery.target(family), []
    module = {"opt": opt, "llama": llama}[family]
    whole = module.attend

    def spy(q, kv, visible, **more):
        seen.append(q * more["scale"])
        return whole(q, kv, visible, **more)

    tokens = battery.prompts()[:4, :12]
    monkeypatch.setattr(module, "attend", spy)

    @jax.jit
    def read_prompt(params):
        read = model.lm.prefill(params, jnp.asarray(tokens), jnp.full((4,), 13), 20)
        return read, list(seen)

    read, prompt = read_prompt(model.params)
    before = jax.tree.map(np.asarray, read.cache.layers)
    observe = jax.jit(model.family.observer(model.config, model.fmt))
    got = observe(model.params, jnp.asarray(tokens[:, 7:]), read.cache)
    assert len(got) == len(prompt) == 2
    for ours, theirs in zip(got, prompt, strict=True):
        np.testing.assert_allclose(ours, theirs[:, 7:12], atol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, before, read.cache.layers)


@pytest.mark.slow
@pytest.mark.parametrize("selection", [SnapKV(5, 3, 3, 4), Retrieval(5, 2, 2, 4)])
def test_kept_slots_are_copies_of_the_chosen_ones_and_change_on_schedule(selection):
    """Rows choose every four tokens of their own; between, their kept slots stay; the ring is always the latest."""
    model, budget, gamma = battery.target("llama"), 11, 3
    loaded = drafters.small_kv(model, gamma=gamma, budget=budget, selection=selection)
    kept = selection.kept(budget)
    window = budget - kept
    decode, state, static = prepare("llama", loaded, 1.0, setting=Setting(max_new=24))
    pick = jax.jit(selection.choice(model, kept).pick)
    history = [battery.prompts()[row, : battery.LENGTHS[row]].tolist() for row in range(battery.ROWS)]
    chosen, held, turns = np.full(battery.ROWS, -99), [None] * battery.ROWS, 0
    for _ in range(6):
        total = np.array(state.cache.length)
        recent = np.zeros((battery.ROWS, selection.observed), np.int32)
        for row, text in enumerate(history):
            inside = text[:-1][-selection.observed :]
            recent[row, selection.observed - len(inside) :] = inside
        at = [np.asarray(a) for a in pick(model.params, jnp.asarray(recent), state.cache, jnp.asarray(total - window))]
        for row in range(battery.ROWS):
            if total[row] > budget and total[row] - chosen[row] >= selection.every:
                chosen[row], turns = total[row], turns + 1
                held[row] = [at[layer][row] for layer in range(2)]
        target = jax.tree.map(np.array, state.cache.layers)  # copies: the state is donated
        alive = np.asarray(state.stop) == 0
        state, info = loop.one_round(decode, state, verify=token_level, **static)
        for row in range(battery.ROWS):
            if not alive[row] or held[row] is None:
                continue
            ring = np.arange(max(total[row] - window, 0), total[row])
            where = np.asarray(slot_of(jnp.asarray(ring)[None], kept=kept, budget=budget))[0]
            for layer in range(2):
                for ours, theirs in zip(state.draft.layers[layer], target[layer], strict=True):
                    ours = np.asarray(ours)[row]
                    np.testing.assert_array_equal(ours[:, where], theirs[row][:, ring])
                    for head in range(2):
                        np.testing.assert_array_equal(ours[head, :kept], theirs[row, head, held[row][layer][head]])
        for row, text in enumerate(history):
            text += np.asarray(info.committed)[row, : int(info.emitted[row])].tolist()
    assert turns > battery.ROWS  # rows chose more than once
