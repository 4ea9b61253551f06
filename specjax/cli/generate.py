"""`specjax generate`: continue text, show it while it is generated, and report what it took."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from specjax import checks, files
from specjax.cli import INTERRUPTED, outputs, process
from specjax.cli.options import Options, read_request

if TYPE_CHECKING:
    from rich.console import Console

    from specjax.api import Generation, Stream
    from specjax.cli.comparing import Comparison
    from specjax.cli.live import Sink
    from specjax.cli.progress import Progress
    from specjax.cli.prompts import Prompt
    from specjax.config import Run

PROG = "specjax generate"
DONE, BROKEN_MODEL = 0, 1


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: bad input; nothing has been decoded.
    """
    found = read_request(Options, args, PROG)
    if found is None:
        return DONE
    options, config, prompts = found
    from specjax import hosts
    from specjax.cli.progress import Progress, open_console
    from specjax.config import build

    checks.at_least(1, repeats=options.printing.repeats)
    process.check_mesh(config.mesh)
    if process.peers().leader:
        outputs.writable(output=options.printing.output)
    hosts.agree(options=config, prompts=prompts)
    console, errors = open_console(), open_console(stderr=True)
    with Progress(errors, show=not options.printing.quiet) as progress:
        with process.interrupts_wait(lambda: False):
            run = build(config, progress.update)
        prompts = [run.target.chat(one) for one in prompts if isinstance(one, str)] if options.chat else prompts
        return decode_and_report(options, Work(run, prompts, progress), console, errors)


class Work(NamedTuple):
    """What is decoded."""

    run: "Run"
    prompts: "Sequence[Prompt]"
    progress: "Progress"


def decode_and_report(options: Options, work: Work, console: "Console", errors: "Console") -> int:
    """Decodes and prints everything; returns the exit code.

    Ctrl-C after decoding is deferred until the results are printed.
    """
    from specjax.cli import live, report

    printing, run = options.printing, work.run
    quiet = printing.json or printing.quiet
    answers = quiet or options.chat or run.target.encoder_decoder  # shown without their prompts
    text = run.target.text
    spelled = lambda ids: " ".join(map(str, ids)) + " " if text is None else text.decode(ids)
    heads = ["" if answers else one if isinstance(one, str) else spelled(one) for one in work.prompts]
    reporting = False

    def open_sink() -> "Sink":
        if printing.json:
            return live.Silent()
        in_panels = len(work.prompts) > 1 and live.colored(console) and not printing.quiet
        return (live.Panels if in_panels else live.InOrder)(console, heads, marks=printing.show_draft)

    def write(out: "Generation", compared: "Comparison | None" = None) -> str:
        content = files.to_json(report.record(run, out, work.prompts, printing, compared))
        if printing.output is not None and process.peers().leader:
            files.write_text(printing.output, content + "\n")
        return content

    with process.interrupts_wait(lambda: reporting):
        try:
            out, interrupted = decode(work, open_sink, marks=printing.show_draft, split=not quiet)
        except Unshown as unshown:
            write(unshown.out)
            raise cast(BaseException, unshown.__cause__) from None
        reporting = True
        content = write(out)  # before printing, which may fail
        if not quiet:
            report.show(console, report.closing_table(run, out))
        report.warn(errors, PROG, out)
        if printing.compare and not interrupted:
            reporting = False
            compared = measure(work, repeats=printing.repeats)
            reporting, interrupted = True, compared is None
            content = write(out, compared)
            if compared is not None and not quiet:
                report.show(console, report.comparison_table(compared), report.comparison_lines(compared))
        if printing.json:
            report.print_json(content)
    if interrupted:
        return INTERRUPTED
    return BROKEN_MODEL if "nan" in out.stop_reasons else DONE


class Unshown(Exception):
    """The output could not be written. `out` is what had been generated; the reason is __cause__."""

    def __init__(self, out: "Generation"):
        super().__init__("the output could not be written")
        self.out = out


def decode(work: Work, open_sink: "Callable[[], Sink]", *, marks: bool, split: bool) -> "tuple[Generation, bool]":
    """Streams the rounds into a sink, which is opened when the first text exists.

    Ctrl-C before the first round raises KeyboardInterrupt. Later, the first one ends the run after the current round,
    so that nothing generated is lost, and a second one ends it at once with the text shown so far.

    Args:
      marks: keep rejected tokens in the text.
      split: measure draft and verify time separately afterwards.

    Returns:
      What was generated, and whether it was interrupted.

    Raises:
      Unshown: the sink failed.
    """
    from specjax import api, hosts

    progress = work.progress
    progress.update("compiling, and reading the prompt")
    with process.interrupts_wait(lambda: False):
        run = work.run
        stream = api.stream(run.target, work.prompts, drafter=run.drafter, **run.config.options)
    progress.update("compiling a round")
    with process.deferred_interrupt(once=lambda: stream.rounds > 0 or stream.in_round) as stop:
        together = hosts.StopTogether(stop, ahead=2)  # each round ends on all processes before the next one
        try:
            _show(stream, work, open_sink, lambda: together(stream.rounds), marks=marks)
        except (OSError, SystemExit) as error:  # a full disk, or (raised by rich) a closed pipe
            raise Unshown(stream.result()) from error
        interrupted = together.stopped
    out = stream.result()
    if split and not interrupted and out.stats.drafted:
        progress.update("timing draft and verify separately")
        try:
            out = stream.result(profile=True)
        except KeyboardInterrupt:
            interrupted = True
    progress.clear()
    return out, interrupted


def _show(
    stream: "Stream", work: Work, open_sink: "Callable[[], Sink]", stop: Callable[[], bool], *, marks: bool
) -> None:
    """Feeds each round to the rows' text until all rows have ended or `stop()`."""
    from specjax.cli.live import RowText

    text, stops = work.run.target.text, work.run.config.stop
    running = {row: RowText(text, stops=stops, marks=marks) for row in range(len(work.prompts))}
    rounds = iter(stream)
    event = next(rounds, None)
    work.progress.clear()
    sink = open_sink()

    def end(row: int) -> None:
        sink.add(row, running.pop(row).end())
        sink.end(row)

    try:
        while event is not None:
            for row in list(running):
                sink.add(row, running[row].add(event.info, row))
                if not event.info.active[row]:
                    end(row)
            event = None if stop() else next(rounds, None)
    finally:
        for row in list(running):
            end(row)
        sink.close()


def measure(work: Work, *, repeats: int) -> "Comparison | None":
    """The comparison with plain decoding; None if Ctrl-C ended it."""
    from specjax.cli.comparing import compare

    notify = lambda done, total: work.progress.update(f"comparing with plain decoding: {done} of {total} runs")
    notify(0, 2 * (repeats + 1))
    try:
        return compare(work.run, work.prompts, repeats=repeats, progress=notify)
    except KeyboardInterrupt:
        return None
    finally:
        work.progress.clear()
