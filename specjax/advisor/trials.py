"""Ways of decoding that are really decoded, in turns with plain decoding: the answer, and how good it is."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from specjax.advisor import rank, running, ways
from specjax.advisor.measure import Notes
from specjax.advisor.rank import Candidate
from specjax.advisor.running import Run, Work
from specjax.advisor.ways import PLAIN, Way

AGAIN = 3  # ways that are tried after the others, where theory was seen to be off
NEAR = 3  # ways that are timed for longer, where turns do not tell which of them is the fastest


class Trial(NamedTuple):
    """A candidate, really decoded in turns with plain decoding.

    Attributes:
      whole: of each turn, the speed of whole requests, prompts included, over that of plain decoding.
      decoding: the same while decoding.
      tokens: that a round committed by count.
    """

    candidate: Candidate
    whole: tuple[float, ...]
    decoding: tuple[float, ...]
    tokens: float

    @property
    def way(self) -> Way:
        return self.candidate.way

    @property
    def speedup(self) -> float:
        """Of whole requests, the median over the turns."""
        return statistics.median(self.whole)

    @property
    def least(self) -> float:
        return min(self.whole)

    @property
    def most(self) -> float:
        return max(self.whole)

    @property
    def error(self) -> float:
        """How far `speedup` may be off."""
        return running.spread_of(self.whole)

    @property
    def factor(self) -> float:
        """While decoding, the median over the turns."""
        return statistics.median(self.decoding)

    def joined(self, more: "Trial") -> "Trial":
        """With the turns of another trial of the same way."""
        return self._replace(whole=self.whole + more.whole, decoding=self.decoding + more.decoding)


def try_out(work: Work, notes: Notes, candidates: Sequence[Candidate], count: int) -> list[Trial]:
    """The best candidates, and after them those that look better than they did; the fastest first."""
    trials = try_beside_plain(work, notes, rank.shortlist(candidates, count))
    for _ in range(AGAIN if trials else 0):
        one = rank.next_look(candidates, [(trial.way, trial.speedup) for trial in trials])
        more = [] if one is None else try_beside_plain(work, notes, [one])
        if not more:
            break
        trials += more
    return separate(work, notes, trials)


def sweep(work: Work, notes: Notes, candidates: Sequence[Candidate], used: Way) -> list[Trial]:
    """`rank.field` of the candidates, and the way that is used; the fastest first."""
    field = rank.field(candidates)
    field += [one for one in candidates if one.way == used and one not in field]
    return separate(work, notes, try_beside_plain(work, notes, field), used)


def separate(work: Work, notes: Notes, trials: Sequence[Trial], used: Way | None = None) -> list[Trial]:
    """The fastest first; those that are nearer to the first than their turns differ by have had more turns, until they
    differ, or each has had `running.MORE` times as many as were asked for.

    Args:
      used: this way has as many as they.
    """
    trials = fastest_first(trials)
    while len(near := close(trials)) > 1 and len(trials[0].whole) < running.MORE * work.turns:
        again = [one for one in trials if one in near or one.way == used]
        work.tell(f"{len(near)} ways are nearer together than turns differ by: more turns")
        more = {one.way: one for one in try_beside_plain(work, notes, [one.candidate for one in again], warm=True)}
        if not more:
            break
        trials = fastest_first([one.joined(more[one.way]) if one.way in more else one for one in trials])
    return trials


def fastest_first(trials: Sequence[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda one: -one.speedup)


def close(trials: Sequence[Trial]) -> list[Trial]:
    """The first, and those of the next that may be as fast, as far as their turns tell; `NEAR` at the most."""
    return [one for one in trials[:NEAR] if one.speedup + one.error >= trials[0].speedup - trials[0].error]


def try_beside_plain(work: Work, notes: Notes, short: Sequence[Candidate], *, warm: bool = False) -> list[Trial]:
    """The candidates and plain decoding, every batch in turns. None where no turn was finished.

    Args:
      warm: all of them were run before.
    """
    if not short:
        return []
    every = [PLAIN, *(one.way for one in short)]
    for place, way in enumerate(() if warm else every, start=1):
        if work.stop():
            return []
        work.tell(f"trying {place} of {len(every)}: compiling {ways.label(way, work.names)}")
        running.decode(work, way, 0)
    runs: dict[Way, list[Run]] = {}
    notes.load.append(running.take_turns(work, every, runs, work.turns, range(len(work.batches))))
    if PLAIN not in runs:
        return []
    return [trial(one, runs[one.way], runs[PLAIN]) for one in short]


def trial(candidate: Candidate, runs: Sequence[Run], plain: Sequence[Run]) -> Trial:
    """The runs of a way beside those of plain decoding in the same turns."""
    rate = lambda run: run.committed / run.decode
    pairs = list(zip(runs, plain, strict=True))
    return Trial(
        candidate,
        tuple(own.speed / base.speed for own, base in pairs),
        tuple(rate(own) / rate(base) for own, base in pairs),
        running.accepted_and_one(runs[0]),
    )
