"""`specjax sweep`: one quantity varied, the rest held: rows that a stopped run goes on from, a table, a picture."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from specjax import plotting
from specjax.bench.sweep import Sweep
from specjax.checks import lookup
from specjax.cli import checks
from specjax.cli.arguments import parse
from specjax.cli.options import Flag, arg

PROG = "specjax sweep"
HOMES = (Path("configs/sweeps"), Path(__file__).resolve().parents[2] / "configs" / "sweeps")
NONE = "(default: the preset's)"


@dataclasses.dataclass(frozen=True)
class Changes:
    """What differs from the preset."""

    target: Annotated[str | None, arg(metavar="MODEL", help_behavior_hint=NONE)] = None
    """The model that decides."""
    drafts: Annotated[tuple[str, ...], arg(metavar="MODEL ...", help_behavior_hint=NONE)] = ()
    """Models that draft, the largest first. A way of the preset that names its own keeps it."""
    dtype: Annotated[str | None, arg(metavar="NAME", help_behavior_hint=NONE)] = None
    file: Annotated[str | None, arg(metavar="FILE", help_behavior_hint=NONE)] = None
    """Prompts, in a format of specjax bench tasks, for a preset of one task."""
    tasks: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint=NONE)] = ()
    """As for specjax bench tasks."""
    temperatures: Annotated[tuple[float, ...], arg(metavar="T ...", help_behavior_hint=NONE)] = ()
    count: Annotated[int | None, arg(metavar="N", help_behavior_hint=NONE)] = None
    """Prompts of each task."""
    max_new_tokens: Annotated[int | None, arg(metavar="N", help_behavior_hint=NONE)] = None
    batch: Annotated[int | None, arg(metavar="N", help_behavior_hint=NONE)] = None
    """Prompts decoded together where acceptance is counted."""
    timed: Annotated[int | None, arg(metavar="N", help_behavior_hint=NONE)] = None
    """Prompts that are timed, one request at a time."""
    repeats: Annotated[int | None, arg(metavar="N", help_behavior_hint=NONE)] = None
    """Timed runs of each way, in turns; medians count."""
    seed: Annotated[int | None, arg(metavar="N", help_behavior_hint=NONE)] = None


@dataclasses.dataclass(frozen=True)
class Results:
    """Where results go; the terminal has the table in any case."""

    json: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: NAME.jsonl)")] = None
    """One JSON object a row is appended. Rows that it has already are not measured again: a stopped sweep goes on."""
    markdown: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Write the table as Markdown."""
    picture: Annotated[Path | None, arg(metavar="FILE.svg", help_behavior_hint="(default: none)")] = None
    """Draw the swept quantity, as .svg or .png (needs matplotlib)."""


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    """Vary one quantity and hold the rest: gamma, temperature, size of the tree, draft, verifier.

    specjax sweep --list

    specjax sweep gamma --picture gamma.svg

    specjax sweep my_sweep.py --json rows.jsonl
    """

    name: Annotated[tyro.conf.Positional[str], arg(metavar="NAME", help_behavior_hint="")] = ""
    """A preset: FILE.py, which is Python and is run, or the name of one in configs/sweeps."""
    list: Flag = False
    """Print the presets in configs/sweeps, and do nothing."""
    quick: Flag = False
    """The smallest size: shows that everything runs, and says nothing about speed."""
    changes: Changes = Changes()
    results: Results = Results()


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: bad input; nothing has been measured then.
    """
    from specjax.bench import sweep as sweeps

    options = parse(SweepOptions, args, prog=PROG)
    if options.list:
        print("\n".join(f"{name}  {sweeps.read(file).about}" for name, file in present().items()))
        return 0
    file = find(options.name)
    sweep = changed(sweeps.read(file), options.changes)
    if options.quick:
        sweep = sweep.quick()
    results = options.results
    if results.json is None:
        results = dataclasses.replace(results, json=Path(f"{file.stem}.jsonl"))
    check(results)
    return run(sweep, sweep.about or file.stem, results)


def present() -> dict[str, Path]:
    """The presets by name: those of the folder that the program is called in, before those of the repository."""
    found: dict[str, Path] = {}
    for home in HOMES:
        for file in sorted(home.glob("*.py")):
            found.setdefault(file.stem, file)
    return found


def find(name: str) -> Path:
    """The file of a preset.

    Raises:
      ValueError: no such name. FileNotFoundError: no such file.
    """
    if name.endswith(".py"):
        return Path(name)
    known = present()
    if not known:
        raise ValueError(f"there is no configs/sweeps here: name a preset's file, such as {name or 'gamma'}.py")
    return lookup(name, known, "sweep")


def changed(sweep: Sweep, changes: Changes) -> Sweep:
    """The preset with what the command line says."""
    given = {name: value for name, value in vars(changes).items() if value not in (None, ())}
    return dataclasses.replace(sweep, **given)


def check(results: Results) -> None:
    """Raises ValueError for places that cannot be written to, before any work."""
    checks.writable(**vars(results))
    checks.picture(picture=results.picture)


def run(sweep: Sweep, title: str, results: Results) -> int:
    """Measures, shows and writes; what is there is shown after Ctrl-C too."""
    from specjax.bench import sweep as sweeps

    points = sweeps.points(sweep)
    cases = sweeps.cases(sweep, sweeps.read_items(sweep))

    from specjax.bench import machine, record, runner
    from specjax.cli.progress import Progress, tables_and_errors

    about = machine.versions()
    kept = record.Record(results.json, about)
    console, errors = tables_and_errors()
    console.print("  ".join(f"{name} {version}" for name, version in about.items()), soft_wrap=True, markup=False)
    found: list[tuple[Any, record.Row]] = []
    left_out: list[str] = []
    done = 0
    with Progress(errors, show=True) as progress:
        shelf = runner.Shelf(sweep.dtype, progress.tell)
        try:
            for point, (_, rows) in zip(points, runner.run(cases, kept, shelf, progress.tell, left_out), strict=True):
                found += [(point, row) for row in rows]
                done += 1
        finally:
            progress.clear()
            for line in left_out:
                errors.print(f"{PROG}: left out: {line}", style="yellow", soft_wrap=True, markup=False)
            if found:
                show(console, sweep, title, found)
                write(sweep, title, found, results)
            if done < len(cases):
                said = f"{PROG}: {done} of {len(cases)} are measured and kept in {results.json}"
                errors.print(f"{said}; the same command goes on", soft_wrap=True, markup=False)
    if not found:
        raise ValueError("nothing was measured: " + (left_out[0] if left_out else "the sweep is empty"))
    console.print(f"rows: {results.json}", soft_wrap=True, markup=False)
    return 0


def show(console: Any, sweep: Sweep, title: str, found: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    """The table, and the best of it."""
    from rich import box
    from rich.table import Table

    from specjax.bench import sweep as sweeps
    from specjax.reproduce.telling import cell

    rows, same = sweeps.short(sweeps.table(sweep, found))
    made = Table(box=box.SIMPLE, title=f"{title}: {same}" if same else title, title_justify="left")
    for name in rows[0]:
        words = all(isinstance(row[name], str) for row in rows)
        made.add_column(name, justify="left" if words else "right")
    for row in rows:
        made.add_row(*(cell(value) for value in row.values()))
    console.print(made)
    for line in sweeps.best(found):
        console.print(line, soft_wrap=True, markup=False)


def write(sweep: Sweep, title: str, found: Sequence[tuple[Any, dict[str, Any]]], results: Results) -> None:
    """The Markdown table and the picture, where they are wanted."""
    from functools import partial

    from specjax.bench import record
    from specjax.bench import sweep as sweeps

    if results.markdown is not None:
        record.write_markdown(results.markdown, sweeps.table(sweep, found))
    if results.picture is not None:
        draw = partial(sweeps.picture, sweep=sweep, lines=sweeps.curves(sweep, found), title=title)
        plotting.save(results.picture, draw)
