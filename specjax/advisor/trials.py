"""Trials: candidates decoded interleaved with plain decoding, which decide the advice and show how good it is."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from specjax import measuring
from specjax.advisor import measure, rank
from specjax.advisor.measure import Survey
from specjax.advisor.rank import PLAIN, Candidate
from specjax.strategy import Strategy

AGAIN = 3  # trials after the first ones, where predictions were off
NEAR = 3  # trials with more turns, where the fastest ones do not differ significantly


class Trial(NamedTuple):
    """A candidate decoded interleaved with plain decoding.

    Attributes:
      whole: for each turn, the speed-up of whole requests, prefill included.
      decoding: for each turn, the speed-up of decoding.
      tokens: committed tokens per round by count.
    """

    candidate: Candidate
    whole: tuple[float, ...]
    decoding: tuple[float, ...]
    tokens: float

    @property
    def strategy(self) -> Strategy:
        return self.candidate.strategy

    @property
    def speedup(self) -> float:
        """Median speed-up of whole requests."""
        return statistics.median(self.whole)

    @property
    def least(self) -> float:
        return min(self.whole)

    @property
    def most(self) -> float:
        return max(self.whole)

    @property
    def error(self) -> float:
        """Uncertainty of `speedup`."""
        return measuring.error(self.whole)

    @property
    def factor(self) -> float:
        """Median speed-up of decoding."""
        return statistics.median(self.decoding)

    def joined(self, more: "Trial") -> "Trial":
        """This trial with the turns of another one."""
        return self._replace(whole=self.whole + more.whole, decoding=self.decoding + more.decoding)


def try_out(survey: Survey, candidates: Sequence[Candidate], count: int) -> list[Trial]:
    """Tries the best candidates, then those that look better after correction; the fastest first."""
    trials = try_beside_plain(survey, rank.shortlist(candidates, count))
    for _ in range(AGAIN if trials else 0):
        one = rank.next_look(candidates, [(trial.strategy, trial.speedup) for trial in trials])
        more = [] if one is None else try_beside_plain(survey, [one])
        if not more:
            break
        trials += more
    return separate(survey, trials)


def sweep(survey: Survey, candidates: Sequence[Candidate], used: Strategy) -> list[Trial]:
    """Tries `rank.field` of the candidates and the strategy in use; the fastest first."""
    field = rank.field(candidates)
    field += [one for one in candidates if one.strategy == used and one not in field]
    return separate(survey, try_beside_plain(survey, field), used)


def separate(survey: Survey, trials: Sequence[Trial], used: Strategy | None = None) -> list[Trial]:
    """Adds turns to the fastest trials until they differ by more than their error, or up to `measure.MORE` as many.

    Args:
      used: a strategy that gets the same turns.
    """
    trials = fastest_first(trials)
    while len(near := close(trials)) > 1 and len(trials[0].whole) < measure.MORE * survey.turns:
        again = [one.candidate for one in trials if one in near or one.strategy == used]
        survey.progress(f"more turns for {len(near)} strategies within the error of each other")
        more = {one.strategy: one for one in try_beside_plain(survey, again, warm=True)}
        if not more:
            break
        trials = fastest_first([one.joined(more[one.strategy]) if one.strategy in more else one for one in trials])
    return trials


def fastest_first(trials: Sequence[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda one: -one.speedup)


def close(trials: Sequence[Trial]) -> list[Trial]:
    """The first of `NEAR` trials that may be as fast as the fastest, within their errors."""
    return [one for one in trials[:NEAR] if one.speedup + one.error >= trials[0].speedup - trials[0].error]


def try_beside_plain(survey: Survey, candidates: Sequence[Candidate], *, warm: bool = False) -> list[Trial]:
    """Decodes all batches with the candidates and plainly, interleaved; [] if no turn was completed.

    Args:
      warm: whether the candidates have been compiled.
    """
    every = [one.strategy for one in candidates]
    if not candidates or not (warm or measure.warm_up(survey, [PLAIN, *every])):
        return []
    runs = measure.interleave(survey, every, survey.turns, range(len(survey.batches)))
    return [trial(one, runs[one.strategy]) for one in candidates] if runs else []


def trial(candidate: Candidate, turns: measure.Turns) -> Trial:
    """Runs of a candidate against plain decoding in the same turns."""
    rate = lambda run: run.committed / run.decode
    whole = tuple(own.speed / base.speed for own, base in turns)
    return Trial(candidate, whole, tuple(rate(own) / rate(base) for own, base in turns), turns[0][0].tokens_per_round)
