"""`specjax reproduce`: published tables and figures measured again, side by side with the published numbers."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from specjax import plotting
from specjax.checks import lookup
from specjax.cli import checks
from specjax.cli.arguments import parse
from specjax.cli.options import Flag, arg
from specjax.reproduce.setup import Experiment, Report, Setup

PROG = "specjax reproduce"
ALL = "all"


@dataclasses.dataclass(frozen=True)
class Output:
    """Where results go; the terminal has them in any case."""

    json: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Append one JSON object a row. Rows that the file has already are not measured again: a stopped run goes on."""
    markdown: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Write tables, verdicts and notes as Markdown."""
    figures: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = None
    """Write the figures into this folder (needs matplotlib)."""
    format: tuple[Literal["svg", "png"], ...] = ("svg", "png")
    """Of the figures; one or both."""


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Measure a published table or figure again, and say which part of its shape shows here.

    specjax reproduce --list

    specjax reproduce table-1

    specjax reproduce table-2 --json rows.jsonl --markdown table-2.md

    specjax reproduce all --quick

    specjax reproduce pairs --models original --dtype bfloat16
    """

    name: Annotated[tyro.conf.Positional[str], arg(metavar="NAME", help_behavior_hint="")] = ""
    """A name of --list, all, or a preset, such as configs/reproduce/table_2.py (which is Python, and is run)."""
    list: Flag = False
    """Print what there is, and do nothing."""
    quick: Flag = False
    """The smallest size: shows that everything runs, and says nothing about speed."""
    setup: Setup = dataclasses.field(default_factory=Setup)
    output: Output = Output()


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: bad input; nothing has been measured then.
    """
    options = parse(Reproduce, args, prog=PROG)
    known = experiments()
    if options.list:
        print(listing(known))
        return 0
    if options.name.endswith(".py"):
        from specjax.reproduce import presets

        preset = presets.read(options.name)
        default = dataclasses.replace(Reproduce(), setup=preset.setup)
        options = dataclasses.replace(parse(Reproduce, args, prog=PROG, default=default), name=preset.name)
    if not options.name:
        raise ValueError(f"name one of {', '.join(known)}, or {ALL}; {PROG} --list says what they are")
    chosen = known if options.name == ALL else {options.name: lookup(options.name, {**known, ALL: None}, "experiment")}
    setup = options.setup.quick() if options.quick else options.setup
    check(options.output)
    return run(setup, {name: one for name, one in chosen.items() if one is not None}, options.output)


def experiments() -> dict[str, Experiment]:
    """All that there is, by name."""
    from specjax.reproduce import figures, opt, paper

    return opt.EXPERIMENTS | paper.EXPERIMENTS | figures.EXPERIMENTS


def listing(known: Mapping[str, Experiment]) -> str:
    width = max(map(len, known))
    return "\n".join(f"{name:{width}}  {one.about}  [{one.source.told}]" for name, one in known.items())


def check(output: Output) -> None:
    """Raises ValueError for places that cannot be written to, before any work."""
    checks.writable(json=output.json, markdown=output.markdown)
    checks.formats(output.format)
    if output.figures is None:
        return
    checks.writable_folder("figures", output.figures)
    plotting.require()


def run(setup: Setup, chosen: Mapping[str, Experiment], output: Output) -> int:
    """Measures, shows and writes; jax is imported here, after the arguments have been read."""
    from specjax.reproduce.setup import read_prompts

    wanted = list(dict.fromkeys(task for one in chosen.values() for task in one.tasks))
    items = read_prompts(setup.prompts, wanted, setup.count)

    from specjax.bench import machine, record, runner
    from specjax.cli.progress import Progress, tables_and_errors
    from specjax.reproduce import telling
    from specjax.reproduce.models import family

    about = machine.versions()
    kept = record.Record(output.json, about)
    console, errors = tables_and_errors()
    console.print("  ".join(f"{name} {version}" for name, version in about.items()), soft_wrap=True, markup=False)
    parts: list[str] = []
    measured = False
    with Progress(errors, show=True) as progress:
        shelf = runner.Shelf(setup.dtype, progress.tell, sizes=family(setup).sizes)
        for name, experiment in chosen.items():
            rows: list[record.Row] = []
            left_out: list[str] = []
            cases = experiment.cases(setup, items)
            tell = lambda text, name=name: progress.tell(f"{name}, {text}")
            try:
                for _, found in runner.run(cases, kept, shelf, tell, left_out):
                    rows += found
            finally:  # after Ctrl-C, what there is
                progress.clear()
                measured = measured or bool(rows)
                if rows or left_out:
                    report = experiment.report(setup, rows)
                    report = report._replace(notes=[*report.notes, *(f"left out: {line}" for line in left_out)])
                    telling.in_terminal(console, report)
                    drawn = draw(name, report, output) if rows else []
                    parts.append(telling.as_markdown(report, linked(drawn, output)))
                if output.markdown is not None and parts:
                    telling.write_markdown(output.markdown, parts, kept.about)
            if family(setup).sizes:  # models of some size: the next experiment loads its own
                shelf.clear()
    if not measured:
        raise ValueError("nothing was measured: no model that is needed can be had here")
    return 0


def draw(name: str, report: Report, output: Output) -> list[Path]:
    """Writes the figure, where there is one and it is wanted."""
    if report.draw is None or output.figures is None:
        return []
    output.figures.mkdir(exist_ok=True)
    files = [output.figures / f"{name.replace('-', '_')}.{kind}" for kind in output.format]
    for file in files:
        plotting.save(file, report.draw)
    return files


def linked(drawn: Sequence[Path], output: Output) -> str | None:
    """How the Markdown file names the first of the pictures."""
    if not drawn or output.markdown is None:
        return None
    path: Any = os.path.relpath(drawn[0].resolve(), output.markdown.parent.resolve())
    return Path(path).as_posix()
