"""Estimates from simulated prompts: coverage of the intervals, with naive errors as negative controls."""

import math

import numpy as np
import pytest

from specjax import estimates
from specjax.estimates import Estimate

PROMPTS, RUNS = 24, 1000
ALLOWED = 3 * math.sqrt(0.95 * 0.05 / RUNS)  # three standard errors of a coverage of 95 %


def accepted(rng, mean: float = 0.7, spread: float = 6.0, prompts: int = PROMPTS):
    """Accepted and tested tokens of prompts whose acceptance rates follow a beta distribution."""
    rates = rng.beta(mean * spread, (1 - mean) * spread, prompts)
    tested = rng.integers(20, 60, prompts)
    return rng.binomial(tested, rates), tested


def test_intervals_of_clustered_shares_cover_the_truth():
    """The binomial interval, the negative control, covers it about half of the time."""
    rng, covered, naive = np.random.default_rng(0), 0, 0
    for _ in range(RUNS):
        took, tested = accepted(rng)
        found = estimates.ratio(took, tested)
        covered += abs(found.value - 0.7) <= found.margin
        share = took.sum() / tested.sum()
        naive += abs(share - 0.7) <= 1.96 * math.sqrt(share * (1 - share) / tested.sum())
    assert abs(covered / RUNS - 0.95) <= ALLOWED and naive / RUNS < 0.7


def test_mean_overlaps_have_smaller_errors_than_shares():
    """At T = 1 the overlap of a place varies less than the acceptance of its token: a binomial interval is too wide."""
    rng, covered, naive, widths = np.random.default_rng(1), 0, 0, []
    for _ in range(RUNS):
        tested = rng.integers(20, 60, PROMPTS)
        overlap = np.array([rng.beta(14, 6, n).sum() for n in tested])
        found = estimates.ratio(overlap, tested)
        covered += abs(found.value - 0.7) <= found.margin
        half = 1.96 * math.sqrt(found.value * (1 - found.value) / tested.sum())
        naive += abs(found.value - 0.7) <= half
        widths.append(half / found.margin)
    assert abs(covered / RUNS - 0.95) <= ALLOWED and naive == RUNS and np.median(widths) > 2


def test_drafters_on_the_same_prompts_are_paired():
    """Easy prompts are easy for both: without pairing, the negative control, the interval is far too wide."""
    rng, covered, unpaired, widths = np.random.default_rng(2), 0, 0, []
    for _ in range(RUNS):
        easy, tested = rng.uniform(-0.2, 0.2, PROMPTS), rng.integers(40, 60, PROMPTS)
        a, b = (estimates.ratio(rng.binomial(tested, p + easy), tested, sample="same") for p in (0.70, 0.65))
        gap = estimates.combine(lambda x, y: x - y, a, b)
        covered += abs(gap.value - 0.05) <= gap.margin
        unpaired += abs(gap.value - 0.05) <= 2 * math.hypot(a.error, b.error)
        widths.append(math.hypot(a.error, b.error) / gap.error)
    assert abs(covered / RUNS - 0.95) <= ALLOWED and unpaired / RUNS > 0.99 and np.median(widths) > 1.5


@pytest.mark.parametrize("prompt_noise", [0.0, 0.15])
@pytest.mark.parametrize("turn_noise", [0.0, 0.1])
def test_speedups_have_errors_over_prompts_and_turns(prompt_noise, turn_noise):
    """The range of the drafted runs over their median, the negative control, misses the spread over prompts and the
    noise of plain decoding."""
    rng, covered, naive, runs, turns, truth = np.random.default_rng(3), 0, 0, 500, 5, 2.0
    log = lambda scale, *shape: np.exp(scale * rng.normal(size=shape) - scale**2 / 2)
    for _ in range(runs):
        long = rng.uniform(0.8, 1.2, 12)
        base = long * log(0.02, turns, 12) * log(turn_noise, turns, 1)
        own = long / truth * log(0.02, turns, 12) * log(turn_noise, turns, 1) * log(prompt_noise, 1, 12)
        tokens = np.broadcast_to(100 * long, (turns, 12))
        found = estimates.speedup(tokens, own, tokens, base, sample="prompts", turns="turns")
        covered += abs(found.value - truth) <= found.margin
        seconds = own.sum(1)
        half = (seconds.max() - seconds.min()) / 2 / np.median(seconds) / turns**0.5 * found.value
        naive += abs(found.value - truth) <= 2 * half
    assert covered / runs >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs)
    assert not prompt_noise or naive / runs < 0.85


def test_a_ratio_is_linearized():
    y, x = np.array([3.0, 1.0, 5.0]), np.array([4.0, 4.0, 6.0])
    found = estimates.ratio(y, x)
    residual = (y - y.sum() / x.sum() * x) / x.sum()
    np.testing.assert_allclose(found.effects["prompts"], residual, rtol=1e-6)
    assert found.error == pytest.approx(math.sqrt(1.5 * (residual**2).sum()))


def test_a_single_prompt_has_no_error_and_an_exact_number_none():
    one = estimates.ratio([3.0], [4.0])
    assert (one.value, one.error, one.margin) == (0.75, math.inf, math.inf)
    assert one.columns("alpha") == {"alpha": 0.75, "alpha_error": None} and one.shown("{:.2f}".format) == "0.75"
    assert Estimate(1.0).error == Estimate(1.0).margin == 0.0
    assert estimates.combine(lambda a, b: a - b, one, Estimate(1.0)).error == math.inf


def test_what_is_not_measured_stays_so():
    nothing = estimates.ratio([0.0], [0.0])
    assert not nothing.measured and nothing.columns("alpha") == {"alpha": None, "alpha_error": None}
    assert not estimates.combine(lambda a, b: a - b, nothing, Estimate(1.0)).measured


def test_independent_samples_add_their_variances():
    a, b = estimates.ratio([1, 2, 3], [4, 4, 4], sample="a"), estimates.ratio([1, 1, 3], [4, 4, 4], sample="b")
    assert estimates.combine(lambda x, y: x - y, a, b).error == pytest.approx(math.hypot(a.error, b.error))
    scaled = estimates.combine(lambda x: 3 * x, a)
    assert scaled.error == pytest.approx(3 * a.error) and scaled.margin == pytest.approx(3 * a.margin)


def test_repetition_counts_grams_of_the_same_text():
    assert estimates.repetition([[1, 2, 3, 4], [1, 2, 3, 4]]).value == 0  # others do not count
    assert estimates.repetition([[7] * 8]).value == pytest.approx(4 / 5)
    assert not estimates.repetition([[1, 2]]).measured
