"""A trace as forward passes on a time axis, as in figure 5 of Leviathan et al. 2023 (arXiv 2211.17192)."""

import bisect
import enum
from collections.abc import Sequence
from typing import NamedTuple

from specjax.trace.rounds import Trace


class Activity(enum.Enum):
    """What walltime is spent on; the value is the label in legends."""

    TARGET_PROMPT = "target prefill"
    DRAFT_PROMPT = "drafter prefill"
    DRAFT = "drafter"
    TARGET = "target"


class Span(NamedTuple):
    """One forward pass, in seconds from the start of the request."""

    kind: Activity
    start: float
    seconds: float


class Lane(NamedTuple):
    """One request: its forward passes in sequence, without gaps."""

    name: str
    spans: tuple[Span, ...]
    tokens: int

    @property
    def seconds(self) -> float:
        last = self.spans[-1]
        return last.start + last.seconds

    @property
    def target_passes(self) -> int:
        return sum(span.kind is Activity.TARGET for span in self.spans)


def lane(name: str, trace: Trace) -> Lane:
    """The lane of a trace. The draft time of a round is divided evenly among its draft steps."""
    spent = [(Activity.TARGET_PROMPT, trace.prefill.target), (Activity.DRAFT_PROMPT, trace.prefill.draft)]
    for one in trace.rounds:
        spent += [(Activity.DRAFT, one.draft / max(trace.draft_steps, 1))] * trace.draft_steps
        spent.append((Activity.TARGET, one.verify))
    spans, now = [], 0.0
    for kind, seconds in spent:
        if seconds > 0:
            spans.append(Span(kind, now, seconds))
            now += seconds
    return Lane(name, tuple(spans), trace.out.stats.tokens)


def summary(one: Lane) -> str:
    """One line of text: tokens, target passes and time."""
    noun = "pass" if one.target_passes == 1 else "passes"
    return f"{one.tokens} tokens, {one.target_passes} target {noun}, {1e3 * one.seconds:.4g} ms"


def columns(one: Lane, *, seconds: float, width: int) -> list[Activity | None]:
    """The activity that fills most of each of `width` equal parts of `seconds`; None after the end of the lane."""
    starts, step = [span.start for span in one.spans], seconds / width
    found: list[Activity | None] = []
    for column in range(width):
        start, end = column * step, (column + 1) * step
        shares: dict[Activity, float] = {}
        for span in one.spans[max(bisect.bisect_right(starts, start) - 1, 0) : bisect.bisect_left(starts, end)]:
            shared = min(span.start + span.seconds, end) - max(span.start, start)
            shares[span.kind] = shares.get(span.kind, 0.0) + max(shared, 0.0)
        filled = 2 * sum(shares.values()) > step
        found.append(max(shares, key=lambda kind: shares[kind]) if filled else None)
    return found


def longest(lanes: Sequence[Lane]) -> float:
    """Seconds of the longest lane."""
    return max(one.seconds for one in lanes)
