"""Trials: candidates decoded interleaved with plain decoding, which decide the advice and show how good it is."""

import functools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax import estimates
from specjax.advisor import measure, rank
from specjax.advisor.measure import Survey
from specjax.advisor.parts import Part
from specjax.advisor.rank import PLAIN, Candidate
from specjax.estimates import Estimate
from specjax.strategy import Strategy

AGAIN = 3  # trials after the first ones, where predictions were off
NEAR = 3  # trials with more turns, where the fastest ones do not differ significantly


class Trial(NamedTuple):
    """A candidate decoded interleaved with plain decoding.

    Attributes:
      turns: all batches with the candidate, and plainly in the same turn.
    """

    candidate: Candidate
    turns: measure.Turns

    @property
    def strategy(self) -> Strategy:
        return self.candidate.strategy

    @property
    def whole(self) -> tuple[float, ...]:
        """For each turn, the speed-up of whole requests, prefill included."""
        return tuple(own.speed / base.speed for own, base in self.turns)

    @property
    def least(self) -> float:
        return min(self.whole)

    @property
    def most(self) -> float:
        return max(self.whole)

    @property
    def estimate(self) -> Estimate:
        """Speed-up of whole requests, with its error over batches of prompts and over turns."""
        count = lambda runs: np.array([[one.committed for one in run.parts] for run in runs])
        seconds = lambda runs: np.array([[one.prefill + one.decode for one in run.parts] for run in runs])
        own, base = zip(*self.turns, strict=True)
        same = ("turns", tuple(run.decode for run in base))  # trials of one interleaved run are paired
        found = estimates.speedup(
            count(own), seconds(own), count(base), seconds(base), sample=("prompts", len(own[0].parts)), turns=same
        )
        return found.fixed_singles()

    @property
    def speedup(self) -> float:
        return self.estimate.value

    @property
    def error(self) -> float:
        """Half of the 95 % interval of `speedup`."""
        return self.estimate.margin

    @property
    def factor(self) -> float:
        """Median speed-up of decoding."""
        rate = lambda run: run.committed / run.decode
        return statistics.median(rate(own) / rate(base) for own, base in self.turns)

    @property
    def tokens(self) -> float:
        """Tokens per target pass, as `Stats.tokens_per_call`."""
        return self.turns[0][0].tokens_per_round

    def joined(self, more: "Trial") -> "Trial":
        """This trial with the turns of another one."""
        return self._replace(turns=self.turns + more.turns)


def try_out(survey: Survey, candidates: Sequence[Candidate], count: int) -> list[Trial]:
    """Tries the best candidates, then those that look better after correction; the fastest first."""
    beside = functools.partial(try_beside_plain, survey, Part.TRIALS)
    trials = beside(rank.shortlist(candidates, count))
    for _ in range(AGAIN if trials else 0):
        one = rank.next_look(candidates, [(trial.strategy, trial.speedup) for trial in trials])
        more = [] if one is None else beside([one])
        if not more:
            break
        trials += more
    return separate(survey, Part.TRIALS, trials)


def sweep(survey: Survey, candidates: Sequence[Candidate], used: Strategy) -> list[Trial]:
    """Tries `rank.field` of the candidates and the strategy in use, on prompts of their own; the fastest first."""
    field = rank.field(candidates)
    field += [one for one in candidates if one.strategy == used and one not in field]
    return separate(survey, Part.SWEEP, try_beside_plain(survey, Part.SWEEP, field), used)


def separate(survey: Survey, part: Part, trials: Sequence[Trial], used: Strategy | None = None) -> list[Trial]:
    """Adds turns to the fastest trials until they differ significantly, or up to `measure.MORE` as many.

    Args:
      used: a strategy that gets the same turns.
    """
    trials = fastest_first(trials)
    while len(near := close(trials)) > 1 and len(trials[0].whole) < measure.MORE * survey.turns:
        again = [one.candidate for one in trials if one in near or one.strategy == used]
        survey.progress(f"more turns for {len(near)} strategies within the error of each other")
        more = {one.strategy: one for one in try_beside_plain(survey, part, again, warm=True)}
        if not more:
            break
        trials = fastest_first([one.joined(more[one.strategy]) if one.strategy in more else one for one in trials])
    return trials


def fastest_first(trials: Sequence[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda one: -one.speedup)


def close(trials: Sequence[Trial]) -> list[Trial]:
    """The first of `NEAR` trials that may be as fast as the fastest: the 95 % interval of the difference contains 0."""

    def near(one: Trial) -> bool:
        gap = estimates.combine(lambda a, b: a - b, trials[0].estimate, one.estimate)
        return gap.value <= gap.margin

    return [one for one in trials[:NEAR] if near(one)]


def try_beside_plain(survey: Survey, part: Part, candidates: Sequence[Candidate], *, warm: bool = False) -> list[Trial]:
    """Decodes the batches of a part with the candidates and plainly, interleaved; [] if no turn was completed.

    Args:
      warm: whether the candidates have been compiled.
    """
    every = [one.strategy for one in candidates]
    if not candidates or not (warm or measure.warm_up(survey, [PLAIN, *every])):
        return []
    runs = measure.interleave(survey, every, survey.turns, survey.numbers(part))
    return [Trial(one, runs[one.strategy]) for one in candidates] if runs else []
