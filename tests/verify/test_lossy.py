"""Lossy verifiers meet their documented bounds (by enumeration) and criteria (by hand)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import trees
from specjax.types import Draft, Siblings
from specjax.verify import lossy, token
from specjax.verify.lossy import lossy_lenient, lossy_lenient_greedy, lossy_threshold, lossy_typical
from tests import battery, distributions
from tests.verify.enumerate import all_drafts, emitted, target_joint
from tests.verify.rounds import drafted

P, Q = distributions.random_model(1, 3, sharpness=1.0), distributions.random_model(2, 3, sharpness=2.0)
WITH, POINTS = Siblings.WITH_REPLACEMENT, Siblings.POINTS
SETS = {name: jax.jit(fn, static_argnames="tree") for name, fn in {
    "typical": lossy_typical(), "threshold": lossy_threshold(0.3), "greedy": lossy_lenient_greedy(0.5),
}.items()}  # fmt: skip


# --- lenience ---


@pytest.mark.parametrize("kind", (WITH, POINTS))
@pytest.mark.parametrize("lenience", (0.3, 0.8))
def test_lenience_gives_no_token_more_than_p_over_l(lenience, kind):
    tree = trees.chain(1)
    for seed in range(6):
        p, q = distributions.random_model(seed, 3), distributions.random_model(seed + 20, 3, zeros=0.3)
        drafts = all_drafts(p, q, 3, tree, kind)
        found, tokens = emitted(lossy.lenient_walk(lenience), drafts, tree)
        first = found.sum(axis=1)
        assert np.all(first <= p(()) / lenience * (1 + 1e-12))
        assert first.sum() == pytest.approx(1.0, abs=1e-12)
        shares = drafts.q[0][0] if kind is WITH else np.eye(3)[drafts.q[0][0].argmax()]
        assert tokens == pytest.approx(1 + np.minimum(p(()) / lenience, shares).sum(), abs=1e-12)


def test_lenience_bounds_whole_sequences():
    tree, lenience = trees.chain(3), 0.5
    found, _ = emitted(lossy.lenient_walk(lenience), all_drafts(P, Q, 3, tree, WITH), tree)
    bound = target_joint(P, tree) / lenience**3  # the last of four tokens follows p, or p within the bound
    assert np.all(found <= bound * (1 + 1e-12) / lenience)
    assert np.abs(found - target_joint(P, tree)).max() > 1e-3  # and it is lossy


def test_lenience_one_is_lossless():
    tree = trees.chain(3)
    found, _ = emitted(lossy.lenient_walk(1.0), all_drafts(P, Q, 3, tree, WITH), tree)
    assert np.abs(found - target_joint(P, tree)).max() < 1e-12


def test_control_the_bound_requires_the_residual(monkeypatch):
    """Rejected tokens replaced by samples of p: the most probable token exceeds p / l."""
    monkeypatch.setattr(token, "residual", lambda p, q: p)
    tree = trees.chain(1)
    found, _ = emitted(lambda *args: lossy.lenient_walk(0.99)(*args), all_drafts(P, Q, 3, tree, WITH), tree)
    assert np.any(found.sum(axis=1) > P(()) / 0.99 * 1.01)


# --- criteria of single tokens ---


def one(verify, p, token: int) -> bool:
    """Whether a token passes after a position with distribution p."""
    with np.errstate(divide="ignore"):
        log_p = jnp.asarray(np.log([[p, p]]), jnp.float32)
    draft = Draft(jnp.array([[0, token]]), jnp.ones((1, 2), bool), None)
    verdict = verify(jax.random.split(jax.random.key(0), 1), trees.chain(1), draft, log_p)
    return int(verdict.accepted[0]) == 1


def test_typical_acceptance_by_hand():
    sure, flat = [0.90, 0.095, 0.005], [0.05] * 20
    assert [one(SETS["typical"], sure, x) for x in range(3)] == [True, True, False]  # floor min(0.09, 0.3 / e^H) = 0.09
    assert one(SETS["typical"], flat, 7)  # floor 0.3 / 20 = 0.015: lower for an uncertain target
    assert not one(SETS["typical"], [0.5, 0.5, 0.0], 2)
    assert [one(SETS["typical"], [0.0, 1.0], x) for x in (0, 1)] == [False, True]  # temperature 0


def test_entropy_with_zero_probabilities():
    with np.errstate(divide="ignore"):
        log_p = jnp.log(jnp.array([[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1 / 3]]]))
    np.testing.assert_allclose(lossy.entropy(log_p)[0], [np.log(2), 0, np.log(3)], atol=1e-6)


def test_threshold_by_hand():
    assert [one(SETS["threshold"], [0.5, 0.3, 0.2], x) for x in range(3)] == [True, True, False]


def passes_lenient_greedy() -> list[bool]:
    fresh = lossy_lenient_greedy.__wrapped__(0.5)
    return [one(fresh, [0.5, 0.3, 0.2], x) for x in range(3)]


@pytest.mark.slow
def test_lenient_greedy_by_hand():
    assert passes_lenient_greedy() == [True, True, False]
    assert [one(lossy_lenient_greedy(1.0), [0.5, 0.3, 0.2], x) for x in range(3)] == [True, False, False]


def test_control_a_reversed_inequality_is_detected(monkeypatch):
    """A published text states p(x) <= l max p."""
    right = lossy.longest
    floor = lambda found: lambda log_p: 1.0 - found.floor(log_p)

    def reversed_(found, tree, draft, log_p):
        log_p = jnp.log1p(-jnp.exp(log_p))  # 1 - p >= 1 - floor is p <= floor
        return right(found._replace(floor=lambda low: floor(found)(jnp.log1p(-jnp.exp(low)))), tree, draft, log_p)

    monkeypatch.setattr(lossy, "longest", reversed_)
    assert passes_lenient_greedy() == [False, False, True]


# --- paths ---


def by_hand(tree, draft, log_p, meets):
    """The deepest node whose path meets the criterion; ties go to the most probable."""
    best = []
    for row in range(len(log_p)):
        found = [(0, 0.0, 0)]
        for node in range(1, tree.size):
            path = [n for n in range(1, tree.size) if tree.mask[node, n]]
            after = [np.exp(log_p[row, tree.parents[n]]) for n in path]
            tokens = [draft.tokens[row, n] for n in path]
            if all(draft.valid[row, n] for n in path) and all(map(meets, after, tokens)):
                score = sum(np.log(p[x]) for p, x in zip(after, tokens, strict=True))
                found.append((int(tree.depth[node]), score, node))
        best.append(max(found, key=lambda f: f[:2])[2])
    return np.array(best)


MEETS = {
    "typical": lambda p, x: p[x] > min(0.09, 0.3 * np.exp((p * np.log(p)).sum())),
    "threshold": lambda p, x: p[x] >= 0.3,
    "greedy": lambda p, x: p[x] >= 0.5 * p.max(),
}


@pytest.mark.parametrize("name", battery.others_slow(SETS, ["typical"]))
def test_the_longest_path_that_passes_is_accepted(name):
    tree, rows = trees.regular((3, 2, 2)), 60
    keys = jax.random.split(jax.random.key(3), 4)
    log_p = jax.nn.log_softmax(1.5 * jax.random.normal(keys[0], (rows, tree.size, 5)))
    valid = jax.random.bernoulli(keys[1], 0.9, (rows, tree.size)).at[:, 0].set(True)
    log_q = lambda previous: jnp.zeros((rows, 5))
    draw = jax.jit(lambda keys: drafted(keys, tree, WITH, jnp.zeros(rows, jnp.int32), log_q))
    draft = draw(jax.random.split(keys[2], rows))._replace(valid=valid)
    verdict = jax.jit(SETS[name], static_argnums=1)(jax.random.split(keys[3], rows), tree, draft, log_p)
    expected = by_hand(tree, jax.device_get(draft), np.asarray(log_p, np.float64), MEETS[name])
    last = np.take_along_axis(np.asarray(verdict.path), np.asarray(verdict.accepted)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(last, expected)
    np.testing.assert_array_equal(verdict.accepted, tree.depth[expected])
    assert len(set(expected.tolist())) > 5
    if name == "greedy":
        np.testing.assert_array_equal(verdict.token, np.asarray(log_p)[np.arange(rows), expected].argmax(-1))


def test_a_bare_root_samples_from_p():
    log_p = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (4000, 1, 3)))[:1].repeat(4000, 0)
    draft = Draft(jnp.zeros((4000, 1), jnp.int32), jnp.ones((4000, 1), bool), None)
    for make in (lossy_typical, lossy_threshold, lossy_lenient):
        verdict = jax.jit(make(), static_argnums=1)(
            jax.random.split(jax.random.key(1), 4000), trees.chain(0), draft, log_p
        )
        counts = np.bincount(np.asarray(verdict.token), minlength=3)
        assert distributions.chi_square(counts, np.exp(np.asarray(log_p[0, 0], np.float64))) > distributions.ALPHA


@pytest.mark.parametrize(("make", "wrong", "argument"), [
    (lossy_typical, {"epsilon": 1.0}, "epsilon"), (lossy_typical, {"delta": 0.0}, "delta"),
    (lossy_threshold, {"least": 1.5}, "least"), (lossy_lenient, {"lenience": 0.0}, "lenience"),
    (lossy_lenient_greedy, {"lenience": float("nan")}, "lenience"),
])  # fmt: skip
def test_parameters_out_of_range_raise(make, wrong, argument):
    with pytest.raises(ValueError, match=argument):
        make(**wrong)


def test_constructors_are_cached():
    assert lossy_typical(0.1, 0.2) is lossy_typical(0.1, 0.2)
    assert lossy_lenient(0.5) is not lossy_lenient(0.6)
