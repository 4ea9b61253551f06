"""Prompts decoded in some way, in the loop that users run: once, or in turns with other ways. All times are warm."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax import api, measuring
from specjax import decoding as loop
from specjax.advisor import ways
from specjax.advisor.ways import KINDS, Way
from specjax.measuring import timed
from specjax.model import Model
from specjax.stopping import Stop

MORE = 5  # times as many turns as were asked for, at the most


@dataclasses.dataclass(frozen=True)
class Work:
    """What is decoded.

    Attributes:
      batches: prompts as token ids, each batch full.
      options: keyword arguments of `specjax.generate`, drafter and verifier apart.
      kinds: of drafters that are weighed, out of `ways.KINDS`.
      turns: timed runs of every way; medians count.
      tell: hears what is going on. stop: asked between runs; True ends measuring there.
    """

    target: Model
    drafts: tuple[Model, ...]
    batches: tuple[tuple[list[int], ...], ...]
    options: dict[str, Any]
    kinds: tuple[str, ...] = KINDS
    turns: int = 3
    tell: Callable[[str], None] = lambda line: None
    stop: Callable[[], bool] = lambda: False
    _guides: dict[Way, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def guide(self, way: Way) -> Any:
        """The drafter of a way, made once; one that has weights of its own shares them with its other lengths."""
        if way not in self._guides:
            made = ways.guide(way, self.drafts, self.target)
            if way.kind in ways.SELF:
                alike = (guide.params for old, guide in self._guides.items() if old.kind == way.kind)
                made = made._replace(params=next(alike, made.params))
            self._guides[way] = made
        return self._guides[way]

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn, and not always the most probable ones."""
        return self.options["temperature"] > 0

    @property
    def verifier(self) -> str:
        """Of chains that a model draws. What either accepts at a position depends on nothing after it, so that the
        counts of a long draft tell those of all shorter ones."""
        return "block" if self.sampled else "token"

    def drawn(self, kind: str, gamma: int, *drafts: int) -> Way:
        """A chain that a model draws."""
        return ways.chain(kind, gamma, *drafts, verifier=self.verifier)

    @property
    def names(self) -> list[str]:
        """Of the draft models."""
        return [draft.name for draft in self.drafts]


class Run(NamedTuple):
    """One batch, decoded one way.

    Attributes:
      prefill, decode: seconds, compiling apart.
      calls: of the target until all rows had ended.
      reached: rounds that accepted at least 0, 1, ... drafted tokens, over all rows.
    """

    prefill: float
    decode: float
    calls: int
    reached: tuple[int, ...]
    tokens: list[list[int]]

    @property
    def committed(self) -> int:
        return sum(map(len, self.tokens))

    @property
    def seconds(self) -> float:
        """Of a round."""
        return self.decode / max(self.calls, 1)

    @property
    def speed(self) -> float:
        """Tokens a second, prompts included."""
        return self.committed / (self.prefill + self.decode)


def make_batches(prompts: Sequence[list[int]], batch: int) -> tuple[tuple[list[int], ...], ...]:
    """The prompts in batches of `batch`; the last one is filled up with prompts from the first on."""
    count = -(-len(prompts) // batch)
    filled = [prompts[number % len(prompts)] for number in range(count * batch)]
    return tuple(tuple(filled[start : start + batch]) for start in range(0, len(filled), batch))


def decode(work: Work, way: Way, number: int) -> Run:
    """Decodes one batch. What compiles meanwhile is no part of its seconds.

    Raises:
      RuntimeError: the logits hold NaN.
    """
    guide, batch = work.guide(way), work.batches[number]
    rows = range(number * len(batch), (number + 1) * len(batch))
    job = api.prepare(
        work.target, list(batch), drafter=guide, verifier=way.verifier, rows=rows, **work.options
    )  # fmt: skip
    state, run, _ = timed(lambda: loop.generate(job.params, job.state, **job.static))
    written, count, stop, totals = jax.device_get((state.tokens, state.length, state.stop, state.totals))
    if np.any(stop == int(Stop.NAN)):
        raise RuntimeError(f"the logits of {work.target.name} hold NaN: its weights (or the dtype) are broken")
    rounds = int(np.sum(totals.rounds))
    reached = (rounds, *np.sum(totals.depth_accepted, 0)[:-1].astype(int).tolist())
    texts = [written[row, : count[row]].tolist() for row in range(len(batch))]
    return Run(job.seconds["prefill"], run, int(np.max(totals.rounds)), reached, texts)


def take_turns(
    work: Work, every: Iterable[Way], into: dict[Way, list[Run]], turns: int, batches: Sequence[int]
) -> float:
    """Decodes the batches in every way, in turns, and appends a run a way and turn; returns the load of the machine.

    Each batch in all ways before the next one: a machine that slows down for a second does so for all of them. A turn
    that is stopped is left out whole, so that all ways have as many.
    """
    every = list(every)
    before = measuring.ticks()
    for turn in range(turns):
        found: dict[Way, list[Run]] = {way: [] for way in every}
        for number, way in itertools.product(batches, every):
            if work.stop():
                return measuring.load_between(before, measuring.ticks())
            work.tell(f"turn {turn + 1} of {turns}: {ways.label(way, work.names)}")
            found[way].append(decode(work, way, number))
        for way, runs in found.items():
            into.setdefault(way, []).append(joined(runs))
    return measuring.load_between(before, measuring.ticks())


def joined(runs: Sequence[Run]) -> Run:
    """Batches one after the other, as one run."""
    deepest = max(len(run.reached) for run in runs)
    columns = [[*run.reached, *[0] * (deepest - len(run.reached))] for run in runs]
    return Run(
        sum(run.prefill for run in runs), sum(run.decode for run in runs), sum(run.calls for run in runs),
        tuple(np.sum(columns, 0).tolist()), [row for run in runs for row in run.tokens],
    )  # fmt: skip


def accepted_and_one(run: Run) -> float:
    """Tokens a round by count: the accepted ones and the target's own."""
    return 1 + sum(run.reached[1:]) / max(run.reached[0], 1)


def spread_of(values: Sequence[float]) -> float:
    """Half of the range, over the root of how many there are: how far the median may be off."""
    return (max(values) - min(values)) / 2 / math.sqrt(len(values))
