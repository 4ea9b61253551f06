"""One run of `specjax generate` after its models are loaded: rounds into a sink, walltime, and the comparison."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specjax import api
from specjax.api import Generation
from specjax.cli.clock import compile_seconds, listen
from specjax.cli.comparing import Comparison, compare
from specjax.cli.live import Sink
from specjax.cli.progress import Progress, deferred_interrupt
from specjax.cli.segments import RowText
from specjax.drafters import Guide
from specjax.model import Model


class Work(NamedTuple):
    """What is decoded: `options` are the keyword arguments of `specjax.generate` but for the drafter."""

    target: Model
    prompts: Sequence[str]
    guide: Guide
    options: dict[str, Any]


def decode(
    work: Work, open_sink: Callable[[], Sink], progress: Progress, *, marks: bool, split: bool
) -> tuple[Generation, bool]:
    """Streams the rounds into a sink, which is opened when the first text is there.

    Ctrl-C ends the run after the round under way, so that nothing generated is lost; a second one ends it at once,
    with what had been shown.

    Args:
      marks: keep rejected tokens in the text.
      split: measure draft and verify apart afterwards.

    Returns:
      What was generated, its seconds with compiling under a name of its own, and whether it was interrupted.
    """
    listen()
    begun = time.perf_counter()
    progress.tell("compiling, and reading the prompt")
    run = api.stream(work.target, work.prompts, drafter=work.guide, **work.options)
    ready = time.perf_counter()
    progress.tell("compiling a round")
    with deferred_interrupt() as asked:
        rounds = _show(run, work, open_sink, progress, asked, marks=marks)
        interrupted = asked()
    ended = time.perf_counter()
    compiling = compile_seconds(begun, ended)
    seconds = dict(run.result().stats.seconds)
    if split and not interrupted and run.result().stats.drafted:
        progress.tell("timing draft and verify apart")
        try:
            seconds = dict(run.result(profile=True).stats.seconds)
        except KeyboardInterrupt:
            interrupted = True
    progress.clear()
    out = run.result()
    seconds = without_compiling(seconds, ready, rounds) | {"compile": compiling}
    return dataclasses.replace(out, stats=dataclasses.replace(out.stats, seconds=seconds)), interrupted


def _show(
    run: api.Stream, work: Work, open_sink, progress: Progress, asked: Callable[[], bool], *, marks: bool
) -> list[float]:
    """Feeds each round to the rows' sinks until all have ended or the user asked to stop.

    Returns:
      Seconds of each round, without what jax reports as compiling.
    """
    stops, tree = work.options["stop"], work.guide.drafter.tree
    running = {row: RowText(work.target.text, tree, stops=stops, marks=marks) for row in range(len(work.prompts))}
    rounds = iter(run)
    started = time.perf_counter()
    event = next(rounds, None)
    seconds = [time.perf_counter() - started - compile_seconds(started)]
    progress.clear()
    sink: Sink = open_sink()

    def end(row: int) -> None:
        sink.add(row, running.pop(row).end())
        sink.end(row)

    try:
        while event is not None:
            for row in list(running):
                sink.add(row, running[row].add(event.info, row))
                if not event.info.active[row]:
                    end(row)
            if asked():
                break
            started = time.perf_counter()
            event = next(rounds, None)
            if event is not None:
                seconds.append(time.perf_counter() - started - compile_seconds(started))
    finally:
        for row in list(running):
            end(row)
        sink.close()
    return seconds


def without_compiling(seconds: dict[str, float], ready: float, rounds: Sequence[float]) -> dict[str, float]:
    """Seconds without what compiling took.

    The first round pays for more than jax reports as compiling, so it counts as the median of the others at most.

    Args:
      seconds: as measured.
      ready: when the prompt had been read.
      rounds: seconds of each round, without what jax reports.
    """
    apart = dict(seconds)
    apart["prefill"] = max(0.0, seconds["prefill"] - compile_seconds(ready - seconds["prefill"], ready))
    first, *others = rounds
    apart["decode"] = min(first, statistics.median(others or [first])) + sum(others)
    for part in ("draft", "verify"):
        if part in seconds:
            apart[part] = seconds[part] * apart["decode"] / seconds["decode"]
    return apart


def measure(work: Work, progress: Progress, *, repeats: int) -> Comparison | None:
    """The comparison with plain decoding; None where Ctrl-C ended it."""
    tell = lambda done, every: progress.tell(f"comparing with plain decoding: {done} of {every} runs")
    tell(0, 2 * (repeats + 1))
    try:
        return compare(work.target, work.prompts, work.guide, work.options, repeats=repeats, progress=tell)
    except KeyboardInterrupt:
        return None
    finally:
        progress.clear()
