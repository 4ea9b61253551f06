"""Layout of synthetic traces on a time axis."""

import pytest

from specjax.trace import lanes
from specjax.trace.lanes import Activity, Lane, Span
from tests.trace.made import timed, trace


def test_a_round_is_its_draft_steps_and_one_target_pass():
    lane = lanes.lane("two", trace(timed((2.0, 6.0), (2.0, 2.0)), steps=2))
    assert lane.spans == (
        Span(Activity.TARGET_PROMPT, 0.0, 2.0), Span(Activity.DRAFT_PROMPT, 2.0, 1.0),
        Span(Activity.DRAFT, 3.0, 1.0), Span(Activity.DRAFT, 4.0, 1.0), Span(Activity.TARGET, 5.0, 6.0),
        Span(Activity.DRAFT, 11.0, 1.0), Span(Activity.DRAFT, 12.0, 1.0), Span(Activity.TARGET, 13.0, 2.0),
    )  # fmt: skip
    assert (lane.seconds, lane.target_passes) == (15.0, 2)
    assert lanes.summary(lane) == "5 tokens, 2 target passes, 1.5e+04 ms"


def test_plain_decoding_has_target_passes_only():
    lane = lanes.lane("plain", trace(timed(*[(0.0, 3.0)] * 2), steps=0, drafter=0.0))
    assert [span.kind for span in lane.spans] == [Activity.TARGET_PROMPT, Activity.TARGET, Activity.TARGET]
    assert lane.seconds == 8.0


def test_columns_show_their_main_activity():
    lane = Lane(
        "x", (Span(Activity.DRAFT, 0.0, 1.0), Span(Activity.TARGET, 1.0, 2.0), Span(Activity.DRAFT, 3.0, 0.2)), 1
    )
    one_each = lanes.columns(lane, seconds=4.0, width=4)
    assert one_each == [Activity.DRAFT, Activity.TARGET, Activity.TARGET, None]
    assert lanes.columns(lane, seconds=4.0, width=2) == [Activity.DRAFT, Activity.TARGET]
    assert lanes.columns(lane, seconds=4.0, width=1) == [Activity.TARGET]
    fine = lanes.columns(lane, seconds=4.0, width=40)
    assert fine == [Activity.DRAFT] * 10 + [Activity.TARGET] * 20 + [Activity.DRAFT] * 2 + [None] * 8


def test_the_longest_lane_sets_the_axis():
    short, long = (Lane(str(n), (Span(Activity.TARGET, 0.0, n),), 1) for n in (2.0, 3.0))
    assert lanes.longest([short, long]) == pytest.approx(3.0)
