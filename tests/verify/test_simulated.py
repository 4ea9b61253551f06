"""Simulated acceptance: exact distributions by enumeration of the uniforms, statistics with controls, full cost."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import decoding as loop
from specjax import drafters, theory, trees, verify
from specjax.request import prepare
from specjax.types import Draft
from specjax.verify.simulation import simulated, simulated_walk
from tests import battery, distributions
from tests.verify.chains import enable_x64

UNEVEN = trees.Tree((-1, 0, 0, 0, 1, 1, 3, 4))
BY_DEPTH = (0.9, 0.4, 0.7)


def points(tree: trees.Tree, rows: int, vocab: int = 3) -> tuple[Draft, jnp.ndarray]:
    tokens = np.zeros((rows, tree.size), np.int32)
    log_p = np.full((rows, tree.size, vocab), -np.log(vocab), jnp.zeros(()).dtype)
    return Draft(jnp.asarray(tokens), jnp.asarray(tokens == 0), None), jnp.asarray(log_p)


def exact(tree: trees.Tree, alpha, **changed) -> np.ndarray:
    """P(accepted = k): every outcome of the tests, with its probability."""
    outcomes = np.array(list(itertools.product((True, False), repeat=tree.size - 1)))
    chance = np.broadcast_to(np.atleast_1d(alpha)[np.minimum(tree.depth[1:], np.size(alpha)) - 1], outcomes.shape)
    weight = np.where(outcomes, chance, 1 - chance).prod(1)
    with enable_x64(True):
        draft, log_p = points(tree, len(outcomes))
        u = jnp.pad(jnp.where(outcomes, -jnp.inf, jnp.inf), ((0, 0), (1, 0)))
        walk = jax.jit(simulated_walk(alpha), static_argnums=1)
        node = walk(u, tree, draft._replace(**changed), log_p).node
    return np.bincount(tree.depth[np.asarray(node)], weight, minlength=tree.width)


@pytest.mark.parametrize(
    ("alpha", "gamma"),
    battery.others_slow(itertools.product([0.0, 0.3, 0.75, 1.0], [1, 4, 7]), [(0.0, 1), (0.3, 7), (0.75, 4), (1.0, 4)]),
)
def test_a_chain_has_the_closed_form(alpha, gamma):
    np.testing.assert_allclose(exact(trees.chain(gamma), alpha), theory.tokens_distribution(alpha, gamma), atol=1e-14)


def test_one_probability_for_each_depth():
    tokens = exact(trees.chain(5), BY_DEPTH) @ np.arange(1, 7)
    assert tokens == pytest.approx(theory.expected_tokens_by_position([*BY_DEPTH, 0.7, 0.7]), abs=1e-14)


@pytest.mark.parametrize("alpha", [0.3, BY_DEPTH])
def test_siblings_are_tested_in_order_until_one_passes(alpha):
    a = np.resize(np.atleast_1d(alpha), (UNEVEN.width - 1, 1))
    table = a * (1 - a) ** np.arange(3)
    tokens = exact(UNEVEN, alpha) @ np.arange(1, UNEVEN.width + 1)
    assert tokens == pytest.approx(theory.tree_tokens(UNEVEN.parents, table), abs=1e-14)


def test_one_tree_per_row_has_the_distribution_of_the_same_static_tree():
    rows = 2 ** (UNEVEN.size - 1)
    parents = jnp.tile(jnp.asarray(UNEVEN.parents, jnp.int32)[None], (rows, 1))
    np.testing.assert_array_equal(exact(UNEVEN, 0.3, parents=parents), exact(UNEVEN, 0.3))


def test_tokens_that_were_not_proposed_are_not_accepted():
    valid = jnp.ones((2 ** (UNEVEN.size - 1), UNEVEN.size), bool).at[:, 1].set(False)
    left = trees.Tree((-1, 0, 0, 2))  # without node 1 and its branch
    np.testing.assert_allclose(exact(UNEVEN, 0.3, valid=valid)[:3], exact(left, 0.3), atol=1e-14)


def accepted(alpha, tree: trees.Tree, rows: int = 100_000) -> np.ndarray:
    run = jax.jit(lambda keys, *given: simulated(alpha)(keys, tree, *given).accepted)
    return np.bincount(run(jax.random.split(jax.random.key(2), rows), *points(tree, rows)), minlength=tree.width)


def test_samples_have_the_closed_form_and_another_alpha_is_detected():
    tree, alpha = trees.chain(7), 0.75
    counts = accepted(alpha, tree)
    assert distributions.chi_square(counts, theory.tokens_distribution(alpha, 7)) > distributions.ALPHA
    assert distributions.chi_square(counts, theory.tokens_distribution(alpha + 0.01, 7)) < distributions.ALPHA
    rejected = counts[:-1].sum()
    share = counts @ np.arange(8) / (counts @ np.arange(8) + rejected)
    assert share == pytest.approx(alpha, rel=0.005)


def test_neither_model_changes_what_is_accepted():
    tree, rows = trees.chain(4), 64
    draft, log_p = points(tree, rows)
    keys = lambda: jax.random.split(jax.random.key(0), rows)
    other = draft._replace(tokens=draft.tokens + 1, log_q=log_p)
    verify = jax.jit(simulated(), static_argnums=1)
    first, second = verify(keys(), tree, draft, log_p), verify(keys(), tree, other, 2 * log_p)
    np.testing.assert_array_equal(first.accepted, second.accepted)
    assert len(np.unique(first.accepted)) > 1


def test_the_next_token_follows_the_target():
    tree, rows = trees.chain(2), 20_000
    draft, _ = points(tree, rows)
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.2, 0.7, 0.1]])
    log_p = jnp.broadcast_to(jnp.log(p.astype(np.float32)), (rows, 3, 3))
    verdict = jax.jit(simulated(0.5), static_argnums=1)(jax.random.split(jax.random.key(1), rows), tree, draft, log_p)
    for depth in range(3):
        counts = np.bincount(np.asarray(verdict.token)[np.asarray(verdict.accepted) == depth], minlength=3)
        assert distributions.chi_square(counts, p[depth]) > distributions.ALPHA


DRAFTERS = {
    "chain": lambda draft: drafters.model(draft, gamma=4),
    "tree": lambda draft: drafters.tree(draft, UNEVEN),
    "dynamic tree": lambda draft: drafters.dynamic_tree(draft, size=8, depth=3, width=2),
    "cascade": lambda draft: drafters.cascade(draft, drafters.model(draft, gamma=2), gamma=4),
}


@pytest.mark.parametrize("name", battery.others_slow(DRAFTERS, []))
def test_a_run_accepts_the_given_share(name):
    drafter = DRAFTERS[name](battery.draft("opt"))
    verifier = verify.TABLE["simulated"]._replace(fn=simulated(0.7))
    out = specjax.generate(
        battery.target("opt"), [[1, 2]] * 128, drafter=drafter, verifier=verifier, max_new_tokens=24, ignore_eos=True
    )
    assert not out.lossless
    if drafter.drafter.tree.is_chain and not drafter.drafter.dynamic:
        assert out.stats.accepted_per_tested == pytest.approx(0.7, rel=0.03)
    else:  # a level with two siblings accepts 0.7 + 0.3 x 0.7
        assert 0.7 < out.stats.by_depth[0] < 1


@pytest.mark.slow
def test_draft_and_target_run_in_full():
    target, drafter = battery.target("opt"), battery.drafter_for("model-2", "opt")

    def flops(name: str) -> float:
        job = prepare(target, [[1, 2]], drafter=drafter, verifier=name, temperature=1.0).begin()
        return loop.one_round.lower(job.params, job.state, **job.static).compile().cost_analysis()["flops"]

    assert flops("simulated") == pytest.approx(flops("token"), rel=0.05)


def test_it_is_never_the_default():
    with pytest.raises(ValueError, match="simulated"):
        verify.TABLE["simulated"].require_lossless()
    with pytest.raises(ValueError, match="simulated"):
        drafters.cascade(battery.draft("opt"), battery.drafter_for("model-2", "opt"), verifier="simulated")


@pytest.mark.parametrize("alpha", [-0.1, 1.5, float("nan"), (0.5, 2.0)])
def test_probabilities_out_of_range_raise(alpha):
    with pytest.raises(ValueError, match="alpha"):
        simulated(alpha)
