"""`specjax sweep`: a grid of drafters, verifiers, draft lengths, temperatures and tasks, from options or a preset."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from specjax import plotting
from specjax.bench import grid as grids
from specjax.bench.grid import Grid
from specjax.checks import lookup
from specjax.cli import outputs, process
from specjax.cli.arguments import parse
from specjax.cli.rows import NO_FILE, RowFiles
from specjax.config import Flag, Processes, arg

PROG = "specjax sweep"
DRAFTERS = arg(metavar="NAME[:KEY=VALUE,...] ...", help_behavior_hint="(default: model if there is a draft, ngram)")
HOMES = (Path("configs/sweeps"), Path(__file__).resolve().parents[2] / "configs" / "sweeps")


@dataclasses.dataclass(frozen=True)
class Results(RowFiles):
    """Where results are written; the terminal shows the table in any case. The rows of a preset are also written to
    NAME.jsonl."""

    picture: Annotated[Path | None, arg(metavar="FILE.svg", help_behavior_hint=NO_FILE)] = None
    """Draw tokens per target pass and speed over the axis, as .svg or .png (requires matplotlib)."""


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    """Measure acceptance and speed of drafters, verifiers, draft lengths and temperatures on prompts of your kind.

    specjax sweep --tasks story chat --gammas 3 5 --verifiers token block --json rows.jsonl

    specjax sweep --drafters model tree:shape=3x2 small-kv:cache=snapkv cascade:gamma=6

    specjax sweep --file HumanEval.jsonl.gz --drafters ngram --count 16 --peer transformers

    specjax sweep gamma --picture gamma.svg
    """

    name: Annotated[tyro.conf.Positional[str], arg(metavar="PRESET", help_behavior_hint="")] = ""
    """Name of a preset in configs/sweeps, or FILE.py, which is executed. Other options override it."""
    list: Flag = False
    """Print the presets in configs/sweeps, and exit."""
    quick: Flag = False
    """The smallest size, which checks that everything runs but does not measure speed."""
    drafters: Annotated[tuple[str, ...], DRAFTERS] = ()
    """As for specjax generate --drafter; "specjax generate --drafter help" lists them. Every combination with the
    gammas, verifiers, temperatures and tasks is measured, and plain decoding is timed beside each."""
    grid: Annotated[Grid, tyro.conf.SuppressFixed] = dataclasses.field(default_factory=Grid)
    hosts: Processes = dataclasses.field(default_factory=Processes)
    results: Results = Results()


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: invalid input; nothing has been measured then.
    """
    options = parse(SweepOptions, args, prog=PROG)
    if options.list:
        print("\n".join(f"{name}  {grids.read(file).about}" for name, file in present().items()))
        return 0
    file = find(options.name) if options.name else None
    if file:
        options = parse(SweepOptions, args, prog=PROG, default=SweepOptions(grid=grids.read(file)))
    grid, results = options.grid, options.results
    if options.drafters:
        grid = dataclasses.replace(grid, drafters=options.drafters)
    if options.quick:
        grid = grid.quick()
    if file and results.json is None:
        results = dataclasses.replace(results, json=Path(f"{file.stem}.jsonl"))
    process.check_mesh(grid.mesh or None)
    if process.peers().leader:
        results.check()
        outputs.picture(picture=results.picture)
    else:
        results = dataclasses.replace(results, markdown=None, picture=None)
    if grid.peer:
        from specjax.bench import peer

        peer.require()
    return run(grid, grid.about or (file.stem if file else "sweep"), results)


def present() -> dict[str, Path]:
    """The presets by name: those below the working directory before those of the repository."""
    found: dict[str, Path] = {}
    for home in HOMES:
        for file in sorted(home.glob("*.py")):
            found.setdefault(file.stem, file)
    return found


def find(name: str) -> Path:
    """The file of a preset.

    Raises:
      ValueError: an unknown name.
    """
    if name.endswith(".py"):
        return Path(name)
    known = present()
    if not known:
        raise ValueError(f"{name}: there is no folder configs/sweeps here; give the file of a preset")
    return lookup(name, known, "sweep")


def run(grid: Grid, title: str, results: Results) -> int:
    """Measures, shows and writes; after Ctrl-C the rows measured so far are shown too."""
    items = grids.read_items(grid)
    points = grids.points(grid, tuple(items))
    cases = grids.cases(grid, points, items)

    process.import_library()
    from specjax import checks, hosts, sharding
    from specjax.bench import record
    from specjax.cli.progress import Progress

    hosts.agree(cases=[case.key for case in cases])
    mesh = sharding.make_mesh(*checks.mesh_shape(grid.mesh)) if grid.mesh else None
    kept, console, errors = results.open()
    found: list[tuple[Any, record.Row]] = []
    left_out: list[str] = []
    done = 0
    with Progress(errors, show=True) as progress:
        shelf = record.Shelf(grid.dtype, progress.update, mesh=mesh)
        try:
            for point, (_, rows) in zip(points, record.run(cases, kept, shelf, progress.update, left_out), strict=True):
                found += [(point, row) for row in rows]
                done += 1
        finally:
            progress.clear()
            for line in left_out:
                errors.print(f"{PROG}: left out: {line}", style="yellow", soft_wrap=True, markup=False)
            if found:
                show(console, grid, title, found, results)
            if done < len(cases) and results.json is not None:
                text = f"{PROG}: {done} of {len(cases)} are measured and stored in {results.json}"
                errors.print(f"{text}; the same command resumes", soft_wrap=True, markup=False)
    if not found:
        raise ValueError("nothing was measured: " + (left_out[0] if left_out else "the grid is empty"))
    if results.json is not None:
        console.print(f"rows: {results.json}", soft_wrap=True, markup=False)
    return 0


def show(console: Any, grid: Grid, title: str, found: Sequence[tuple[Any, dict[str, Any]]], results: Results) -> None:
    """Prints the table and the best strategies; writes the Markdown table and the picture."""
    from functools import partial

    from specjax.bench import curves, record

    axis = curves.axis_of(grid, found)
    lines = curves.curves(axis, found)
    table = curves.table(lines)
    rows, same = curves.short(table)
    console.print(record.terminal_table(rows, title=f"{title}: {same}" if same else title, caption=CAPTION))
    for line in curves.best(found):
        console.print(line, soft_wrap=True, markup=False)
    if results.markdown is not None:
        record.write_markdown(results.markdown, table)
    if results.picture is not None:
        plotting.save(results.picture, partial(curves.picture, axis=axis, lines=lines, title=title))


CAPTION = (
    "\u00b1: one standard error, over prompts, and over runs for speeds. tokens/pass: tokens per target pass. repeats: "
    "share of the 4-grams of the output that occur before in the same text. \u00d7 plain: speed over plain decoding; "
    "\u00d7 assisted, \u00d7 lookup: over those of transformers on the same weights; plain \u00d7 plain: plain "
    "decoding over theirs. load: largest "
    "share of the processors that other programs used; ratios measured on a busy machine are unreliable."
)
