"""`specjax reproduce`: measures published tables and figures and compares them with the published numbers."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from specjax import plotting
from specjax.checks import lookup
from specjax.cli import checks, process
from specjax.cli.arguments import parse
from specjax.cli.options import Flag, arg
from specjax.reproduce.setup import Experiment, Report, Setup

PROG = "specjax reproduce"
ALL = "all"


@dataclasses.dataclass(frozen=True)
class ReproduceOutput:
    """Output files, in addition to the terminal."""

    json: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Append one JSON object per row. Rows that the file has are not measured again, so that a stopped run resumes."""
    markdown: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Write tables, verdicts and notes as Markdown."""
    figures: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = None
    """Write the figures into this folder (needs matplotlib)."""
    format: tuple[Literal["svg", "png"], ...] = ("svg", "png")
    """Formats of the figures."""


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Measure a published table or figure again, with a verdict on each of its claims.

    specjax reproduce --list

    specjax reproduce table-1

    specjax reproduce table-2 --json rows.jsonl --markdown table-2.md

    specjax reproduce all --quick

    specjax reproduce pairs --models original --dtype bfloat16
    """

    name: Annotated[tyro.conf.Positional[str], arg(metavar="NAME", help_behavior_hint="")] = ""
    """A name from --list, all, or a preset such as configs/reproduce/table_2.py, which is executed as Python."""
    list: Flag = False
    """Print the experiments and exit."""
    quick: Flag = False
    """The smallest size, which checks that everything runs but does not measure speed."""
    setup: Setup = dataclasses.field(default_factory=Setup)
    output: ReproduceOutput = ReproduceOutput()


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: invalid input, before anything is measured.
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
    """All experiments by name."""
    from specjax.reproduce import figures, opt, paper

    return opt.EXPERIMENTS | paper.EXPERIMENTS | figures.EXPERIMENTS


def listing(known: Mapping[str, Experiment]) -> str:
    width = max(map(len, known))
    return "\n".join(f"{name:{width}}  {one.about}  [{one.source.text}]" for name, one in known.items())


def check(output: ReproduceOutput) -> None:
    """Raises ValueError for output files that cannot be written, before any work."""
    checks.writable(json=output.json, markdown=output.markdown)
    checks.formats(output.format)
    if output.figures is None:
        return
    checks.writable_folder("figures", output.figures)
    plotting.require()


def run(setup: Setup, chosen: Mapping[str, Experiment], output: ReproduceOutput) -> int:
    """Measures, prints and writes. Imports jax only after the arguments have been parsed."""
    from specjax.reproduce.setup import read_prompts

    wanted = list(dict.fromkeys(task for one in chosen.values() for task in one.tasks))
    items = read_prompts(setup.prompts, wanted, setup.count)

    process.import_library()
    from specjax.bench import record
    from specjax.cli.progress import Progress, tables_and_errors
    from specjax.reproduce import telling
    from specjax.reproduce.models import family

    about = record.versions()
    kept = record.Record(output.json, about)
    console, errors = tables_and_errors()
    console.print("  ".join(f"{name} {version}" for name, version in about.items()), soft_wrap=True, markup=False)
    parts: list[str] = []
    measured = False
    with Progress(errors, show=True) as progress:
        shelf = record.Shelf(setup.dtype, progress.tell, sizes=family(setup).sizes)
        for name, experiment in chosen.items():
            rows: list[record.Row] = []
            left_out: list[str] = []
            cases = experiment.cases(setup, items)
            tell = lambda text, name=name: progress.tell(f"{name}, {text}")
            try:
                for _, found in record.run(cases, kept, shelf, tell, left_out):
                    rows += found
            finally:  # on Ctrl-C, report the finished rows
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


def draw(name: str, report: Report, output: ReproduceOutput) -> list[Path]:
    """Writes the figure if there is one and a folder for it."""
    if report.draw is None or output.figures is None:
        return []
    output.figures.mkdir(exist_ok=True)
    files = [output.figures / f"{name.replace('-', '_')}.{kind}" for kind in output.format]
    for file in files:
        plotting.save(file, report.draw)
    return files


def linked(drawn: Sequence[Path], output: ReproduceOutput) -> str | None:
    """The path of the first figure relative to the Markdown file."""
    if not drawn or output.markdown is None:
        return None
    path: Any = os.path.relpath(drawn[0].resolve(), output.markdown.parent.resolve())
    return Path(path).as_posix()
