"""A run as calls on a time axis, as in figure 5 of Leviathan et al. 2023 (arXiv 2211.17192). No picture library."""

import bisect
import enum
from collections.abc import Sequence
from typing import NamedTuple

from specjax.trace.rounds import Trace


class Kind(enum.Enum):
    """What a stretch of walltime was spent on; the value is its name in legends."""

    TARGET_PROMPT = "target reads the prompt"
    DRAFT_PROMPT = "drafter reads the prompt"
    DRAFT = "drafter"
    TARGET = "target"


class Call(NamedTuple):
    """One call, in seconds since the request came."""

    kind: Kind
    start: float
    seconds: float


class Lane(NamedTuple):
    """One run: its calls one after the other, without gaps."""

    name: str
    calls: tuple[Call, ...]
    tokens: int

    @property
    def seconds(self) -> float:
        last = self.calls[-1]
        return last.start + last.seconds

    @property
    def target_calls(self) -> int:
        return sum(call.kind is Kind.TARGET for call in self.calls)


def lane(name: str, trace: Trace) -> Lane:
    """The calls of a run. A round's drafting is divided evenly among its calls of the draft model."""
    spent = [(Kind.TARGET_PROMPT, trace.reading.target), (Kind.DRAFT_PROMPT, trace.reading.draft)]
    for one in trace.rounds:
        drafting, checking = one.times.shares
        spent += [(Kind.DRAFT, drafting / max(trace.calls, 1))] * trace.calls
        spent.append((Kind.TARGET, checking))
    calls, now = [], 0.0
    for kind, seconds in spent:
        if seconds > 0:
            calls.append(Call(kind, now, seconds))
            now += seconds
    return Lane(name, tuple(calls), trace.out.stats.tokens)


def told(one: Lane) -> str:
    """A lane in words."""
    noun = "call" if one.target_calls == 1 else "calls"
    return f"{one.tokens} tokens, {one.target_calls} target {noun}, {1e3 * one.seconds:.4g} ms"


def columns(one: Lane, *, seconds: float, width: int) -> list[Kind | None]:
    """What fills most of each of `width` equal parts of `seconds`; None after the lane's end."""
    starts, step = [call.start for call in one.calls], seconds / width
    found: list[Kind | None] = []
    for column in range(width):
        start, end = column * step, (column + 1) * step
        shares: dict[Kind, float] = {}
        for call in one.calls[max(bisect.bisect_right(starts, start) - 1, 0) : bisect.bisect_left(starts, end)]:
            shared = min(call.start + call.seconds, end) - max(call.start, start)
            shares[call.kind] = shares.get(call.kind, 0.0) + max(shared, 0.0)
        filled = 2 * sum(shares.values()) > step
        found.append(max(shares, key=lambda kind: shares[kind]) if filled else None)
    return found


def longest(lanes: Sequence[Lane]) -> float:
    """Seconds of the longest lane."""
    return max(one.seconds for one in lanes)
