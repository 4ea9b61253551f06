"""One run of `specjax generate` after its models are loaded: rounds into a sink, walltime, and the comparison."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specjax import api
from specjax.api import Generation
from specjax.cli.comparing import Comparison, compare
from specjax.cli.live import Sink
from specjax.cli.progress import Progress, deferred_interrupt
from specjax.cli.segments import RowText
from specjax.drafters import LoadedDrafter
from specjax.model import Model
from specjax.streaming import interrupts_wait


class Work(NamedTuple):
    """What is decoded: `options` are the keyword arguments of `specjax.generate` but for the drafter."""

    target: Model
    prompts: Sequence[str]
    guide: LoadedDrafter
    options: dict[str, Any]


class Unshown(Exception):
    """The text could not be shown to its end; what was generated until then. The cause is its __cause__."""

    def __init__(self, out: Generation):
        super().__init__("the output could not be written")
        self.out = out


def decode(
    work: Work, open_sink: Callable[[], Sink], progress: Progress, *, marks: bool, split: bool
) -> tuple[Generation, bool]:
    """Streams the rounds into a sink, which is opened when the first text is there.

    Ctrl-C before there is any text raises KeyboardInterrupt. From then on it ends the run after the round under way, so
    that nothing generated is lost; a second one ends it at once, with what had been shown.

    Args:
      marks: keep rejected tokens in the text.
      split: measure draft and verify apart afterwards.

    Returns:
      What was generated, and whether it was interrupted.

    Raises:
      Unshown: the sink failed.
    """
    progress.tell("compiling, and reading the prompt")
    with interrupts_wait(lambda: False):
        run = api.stream(work.target, work.prompts, drafter=work.guide, **work.options)
    progress.tell("compiling a round")
    with deferred_interrupt(once=lambda: run.rounds > 0 or run.in_round) as asked:
        try:
            _show(run, work, open_sink, progress, asked, marks=marks)
        except (OSError, SystemExit) as error:  # a full disk, or, by rich's exit, a reader who has gone
            raise Unshown(run.result()) from error
        interrupted = asked()
    out = run.result()
    if split and not interrupted and out.stats.drafted:
        progress.tell("timing draft and verify apart")
        try:
            out = run.result(profile=True)
        except KeyboardInterrupt:
            interrupted = True
    progress.clear()
    return out, interrupted


def _show(
    run: api.Stream, work: Work, open_sink, progress: Progress, asked: Callable[[], bool], *, marks: bool
) -> None:  # fmt: skip
    """Feeds each round to the rows' sinks until all have ended or the user asked to stop."""
    stops = work.options["stop"]
    running = {row: RowText(work.target.text, stops=stops, marks=marks) for row in range(len(work.prompts))}
    rounds = iter(run)
    event = next(rounds, None)
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
            event = next(rounds, None)
    finally:
        for row in list(running):
            end(row)
        sink.close()


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
