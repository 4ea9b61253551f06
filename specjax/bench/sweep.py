"""A sweep: the ways of a preset, each measured as `bench tasks` does, along one quantity. Nothing here loads jax.

from specjax.bench.sweep import Sweep

SWEEP = Sweep("gamma", tuple(f"model:gamma={g}" for g in (1, 2, 3, 5)), about="how long to draft")
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specjax import defaults, presets
from specjax.bench import formats, tasks
from specjax.bench.record import Row
from specjax.bench.runner import SMALLEST, Case, Missing, Shelf, check_sizes
from specjax.checks import check_name

NUMBERS = ("gamma", "temperature", "nodes")  # axes along which a line is drawn
NAMES = ("draft", "drafter", "verifier")  # axes of names, in the preset's order
AXES = (*NUMBERS, *NAMES)
SUITS = "suits"  # the lossless verifier that suits the drafter
WHOLE = ("count", "max_new_tokens", "batch", "timed", "repeats")


@dataclasses.dataclass(frozen=True)
class Way:
    """A drafter, as for `specjax generate --drafter`.

    Attributes:
      drafts: its draft models; None: the sweep's, as many as it needs.
      verifiers: its own; None: the sweep's.
      line: the curve that it is a point of; by default its drafter's name.
    """

    drafter: str
    drafts: tuple[str, ...] | None = None
    verifiers: tuple[str, ...] | None = None
    line: str = ""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What is swept, and on what. Every way is measured with every verifier, temperature and task.

    Attributes:
      axis: the quantity of the picture's x axis: gamma, temperature, nodes (of the tree, with its root), draft, drafter
        or verifier.
      ways: drafters, or `Way`s.
      verifiers: names; "suits" is the lossless one that suits the drafter.
      drafts: models for the drafters that need any, the largest first.
      file: prompts instead of the tasks' own, for one task; in a format of `bench tasks`.
      count, max_new_tokens, batch, timed, repeats, seed, ignore_eos: as for `bench tasks`.
    """

    axis: str
    ways: tuple[str | Way, ...]
    about: str = ""
    target: str = "bundled/opt-target"
    drafts: tuple[str, ...] = ("bundled/opt-draft",)
    verifiers: tuple[str, ...] = (SUITS,)
    temperatures: tuple[float | int, ...] = (0.0,)
    tasks: tuple[str, ...] = ("story",)
    file: str | None = None
    dtype: str = "float32"
    count: int = 8
    max_new_tokens: int = 64
    batch: int = 8
    timed: int = 4
    repeats: int = 3
    seed: int = 0
    ignore_eos: bool = True

    def __post_init__(self) -> None:
        if self.axis not in AXES:
            raise ValueError(f"axis {self.axis!r} is none of {', '.join(AXES)}")
        check_sizes(self, WHOLE)
        for name in ("ways", "verifiers", "temperatures", "tasks"):
            values = getattr(self, name)
            if not isinstance(values, tuple) or not values:
                raise ValueError(f"{name} of a sweep must be a tuple of at least one, got {values!r}")
        for task in self.tasks:
            check_name(task, tasks.TASKS, "task")
        if self.file is not None and len(self.tasks) > 1:
            raise ValueError(f"prompts of a file are for one task, and the sweep names {', '.join(self.tasks)}")
        for temperature in self.temperatures:
            if not temperature >= 0:
                raise ValueError(f"temperatures must be at least 0, got {temperature}")
            if temperature > defaults.LARGEST_TEMPERATURE:
                raise ValueError(f"temperatures must be at most {defaults.LARGEST_TEMPERATURE}, got {temperature}")
        if self.max_new_tokens > defaults.LARGEST_NEW:
            raise ValueError(f"max-new-tokens must be at most {defaults.LARGEST_NEW}, got {self.max_new_tokens}")
        if not isinstance(self.seed, int) or not 0 <= self.seed <= defaults.LARGEST_SEED:
            raise ValueError(f"seed must be a whole number in 0..{defaults.LARGEST_SEED}, got {self.seed!r}")

    def quick(self) -> "Sweep":
        """The same in its smallest size, which shows that everything runs and says nothing about speed."""
        return dataclasses.replace(self, **SMALLEST)


def read(file: Path | str) -> Sweep:
    """The `SWEEP` of a preset. Raises FileNotFoundError or ValueError, in one line."""
    return presets.bound(file, "SWEEP", Sweep)


class Point(NamedTuple):
    """One combination: what is a row's own."""

    task: str
    way: Way
    spec: Any
    label: str
    drafts: tuple[str, ...]
    verifier: str
    temperature: float

    @property
    def told(self) -> str:
        return f"{self.task}, {self.label}, {self.verifier}, T={self.temperature:g}"


def points(sweep: Sweep) -> list[Point]:
    """Every combination, tasks and temperatures outermost.

    Raises:
      ValueError: an unknown drafter, setting or verifier, or fewer draft models than a drafter needs.
    """
    from specjax import verify
    from specjax.naming import drafting

    found = []
    for way in (Way(way) if isinstance(way, str) else way for way in sweep.ways):
        spec = drafting.parse(way.drafter)
        needed, given = drafting.needs(spec), sweep.drafts if way.drafts is None else way.drafts
        if len(given) < needed:
            raise ValueError(f"the drafter {way.drafter!r} needs {needed} draft models, and there are {len(given)}")
        for verifier in way.verifiers or sweep.verifiers:
            check_name(verifier, [SUITS, *verify.TABLE], "verifier")
            found.append(Point("", way, spec, drafting.label(spec), tuple(given[:needed]), verifier, 0.0))
    return [
        point._replace(task=task, temperature=temperature)
        for task in sweep.tasks
        for temperature in sweep.temperatures
        for point in found
    ]


def read_items(sweep: Sweep) -> dict[str, list[formats.Item]]:
    """The prompts of each task. Raises ValueError or OSError for a file of another format."""
    if sweep.file is not None:
        return {sweep.tasks[0]: tasks.pick(formats.read(sweep.file)[1], sweep.count)}
    return {task: tasks.pick(tasks.TASKS[task].samples, sweep.count) for task in sweep.tasks}


def cases(sweep: Sweep, items: dict[str, list[formats.Item]]) -> list[Case]:
    """A case for each combination; its key says all that the row depends on."""
    common = {
        name: getattr(sweep, name) for name in ("target", "dtype", "seed", "ignore_eos", *WHOLE)
    } | {"bench": "sweep"}  # fmt: skip
    made = []
    for point in points(sweep):
        own = {
            "task": point.task, "prompts": tasks.digest(items[point.task]), "drafter": point.label,
            "drafts": point.drafts, "verifier": point.verifier, "temperature": point.temperature,
        }  # fmt: skip
        measure = _measure(sweep, point, [item.text for item in items[point.task]])
        made.append(Case(common | own, point.told, measure))
    return made


def _measure(sweep: Sweep, point: Point, texts: Sequence[str]) -> Callable[[Shelf], list[Row]]:
    def measure(shelf: Shelf) -> list[Row]:
        from specjax import api
        from specjax.bench import grid
        from specjax.naming import drafting

        target, drafts = shelf.model(sweep.target), [shelf.model(name) for name in point.drafts]
        key = ("guide", point.label, point.drafts)
        guide = shelf.keep(key, lambda: drafting.make(point.spec, target, drafts))
        verifier, part = api.named_verifier(guide, None if point.verifier == SUITS else point.verifier), guide.drafter
        try:
            verifier.check(part.tree, part.siblings, f"drafter {guide.name!r}", dynamic=part.dynamic)
        except ValueError as error:
            raise Missing(" ".join(str(error).split())) from None
        build = tasks.builder(tasks.TASKS[point.task], tasks.AUTO, encoder_decoder=target.encoder_decoder, own=str)
        prompts = [build(formats.Item(text)) for text in texts]
        settings = {"max_new_tokens": sweep.max_new_tokens, "ignore_eos": sweep.ignore_eos, "seed": sweep.seed}
        work = grid.Work(target, prompts, settings, sweep.batch, sweep.timed, sweep.repeats)
        cell = grid.Cell(point.label, point.spec.settings.get("gamma"), point.verifier, point.temperature)
        row = grid.measure(work, cell, guide, verifier)
        return [{"task": point.task, "draft": " > ".join(point.drafts), "nodes": part.tree.size} | row]

    return measure


# --- laying out ------------------------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """Rows along the axis; what they have in common and other curves do not is in the name."""

    name: str
    x: list[Any]
    rows: list[Row]


def curves(sweep: Sweep, found: Sequence[tuple[Point, Row]]) -> list[Curve]:
    """The rows as curves: of one drafter (or `Way.line`), and of one of whatever else varies; numbers ascending."""
    others = {"task": sweep.tasks, "temperature": sweep.temperatures, "verifier": {p.verifier for p, _ in found}}
    varying = [name for name, values in others.items() if len(values) > 1 and name != sweep.axis]
    groups: dict[str, list[tuple[Any, Row]]] = {}
    for point, row in found:
        line = point.way.line or ("" if sweep.axis in ("drafter", "draft") else point.spec.name)
        parts = [line] if line else []
        parts += [f"T = {row[name]:g}" if name == "temperature" else str(row[name]) for name in varying]
        groups.setdefault(", ".join(parts), []).append((place(sweep.axis, row), row))
    if sweep.axis in NUMBERS:
        groups = {name: sorted(pairs, key=lambda pair: pair[0]) for name, pairs in groups.items()}
    return [Curve(name, [x for x, _ in pairs], [row for _, row in pairs]) for name, pairs in groups.items()]


def place(axis: str, row: Row) -> Any:
    """Where a row lies on the axis; 0 for what has no gamma."""
    value = row[axis]
    if axis in NUMBERS:
        return 0 if value is None else value
    return value or "none"


def table(sweep: Sweep, found: Sequence[tuple[Point, Row]]) -> list[Row]:
    """Rows for people, along their curves."""
    made = []
    for curve in curves(sweep, found):
        for x, row in zip(curve.x, curve.rows, strict=True):
            lossy = "" if row["lossless"] else " (LOSSY)"
            made.append(({sweep.axis: x} if sweep.axis in NUMBERS else {}) | {
                "drafter": row["drafter"], "draft": row["draft"] or "none", "verifier": row["verifier"] + lossy,
                "T": row["temperature"], "task": row["task"], "tokens/call": row["tokens_per_call"],
                "accepted/tested": row["accepted_per_tested"], "tokens/s": row["tokens_per_second"],
                "× plain": row["speedup"], "load": max(row["load"].values()),
            })  # fmt: skip
    return made


def short(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """A table without the names that are the same in all its rows, and those names in words."""
    same = {
        name: value for name in ("drafter", "draft", "verifier", "T", "task")
        if len(values := {row[name] for row in rows}) == 1 for value in values
    }  # fmt: skip
    kept = [{name: value for name, value in row.items() if name not in same} for row in rows]
    return kept, ", ".join(f"{name} {value:g}" if name == "T" else f"{name} {value}" for name, value in same.items())


def best(found: Sequence[tuple[Point, Row]]) -> list[str]:
    """The fastest way, and the one with the most tokens a call, at each temperature."""
    lines = []
    for temperature in dict.fromkeys(row["temperature"] for _, row in found):
        rows = [row for _, row in found if row["temperature"] == temperature]
        for what, name in (("speed", "speedup"), ("tokens a call", "tokens_per_call")):
            top = max(rows, key=lambda row: row[name])
            unit = " × plain" if name == "speedup" else ""
            paying = "" if name != "speedup" or top[name] > 1 else ": nothing here is faster than plain decoding"
            named = ", ".join(part for part in (top["drafter"], top["draft"], top["verifier"]) if part)
            lines.append(f"T = {temperature:g}, best {what}: {named}: {top[name]:.2f}{unit}{paying}")
    return lines


def picture(new_figure: Any, sweep: Sweep, lines: Sequence[Curve], *, title: str) -> Any:
    """Two panels over the axis: tokens a call, and speed over plain decoding. Takes matplotlib's Figure class."""
    from specjax.plotting import COLORS, finish

    figure = new_figure(figsize=(9.6, 4.4), layout="constrained")
    panels = figure.subplots(1, 2)
    numbers = sweep.axis in NUMBERS
    places = list(dict.fromkeys(x for line in lines for x in line.x))
    for axes, name, label in zip(panels, ("tokens_per_call", "speedup"), ("tokens a call", "× plain"), strict=True):
        for number, line in enumerate(lines):
            x = line.x if numbers else [places.index(one) for one in line.x]
            axes.plot(
                x, [row[name] for row in line.rows], color=COLORS[number % len(COLORS)], lw=1.8 if numbers else 0,
                marker="os^Dv"[number % 5], ms=6, label=line.name,
            )  # fmt: skip
        axes.axhline(1, color="#8a8a8a", lw=0.9, ls="--")
        axes.set_ylim(bottom=0)
        if not numbers:
            axes.set_xticks(range(len(places)), places, rotation=30, ha="right", fontsize=8, parse_math=False)
        finish(axes, sweep.axis, label, title if name == "tokens_per_call" else "")
    if len(lines) > 1 or lines[0].name:
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9
        )
    return figure
