"""`specjax sweep`: a grid of drafters, verifiers, draft lengths, temperatures and tasks, from options or a preset."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from specjax import plotting
from specjax.bench import grid as grids
from specjax.bench.grid import Grid
from specjax.checks import lookup
from specjax.cli import checks, process
from specjax.cli.arguments import parse
from specjax.cli.options import Flag, arg

PROG = "specjax sweep"
HOMES = (Path("configs/sweeps"), Path(__file__).resolve().parents[2] / "configs" / "sweeps")


def option(metavar: str, default: str) -> Any:
    """An option that the preset may set; the default is that of a run without a preset."""
    return arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


@dataclasses.dataclass(frozen=True)
class Strategies:
    """What is compared. Every combination is measured, and plain decoding is timed beside each."""

    target: Annotated[str | None, option("MODEL", grids.BUNDLED)] = None
    """Model whose output is generated."""
    drafts: Annotated[tuple[str, ...], option("MODEL ...", "those of the bundled target")] = ()
    """Draft models, the largest first."""
    dtype: Annotated[Literal["float32", "bfloat16", "float16"] | None, option("NAME", "float32")] = None
    """Of all models."""
    drafters: Annotated[tuple[str, ...], option("NAME[:KEY=VALUE,...] ...", "model if there is a draft, ngram")] = ()
    """As for specjax generate --drafter; "specjax generate --drafter help" lists them."""
    gammas: Annotated[tuple[int, ...], option("N ...", "5")] = ()
    """Draft tokens per round, for drafters that have this setting and do not set it."""
    verifiers: Annotated[tuple[str, ...], option("NAME ...", "the lossless one that suits each drafter")] = ()
    """Combinations that are not supported are left out, with the reason."""
    temperatures: Annotated[tuple[float, ...], option("T ...", "0 1")] = ()
    max_new_tokens: Annotated[int | None, option("N", "64")] = None
    ignore_eos: Flag = False
    """Generate --max-new-tokens for every prompt, past the end of text."""
    seed: Annotated[int | None, option("N", "0")] = None
    lossless: Flag = False
    """Refuse lossy verifiers."""


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Each task comes with sample prompts; --file and --dataset bring others, for one task."""

    tasks: Annotated[tuple[str, ...], option("NAME ...", "story, or that of the file")] = ()
    """translation, summarization, chat, code, maths, story; as-is for prompts of a file, unchanged."""
    file: Annotated[str | None, option("FILE", "none")] = None
    """MT-bench's or Spec-Bench's question.jsonl, HumanEval.jsonl.gz, GSM8K's test.jsonl, .tsv (prompt, tab, reference),
    .txt (one prompt per line), .jsonl with "prompt"; also packed as .gz or .xz."""
    format: Annotated[str | None, option("NAME", "auto, by the ending and the first line")] = None
    """Of the file: mt-bench, spec-bench, humaneval, gsm8k, jsonl, tsv, txt."""
    category: Annotated[tuple[str, ...], option("NAME ...", "all")] = ()
    """Categories of MT-bench and Spec-Bench questions."""
    dataset: Annotated[str | None, option("ID", "none")] = None
    """Data set of the Hugging Face hub instead of a file; the only option here that uses the network."""
    dataset_config: Annotated[str | None, option("NAME", "none")] = None
    split: Annotated[str | None, option("NAME", "test")] = None
    field: Annotated[str | None, option("COLUMN", "prompt")] = None
    """Column of the prompts."""
    reference: Annotated[str | None, option("COLUMN", "none")] = None
    """Column of the references, for --scores."""
    count: Annotated[int | None, option("N", "8")] = None
    """Prompts of each task, spread over all that there are."""
    style: Annotated[str | None, option("NAME", "auto")] = None
    """How the model is addressed: plain continues a text; prefix is that of T5; chatml, llama-2, llama-3, vicuna and
    zephyr are chat templates; own is that of the model. auto: prefix for an encoder-decoder, else plain."""


@dataclasses.dataclass(frozen=True)
class Measuring:
    """How it is measured. Acceptance is counted over all prompts; speed is that of single requests."""

    batch: Annotated[int | None, option("N", "8")] = None
    """Prompts decoded together to count acceptance."""
    timed: Annotated[int | None, option("N", "4")] = None
    """Prompts that are timed, one request at a time."""
    repeats: Annotated[int | None, option("N", "3")] = None
    """Timed runs, interleaved with plain decoding; medians are reported."""
    peer: Annotated[Literal["transformers"] | None, option("NAME", "none")] = None
    """transformers: its assisted generation, prompt lookup and plain decoding on the same weights and prompts."""
    scores: Flag = False
    """BLEU and chrF of plain decoding, for prompts with references (requires sacrebleu)."""


@dataclasses.dataclass(frozen=True)
class Results:
    """Where results are written; the terminal shows the table in any case."""

    json: Annotated[Path | None, option("FILE", "NAME.jsonl of a preset, else none")] = None
    """Append one JSON object per row. Rows that the file contains are not measured again: a stopped run resumes."""
    markdown: Annotated[Path | None, option("FILE", "none")] = None
    """Write the table as Markdown."""
    picture: Annotated[Path | None, option("FILE.svg", "none")] = None
    """Draw tokens per target pass and speed over the axis, as .svg or .png (requires matplotlib)."""
    axis: Annotated[str | None, option("NAME", "the first that varies")] = None
    """gamma, temperature, nodes (of the tree), verifier, drafts or drafter."""


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
    """The smallest size: shows that everything runs, and says nothing about speed."""
    strategies: Strategies = Strategies()
    prompts: Prompts = Prompts()
    measuring: Measuring = Measuring()
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
    grid = changed(grids.read(file) if file else Grid(), options)
    results = options.results
    if file and results.json is None:
        results = dataclasses.replace(results, json=Path(f"{file.stem}.jsonl"))
    checks.writable(json=results.json, markdown=results.markdown)
    checks.picture(picture=results.picture)
    if grid.peer is not None:
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


def changed(grid: Grid, options: SweepOptions) -> Grid:
    """The grid with what the command line gives."""
    groups = (options.strategies, options.prompts, options.measuring, options.results)
    fields = {field.name for field in dataclasses.fields(Grid)}
    given = {
        name: value for group in groups for name, value in vars(group).items()
        if name in fields and not (value is None or value is False or value == ())
    }  # fmt: skip
    found = dataclasses.replace(grid, **given)
    return found.quick() if options.quick else found


def run(grid: Grid, title: str, results: Results) -> int:
    """Measures, shows and writes; after Ctrl-C the rows measured so far are shown too."""
    items = grids.read_items(grid)
    points = grids.points(grid, tuple(items))
    cases = grids.cases(grid, points, items)

    process.import_library()
    from specjax.bench import record
    from specjax.cli.progress import Progress, tables_and_errors

    about = record.versions()
    kept = record.Record(results.json, about)
    console, errors = tables_and_errors()
    console.print("  ".join(f"{name} {version}" for name, version in about.items()), soft_wrap=True, markup=False)
    found: list[tuple[Any, record.Row]] = []
    left_out: list[str] = []
    done = 0
    with Progress(errors, show=True) as progress:
        shelf = record.Shelf(grid.dtype, progress.tell)
        try:
            for point, (_, rows) in zip(points, record.run(cases, kept, shelf, progress.tell, left_out), strict=True):
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

    from rich import box
    from rich.table import Table

    from specjax.bench import record

    axis = grids.axis_of(grid, found)
    lines = grids.curves(axis, found)
    table = grids.table(lines)
    rows, same = grids.short(table)
    made = Table(box=box.SIMPLE, title=f"{title}: {same}" if same else title, title_justify="left", caption=CAPTION)
    for name in rows[0]:
        words = all(isinstance(row[name], str) for row in rows)
        made.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        made.add_row(*(record.show(value) for value in row.values()))
    console.print(made)
    for line in grids.best(found):
        console.print(line, soft_wrap=True, markup=False)
    if results.markdown is not None:
        record.write_markdown(results.markdown, table)
    if results.picture is not None:
        plotting.save(results.picture, partial(grids.picture, axis=axis, lines=lines, title=title))


CAPTION = (
    "tokens/pass: tokens per target pass. \u00d7 plain: speed over plain decoding; \u00d7 assisted, \u00d7 lookup: "
    "over those of transformers on the same weights; plain \u00d7 plain: plain decoding over theirs. load: largest "
    "share of the processors that other programs used; ratios measured on a busy machine are unreliable."
)
