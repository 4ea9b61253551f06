"""`specjax reproduce`: measures published tables and figures and compares them with the published numbers."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from specjax import plotting
from specjax.checks import distinct, lookup
from specjax.cli import outputs, process
from specjax.cli.arguments import parse
from specjax.cli.rows import NO_FILE, RowFiles
from specjax.config import Flag, arg
from specjax.reproduce.report import Report
from specjax.reproduce.setup import Experiment, Setup, read_preset, read_prompts

PROG = "specjax reproduce"
ALL = "all"


@dataclasses.dataclass(frozen=True)
class ReproduceOutput(RowFiles):
    """Output files, in addition to the terminal. The Markdown has tables, verdicts and notes."""

    figures: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint=NO_FILE)] = None
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
        width = max(map(len, known))
        print("\n".join(f"{name:{width}}  {one.title}  [{one.source}]" for name, one in known.items()))
        return 0
    if options.name.endswith(".py"):
        preset = read_preset(options.name)
        default = dataclasses.replace(Reproduce(), setup=preset.setup)
        options = dataclasses.replace(parse(Reproduce, args, prog=PROG, default=default), name=preset.name)
    if options.setup.shapes:
        known = experiments(real=True)
    if not options.name:
        raise ValueError(f"name one of {', '.join(known)}, or {ALL}; {PROG} --list describes them")
    one = lookup(options.name, {**known, ALL: None}, "experiment")
    options.output.check()
    distinct(least=1, format=options.output.format)
    outputs.writable_folder(figures=options.output.figures)
    return run(
        options.setup.quick() if options.quick else options.setup,
        known if one is None else {options.name: one},
        options.output,
    )


def experiments(*, real: bool = False) -> dict[str, Experiment]:
    """All experiments by name; `real`: those at the size of the published models."""
    from specjax.reproduce import figures, heads, opt, paper, shapes

    if real:
        return shapes.EXPERIMENTS
    return opt.EXPERIMENTS | paper.EXPERIMENTS | figures.EXPERIMENTS | heads.EXPERIMENTS


def run(setup: Setup, chosen: Mapping[str, Experiment], output: ReproduceOutput) -> int:
    """Measures, prints and writes. Imports jax only after the arguments have been parsed."""
    wanted = list(dict.fromkeys(task for one in chosen.values() for task in one.tasks))
    items = read_prompts(setup.prompts, wanted, setup.count)

    process.import_library()
    from specjax.bench import record
    from specjax.cli.progress import Progress
    from specjax.reproduce import pairs, report

    cases = {name: experiment.cases(setup, items) for name, experiment in chosen.items()}
    kept, console, errors = output.open()
    parts: list[str] = []
    measured, sizes = False, pairs.family(setup).sizes
    with Progress(errors, show=True) as progress:
        shelf = record.Shelf(setup.dtype, progress.update, sizes=sizes)
        for name, experiment in chosen.items():
            rows: list[record.Row] = []
            left_out: list[str] = []
            notify = lambda text, name=name: progress.update(f"{name}, {text}")
            try:
                for _, found in record.run(cases[name], kept, shelf, notify, left_out):
                    rows += found
            finally:  # on Ctrl-C, report the finished rows
                progress.clear()
                measured = measured or bool(rows)
                if rows or left_out:
                    made = experiment.report(setup, rows)
                    made = made._replace(notes=[*made.notes, *(f"left out: {line}" for line in left_out)])
                    report.in_terminal(console, experiment.title, experiment.source, made)
                    picture = draw(name, made, output) if rows else None
                    parts.append(report.as_markdown(experiment.title, experiment.source, made, picture))
                if output.markdown is not None and parts:
                    report.write_markdown(output.markdown, parts, kept.about)
            if sizes or setup.shapes:  # models of some size: the next experiment loads its own
                shelf.clear()
    if not measured:
        raise ValueError("nothing was measured: none of the required models is available")
    return 0


def draw(name: str, report: Report, output: ReproduceOutput) -> str | None:
    """Writes the figure if there is one and a folder for it; its path relative to the Markdown file."""
    if report.draw is None or output.figures is None:
        return None
    output.figures.mkdir(exist_ok=True)
    drawn = [output.figures / f"{name.replace('-', '_')}.{kind}" for kind in output.format]
    for file in drawn:
        plotting.save(file, report.draw)
    if output.markdown is None:
        return None
    return Path(os.path.relpath(drawn[0].resolve(), output.markdown.parent.resolve())).as_posix()
