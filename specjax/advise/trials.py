"""Ways of decoding that are really decoded, in turns with plain decoding: the answer, and how good it is."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from specjax.advise import measure, rank, ways
from specjax.advise.measure import Notes, Run, Work
from specjax.advise.rank import Candidate
from specjax.advise.ways import PLAIN, Way

AGAIN = 3  # ways that are tried after the others, where theory was seen to be off


class Trial(NamedTuple):
    """A candidate, really decoded in turns with plain decoding.

    Attributes:
      speedup: of whole requests, prompts included, against plain decoding of the same turn; the median over the turns.
      least, most: over the turns. error: how far the median may be off.
      factor: while decoding, the same median.
      tokens: that a round committed by count.
    """

    candidate: Candidate
    speedup: float
    least: float
    most: float
    error: float
    factor: float
    tokens: float

    @property
    def way(self) -> Way:
        return self.candidate.way


def try_out(work: Work, notes: Notes, candidates: Sequence[Candidate], count: int) -> list[Trial]:
    """The best candidates, and after them those that look better than they did; the fastest first."""
    trials = try_beside_plain(work, notes, rank.shortlist(candidates, count))
    for _ in range(AGAIN if trials else 0):
        one = rank.next_look(candidates, [(trial.way, trial.speedup) for trial in trials])
        more = [] if one is None else try_beside_plain(work, notes, [one])
        if not more:
            break
        trials += more
    return sorted(trials, key=lambda one: -one.speedup)


def sweep(work: Work, notes: Notes, candidates: Sequence[Candidate], used: Way) -> list[Trial]:
    """Every kind at every length and size (`rank.field`), and the way that is used; the fastest first."""
    field = rank.field(candidates)
    field += [one for one in candidates if one.way == used and one not in field]
    return sorted(try_beside_plain(work, notes, field), key=lambda one: -one.speedup)


def try_beside_plain(work: Work, notes: Notes, short: Sequence[Candidate]) -> list[Trial]:
    """The candidates and plain decoding, every batch in turns. None where no turn was finished."""
    if not short:
        return []
    every = [PLAIN, *(one.way for one in short)]
    for place, way in enumerate(every, start=1):
        if work.stop():
            return []
        work.tell(f"trying {place} of {len(every)}: compiling {ways.label(way, work.names)}")
        measure.decode(work, way, 0)
    runs: dict[Way, list[Run]] = {}
    notes.load.append(measure.take_turns(work, every, runs, work.turns, range(len(work.batches))))
    if PLAIN not in runs:
        return []
    return [trial(one, runs[one.way], runs[PLAIN]) for one in short]


def trial(candidate: Candidate, runs: Sequence[Run], plain: Sequence[Run]) -> Trial:
    """The runs of a way beside those of plain decoding in the same turns."""
    whole = [own.speed / base.speed for own, base in zip(runs, plain, strict=True)]
    rate = lambda run: run.committed / run.decode
    decoding = [rate(own) / rate(base) for own, base in zip(runs, plain, strict=True)]
    return Trial(
        candidate, statistics.median(whole), min(whole), max(whole), measure.spread_of(whole),
        statistics.median(decoding), measure.accepted_and_one(runs[0]),
    )  # fmt: skip
