"""Closed forms: published tables with their rounding, limits, monotonicity, Monte Carlo, brute force, the page."""

import doctest
import importlib
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax import theory, trees

PAGE = Path(__file__).resolve().parents[1] / "docs" / "concepts" / "theory.md"
SIGMAS = 5  # of a Monte Carlo mean: a right formula fails once in two million; seeds are fixed
chances = st.floats(0, 1)
gammas = st.integers(0, 40)
costs = st.floats(0, 2)

# Leviathan et al. 2023, table 1: alpha, gamma, operations, speed, with c = 0.
TABLE_1 = [
    (0.6, 2, "1.53X", "1.96X"),
    (0.7, 3, "1.58X", "2.53X"),
    (0.8, 2, "1.23X", "2.44X"),
    (0.8, 5, "1.63X", "3.69X"),
    (0.9, 2, "1.11X", "2.71X"),
    (0.9, 10, "1.60X", "6.86X"),
]
# Table 2: task, draft, temperature, gamma, alpha, measured speed over T5-XXL.
TABLE_2 = [
    ("EnDe", "small", 0, 7, 0.75, 3.4),
    ("EnDe", "base", 0, 7, 0.80, 2.8),
    ("EnDe", "large", 0, 7, 0.82, 1.7),
    ("EnDe", "small", 1, 7, 0.62, 2.6),
    ("EnDe", "base", 1, 5, 0.68, 2.4),
    ("EnDe", "large", 1, 3, 0.71, 1.4),
    ("CNNDM", "small", 0, 5, 0.65, 3.1),
    ("CNNDM", "base", 0, 5, 0.73, 3.0),
    ("CNNDM", "large", 0, 3, 0.74, 2.2),
    ("CNNDM", "small", 1, 5, 0.53, 2.3),
    ("CNNDM", "base", 1, 3, 0.55, 2.2),
    ("CNNDM", "large", 1, 3, 0.56, 1.7),
]


def random_distributions(seed: int, rows: int, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    p, q = np.random.default_rng(seed).dirichlet(np.full(vocab, 0.5), (2, rows))
    return p, q


def assert_mean(samples: np.ndarray, expected: float, *, wrong: float) -> None:
    """The mean is the expected one within SIGMAS of its own error, which is small enough to refute a wrong one."""
    error = samples.std(ddof=1) / np.sqrt(samples.size)
    assert abs(samples.mean() - expected) < SIGMAS * error
    assert abs(samples.mean() - wrong) > SIGMAS * error, "the sample is too small to tell right from wrong"


def rounds_of(rng: np.random.Generator, alpha: float, gamma: int, size: int) -> np.ndarray:
    """Tokens of simulated rounds."""
    return 1 + np.cumprod(rng.random((size, gamma)) < alpha, -1).sum(-1)


# ---- Published tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "gamma", "operations", "speed"), TABLE_1)
def test_table_1(alpha, gamma, operations, speed):
    assert f"{theory.operations_factor(alpha, gamma, 0):.2f}X" == operations
    assert f"{theory.walltime_factor(alpha, gamma, 0):.2f}X" == speed
    assert f"{theory.memory_factor(alpha, gamma):.2f}X" == speed


def test_table_1_at_once():
    alpha, gamma = np.array([row[0] for row in TABLE_1]), np.array([row[1] for row in TABLE_1])
    assert [f"{x:.2f}X" for x in theory.walltime_factor(alpha, gamma, 0)] == [row[3] for row in TABLE_1]


def test_table_2_implies_costs_that_grow_with_the_draft():
    for rows in (TABLE_2[first : first + 3] for first in range(0, len(TABLE_2), 3)):
        implied = [theory.implied_cost(alpha, gamma, speed) for *_, gamma, alpha, speed in rows]
        assert implied[-1] == max(implied) > 0
        for cost, (*_, gamma, alpha, speed) in zip(implied, rows, strict=True):
            if cost >= 0:
                assert f"{theory.walltime_factor(alpha, gamma, cost):.1f}" == f"{speed:.1f}"


def test_table_2_has_four_rows_above_the_limit_of_the_formula():
    above = {row[:3] for row in TABLE_2 if row[5] > theory.walltime_factor(row[4], row[3], 0)}
    assert above == {("EnDe", "small", 1), ("CNNDM", "small", 0), ("CNNDM", "small", 1), ("CNNDM", "base", 1)}
    assert above == {row[:3] for row in TABLE_2 if theory.implied_cost(row[4], row[3], row[5]) < 0}


def test_a_bigram_at_no_cost_gains_a_quarter():
    assert f"{theory.oracle_factor(0.2, 0):.2f}" == "1.25"  # table 3: T5-XXL, EnDe, bigram, T = 0
    assert f"{theory.walltime_factor(0.2, 3, 0):.2f}" == "1.25"


# ---- Acceptance -------------------------------------------------------------------------------------------------


def test_acceptance_by_hand():
    p, q = [0.5, 0.3, 0.2, 0.0], [0.1, 0.6, 0.2, 0.1]
    assert theory.beta(p, q) == pytest.approx(0.1 + 0.3 + 0.2)
    assert theory.divergence(p, q) == pytest.approx(0.4)
    assert theory.lenient_beta(p, q, 0.5) == pytest.approx(0.1 + 0.6 + 0.2)
    assert theory.rejection_beta(p, q) == pytest.approx(0.2)  # M = 0.5 / 0.1
    assert theory.alpha([p, p], [q, p]) == pytest.approx(0.8)


def test_beta_is_the_rate_at_which_draws_are_accepted():
    (p, q), rng = random_distributions(0, 1, 7), np.random.default_rng(1)
    p, q = p[0], q[0]
    x, u = rng.choice(7, 200_000, p=q), rng.random(200_000)
    assert_mean(u * q[x] < p[x], theory.beta(p, q), wrong=theory.rejection_beta(p, q))
    assert_mean(u * 0.6 * q[x] < p[x], theory.lenient_beta(p, q, 0.6), wrong=theory.beta(p, q))
    assert_mean(u * (p / q).max() * q[x] < p[x], theory.rejection_beta(p, q), wrong=theory.beta(p, q))


@given(st.integers(0, 10_000), st.floats(0.01, 1), st.floats(0.01, 1))
def test_acceptance_is_ordered(seed, one, other):
    p, q = random_distributions(seed, 3, 6)
    b = theory.beta(p, q)
    np.testing.assert_allclose(b, 1 - theory.divergence(p, q), atol=1e-15)
    np.testing.assert_array_equal(theory.divergence(p, q), theory.divergence(q, p))
    np.testing.assert_allclose(theory.lenient_beta(p, q, 1), b, rtol=1e-15)
    assert (theory.rejection_beta(p, q) <= b + 1e-15).all()
    low, high = sorted((one, other))
    assert (theory.lenient_beta(p, q, low) >= theory.lenient_beta(p, q, high) - 1e-15).all()
    assert (theory.lenient_beta(p, q, low) >= b - 1e-15).all()


def test_acceptance_at_its_ends():
    eye = np.eye(3)
    p, _ = random_distributions(2, 1, 3)
    for function in (theory.beta, theory.rejection_beta):
        np.testing.assert_array_equal(function(p, p), 1)
        np.testing.assert_array_equal(function(eye, np.roll(eye, 1, 0)), 0)
    np.testing.assert_array_equal(theory.divergence(p, p), 0)
    np.testing.assert_array_equal(theory.divergence(eye, np.roll(eye, 1, 0)), 1)
    np.testing.assert_array_equal(theory.lenient_beta(eye, eye, 1e-300), 1)


def test_laws_of_float32_are_normalized_in_float64():
    p, q = random_distributions(3, 2, 5)
    rough = theory.beta(p.astype(np.float32), q.astype(np.float32) * np.float32(1.0003))
    np.testing.assert_allclose(rough, theory.beta(p, q), atol=1e-6)
    assert theory.beta(p, p * 1.0003).max() <= 1


# ---- Tokens of a round ------------------------------------------------------------------------------------------


def test_expected_tokens_at_its_ends():
    gamma = np.arange(12)
    np.testing.assert_array_equal(theory.expected_tokens(0, gamma), 1)
    np.testing.assert_array_equal(theory.expected_tokens(1, gamma), gamma + 1)
    np.testing.assert_array_equal(theory.expected_tokens(np.linspace(0, 1, 9), 0), 1)
    tiny = 1e-12  # to first order (gamma + 1) - gamma (gamma + 1) / 2 * tiny: cancellation would show
    np.testing.assert_allclose(gamma + 1 - theory.expected_tokens(1 - tiny, gamma), gamma * (gamma + 1) / 2 * tiny,
                               rtol=1e-3, atol=1e-14)  # fmt: skip


@given(chances, gammas)
def test_expected_tokens_three_ways(alpha, gamma):
    tokens = theory.expected_tokens(alpha, gamma)
    probs = theory.tokens_distribution(alpha, gamma)
    assert probs.shape == (gamma + 1,)
    assert (probs >= 0).all()
    assert probs.sum() == pytest.approx(1)
    assert probs @ np.arange(1, gamma + 2) == pytest.approx(tokens, rel=1e-12)
    assert theory.expected_tokens_by_position(np.full(gamma, alpha)) == pytest.approx(tokens, rel=1e-12)


@given(chances, chances, gammas, gammas, costs, costs)
def test_factors_are_monotone(a, b, g, h, c, d):
    (a, b), (g, h), (c, d), slack = sorted((a, b)), sorted((g, h)), sorted((c, d)), 1e-12
    assert theory.expected_tokens(a, g) <= theory.expected_tokens(b, g) + slack
    assert theory.expected_tokens(a, g) <= theory.expected_tokens(a, h) + slack
    assert theory.walltime_factor(a, g, c) <= theory.walltime_factor(b, g, c) + slack
    assert theory.walltime_factor(a, g, d) <= theory.walltime_factor(a, g, c) + slack
    assert theory.operations_factor(b, g, c) <= theory.operations_factor(a, g, c) + slack
    assert theory.operations_factor(a, g, c) <= theory.operations_factor(a, h, c) + slack
    assert theory.operations_factor(a, g, c) >= 1 - slack
    assert theory.walltime_factor(a, g, c) <= theory.oracle_factor(a, c) * (1 + slack)
    assert theory.expected_tokens(a, g) <= theory.oracle_tokens(a) * (1 + slack)


def test_expected_tokens_of_simulated_rounds():
    rng = np.random.default_rng(4)
    assert_mean(rounds_of(rng, 0.7, 4, 100_000), theory.expected_tokens(0.7, 4), wrong=theory.expected_tokens(0.7, 3))
    betas = np.array([0.9, 0.7, 0.4])
    tokens = 1 + np.cumprod(rng.random((100_000, 3)) < betas, -1).sum(-1)
    wrong = theory.expected_tokens(betas.mean(), 3)
    assert_mean(tokens, theory.expected_tokens_by_position(betas), wrong=wrong)


def test_the_law_of_simulated_rounds():
    counts = np.bincount(rounds_of(np.random.default_rng(5), 0.6, 3, 50_000), minlength=5)[1:]
    error = lambda probs: np.sum((counts - 50_000 * probs) ** 2 / (50_000 * probs))
    assert error(theory.tokens_distribution(0.6, 3)) < 27.0  # chi-square, 3 degrees: once in 170,000
    assert error(theory.tokens_distribution(0.62, 3)) > 27.0


@given(st.floats(0, 1), st.integers(1, 20))
def test_alpha_is_found_again(alpha, gamma):
    tokens = theory.expected_tokens(alpha, gamma)
    assert theory.alpha_from_tokens(tokens, gamma) == pytest.approx(alpha, abs=1e-7)
    assert theory.alpha_from_drafted((tokens - 1) / gamma, gamma) == pytest.approx(alpha, abs=1e-6)


def test_accepted_per_drafted_is_no_alpha():
    rate = (rounds_of(np.random.default_rng(6), 0.6, 5, 100_000) - 1) / 5
    assert_mean(rate, (theory.expected_tokens(0.6, 5) - 1) / 5, wrong=0.6)
    assert theory.alpha_from_drafted(rate.mean(), 5) == pytest.approx(0.6, abs=0.01)


# ---- Trees ------------------------------------------------------------------------------------------------------


@given(chances, st.integers(0, 12))
def test_a_chain_is_a_tree(alpha, gamma):
    tokens = theory.tree_tokens(trees.chain(gamma).parents, [alpha])
    assert tokens == pytest.approx(theory.expected_tokens(alpha, gamma), rel=1e-12)


def test_trees_by_hand():
    by_rank = [0.5, 0.3]
    assert theory.tree_tokens(trees.regular((2, 2)).parents, by_rank) == pytest.approx(1 + 0.8 + 0.8**2)
    lopsided = trees.from_paths([(0, 0), (0, 1), (1,)])
    assert theory.tree_tokens(lopsided.parents, by_rank) == pytest.approx(1 + 0.5 + 0.3 + 0.5 * 0.8)
    by_depth = [[0.5, 0.3], [0.4, 0.1]]
    assert theory.tree_tokens(lopsided.parents, by_depth) == pytest.approx(1 + 0.8 + 0.5 * 0.5)
    both = theory.tree_tokens(lopsided.parents, [by_depth, [by_rank, by_rank]])
    np.testing.assert_allclose(both, [2.05, 2.2])
    assert theory.tree_tokens((-1,), by_rank) == 1


def test_a_tree_of_simulated_walks():
    tree, chance = trees.from_paths([(0, 0, 1), (1, 0), (2,)]), np.array([0.5, 0.2, 0.1])
    ranks = np.random.default_rng(7).choice(4, (20_000, tree.width), p=[*chance, 0.2])  # rank 3: all are rejected
    children = np.pad(tree.children, ((0, 1), (0, 1)), constant_values=trees.NO_CHILD)  # NO_CHILD leads nowhere
    node, tokens = np.zeros(20_000, int), np.ones(20_000, int)
    for step in ranks.T:
        node = children[node, step]
        tokens += node != trees.NO_CHILD
    expected = theory.tree_tokens(tree.parents, chance)
    assert_mean(tokens, expected, wrong=theory.tree_tokens(tree.parents, chance[[1, 0, 2]]))


# ---- Best gamma -------------------------------------------------------------------------------------------------


@given(chances, costs, st.integers(0, 12), st.floats(0, 0.5), st.floats(0, 0.2))
def test_best_gamma_by_brute_force(alpha, c, gamma_max, slope, overhead):
    curve = 1 + slope * np.arange(gamma_max + 1)
    tokens = lambda g: 1 + sum(np.float64(alpha) ** i for i in range(1, g + 1))
    factors = [1.0] + [tokens(g) / (g * c + curve[g] + overhead) for g in range(1, gamma_max + 1)]
    best = theory.best_gamma(alpha, c, gamma_max=gamma_max, verify_cost=curve, overhead=overhead)
    assert best.factor == pytest.approx(max(factors), rel=1e-14)
    assert factors[int(best.gamma)] == pytest.approx(max(factors), rel=1e-14)
    assert best.factor >= 1


@given(chances, costs)
def test_speculation_pays_iff_alpha_exceeds_c(alpha, c):
    best = theory.best_gamma(alpha, c)
    assert (best.gamma > 0) == (best.factor > 1)
    if alpha <= c:
        assert best.gamma == 0
    elif alpha > c + 1e-9:
        assert best.gamma > 0
        assert best.factor >= (1 + alpha) / (1 + c) * (1 - 1e-12)  # corollary 3.9


def test_best_gamma_at_its_ends():
    grid = np.linspace(0, 1, 11)
    np.testing.assert_array_equal(theory.best_gamma(grid, grid).gamma, 0)
    np.testing.assert_array_equal(theory.best_gamma(0, grid).gamma, 0)
    assert theory.best_gamma(1, 0, gamma_max=9) == (9, 10)
    assert theory.best_gamma(0.9, 0, gamma_max=0) == (0, 1)
    assert theory.best_gamma(0.5, 0.1, overhead=10).gamma == 0
    assert theory.best_gamma(0.9, 0.1, gamma_max=2, verify_cost=[1, 5, 9]).gamma == 0


def test_an_oracle_drafts_nothing_that_costs_more_than_the_target():
    np.testing.assert_array_equal(theory.oracle_factor([0.0, 0.5, 0.9], 3.0), 1)
    assert theory.oracle_factor(0.5, 0.5) == pytest.approx(1 / 0.75)
    assert theory.oracle_factor(1, 0) == theory.oracle_tokens(1) == np.inf


def test_best_gamma_broadcasts():
    alpha, c = np.linspace(0, 0.95, 5)[:, None], np.array([0.01, 0.1, 0.5])
    best = theory.best_gamma(alpha, c)
    assert best.gamma.shape == best.factor.shape == (5, 3)
    for i, j in np.ndindex(5, 3):
        assert (best.gamma[i, j], best.factor[i, j]) == theory.best_gamma(alpha[i, 0], c[j])
    assert (np.diff(best.gamma, axis=0) >= 0).all()  # figure 3: longer with alpha, shorter with c
    assert (np.diff(best.gamma, axis=1) <= 0).all()


# ---- Cascades ---------------------------------------------------------------------------------------------------


@given(chances, costs, st.integers(0, 10))
def test_one_level_is_no_cascade(alpha, c, gamma):
    expected = theory.walltime_factor(alpha, gamma, c)
    assert theory.cascade_factor([alpha], [c], [gamma]) == pytest.approx(expected, rel=1e-12)
    assert theory.cascade_factor_whole_rounds([alpha], [c], [gamma]) == pytest.approx(expected, rel=1e-12)


@given(chances, chances, costs, costs, st.integers(0, 8), st.integers(0, 5))
def test_two_levels(a, b, c, d, outer, inner):
    pair = theory.cascade_factor([a, b], [c, d], [outer, inner])
    price = (inner * d + c) / theory.expected_tokens(b, inner)
    assert pair == pytest.approx(theory.walltime_factor(a, outer, price), rel=1e-12)
    assert theory.cascade_factor_whole_rounds([a, b], [c, d], [outer, inner]) <= pair * (1 + 1e-12)
    flat = theory.cascade_factor_whole_rounds([a, b], [c, d], [outer, 0])  # the middle model drafts by itself
    assert flat == pytest.approx(theory.walltime_factor(a, outer, c), rel=1e-12)


def test_levels_broadcast():
    alphas = np.random.default_rng(8).random((4, 2))
    for function in (theory.cascade_factor, theory.cascade_factor_whole_rounds):
        rows = [function(row, [0.2, 0.05], [4, 3]) for row in alphas]
        np.testing.assert_allclose(function(alphas, [0.2, 0.05], [4, 3]), rows)


@pytest.mark.parametrize("alphas, lengths", [((0.7, 0.6), (6, 3)), ((0.9, 0.5), (2, 1))])
def test_a_simulated_cascade_of_three_models(alphas, lengths):
    calls, (outer, inner), rng = (0.2, 0.03), lengths, np.random.default_rng(9)
    filled = np.cumsum(rounds_of(rng, alphas[1], inner, 10_000 * outer).reshape(10_000, outer), -1)
    rounds = 1 + (filled < outer).sum(-1)
    average = outer / theory.expected_tokens(alphas[1], inner)
    assert_mean(rounds, theory.rounds_to_fill(alphas[1], inner, outer), wrong=average)
    unread = (filled == outer).any(-1)  # the last token of the block, and it is kept with all before it
    rounds = rounds + (unread & (rounds_of(rng, alphas[0], outer, 10_000) == outer + 1))
    cost = 1 + rounds * (calls[0] + inner * calls[1])
    factor = theory.cascade_factor_whole_rounds(alphas, calls, (outer, inner))
    wrong = theory.cascade_factor(alphas, calls, (outer, inner))
    tokens = theory.expected_tokens(alphas[0], outer)
    assert_mean(cost, tokens / factor, wrong=tokens / wrong)


def test_rounds_to_fill():
    assert theory.rounds_to_fill(0.3, 4, 0) == 0
    assert theory.rounds_to_fill(0.0, 4, 7) == 7
    assert [theory.rounds_to_fill(1.0, 2, n) for n in range(1, 8)] == [1, 1, 1, 2, 2, 2, 3]
    assert theory.rounds_to_fill(0.5, 1, 2) == pytest.approx(1 + 0.5)  # a second round iff the first yields one token
    assert theory.rounds_to_fill(0.0, 4, 7, 0.5) == 7.5  # rounds of one token: the last one ends the block
    assert theory.rounds_to_fill(1.0, 2, 4, 0.5) == 2  # 3 + 3 tokens: the fourth one does not end a round


def test_best_cascade_by_brute_force():
    alphas, calls = (0.85, 0.7), (0.2, 0.02)
    table = {
        g: float(theory.cascade_factor_whole_rounds(alphas, calls, g)) for g in itertools.product(range(7), repeat=2)
    }
    best = theory.best_cascade(alphas, calls, gamma_max=6)
    assert best.factor == max(table.values()) == table[best.gammas]
    assert best.factor > theory.best_gamma(alphas[0], calls[0], gamma_max=6).factor  # here the third model pays,
    assert theory.best_cascade((0.85, 0.1), (0.2, 0.19), gamma_max=6).gammas[1] == 0  # here it does not,
    assert theory.best_cascade((0.1, 0.1), (0.5, 0.4), gamma_max=6) == ((0, 0), 1.0)  # and here no drafter does


# ---- Batches ----------------------------------------------------------------------------------------------------

TARGET = theory.StepTime(context=1e-6, token=2e-4, constant=2e-2)
DRAFT = theory.StepTime(context=1e-7, token=2e-5, constant=1e-3)


def test_goodput_by_hand():
    alphas, lengths, cached = np.array([0.8, 0.5]), np.array([3, 1]), np.array([100, 40])
    seconds = 1e-6 * 140 + 2e-4 * 6 + 2e-2
    seconds += (1e-7 * 140 + 2e-5 * 2 + 1e-3) + 2 * (1e-7 * 100 + 2e-5 + 1e-3)
    tokens = (1 + 0.8 + 0.64 + 0.512) + (1 + 0.5)
    rate = theory.goodput(alphas, lengths, TARGET, draft=DRAFT, context=cached)
    assert rate == pytest.approx(tokens / seconds)
    assert theory.goodput(alphas, 0, TARGET, draft=DRAFT) == pytest.approx(2 / (4e-4 + 2e-2))


def test_goodput_of_a_row_is_its_walltime_factor():
    flat = theory.StepTime(0, 0, 0.5)
    gain = theory.goodput(0.7, 4, flat, draft=theory.StepTime(0, 0, 0.05)) / theory.goodput(0.7, 0, flat)
    assert gain == pytest.approx(theory.walltime_factor(0.7, 4, 0.1))


def test_large_batches_draft_less():
    best = [theory.best_goodput(np.full(rows, 0.7), TARGET, draft=DRAFT).gamma for rows in (1, 8, 64, 512)]
    assert best == sorted(best, reverse=True)
    assert best[0] > best[-1]
    assert theory.best_goodput(np.full(8, 0.01), TARGET, draft=DRAFT).gamma == 0


@given(st.lists(chances, min_size=1, max_size=4))
def test_best_goodput_by_brute_force(alphas):
    rates = [theory.goodput(alphas, g, TARGET, draft=DRAFT, context=50) for g in range(9)]
    best = theory.best_goodput(alphas, TARGET, draft=DRAFT, context=50, gamma_max=8)
    assert best == (int(np.argmax(rates)), max(rates))


def test_step_times_are_fitted():
    rng = np.random.default_rng(10)
    context, tokens = rng.integers(0, 4000, 40), rng.integers(1, 64, 40)
    fitted = theory.fit_step_time(context, tokens, theory.step_time(TARGET, context, tokens))
    np.testing.assert_allclose(fitted, TARGET, rtol=1e-9)
    falling = theory.fit_step_time(context, tokens, 1.0 - 1e-4 * context + 1e-3 * tokens)
    assert falling.context == 0
    assert min(falling) >= 0
    with pytest.raises(ValueError, match="vary independently"):
        theory.fit_step_time(np.full(40, 7), tokens, tokens)


# ---- Errors, the page, the import -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.beta([0.5, 0.5], [1.0]), "vocabulary"),
        (lambda: theory.beta([0.5, 0.4], [0.5, 0.5]), "p"),
        (lambda: theory.beta([1.5, -0.5], [0.5, 0.5]), "p"),
        (lambda: theory.beta([np.nan, 1.0], [0.5, 0.5]), "p .*nan"),
        (lambda: theory.beta(np.full((2, 2), 0.5), np.full((3, 2), 0.5)), "broadcast"),
        (lambda: theory.lenient_beta([1.0], [1.0], 0), "lenience .*0"),
        (lambda: theory.expected_tokens(1.1, 3), "alpha .*1.1"),
        (lambda: theory.expected_tokens(np.nan, 3), "alpha .*nan"),
        (lambda: theory.expected_tokens("half", 3), "alpha .*'half'"),
        (lambda: theory.expected_tokens(0.5, -1), "gamma .*-1"),
        (lambda: theory.expected_tokens(0.5, 2.0), "gamma .*integer"),
        (lambda: theory.expected_tokens(0.5, np.nan), "gamma .*nan"),
        (lambda: theory.expected_tokens_by_position(0.5), "betas"),
        (lambda: theory.alpha_from_tokens(4.5, 3), "gamma \\+ 1"),
        (lambda: theory.alpha_from_tokens(1.5, 0), "gamma"),
        (lambda: theory.walltime_factor(0.5, 3, -0.1), "c .*-0.1"),
        (lambda: theory.walltime_factor(0.5, 0, np.inf), "c .*inf"),
        (lambda: theory.best_gamma(0.5, np.inf), "c .*inf"),
        (lambda: theory.best_gamma(0.5, 0.1, gamma_max=3, verify_cost=[1, 1]), "verify_cost"),
        (lambda: theory.tree_tokens((-1, 0, 0), [0.5]), "table"),
        (lambda: theory.tree_tokens((-1, 0, 1), [[0.5]]), "table"),
        (lambda: theory.tree_tokens((-1, 2, 1), [0.5]), "parent"),
        (lambda: theory.tree_tokens((0, 0), [0.5]), "parents"),
        (lambda: theory.tree_tokens((-1, 0), [0.7, 0.9]), "siblings .*1.6"),
        (lambda: theory.cascade_factor([0.5, 0.5], [0.1], [3, 3]), "costs"),
        (lambda: theory.goodput([[0.5]], 1, TARGET), "alphas"),
    ],
)
def test_errors_are_one_line_and_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("module", ["acceptance", "batch", "cascade", "speed", "tokens"])
def test_docstring_examples(module):
    found = doctest.testmod(importlib.import_module(f"specjax.theory.{module}"))
    assert found.attempted and not found.failed


def test_the_examples_of_the_page_print_what_it_shows():
    text = "\n".join("" if line.startswith("```") else line for line in PAGE.read_text().splitlines()) + "\n"
    examples = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert len(examples.examples) > 20
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_the_page_has_an_example_of_every_function():
    text = PAGE.read_text()
    public = [name for name, value in vars(theory).items() if callable(value) and not name.startswith("_")]
    assert [name for name in public if f"theory.{name}(" not in text and not name.startswith("Best")] == []


def test_theory_does_not_import_jax():
    code = "import sys, specjax.theory; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PAGE.parents[2]).returncode == 0
