"""Verdicts on given numbers."""

import pytest

from specjax.reproduce.checks import (
    NOTHING,
    ClaimVerdict,
    Estimate,
    Pair,
    all_within,
    differs,
    each_greater,
    grouped,
    near,
    same_order,
    share,
    total,
)  # fmt: skip

ONE, TWO = Estimate(1.0), Estimate(2.0)
YES, NO, OPEN, NONE, PARTLY = (
    ClaimVerdict.REPRODUCED, ClaimVerdict.NOT, ClaimVerdict.OPEN, ClaimVerdict.UNMEASURED, ClaimVerdict.PARTLY,
)  # fmt: skip
show = "{:.1f}".format


@pytest.mark.parametrize(
    ("greater", "less", "expected"),
    [
        (TWO, ONE, YES), (ONE, TWO, NO), (ONE, ONE, OPEN), (NOTHING, ONE, NONE), (ONE, NOTHING, NONE),
        (Estimate(2.0, 0.3), Estimate(1.0, 0.3), YES),  # the error of the difference is 0.424
        (Estimate(2.0, 0.4), Estimate(1.0, 0.4), OPEN),
        (Estimate(1.0, 0.4), Estimate(2.0, 0.4), OPEN),
        (Estimate(1.0, 0.3), Estimate(2.0, 0.3), NO),
    ],
)  # fmt: skip
def test_differences_beyond_two_errors(greater, less, expected):
    assert differs(greater, less) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([YES, YES], YES), ([NO, NO], NO), ([YES, NO], PARTLY), ([YES, OPEN], OPEN), ([OPEN], OPEN),
        ([NO, OPEN], PARTLY), ([NONE, NONE], NONE), ([], NONE), ([YES, NONE], PARTLY), ([NO, NONE], NO),
    ],
)  # fmt: skip
def test_verdict_of_several_comparisons(found, expected):
    assert total(found) is expected


def test_each_greater_groups_by_verdict():
    check = each_greater("claim", [Pair("a:", TWO, ONE), Pair("b:", ONE, TWO), Pair("c:", NOTHING, ONE)], show=show)
    assert check.verdict is PARTLY
    assert check.why == (
        "1 of 3 hold: a: 2.0 against 1.0. 1 of 3 do not: b: 1.0 against 2.0. 1 of 3 not measured: c: – against 1.0"
    )
    assert grouped([YES, YES], ["a", "b"]) == "a; b"


def test_order():
    named = [("a", 0.3, Estimate(0.9)), ("b", 0.2, Estimate(0.5)), ("c", 0.1, Estimate(0.1))]
    assert same_order("claim", named, show=show).verdict is YES
    swapped = [(name, there, Estimate(1 - (here.value or 0))) for name, there, here in named]
    assert same_order("claim", swapped, show=show).verdict is NO
    assert same_order("claim", [*named, ("d", 0.05, NOTHING)], show=show).verdict is PARTLY
    tied = [("a", 0.2, Estimate(0.1)), ("b", 0.2, Estimate(0.5))]  # published as equal: nothing to compare
    assert same_order("claim", tied, show=show).verdict is NONE


def test_printed_digits():
    assert all_within("claim", [("a", 1.53, 1.5306)], digits=2).verdict is YES
    check = all_within("claim", [("a", 1.53, 1.5306), ("b", 2.0, 2.006)], digits=2)
    assert check.verdict is PARTLY and check.why == "b: 2.01 against 2.00"


def test_near():
    of = lambda here: near("claim", [("a", 0.1, here)], factor=2.0, because="reason")
    assert of(Estimate(0.2)).verdict is of(Estimate(0.05)).verdict is YES
    assert of(Estimate(0.21)).verdict is of(Estimate(0.049)).verdict is NO
    assert of(Estimate(0.21)).why.endswith("(reason)") and "reason" not in of(Estimate(0.2)).why
    assert of(NOTHING).verdict is NONE


def test_share_has_a_positive_error():
    assert share(None, 10) is NOTHING
    assert share(0.5, 98).error == pytest.approx(0.05)
    assert 0 < share(1.0, 98).error < 0.02 and share(0.0, 0).error == pytest.approx(0.354, abs=1e-3)
