"""A grid: strategies x verifiers x temperatures x tasks, each point measured beside plain decoding and transformers.

    from specjax.bench.grid import Grid

    GRID = Grid(drafters=("model", "ngram"), gammas=(2, 4), temperatures=(0.0, 1.0), about="draft length")

Acceptance is counted over all prompts, in batches. Speed is that of single requests, prompt included, interleaved with
plain decoding and, with `peer`, with transformers on the same weights. Importing this module does not import jax.
"""

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro

from specjax import checks, defaults, presets
from specjax.bench import rates, tasks
from specjax.bench.record import SMALLEST, Case, Missing, Row, Shelf, check_sizes
from specjax.bench.tasks import AUTO
from specjax.checks import check_name
from specjax.strategy import Strategy

NUMBERS = ("gamma", "temperature", "nodes")  # axes along which a line is drawn
AXES = (*NUMBERS, "verifier", "drafts", "drafter")
SIZES = ("count", "max_new_tokens", "batch", "timed", "repeats")
COPYING = ("ngram", "suffix")  # drafters comparable to prompt lookup of transformers
NEEDS_SOURCE = {"format": "file", "dataset_config": "dataset", "split": "dataset", "field": "dataset"}
Curves = Mapping[str, tuple[str | Strategy, ...]]


arg = tyro.conf.arg
N = arg(metavar="N")
FLAG = arg(help_behavior_hint="")
NONE = "(default: none)"
SUITED = "(default: the lossless one that suits each drafter)"
STORY = "(default: story, or that of the file)"
BUNDLED = "(default: those of the bundled target)"


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is measured, and on what."""

    # Texts of the command line, or of a preset: Strategies, which may name a verifier and positions of their draft
    # models in `drafts`, and a dict, which names the curve of each group.
    drafters: Annotated[tuple[str | Strategy, ...] | Curves, tyro.conf.Fixed, tyro.conf.AvoidSubcommands] = ()
    gammas: Annotated[tuple[int, ...], arg(metavar="N ...")] = (5,)
    """Draft tokens per round, for drafters that have this setting and do not set it."""
    verifiers: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint=SUITED)] = ()
    """Combinations that are not supported are left out, with the reason."""
    temperatures: Annotated[tuple[float, ...], arg(metavar="T ...")] = (0.0, 1.0)
    tasks: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint=STORY)] = ()
    """translation, summarization, chat, code, maths, story, with sample prompts; as-is for prompts of a file,
    unchanged."""
    axis: Annotated[str, arg(metavar="NAME", help_behavior_hint="(default: the first that varies)")] = ""
    """Of the picture: gamma, temperature, nodes (of the tree), verifier, drafts or drafter."""
    target: Annotated[str, arg(metavar="MODEL")] = defaults.TARGET
    """Model whose output is generated."""
    drafts: Annotated[tuple[str, ...], arg(metavar="MODEL ...", help_behavior_hint=BUNDLED)] = ()
    """Draft models, the largest first."""
    dtype: Annotated[str, arg(metavar="{float32,bfloat16,float16}")] = "float32"
    """Of all models."""
    mesh: Annotated[str, arg(metavar="1xMODEL", help_behavior_hint="(default: one device)")] = ""
    """Devices that the target is split over, such as 1x4; single requests are timed, so rows are not split."""
    file: Annotated[str, arg(metavar="FILE", help_behavior_hint=NONE)] = ""
    """Prompts for one task: MT-bench's or Spec-Bench's question.jsonl, HumanEval.jsonl.gz, GSM8K's test.jsonl, .tsv
    (prompt, tab, reference), .txt (one prompt per line), .jsonl with "prompt"; also packed as .gz or .xz."""
    format: Annotated[str, arg(metavar="NAME")] = AUTO
    """Of the file: mt-bench, spec-bench, humaneval, gsm8k, jsonl, tsv, txt; auto: by its ending and first line."""
    category: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """Categories of MT-bench and Spec-Bench questions."""
    dataset: Annotated[str, arg(metavar="ID", help_behavior_hint=NONE)] = ""
    """Data set of the Hugging Face hub instead of a file; the only option here that uses the network."""
    dataset_config: Annotated[str, arg(metavar="NAME", help_behavior_hint=NONE)] = ""
    """Its configuration."""
    split: Annotated[str, arg(metavar="NAME")] = "test"
    """Its split."""
    field: Annotated[str, arg(metavar="NAME")] = "prompt"
    """Column of the prompts."""
    reference: Annotated[str, arg(metavar="NAME", help_behavior_hint=NONE)] = ""
    """Column of the references, for --scores."""
    count: Annotated[int, N] = 8
    """Prompts of each task, spread over all that there are."""
    style: Annotated[str, arg(metavar="NAME")] = AUTO
    """How the model is addressed: as-is, the text alone; plain continues a text; prefix is that of T5; chatml, llama-2,
    llama-3, vicuna and zephyr are chat templates; own is that of the model. auto: as-is for prompts of a file without a
    task, else own if the model has a template, prefix for an encoder-decoder, and plain."""
    max_new_tokens: Annotated[int, N] = defaults.MAX_NEW_TOKENS
    """New tokens per prompt."""
    ignore_eos: Annotated[bool, FLAG] = False
    """Generate --max-new-tokens for every prompt, past the end of text."""
    seed: Annotated[int, N] = defaults.SEED
    """Of the random numbers."""
    lossless: Annotated[bool, FLAG] = False
    """Refuse lossy verifiers."""
    batch: Annotated[int, N] = 8
    """Prompts decoded together to count acceptance."""
    timed: Annotated[int, N] = 4
    """Prompts that are timed, one request at a time."""
    repeats: Annotated[int, N] = 3
    """Timed runs, interleaved with plain decoding; medians are reported."""
    peer: Annotated[str, arg(metavar="NAME", help_behavior_hint=NONE)] = ""
    """transformers: its assisted generation, prompt lookup and plain decoding on the same weights and prompts."""
    scores: Annotated[bool, FLAG] = False
    """BLEU and chrF of plain decoding, for prompts with references (requires sacrebleu)."""
    about: Annotated[str, tyro.conf.Fixed] = ""
    """Title of the table and the picture of a preset."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("gammas", "verifiers", "tasks", "category")}
        checks.distinct(**given)
        checks.distinct(least=1, temperatures=self.temperatures)
        check_sizes(self, SIZES)
        for name, names in {"axis": ("", *AXES), "style": tasks.STYLES, "peer": ("", "transformers")}.items():
            check_name(getattr(self, name), names, name)
        for task in self.tasks:
            check_name(task, tasks.TASKS, "task")
        ranged = ("max_new_tokens", "seed", "gammas", "temperatures")
        checks.decoding(**{name: getattr(self, name) for name in ranged})
        if self.mesh and checks.mesh_shape(self.mesh)[0] != 1:
            raise ValueError(
                f"mesh must be 1xMODEL, got {self.mesh}: single requests are timed, whose row is not split"
            )
        if self.mesh and self.peer:
            raise ValueError(f"peer {self.peer} runs on one device: leave out peer or mesh")
        if self.file and self.dataset:
            raise ValueError("pass either file or dataset, not both")
        if (self.file or self.dataset) and len(self.tasks) > 1:
            raise ValueError(f"prompts of a file or dataset are for one task, got tasks {', '.join(self.tasks)}")
        for name, source in NEEDS_SOURCE.items():
            if not getattr(self, source) and getattr(self, name) != getattr(Grid, name):
                raise ValueError(f"{name.replace('_', '-')} requires {source}")

    def quick(self) -> "Grid":
        """The same in its smallest size, which checks that everything runs but does not measure speed."""
        return dataclasses.replace(self, **SMALLEST)


def read(file: Path | str) -> Grid:
    """The `GRID` of a preset. Raises FileNotFoundError or ValueError, in one line."""
    return presets.bound(file, "GRID", Grid)


# --- points ----------------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """One point of a grid.

    Attributes:
      task: the task of its prompts.
      curve: the curve that it belongs to.
      strategy: drafter with its gamma, and verifier; its draft models are `drafts`.
      drafts: names of its draft models.
      temperature: of its requests.
    """

    task: str
    curve: str
    strategy: Strategy
    drafts: tuple[str, ...]
    temperature: float

    @property
    def title(self) -> str:
        return f"{self.task}, {self.strategy.label(self.drafts)}, T={self.temperature:g}"


def points(grid: Grid, task_names: Sequence[str]) -> list[Point]:
    """Every combination once, tasks and temperatures outermost.

    Raises:
      ValueError: an unknown drafter, setting, verifier or file, too few draft models, or one that is not used.
    """
    from specjax import verify

    for name in grid.verifiers:
        verifier = verify.get(name)
        if grid.lossless:
            verifier.require_lossless()
    given = grid.drafts or (defaults.DRAFTS if grid.target == defaults.TARGET else ())
    curves = grid.drafters or (("model", "ngram") if given else ("ngram",))
    curves = curves if isinstance(curves, Mapping) else {"": curves}
    found: list[tuple[str, Strategy, tuple[str, ...]]] = []
    used: set[int] = set()
    for curve, group in curves.items():
        for strategy in (Strategy.parse(one) if isinstance(one, str) else one for one in group):
            strategy.check_files()
            own = strategy.drafts or tuple(range(strategy.needs))
            if max(own, default=-1) >= len(given):
                raise ValueError(f"drafter {strategy.text!r} requires {max(own) + 1} drafts, got {len(given)}")
            used |= set(own)
            names = tuple(given[number] for number in own)
            for one in expand(dataclasses.replace(strategy, drafts=()), grid):
                found.append((curve or strategy.name, one, names))
    unused = [name for number, name in enumerate(grid.drafts) if number not in used]
    if unused:
        raise ValueError(f"drafts {unused[0]} is not used by any of the drafters")
    every = [
        Point(task, curve, strategy, names, temperature)
        for task in task_names
        for temperature in grid.temperatures
        for curve, strategy, names in found
    ]
    return list(dict.fromkeys(every))


def expand(strategy: Strategy, grid: Grid) -> Iterator[Strategy]:
    """The strategy with each gamma and verifier of the grid, where it does not set its own."""
    open_gamma = strategy.takes_gamma and strategy.get("gamma") is None and grid.gammas
    for gamma in grid.gammas if open_gamma else (None,):
        sized = strategy if gamma is None else strategy.replace_settings(gamma=gamma)
        chosen = (strategy.verifier,) if strategy.verifier else grid.verifiers or (None,)
        for verifier in chosen[:1] if strategy.name == "plain" else chosen:
            yield dataclasses.replace(sized, verifier=verifier)


def read_items(grid: Grid) -> dict[str, list[tasks.Item]]:
    """The items of each task.

    Raises:
      ValueError, OSError: a file of another format, a task without samples, or items without references for `scores`.
    """
    if grid.file:
        kind, items = tasks.read(grid.file, grid.format)
        given = {grid.tasks[0] if grid.tasks else tasks.FORMATS[kind].task: items}
    elif grid.dataset:
        items = tasks.dataset(
            grid.dataset, field=grid.field, config=grid.dataset_config or None, split=grid.split,
            reference=grid.reference or None,
        )  # fmt: skip
        given = {grid.tasks[0] if grid.tasks else "as-is": items}
    else:
        given = {name: list(tasks.TASKS[name].samples) for name in grid.tasks or ("story",)}
    for name, items in given.items():
        if not items:
            raise ValueError(f"task {name!r} has no samples: pass file or dataset")
        given[name] = tasks.pick(items, grid.count, grid.category)
        if grid.scores and any(item.reference is None for item in given[name]):
            raise ValueError(f"scores requires a reference for every prompt, and task {name!r} has prompts without one")
    if grid.scores and importlib.util.find_spec("sacrebleu") is None:
        raise ValueError("scores requires sacrebleu: pip install sacrebleu")
    return given


def cases(grid: Grid, every: Sequence[Point], items: Mapping[str, Sequence[tasks.Item]]) -> list[Case]:
    """A case for each point; its key contains everything that the row depends on, the texts of the prompts included."""
    names = ("target", "dtype", "style", "ignore_eos", "seed", "peer", "scores", *SIZES)
    common = {name: getattr(grid, name) for name in names} | {"bench": "sweep"}
    common |= {"mesh": grid.mesh} if grid.mesh else {}  # rows of older files have none
    return [
        Case(
            common | {
                "task": point.task, "prompts": tasks.digest(items[point.task]), "drafter": point.strategy.text,
                "drafts": point.drafts, "verifier": point.strategy.verifier, "temperature": point.temperature,
            },
            point.title,
            _measure_point(grid, point, items[point.task]),
        )
        for point in every
    ]  # fmt: skip


# --- measuring -------------------------------------------------------------------------------------------------------


class Workload(NamedTuple):
    """What every strategy decodes.

    Attributes:
      prompts: text, or lists of token ids.
      settings: keyword arguments of `specjax.generate`, temperature, drafter and verifier apart.
      batch, timed, repeats: as in `Grid`.
      peers: the same models in transformers (`peer.Peer`), by the name of their settings; empty: no comparison.
    """

    target: Any
    prompts: Sequence[Any]
    settings: dict[str, Any]
    batch: int
    timed: int
    repeats: int
    peers: Mapping[str, Any] = MappingProxyType({})


def _measure_point(grid: Grid, point: Point, items: Sequence[tasks.Item]) -> Callable[[Shelf], list[Row]]:
    def run(shelf: Shelf) -> list[Row]:
        from specjax.bench.peer import make_peers
        from specjax.request import named_verifier

        strategy, target = point.strategy, shelf.model(grid.target)
        drafts = [shelf.draft(name) for name in point.drafts]
        key = ("drafter", strategy.text, point.drafts)
        drafter = shelf.keep(key, lambda: strategy.build(target, drafts))
        verifier, part = named_verifier(drafter, strategy.verifier), drafter.drafter
        try:
            verifier.check(part.tree, part.siblings, f"drafter {drafter.name!r}", dynamic=part.dynamic)
        except ValueError as error:
            raise Missing(" ".join(str(error).split())) from None
        prompts = shelf.keep(("prompts", point.task), lambda: tasks.prompts_for(target, point.task, items, grid.style))
        peers = {}
        if grid.peer:
            first = drafts[0] if drafts else None
            make = lambda: make_peers(target, first, ignore_eos=grid.ignore_eos)
            peers = shelf.keep(("peer", point.drafts[:1]), make)
        settings = {"max_new_tokens": grid.max_new_tokens, "ignore_eos": grid.ignore_eos, "seed": grid.seed}
        work = Workload(target, prompts, settings, grid.batch, grid.timed, grid.repeats, peers)
        style = tasks.style_of(target, point.task, grid.style)
        row: Row = {
            "task": point.task,
            "addressed": style,
            "target": grid.target,
            "drafts": " > ".join(point.drafts),
            "dtype": grid.dtype,
        }
        row |= measure(work, strategy, point.temperature, drafter, verifier)
        if grid.scores:
            key = ("scores", point.task, point.temperature)
            row |= shelf.keep(key, lambda: scores(work, point.temperature, [item.reference for item in items]))
        return [row]

    return run


def measure(work: Workload, strategy: Strategy, temperature: float, drafter: Any, verifier: Any) -> Row:
    """One row: what is measured, acceptance over all prompts, and speed beside plain decoding.

    Args:
      drafter: the `LoadedDrafter` of the strategy.
      verifier: the `Verifier` that it runs with.
    """
    plain = work.settings | {"temperature": temperature}
    drafted = plain | {"drafter": drafter, "verifier": verifier}
    row: Row = {
        "bench": "sweep", "drafter": strategy.text, "gamma": strategy.gamma, "nodes": drafter.drafter.tree.size,
        "verifier": verifier.name, "lossless": verifier.lossless, "temperature": temperature,
        "prompts": len(work.prompts),
    }  # fmt: skip
    return row | acceptance(work, drafted) | speed(work, strategy, drafted, plain)


def _batches(work: Workload, settings: dict[str, Any]) -> Iterator[Any]:
    from specjax import api

    for start in range(0, len(work.prompts), work.batch):
        part = work.prompts[start : start + work.batch]
        yield api.generate(work.target, part, rows=range(start, start + len(part)), **settings)


def acceptance(work: Workload, settings: dict[str, Any]) -> Row:
    """Rates over all prompts, decoded in batches, and the share of the texts that repeats itself."""
    every = list(_batches(work, settings))
    counts = {name: [n for out in every for n in out.stats.by_row[name]] for name in every[0].stats.by_row}
    for place in range(len(every[0].stats.reached[0])):
        counts[f"reached {place}"] = [row[place] for out in every for row in out.stats.reached]
    return counted(counts, [row for out in every for row in out.tokens], work.prompts)


def counted(counts: dict[str, list[Any]], texts: Sequence[Sequence[int]], prompts: Sequence[Any]) -> Row:
    """Columns of the rates and of the repetition, of counts of each prompt and of the texts."""
    from specjax import estimates

    return rates.rate_columns(counts, prompts) | estimates.repetition(texts).columns("repetition")


def speed(work: Workload, strategy: Strategy, drafted: dict[str, Any], plain: dict[str, Any]) -> Row:
    """Speed of single requests, each prompt interleaved; greedy outputs are compared, token for token."""
    from specjax import api, measuring
    from specjax.prompts import tokenize

    def ours(place: int, settings: dict[str, Any]) -> tuple[list[int], float]:
        out = api.generate(work.target, [work.prompts[place]], rows=[place], **settings)
        return out.tokens[0], out.stats.seconds["decode"]

    timed = work.prompts[: work.timed]
    tokens, length = tokenize(work.target, timed)
    decoders = {
        f"{setting} {kind}": decode
        for setting, peer in work.peers.items()
        for kind, decode in peer_decoders(peer, work, strategy, plain["temperature"])
    }
    programs: dict[tuple[int, str], Callable[[], Any]] = {}
    for place, count in enumerate(length):
        programs[place, "drafted"] = lambda n=place: ours(n, drafted)
        programs[place, "plain"] = lambda n=place: ours(n, plain)
        for name, decode in decoders.items():
            given = [tokens[place, :count].tolist()]
            programs[place, name] = lambda decode=decode, given=given: (decode(given)[0], None)
    found = measuring.interleave(programs, work.repeats, pause=measuring.PAUSE if work.peers else 0.0)
    names = ("drafted", "plain", *decoders)
    by_turn = lambda name, of: np.transpose([of(found[n, name]) for n in range(len(timed))]).tolist()
    seconds, written = lambda run: run.seconds, lambda run: run.each(lambda value: float(len(value[0])))
    runs: Row = {name: {"seconds": by_turn(name, seconds), "tokens": by_turn(name, written)} for name in names}
    for name in names[:2]:
        runs[name]["decode_seconds"] = by_turn(name, lambda run: run.each(lambda value: value[1]))
    outputs = {name: [found[n, name].values[-1][0] for n in range(len(timed))] for name in names}
    row = rates.run_columns(runs, timed)
    row |= rates.speed_columns(row)
    greedy = plain["temperature"] == 0
    if greedy:
        row["equal_to_plain"] = equal(outputs["drafted"], outputs["plain"])
    row |= peer_columns(row, outputs, greedy=greedy)
    return row | {"load": {name: max(found[n, name].load for n in range(len(timed))) for name in names}}


def peer_decoders(peer: Any, work: Workload, strategy: Strategy, temperature: float) -> Iterator[tuple[str, Callable]]:
    """What transformers decodes beside: assisted generation for a draft model, prompt lookup for drafters that copy,
    with the same gamma, and plain decoding."""
    common = {"new": work.settings["max_new_tokens"], "temperature": temperature}
    if strategy.gamma is not None and strategy.name == "model" and peer.draft is not None:
        yield "assisted", peer.assisted(gamma=strategy.gamma, **common)
    elif strategy.gamma is not None and strategy.name in COPYING:
        yield "lookup", peer.lookup(gamma=strategy.gamma, **common)
    yield "plain", peer.plain(**common)


def peer_columns(timed: Row, outputs: dict[str, list[list[int]]], *, greedy: bool) -> Row:
    """Tokens per second of transformers at the faster of its settings, ours over theirs, and the share of equal greedy
    outputs."""
    row: Row = {}
    found = {name: rates.per_second(timed, name) for name in timed["runs"] if name.startswith("transformers")}
    for short in dict.fromkeys(name.rpartition(" ")[2] for name in found):
        name = max((name for name in found if name.endswith(f" {short}")), key=lambda name: found[name])
        own = "plain" if short == "plain" else "drafted"
        row[f"transformers_{short}_setting"] = name.removesuffix(f" {short}")
        row[f"transformers_{short}_tokens_per_second"] = found[name]
        row |= rates.speed(timed, own, name).columns(f"ratio_to_{short}")
        if greedy:
            row[f"equal_to_transformers_{short}"] = equal(outputs[own], outputs[name])
    return row


def equal(ours: list[list[int]], others: list[list[int]]) -> float:
    """Share of outputs that are the same, token for token."""
    return sum(one == other for one, other in zip(ours, others, strict=True)) / len(ours)


def scores(work: Workload, temperature: float, references: Sequence[Any]) -> Row:
    """Corpus BLEU and chrF of plain decoding."""
    import sacrebleu

    texts = [text for out in _batches(work, work.settings | {"temperature": temperature}) for text in out.texts]
    return {
        "bleu": sacrebleu.corpus_bleu(texts, [list(references)]).score,
        "chrf": sacrebleu.corpus_chrf(texts, [list(references)]).score,
    }
