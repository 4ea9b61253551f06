"""Every drafter that can take committed tokens back, inside a cascade: what the target refused is forgotten."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decoding as loop
from specjax import drafters, policies, trees
from specjax.drafters import LoadedDrafter, Retrieval, Sinks, SnapKV
from specjax.drafters.lookahead import advanced, moved_back
from specjax.drafters.ngram import History
from specjax.types import Siblings
from specjax.verify.token import token_level
from tests import battery
from tests.battery import run, texts

SNAP = SnapKV(window=4, observed=3, pool=3, every=2)


def inner(kind: str, middle, small) -> tuple[LoadedDrafter, str]:
    """What drafts for the middle model, and a verifier that serves it. "exact" kinds are never wrong about it."""
    regular = trees.regular((2, 1))
    return {
        "tree": lambda: (drafters.tree(small, regular), "multiround-without"),
        "dynamic tree": lambda: (drafters.dynamic_tree(small, size=5, depth=2, width=2), "deterministic"),
        "policy": lambda: (drafters.model(small, policy=policies.heuristic(gamma_max=4)), "token"),
        "suffix": lambda: (drafters.suffix(gamma=3), "token"),
        "suffix tree": lambda: (drafters.suffix_tree(size=6, depth=3), "deterministic"),
        "lookahead": lambda: (drafters.lookahead(window=3, ngram=3, guesses=2), "deterministic"),
        "layer skip": lambda: (drafters.layer_skip(middle, gamma=2, layers=[0]), "token"),
        "int8": lambda: (drafters.quantized(middle, gamma=2), "token"),
        "sinks": lambda: (drafters.small_kv(middle, gamma=2, budget=6, selection=Sinks(2)), "token"),
        "snapkv": lambda: (drafters.small_kv(middle, gamma=2, budget=7, selection=SNAP), "token"),
        "bounded": lambda: (
            drafters.model(drafters.bounded(small, budget=8, selection=Sinks(2), slack=8), gamma=2),
            "token",
        ),
        "exact tree": lambda: (drafters.tree(middle, regular, siblings=Siblings.POINTS), "deterministic"),
        "exact dynamic tree": lambda: (drafters.dynamic_tree(middle, size=5, depth=2, width=2), "deterministic"),
        "exact policy": lambda: (drafters.model(middle, policy=policies.threshold(0.6, gamma_max=4)), "token"),
        "exact slots": lambda: (drafters.small_kv(middle, gamma=2, budget=64, selection=Sinks(2)), "token"),
    }[kind]()


@functools.cache
def cascade(kind: str, family: str = "opt") -> LoadedDrafter:
    middle, small = battery.draft(family), battery.draft(family, 0.3)
    loaded, verifier = inner(kind, middle, small)
    return drafters.cascade(middle, loaded, gamma=4, verifier=verifier)


EXACT = ["exact tree", "exact dynamic tree", "exact policy", "exact slots"]
OTHERS = [
    "tree", "dynamic tree", "policy", "suffix", "suffix tree", "lookahead", "layer skip", "int8", "sinks", "snapkv",
    "bounded",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exact tree", *(pytest.param(k, marks=pytest.mark.slow) for k in EXACT[1:])])
def test_a_perfect_drafter_is_never_rejected(kind):
    """It drafts after the text that was committed in the end, or it would be wrong about what follows."""
    state = run("opt", cascade(kind))
    assert texts(state) == battery.plain("opt")
    outer, tally = jax.device_get((state.totals, state.draft.tally))
    assert 0 < outer.accepted.sum() < outer.tested.sum()  # so that tokens were taken back
    assert tally.accepted.tolist() == tally.tested.tolist()
    assert tally.accepted.min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exact tree", "exact policy"])
def test_control_a_missing_rollback_is_detected(kind):
    """The control: with a `rewind` that takes nothing back."""
    middle = battery.draft("opt")
    loaded, verifier = inner(kind, middle, middle)
    forgets = loaded._replace(drafter=loaded.drafter._replace(rewind=lambda params, state, back, token: state))
    state = run("opt", drafters.cascade(middle, forgets, gamma=4, verifier=verifier))
    assert state.draft.tally.accepted.sum() < state.draft.tally.tested.sum()


@pytest.mark.parametrize("kind", battery.others_slow(OTHERS, ["layer skip"]))
def test_greedy_equals_plain_with_every_drafter_inside(kind):
    state = run("opt", cascade(kind))
    assert texts(state) == battery.plain("opt")
    totals, tally = jax.device_get((state.totals, state.draft.tally))
    assert 0 < totals.accepted.sum() < totals.tested.sum()
    assert tally.drafted.sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tree", "policy", "layer skip", "sinks", "bounded"])
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_greedy_equals_plain_on_other_families(family, kind):
    assert texts(run(family, cascade(kind, family))) == battery.plain(family)


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "selection"), [(64, Sinks(2)), (9, Sinks(2)), (10, Retrieval(4, 2, 1, 1))])
def test_a_hierarchy_of_bounded_caches(budget, selection):
    """TriForce: the target over few slots in the middle, a small model over fewer below it; and its taking back."""
    small = drafters.bounded(battery.draft("opt", 0.3), budget=8, selection=Sinks(2), slack=8)
    middle = drafters.bounded(battery.target("opt"), budget=budget, selection=selection, slack=8)
    state = run("opt", drafters.cascade(middle, drafters.model(small, gamma=2), gamma=4))
    assert texts(state) == battery.plain("opt")
    outer, tally = jax.device_get((state.totals, state.draft.tally))
    assert 0 < tally.accepted.sum() < tally.tested.sum()
    assert (outer.accepted.sum() == outer.tested.sum()) == (budget == 64)  # where all fits, it is the target itself


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["suffix", "suffix tree"])
def test_a_history_is_the_committed_text(kind):
    """After every round, and but for the token that the levels lag by."""
    decode, state, static = battery.prepare("opt", cascade(kind))
    rows = [battery.prompts()[row, :n].tolist() for row, n in enumerate(battery.LENGTHS)]
    lagged = 0
    for after, info in loop.stream(decode, state, verify=token_level, **static):
        history, lag = jax.device_get((after.draft.inner, after.draft.lag))
        assert isinstance(history, History)
        for row, text in enumerate(rows):
            rows[row] = text + info.committed[row, : info.emitted[row]].tolist()
            if after.stop[row] == 0:
                known = len(rows[row]) - lag[row]
                assert history.tokens[row, : history.length[row]].tolist() == rows[row][:known]
        lagged += lag.sum()
    assert lagged > 0


def test_moving_a_window_back_restores_it():
    columns = jnp.asarray(np.random.default_rng(0).integers(0, 99, (3, 4, 5)), jnp.int32)
    far = advanced(columns, jnp.asarray([4, 3, 2]))
    back = moved_back(far, jnp.asarray([3, 1, 0]))
    np.testing.assert_array_equal(back, advanced(columns, jnp.asarray([1, 2, 2])))
