"""Calls on a time axis, from times that were made up."""

import pytest

from specjax.trace import lanes
from specjax.trace.lanes import Call, Kind, Lane
from tests.trace.made import timed, trace


def test_a_round_is_its_draft_calls_and_one_call_of_the_target():
    """The round took 8 s; apart, drafting takes 1 s and the target 3 s: a quarter of the round is drafting."""
    lane = lanes.lane("two", trace(timed((8.0, 1.0, 3.0), (4.0, 2.0, 2.0)), calls=2))
    assert lane.calls == (
        Call(Kind.TARGET_PROMPT, 0.0, 2.0), Call(Kind.DRAFT_PROMPT, 2.0, 1.0),
        Call(Kind.DRAFT, 3.0, 1.0), Call(Kind.DRAFT, 4.0, 1.0), Call(Kind.TARGET, 5.0, 6.0),
        Call(Kind.DRAFT, 11.0, 1.0), Call(Kind.DRAFT, 12.0, 1.0), Call(Kind.TARGET, 13.0, 2.0),
    )  # fmt: skip
    assert (lane.seconds, lane.target_calls) == (15.0, 2)
    assert lanes.told(lane) == "5 tokens, 2 target calls, 1.5e+04 ms"


def test_plain_decoding_has_calls_of_the_target_alone():
    lane = lanes.lane("plain", trace(timed(*[(3.0, 0.0, 1.0)] * 2), calls=0, drafter=0.0))
    assert [call.kind for call in lane.calls] == [Kind.TARGET_PROMPT, Kind.TARGET, Kind.TARGET]
    assert lane.seconds == 8.0


def test_columns_show_what_fills_most_of_them():
    lane = Lane("x", (Call(Kind.DRAFT, 0.0, 1.0), Call(Kind.TARGET, 1.0, 2.0), Call(Kind.DRAFT, 3.0, 0.2)), 1)
    one_each = lanes.columns(lane, seconds=4.0, width=4)
    assert one_each == [Kind.DRAFT, Kind.TARGET, Kind.TARGET, None]
    assert lanes.columns(lane, seconds=4.0, width=2) == [Kind.DRAFT, Kind.TARGET]
    assert lanes.columns(lane, seconds=4.0, width=1) == [Kind.TARGET]
    fine = lanes.columns(lane, seconds=4.0, width=40)
    assert fine == [Kind.DRAFT] * 10 + [Kind.TARGET] * 20 + [Kind.DRAFT] * 2 + [None] * 8


def test_the_longest_lane_sets_the_axis():
    short, long = (Lane(str(n), (Call(Kind.TARGET, 0.0, n),), 1) for n in (2.0, 3.0))
    assert lanes.longest([short, long]) == pytest.approx(3.0)
