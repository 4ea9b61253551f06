"""`specjax generate`: continue text, show it while it is generated, and report what it took."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from specjax import files
from specjax.cli import INTERRUPTED, checks, process
from specjax.cli.arguments import parse
from specjax.cli.options import Drafting, Options, merge_preset, preset_defaults
from specjax.cli.prompts import read_prompts

if TYPE_CHECKING:
    from rich.console import Console

    from specjax.api import Generation, Stream
    from specjax.cli.comparing import Comparison
    from specjax.cli.live import Sink
    from specjax.cli.progress import Progress
    from specjax.drafters import LoadedDrafter
    from specjax.model import Model

DONE, BROKEN_MODEL = 0, 1
HELP = "help"  # instead of the name of a drafter or a policy


def main(args: Sequence[str]) -> int:
    """Parses the arguments and runs; returns the exit code.

    Raises:
      ValueError, OSError: bad input; nothing has been decoded.
    """
    prog = "specjax generate"
    options = parse(Options, args, prog=prog)
    if printed_help(options.drafting):
        return DONE
    if options.config is not None:
        process.import_library()
        from specjax import config

        preset = config.read(options.config)
        options = merge_preset(parse(Options, args, prog=prog, default=preset_defaults(preset)), preset)
    prompts = read_prompts(options.prompt, options.prompts)
    return run(options, prompts)


def printed_help(chosen: Drafting) -> bool:
    """Prints all drafters or policies if one of them is named `help`, and returns whether it did."""
    if HELP not in (chosen.drafter, chosen.policy):
        return False
    process.import_library()
    from specjax import registry

    print(registry.help_text("drafter" if chosen.drafter == HELP else "policy"))
    return True


def run(options: Options, prompts: Sequence[str]) -> int:
    """Checks, loads, decodes and reports."""
    process.import_library()
    from specjax.cli import setup
    from specjax.cli.progress import Progress, open_console
    from specjax.request import named_verifier

    chosen, printing = setup.plan(options), options.printing
    checks.writable(output=printing.output)
    console, errors = open_console(), open_console(stderr=True)
    with Progress(errors, show=not printing.quiet) as progress:
        with process.interrupts_wait(lambda: False):
            target, drafter = setup.load_models(options, chosen, progress.tell)
        verifier = named_verifier(drafter, chosen.verifier).name
        work = Work(target, prompts, drafter, verifier, setup.decode_options(options, chosen), progress)
        return decode_and_report(options, work, console, errors)


class Work(NamedTuple):
    """What is decoded; `options` are the keyword arguments of `specjax.generate` without the drafter."""

    target: "Model"
    prompts: Sequence[str]
    drafter: "LoadedDrafter"
    verifier: str
    options: dict[str, Any]
    progress: "Progress"


def decode_and_report(options: Options, work: Work, console: "Console", errors: "Console") -> int:
    """Decodes and prints everything; returns the exit code.

    Ctrl-C after decoding is deferred until the results are printed.
    """
    from specjax.cli import live, report

    printing = options.printing
    quiet = printing.json or printing.quiet
    heads = [""] * len(work.prompts) if quiet or work.target.encoder_decoder else work.prompts
    reporting = False

    def open_sink() -> "Sink":
        if printing.json:
            return live.Silent()
        in_panels = len(work.prompts) > 1 and live.colored(console) and not printing.quiet
        return (live.Panels if in_panels else live.InOrder)(console, heads, marks=printing.show_draft)

    def write(out: "Generation", compared: "Comparison | None" = None) -> str:
        settings = report.settings(options)
        content = report.to_json(
            report.record(
                out, prompts=work.prompts, target=work.target, drafter=work.drafter, verifier=work.verifier,
                settings=settings, compared=compared,
            )
        )  # fmt: skip
        if printing.output is not None:
            files.write_text(Path(printing.output), content + "\n")
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
            report.show(console, report.closing_table(out, work.target, work.drafter, work.verifier))
        for line in report.warnings(out):
            errors.print(f"specjax generate: warning: {line}", style="yellow", soft_wrap=True, markup=False)
        if printing.compare and not interrupted:
            reporting = False
            compared = measure(work, repeats=printing.repeats)
            reporting, interrupted = True, compared is None
            content = write(out, compared)
            if compared is not None and not quiet:
                report.show(console, report.comparison_table(compared), report.comparison_lines(compared))
        if printing.json:
            report.tell(content)
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
    from specjax import api

    progress = work.progress
    progress.tell("compiling, and reading the prompt")
    with process.interrupts_wait(lambda: False):
        stream = api.stream(work.target, work.prompts, drafter=work.drafter, **work.options)
    progress.tell("compiling a round")
    with process.deferred_interrupt(once=lambda: stream.rounds > 0 or stream.in_round) as asked:
        try:
            _show(stream, work, open_sink, asked, marks=marks)
        except (OSError, SystemExit) as error:  # a full disk, or (raised by rich) a closed pipe
            raise Unshown(stream.result()) from error
        interrupted = asked()
    out = stream.result()
    if split and not interrupted and out.stats.drafted:
        progress.tell("timing draft and verify separately")
        try:
            out = stream.result(profile=True)
        except KeyboardInterrupt:
            interrupted = True
    progress.clear()
    return out, interrupted


def _show(
    stream: "Stream", work: Work, open_sink: "Callable[[], Sink]", asked: Callable[[], bool], *, marks: bool
) -> None:
    """Feeds each round to the rows' text until all rows have ended or `asked()`."""
    from specjax.cli.live import RowText

    stops = work.options["stop"]
    running = {row: RowText(work.target.text, stops=stops, marks=marks) for row in range(len(work.prompts))}
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
            event = None if asked() else next(rounds, None)
    finally:
        for row in list(running):
            end(row)
        sink.close()


def measure(work: Work, *, repeats: int) -> "Comparison | None":
    """The comparison with plain decoding; None if Ctrl-C ended it."""
    from specjax.cli.comparing import compare

    tell = lambda done, total: work.progress.tell(f"comparing with plain decoding: {done} of {total} runs")
    tell(0, 2 * (repeats + 1))
    try:
        return compare(work.target, work.prompts, work.drafter, work.options, repeats=repeats, progress=tell)
    except KeyboardInterrupt:
        return None
    finally:
        work.progress.clear()
