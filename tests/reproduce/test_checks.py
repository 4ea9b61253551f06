"""Verdicts on given numbers."""

import numpy as np
import pytest

from specjax import estimates
from specjax.estimates import MISSING, Estimate
from specjax.reproduce.checks import (
    ClaimVerdict,
    Pair,
    all_within,
    differs,
    each_greater,
    grouped,
    near,
    same_order,
    total,
    within,
)  # fmt: skip

ONE, TWO = Estimate(1.0), Estimate(2.0)
YES, NO, OPEN, NONE, PARTLY = (
    ClaimVerdict.REPRODUCED, ClaimVerdict.NOT, ClaimVerdict.OPEN, ClaimVerdict.UNMEASURED, ClaimVerdict.PARTLY,
)  # fmt: skip
show = "{:.1f}".format


def noisy(value: float, error: float, sample: str = "a", *, sign: float = 1.0) -> Estimate:
    """An estimate over 100 prompts, the effects of which alternate."""
    effects = sign * np.tile([1.0, -1.0], 50)
    return Estimate(value, {sample: effects * error / Estimate(0.0, {sample: effects}).error})


@pytest.mark.parametrize(
    ("greater", "less", "expected"),
    [
        (TWO, ONE, YES), (ONE, TWO, NO), (ONE, ONE, OPEN), (MISSING, ONE, NONE), (ONE, MISSING, NONE),
        (noisy(2.0, 0.3), noisy(1.0, 0.3, "b"), YES),  # the error of the difference is 0.424
        (noisy(2.0, 0.4), noisy(1.0, 0.4, "b"), OPEN),
        (noisy(1.0, 0.4), noisy(2.0, 0.4, "b"), OPEN),
        (noisy(1.0, 0.3), noisy(2.0, 0.3, "b"), NO),
        (noisy(2.0, 0.4), noisy(1.0, 0.3), YES),  # on the same prompts the error is 0.1
        (noisy(2.0, 0.4), noisy(1.0, 0.4, sign=-1.0), OPEN),  # and here 0.8
        (estimates.ratio([1.0], [1.0]), estimates.ratio([0.0], [1.0]), OPEN),  # a single prompt proves nothing
    ],
)  # fmt: skip
def test_differences_beyond_the_interval(greater, less, expected):
    assert differs(greater, less) is expected


@pytest.mark.parametrize(
    ("here", "other", "expected"),
    [
        (noisy(1.02, 0.02), ONE, YES), (noisy(1.08, 0.02), ONE, OPEN), (noisy(1.2, 0.02), ONE, NO),
        (noisy(1.0, 0.2), ONE, OPEN),  # a large error does not make numbers equal
        (noisy(1.02, 0.2), noisy(1.0, 0.2), YES),  # nearly all of it is common to both
        (Estimate(0.0), ONE, NO), (MISSING, ONE, NONE), (ONE, MISSING, NONE),
    ],
)  # fmt: skip
def test_equality_within_a_factor(here, other, expected):
    assert within(here, other, 1.1) is expected


def test_equality_is_seldom_found_where_there_is_none():
    """Numbers a factor of 1.1 apart are called equal in at most 5 % of the cases, however large their errors."""
    for prompts, spread in ((10, 0.05), (10, 0.4), (40, 0.4)):
        rng, found = np.random.default_rng(0), []
        for _ in range(300):
            tested = rng.integers(20, 60, prompts)
            rates = 0.55 * (1 + spread * rng.uniform(-1, 1, prompts))
            here = estimates.ratio(tested * rates, tested)
            found.append(within(here, Estimate(0.5), 1.1))
        assert found.count(YES) / 300 < 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([YES, YES], YES), ([NO, NO], NO), ([YES, NO], PARTLY), ([YES, OPEN], OPEN), ([OPEN], OPEN),
        ([NO, OPEN], NO), ([YES, NO, OPEN], PARTLY), ([NONE, NONE], NONE), ([], NONE),
        ([YES, NONE], PARTLY), ([NO, NONE], NO),
    ],
)  # fmt: skip
def test_verdict_of_several_comparisons(found, expected):
    assert total(found) is expected


def test_each_greater_groups_by_verdict():
    check = each_greater("claim", [Pair("a:", TWO, ONE), Pair("b:", ONE, TWO), Pair("c:", MISSING, ONE)], show=show)
    assert check.verdict is PARTLY
    assert check.why == (
        "1 of 3 hold: a: 2.0 against 1.0. 1 of 3 do not: b: 1.0 against 2.0. 1 of 3 not measured: c: – against 1.0"
    )
    assert grouped([YES, YES], ["a", "b"]) == "a; b"


def test_order():
    named = [("a", 0.3, Estimate(0.9)), ("b", 0.2, Estimate(0.5)), ("c", 0.1, Estimate(0.1))]
    assert same_order("claim", named, show=show).verdict is YES
    swapped = [(name, there, Estimate(1 - here.value)) for name, there, here in named]
    assert same_order("claim", swapped, show=show).verdict is NO
    assert same_order("claim", [*named, ("d", 0.05, MISSING)], show=show).verdict is PARTLY
    tied = [("a", 0.2, Estimate(0.1)), ("b", 0.2, Estimate(0.5))]  # published as equal: nothing to compare
    assert same_order("claim", tied, show=show).verdict is NONE


def test_printed_digits():
    assert all_within("claim", [("a", 1.53, 1.5306)], digits=2).verdict is YES
    check = all_within("claim", [("a", 1.53, 1.5306), ("b", 2.0, 2.006)], digits=2)
    assert check.verdict is PARTLY and check.why == "b: 2.01 against 2.00"


def test_near():
    of = lambda here: near("claim", [("a", Estimate(0.1), here)], factor=2.0, because="reason")
    assert of(Estimate(0.2)).verdict is of(Estimate(0.05)).verdict is YES
    assert of(Estimate(0.21)).verdict is of(Estimate(0.049)).verdict is NO
    assert of(Estimate(0.21)).why.endswith("(reason)") and "reason" not in of(Estimate(0.2)).why
    assert of(MISSING).verdict is NONE
