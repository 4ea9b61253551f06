"""`specjax bench tasks`: drafters, verifiers, temperatures and draft lengths on the prompts of tasks."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from specjax.checks import check_name
from specjax.cli import checks
from specjax.cli.arguments import parse
from specjax.cli.options import DRAFT, DRAFT_HELP, DRAFTER_HELP, TARGET, Flag, Several, arg
from specjax.naming.grammar import Spec
from specjax.registry import Strategy

PROG = "specjax bench tasks"
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class What:
    """The prompts. Each task comes with a few of its own; --file and --dataset bring others, for one task."""

    tasks: Annotated[
        tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: story, or the file's)")
    ] = ()
    """translation, summarization, chat, code, maths, story; or as-is for prompts of a file that stand as they are."""
    file: Annotated[Path | None, arg(help_behavior_hint="(default: none)")] = None
    """MT-bench's or Spec-Bench's question.jsonl, HumanEval.jsonl.gz, GSM8K's test.jsonl, pairs .tsv, prompts .txt or
    .jsonl with "prompt"; .gz is unpacked."""
    format: Annotated[str, arg(metavar="NAME")] = "auto"
    """Of the file: mt-bench, spec-bench, humaneval, gsm8k, jsonl, tsv, txt; auto looks at its first line."""
    category: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """Of MT-bench's and Spec-Bench's questions."""
    dataset: Annotated[str | None, arg(metavar="ID", help_behavior_hint="(default: none)")] = None
    """A data set of the Hugging Face hub instead of a file: the only option here that may use the network."""
    dataset_config: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: none)")] = None
    split: Annotated[str, arg(metavar="NAME")] = "test"
    field: Annotated[str, arg(metavar="COLUMN")] = "prompt"
    """The data set's column of prompts."""
    count: Annotated[int, arg(metavar="N")] = 8
    """Prompts of each task, spread over all that there are."""
    style: Annotated[str, arg(metavar="NAME")] = "auto"
    """How the model is addressed: plain goes on from a text; prefix is T5's; chatml, llama-2, llama-3, vicuna, zephyr
    ask a chat model; own is the model's own chat template. auto: prefix for an encoder-decoder, else plain."""


@dataclasses.dataclass(frozen=True)
class Ways:
    """The ways of decoding: every combination is a row. Plain decoding is timed beside each."""

    target: Annotated[str, arg(metavar="MODEL")] = TARGET
    draft: Annotated[
        Several, arg(metavar="MODEL", help=DRAFT_HELP, help_behavior_hint=f"(default: {DRAFT} for {TARGET})")
    ] = ()
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    drafters: Annotated[
        tuple[str, ...],
        arg(
            metavar="NAME[:KEY=VALUE,...] ...", help=DRAFTER_HELP,
            help_behavior_hint="(default: model with a draft, ngram)",
        ),
    ] = ()  # fmt: skip
    gamma: Annotated[tuple[int, ...], arg(metavar="N ...")] = (5,)
    """Draft tokens a round, of the drafters that have such a choice and do not bring their own."""
    verifiers: Annotated[
        tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: the one that suits each drafter)")
    ] = ()
    """Those that do not serve a drafter are left out, and that is said."""
    lossless: Flag = False
    """Refuse lossy verifiers."""
    temperature: Annotated[tuple[float, ...], arg(metavar="T ...")] = (0.0, 1.0)
    max_new_tokens: Annotated[int, arg(metavar="N")] = 64
    ignore_eos: Flag = False
    """Go on past the end of text, so that every request has --max-new-tokens."""
    seed: Annotated[int, arg(metavar="N")] = 0


@dataclasses.dataclass(frozen=True)
class Measuring:
    """How it is measured, and where the rows go."""

    batch: Annotated[int, arg(metavar="N")] = 8
    """Prompts decoded together where acceptance is counted."""
    timed: Annotated[int, arg(metavar="N")] = 4
    """Prompts that are timed, one request at a time."""
    repeats: Annotated[int, arg(metavar="N")] = 3
    """Timed runs of each way, in turns; medians count."""
    peer: Annotated[Literal["transformers"] | None, arg(help_behavior_hint="(default: none)")] = None
    """transformers: assisted generation and prompt lookup on the same weights and prompts, in turns with ours."""
    json: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Append one JSON object a row. Rows that the file has already are not measured again."""
    markdown: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Write the table as Markdown."""


@dataclasses.dataclass(frozen=True)
class TaskBench:
    """Measure acceptance and speed of drafters and verifiers on tasks.

    specjax bench tasks --tasks story chat --gamma 3 5 --verifiers token block --json rows.jsonl

    specjax bench tasks --drafters model tree:shape=3x2 small-kv:cache=snapkv cascade:gamma=6

    specjax bench tasks --file HumanEval.jsonl.gz --drafters ngram --count 16 --peer transformers

    specjax bench tasks --tasks translation --target bundled/t5-target --draft bundled/t5-draft
    """

    what: What = What()
    ways: Ways = Ways()
    measuring: Measuring = Measuring()


class Case(NamedTuple):
    """A row to be: its key in the file of rows, its task, and its way of decoding."""

    key: Row
    task: str
    cell: Any


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: bad input; nothing has been measured then.
    """
    options = parse(TaskBench, args, prog=PROG)
    check(options)
    items, drafts = read_items(options.what), draft_names(options.ways)
    cases = list_cases(options, items, drafts)

    from specjax.bench import machine, record
    from specjax.cli.progress import Progress, tables_and_errors

    about = machine.versions()
    kept = record.Record(options.measuring.json, about)
    console, errors = tables_and_errors()
    console.print("  ".join(f"{name} {version}" for name, version in about.items()), soft_wrap=True, markup=False)
    shown: list[Row] = []
    with Progress(errors, show=True) as progress:
        bench = Bench(options, items, drafts, progress.tell)
        try:
            for number, case in enumerate(cases, start=1):
                known = kept.rows(case.key)
                progress.tell(f"{number} of {len(cases)}: {case.task}, {told(case.cell)}")
                shown += known or list(kept.add(case.key, bench.rows(case)))
                if options.measuring.markdown is not None and shown:
                    record.write_markdown(options.measuring.markdown, tables(shown))
        finally:
            progress.clear()
            for line in bench.left_out:
                errors.print(f"{PROG}: left out: {line}", style="yellow", soft_wrap=True, markup=False)
            if shown:
                console.print(table(shown))
    if not shown:
        raise ValueError("nothing was measured: no verifier that was named serves any drafter that was named")
    return 0


# --- checks ----------------------------------------------------------------------------------------------------------


def check(options: TaskBench) -> None:
    """Raises ValueError for what cannot work, before any work."""
    from specjax import verify
    from specjax.bench import assisted, tasks
    from specjax.naming import drafting

    what, ways, measuring = options.what, options.ways, options.measuring
    for name in what.tasks:
        check_name(name, tasks.TASKS, "task")
    for name in ways.drafters:
        drafting.check_files(drafting.parse(name))
    for name in ways.verifiers:
        verifier = verify.get(name)
        if ways.lossless:
            verifier.require_lossless()
    check_name(what.style, tasks.STYLES, "style of prompts")
    listed = {
        "tasks": what.tasks, "drafters": tuple(map(canonical, ways.drafters)), "gamma": ways.gamma,
        "verifiers": ways.verifiers,
        "temperature": ways.temperature, "category": what.category,
    }  # fmt: skip
    checks.once(**listed)
    checks.some(gamma=ways.gamma, temperature=ways.temperature)
    checks.request(temperature=ways.temperature, max_new_tokens=ways.max_new_tokens, seed=ways.seed, gamma=ways.gamma)
    checks.at_least(1, count=what.count, batch=measuring.batch, timed=measuring.timed, repeats=measuring.repeats)
    without = {"file": what.file is None, "dataset": what.dataset is None}
    for name, source in {"format": "file", "dataset_config": "dataset", "split": "dataset", "field": "dataset"}.items():
        if without[source] and getattr(what, name) != getattr(What, name):
            raise ValueError(f"--{name.replace('_', '-')} has no meaning without --{source}: leave it out")
    if what.file is not None and what.dataset is not None:
        raise ValueError("--file and --dataset both bring prompts: leave one of them out")
    if (what.file is not None or what.dataset is not None) and len(what.tasks) > 1:
        raise ValueError(f"prompts of a file are for one task, and --tasks names {', '.join(what.tasks)}")
    checks.writable(json=measuring.json, markdown=measuring.markdown)
    if measuring.peer is not None:
        assisted.require()


def canonical(drafter: str) -> str:
    """The drafter's name and settings, always in the same words."""
    from specjax.naming import drafting

    return drafting.label(drafting.parse(drafter))


def draft_names(ways: Ways) -> tuple[str, ...]:
    """The draft models, as many as the neediest drafter uses; of the bundled target where none is named.

    Raises:
      ValueError: more or fewer than are used.
    """
    from specjax.cli import setup

    if not ways.drafters and not ways.draft:
        return (DRAFT,) if ways.target == TARGET else ()
    neediest = max(map(Strategy.parse, ways.drafters or ("model",)), key=lambda one: one.needs)
    return setup.given_drafts(neediest, ways.target, ways.draft)


def read_items(what: What) -> dict[str, list[Any]]:
    """The items of every task.

    Raises:
      ValueError, OSError: a file of another format; a task without prompts of its own.
    """
    from specjax.bench import formats, tasks

    if what.file is not None:
        kind, items = formats.read(what.file, what.format)
        name = what.tasks[0] if what.tasks else formats.FORMATS[kind].task
        return {name: tasks.pick(items, what.count, what.category)}
    if what.dataset is not None:
        found = formats.dataset(what.dataset, field=what.field, config=what.dataset_config, split=what.split)
        return {what.tasks[0] if what.tasks else "as-is": tasks.pick(found, what.count, what.category)}
    names = what.tasks or ("story",)
    empty = [name for name in names if not tasks.TASKS[name].samples]
    if empty:
        raise ValueError(f"the task {empty[0]!r} has no prompts of its own: give --file")
    return {name: tasks.pick(tasks.TASKS[name].samples, what.count, what.category) for name in names}


def list_cases(options: TaskBench, items: dict[str, list[Any]], drafts: Sequence[str]) -> list[Case]:
    """Every task in every way. A key says all that a row depends on, the prompts' own words included."""
    from specjax.bench import tasks
    from specjax.naming import drafting

    ways, measuring = options.ways, options.measuring
    common = {
        "bench": "tasks", "target": ways.target, "dtype": ways.dtype, "style": options.what.style,
        "new": ways.max_new_tokens, "ignore_eos": ways.ignore_eos, "seed": ways.seed, "batch": measuring.batch,
        "timed": measuring.timed,
        "repeats": measuring.repeats, "peer": measuring.peer,
    }  # fmt: skip
    found = []
    for name, given in items.items():
        prompts = {"task": name, "prompts": tasks.digest(given)}
        for cell in cells(ways, drafts):
            used = drafts[: drafting.needs(drafting.parse(cell.drafter))]
            own = {"draft": ", ".join(used) or None}
            found.append(Case(common | prompts | own | cell._asdict(), name, cell))
    return found


def cells(ways: Ways, drafts: Sequence[str]) -> list[Any]:
    """Every way of decoding, once. A drafter's own gamma stands in its cell like one of --gamma."""
    from specjax.bench import grid
    from specjax.naming import drafting

    named: list[tuple[str, tuple[int, ...]]] = []
    for text in ways.drafters or (("model", "ngram") if drafts else ("ngram",)):
        spec = drafting.parse(text)
        own = {key: value for key, value in spec.settings.items() if key != "gamma"}
        named.append((drafting.label(spec._replace(settings=own)), drafting.gammas(spec, ways.gamma)))
    without = [name for name, gammas in named if not gammas]
    verifiers = ways.verifiers or (grid.SUITS,)
    every = [
        cell
        for temperature in ways.temperature
        for name, gammas in named
        for cell in grid.cells([name], gammas, verifiers, [temperature], without_gamma=without)
    ]
    return list(dict.fromkeys(every))


def spec_of(cell: Any) -> Spec:
    """The cell's drafter with its gamma."""
    from specjax.naming import drafting

    spec = drafting.parse(cell.drafter)
    return spec if cell.gamma is None else drafting.with_gamma(spec, cell.gamma)


def told(cell: Any) -> str:
    """A way of decoding in words."""
    gamma = f" \u03b3={cell.gamma}" if cell.gamma is not None else ""
    verifier = "" if cell.verifier == "suits" else f" {cell.verifier},"
    return f"{cell.drafter}{gamma},{verifier} T={cell.temperature:g}"


# --- measuring -------------------------------------------------------------------------------------------------------


class Bench:
    """Models and prompts, loaded when the first row is measured that the file does not have.

    Attributes:
      left_out: combinations that no verifier serves, in words.
    """

    def __init__(
        self, options: TaskBench, items: dict[str, list[Any]], drafts: Sequence[str], tell: Callable[[str], None]
    ):
        self._options, self._items, self._draft_names, self._tell = options, items, drafts, tell
        self._models: tuple[Any, list[Any]] | None = None
        self._peer: Any = None
        self._works: dict[str, Any] = {}
        self.left_out: list[str] = []

    def rows(self, case: Case) -> list[Row]:
        """The case's row; none where its verifier does not serve its drafter."""
        from specjax import api
        from specjax.bench import grid
        from specjax.naming import drafting

        target, drafts = self._loaded()
        cell = case.cell
        guide = drafting.make(spec_of(cell), target, drafts)
        verifier = api.named_verifier(guide, None if cell.verifier == grid.SUITS else cell.verifier)
        part = guide.drafter
        try:
            verifier.check(part.tree, part.siblings, f"drafter {guide.name!r}", dynamic=part.dynamic)
        except ValueError as error:
            self.left_out.append(str(error))
            return []
        row = grid.measure(self._work(case.task), cell, guide, verifier)
        return [{"task": case.task, "target": self._options.ways.target, "draft": case.key["draft"],
                 "dtype": self._options.ways.dtype} | row]  # fmt: skip

    def _loaded(self) -> tuple[Any, list[Any]]:
        if self._models is None:
            import specjax  # `load` is looked up when it is called
            from specjax.bench import assisted

            ways = self._options.ways
            self._tell(f"loading {ways.target}")
            target = specjax.load(ways.target, dtype=ways.dtype)
            drafts = [specjax.load(name, dtype=ways.dtype) for name in self._draft_names]
            if self._options.measuring.peer is not None:
                self._tell("loading the same weights into transformers")
                self._peer = assisted.peer(target, drafts[0] if drafts else None, ignore_eos=ways.ignore_eos)
            self._models = target, drafts
        return self._models

    def _work(self, task: str) -> Any:
        if task not in self._works:
            from specjax.bench import grid

            (target, _), ways, measuring = self._loaded(), self._options.ways, self._options.measuring
            settings = {"max_new_tokens": ways.max_new_tokens, "ignore_eos": ways.ignore_eos, "seed": ways.seed}
            self._works[task] = grid.Work(
                target, self._prompts(task, target), settings, measuring.batch, measuring.timed, measuring.repeats,
                self._peer,
            )  # fmt: skip
        return self._works[task]

    def _prompts(self, task: str, target: Any) -> list[str]:
        from specjax import convert
        from specjax.bench import tasks

        style = self._options.what.style
        own: Callable[[str], str] = str
        if style == tasks.OWN:
            checkpoint = convert.locate(target.name)
            checkpoint.source.close()
            own = tasks.own_template(checkpoint.tokenizer(), target.text.encode)
        build = tasks.builder(tasks.TASKS[task], style, encoder_decoder=target.encoder_decoder, own=own)
        return [build(item) for item in self._items[task]]


# --- tables ----------------------------------------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> list[Row]:
    """The rows in brief, without columns that are empty in all of them."""
    from specjax.bench import grid

    shown = [grid.brief(row) for row in rows]
    filled = [name for name in shown[0] if any(row[name] != "" for row in shown)]
    return [{name: row[name] for name in filled} for row in shown]


def table(rows: Sequence[Row]) -> Any:
    """For the terminal."""
    from rich import box
    from rich.table import Table

    from specjax.bench.record import show

    brief = tables(rows)
    made = Table(box=box.SIMPLE, caption=CAPTION, caption_justify="left")
    for name in brief[0]:
        made.add_column(name, justify="left" if name in ("task", "drafter", "verifier") else "right", no_wrap=True)
    for row in brief:
        made.add_row(*(show(value) for value in row.values()))
    return made


CAPTION = (
    "\u00d7 plain: tokens/s over plain decoding. \u00d7 assisted, \u00d7 lookup: over transformers' on the same "
    "weights; plain \u00d7 plain: plain decoding over theirs. load: share of the processors that other programs used, "
    "the most beside any way; ratios of a busy machine say little."
)
