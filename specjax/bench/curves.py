"""Measured points of a grid as curves: a table, the best strategies, and a picture."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from specjax.bench.grid import AXES, NUMBERS, Grid, Point
from specjax.bench.record import Row


class Curve(NamedTuple):
    """Rows along the axis; the name contains what distinguishes them from other curves."""

    name: str
    x: list[Any]
    rows: list[Row]


def axis_of(grid: Grid, found: Sequence[tuple[Point, Row]]) -> str:
    """The axis of the grid: the one that it names, or the first of `AXES` along which the rows differ."""
    varying = (axis for axis in AXES if len({row[axis] for _, row in found}) > 1)
    return grid.axis or next((axis for axis in varying if axis != "nodes"), "drafter")


def curves(axis: str, found: Sequence[tuple[Point, Row]]) -> list[Curve]:
    """The rows as curves, one for each curve of the points and value of what else varies; numbers ascending."""
    varying = [
        name for name in ("task", "temperature", "verifier")
        if name != axis and len({row[name] for _, row in found}) > 1
    ]  # fmt: skip
    drafters = {point.curve for point, _ in found}
    groups: dict[str, list[tuple[Any, Row]]] = {}
    for point, row in found:
        named = point.curve != point.strategy.name or axis not in ("drafter", "drafts")
        parts = [point.curve] if named and len(drafters) > 1 else []
        parts += [f"T = {row[name]:g}" if name == "temperature" else str(row[name]) for name in varying]
        x = row[axis]
        groups.setdefault(", ".join(parts), []).append((x or 0 if axis in NUMBERS else x or "none", row))
    if axis in NUMBERS:
        groups = {name: sorted(pairs, key=lambda pair: pair[0]) for name, pairs in groups.items()}
    return [Curve(name, [x for x, _ in pairs], [row for _, row in pairs]) for name, pairs in groups.items()]


def table(lines: Sequence[Curve]) -> list[Row]:
    """Rows for people, along their curves; columns that are empty in all rows are left out."""
    made = []
    for row in (row for line in lines for row in line.rows):
        made.append({
            "task": row["task"], "T": row["temperature"], "drafter": row["drafter"], "drafts": row["drafts"],
            "nodes": row["nodes"], "verifier": row["verifier"] + ("" if row["lossless"] else " (LOSSY)"),
            "tokens/pass": shown(row, "tokens_per_call"), "accepted/tested": shown(row, "accepted_per_tested"),
            "repeats": row.get("repetition"), "tokens/s": row["tokens_per_second"],
            "\u00d7 plain": shown(row, "speedup"),
            **{f"\u00d7 {name}": shown(row, f"ratio_to_{name}") for name in ("assisted", "lookup")},
            "plain \u00d7 plain": shown(row, "ratio_to_plain"), "BLEU": row.get("bleu"), "chrF": row.get("chrf"),
            "load": max(row["load"].values()),
        })  # fmt: skip
    empty = [name for name in made[0] if all(row[name] in (None, "") for row in made)]
    return [{name: value for name, value in row.items() if name not in empty} for row in made]


def shown(row: Row, name: str) -> str | None:
    """A number of a row with its standard error."""
    value, error = row.get(name), row.get(f"{name}_error")
    return None if value is None else f"{value:.2f}" + (f" \u00b1 {error:.2f}" if error else "")


def short(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """A table without names that are the same in all rows, and those names in words."""
    same = {
        name: rows[0][name] for name in ("drafter", "drafts", "nodes", "verifier", "T", "task")
        if name in rows[0] and len(rows) > 1 and len({row[name] for row in rows}) == 1
    }  # fmt: skip
    kept = [{name: value for name, value in row.items() if name not in same} for row in rows]
    return kept, ", ".join(f"{name} {value:g}" if name == "T" else f"{name} {value}" for name, value in same.items())


def best(found: Sequence[tuple[Point, Row]]) -> list[str]:
    """The fastest strategy, and the one with the most tokens per target pass, at each temperature."""
    lines = []
    for temperature in dict.fromkeys(row["temperature"] for _, row in found):
        rows = [row for _, row in found if row["temperature"] == temperature]
        for what, name in (("speed", "speedup"), ("tokens per target pass", "tokens_per_call")):
            top = max(rows, key=lambda row: row[name])
            unit = " \u00d7 plain" if name == "speedup" else ""
            loss = "" if name != "speedup" or top[name] > 1 else ": nothing here is faster than plain decoding"
            named = ", ".join(part for part in (top["drafter"], top["drafts"], top["verifier"]) if part)
            lines.append(f"T = {temperature:g}, best {what}: {named}: {top[name]:.2f}{unit}{loss}")
    return lines


def picture(new_figure: Any, axis: str, lines: Sequence[Curve], *, title: str) -> Any:
    """Two panels over the axis: tokens per target pass, and speed over plain decoding.

    Args:
      new_figure: matplotlib's Figure class.
      axis: one of `AXES`.
    """
    from specjax.plotting import COLORS, finish

    figure = new_figure(figsize=(9.6, 4.4), layout="constrained")
    panels = figure.subplots(1, 2)
    numbers = axis in NUMBERS
    places = list(dict.fromkeys(x for line in lines for x in line.x))
    labels = {"tokens_per_call": "tokens per target pass", "speedup": "\u00d7 plain"}
    for axes, (name, label) in zip(panels, labels.items(), strict=True):
        for index, line in enumerate(lines):
            x = line.x if numbers else [places.index(one) for one in line.x]
            axes.plot(
                x, [row[name] for row in line.rows], color=COLORS[index % len(COLORS)], lw=1.8 if numbers else 0,
                marker="os^Dv"[index % 5], ms=6, label=line.name,
            )  # fmt: skip
        axes.axhline(1, color="#8a8a8a", lw=0.9, ls="--")
        axes.set_ylim(bottom=0)
        if not numbers:
            axes.set_xticks(range(len(places)), places, rotation=30, ha="right", fontsize=8, parse_math=False)
        finish(axes, axis, label, title if name == "tokens_per_call" else "")
    if len(lines) > 1 or lines[0].name:
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9
        )
    return figure
