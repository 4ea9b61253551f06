"""`specjax generate`: continue text, show it while it is written, and say what it took."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from specjax import files
from specjax.cli import checks
from specjax.cli.arguments import parse
from specjax.cli.options import Drafting, Options
from specjax.cli.prompts import read_prompts
from specjax.streaming import interrupts_wait

if TYPE_CHECKING:
    from rich.console import Console

    from specjax.cli.progress import Progress
    from specjax.cli.session import Work

DONE, BROKEN_MODEL, INTERRUPTED = 0, 1, 128 + signal.SIGINT
HELP = "help"  # in the place of a drafter or a policy


def main(args: Sequence[str]) -> int:
    """Parses the arguments and runs; returns the exit code.

    Raises:
      ValueError, OSError: bad input; nothing has been decoded then.
    """
    prog = "specjax generate"
    options = parse(Options, args, prog=prog)
    if told_help(options.drafting):
        return DONE
    if options.config is not None:
        with interrupts_wait(lambda: True):
            from specjax.cli import preset

        read = preset.read(options.config)
        options = preset.settle(parse(Options, args, prog=prog, default=preset.as_options(read)), read)
    prompts = read_prompts(options.prompt, options.prompts)
    return run(options, prompts)


def _keep(file: Path | None, content: str) -> str:
    """The content, which is written to the file where one is named."""
    if file is not None:
        files.write_text(file, content + "\n")
    return content


def told_help(chosen: Drafting) -> bool:
    """Prints all drafters or policies where `help` stands in the place of a name, and says whether it did."""
    if HELP not in (chosen.drafter, chosen.policy):
        return False
    with interrupts_wait(lambda: True):
        from specjax.naming import catalog
    print(catalog.of_drafters() if chosen.drafter == HELP else catalog.of_policies())
    return True


def run(options: Options, prompts: Sequence[str]) -> int:
    """Checks, loads, decodes and reports; jax is imported here, after the arguments have been read."""
    with interrupts_wait(lambda: True):  # an import of jax that Ctrl-C cuts short takes the process down with it
        from specjax import api
        from specjax.cli import session, setup
        from specjax.cli.progress import Progress, open_console

    chosen, printing = setup.plan(options), options.printing
    checks.writable(output=printing.output)
    console, errors = open_console(), open_console(stderr=True)
    with Progress(errors, show=not printing.quiet) as progress:
        with interrupts_wait(lambda: False):
            target, guide = setup.load_models(options, chosen, progress.tell)
        work = session.Work(target, prompts, guide, setup.decode_options(options, chosen))
        return decode(options, work, api.named_verifier(guide, chosen.verifier).name, progress, console, errors)


def decode(
    options: Options, work: "Work", verifier: str, progress: "Progress", console: "Console", errors: "Console"
) -> int:
    """Decodes and tells all of it; the exit code. A Ctrl-C that comes when all is decoded waits until it is told."""
    from specjax.cli import live, record, report, session

    printing = options.printing
    quiet = printing.json or printing.quiet
    heads = [""] * len(work.prompts) if quiet or work.target.encoder_decoder else work.prompts
    telling = False

    def open_sink() -> live.Sink:
        if printing.json:
            return live.Silent()
        in_panels = len(work.prompts) > 1 and live.colored(console) and not printing.quiet
        return (live.Panels if in_panels else live.InOrder)(console, heads, marks=printing.show_draft)

    keep = lambda out, compared=None: _keep(
        printing.output, record.to_json(record.record(out, work, verifier, record.settings(options), compared))
    )
    with interrupts_wait(lambda: telling):
        try:
            out, interrupted = session.decode(work, open_sink, progress, marks=printing.show_draft, split=not quiet)
        except session.Unshown as unshown:
            keep(unshown.out)
            raise cast(BaseException, unshown.__cause__) from None
        telling = True
        content = keep(out)  # before anything else is shown, which may fail
        if not quiet:
            report.show(console, report.closing_table(out, work.target, work.guide, verifier))
        for line in report.warnings(out):
            errors.print(f"specjax generate: warning: {line}", style="yellow", soft_wrap=True, markup=False)
        if printing.compare and not interrupted:
            telling = False
            compared = session.measure(work, progress, repeats=printing.repeats)
            telling, interrupted = True, compared is None
            content = keep(out, compared)
            if compared is not None and not quiet:
                report.show(console, report.comparison_table(compared), report.comparison_lines(compared))
        if printing.json:
            record.tell(content)
    if interrupted:
        return INTERRUPTED
    return BROKEN_MODEL if "nan" in out.stop_reasons else DONE
