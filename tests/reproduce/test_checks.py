"""From numbers to a verdict: what holds, what does not, and what cannot be told."""

import pytest

from specjax.reproduce.checks import (
    NOTHING,
    Measured,
    Pair,
    Verdict,
    all_within,
    differs,
    each_greater,
    grouped,
    near,
    same_order,
    share,
    total,
)  # fmt: skip

ONE, TWO = Measured(1.0), Measured(2.0)
YES, NO, OPEN, NONE, PARTLY = (
    Verdict.REPRODUCED, Verdict.NOT, Verdict.OPEN, Verdict.UNMEASURED, Verdict.PARTLY,
)  # fmt: skip
show = "{:.1f}".format


@pytest.mark.parametrize(
    ("greater", "less", "expected"),
    [
        (TWO, ONE, YES), (ONE, TWO, NO), (ONE, ONE, OPEN), (NOTHING, ONE, NONE), (ONE, NOTHING, NONE),
        (Measured(2.0, 0.3), Measured(1.0, 0.3), YES),  # the error of the difference is 0.424
        (Measured(2.0, 0.4), Measured(1.0, 0.4), OPEN),
        (Measured(1.0, 0.4), Measured(2.0, 0.4), OPEN),
        (Measured(1.0, 0.3), Measured(2.0, 0.3), NO),
    ],
)  # fmt: skip
def test_a_difference_counts_beyond_two_errors(greater, less, expected):
    assert differs(greater, less) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([YES, YES], YES), ([NO, NO], NO), ([YES, NO], PARTLY), ([YES, OPEN], OPEN), ([OPEN], OPEN),
        ([NO, OPEN], PARTLY), ([NONE, NONE], NONE), ([], NONE), ([YES, NONE], PARTLY), ([NO, NONE], NO),
    ],
)  # fmt: skip
def test_several_comparisons_make_one_verdict(found, expected):
    assert total(found) is expected


def test_each_greater_says_which_went_how():
    check = each_greater("claim", [Pair("a:", TWO, ONE), Pair("b:", ONE, TWO), Pair("c:", NOTHING, ONE)], show=show)
    assert check.verdict is PARTLY
    assert check.why == (
        "1 of 3 hold: a: 2.0 against 1.0. 1 of 3 do not: b: 1.0 against 2.0. 1 of 3 not measured: c: – against 1.0"
    )
    assert grouped([YES, YES], ["a", "b"]) == "a; b"


def test_order():
    named = [("a", 0.3, Measured(0.9)), ("b", 0.2, Measured(0.5)), ("c", 0.1, Measured(0.1))]
    assert same_order("claim", named, show=show).verdict is YES
    swapped = [(name, there, Measured(1 - (here.value or 0))) for name, there, here in named]
    assert same_order("claim", swapped, show=show).verdict is NO
    assert same_order("claim", [*named, ("d", 0.05, NOTHING)], show=show).verdict is PARTLY
    tied = [("a", 0.2, Measured(0.1)), ("b", 0.2, Measured(0.5))]  # published as equal: nothing to compare
    assert same_order("claim", tied, show=show).verdict is NONE


def test_printed_digits():
    assert all_within("claim", [("a", 1.53, 1.5306)], digits=2).verdict is YES
    check = all_within("claim", [("a", 1.53, 1.5306), ("b", 2.0, 2.006)], digits=2)
    assert check.verdict is PARTLY and check.why == "b: 2.01 against 2.00"


def test_near_is_a_factor_both_ways():
    of = lambda here: near("claim", [("a", 0.1, here)], factor=2.0, because="reason")
    assert of(Measured(0.2)).verdict is of(Measured(0.05)).verdict is YES
    assert of(Measured(0.21)).verdict is of(Measured(0.049)).verdict is NO
    assert of(Measured(0.21)).why.endswith("(reason)") and "reason" not in of(Measured(0.2)).why
    assert of(NOTHING).verdict is NONE


def test_a_share_has_an_error_even_at_its_ends():
    assert share(None, 10) is NOTHING
    assert share(0.5, 98).error == pytest.approx(0.05)
    assert 0 < share(1.0, 98).error < 0.02 and share(0.0, 0).error == pytest.approx(0.354, abs=1e-3)
