"""Figures of the experiments."""

from collections.abc import Sequence
from typing import Any

from specjax.bench.record import Row
from specjax.plotting import COLORS, INK, finish


def best_gamma(new_figure: Any, rows: Sequence[Row]) -> Any:
    """The best gamma by alpha, one line per c."""
    figure = new_figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for row, color in zip(rows, COLORS, strict=False):
        axes.step(row["alpha"], row["gamma"], where="mid", color=color, lw=1.8)
        axes.annotate(
            f"c = {row['c']}", (row["alpha"][-1], row["gamma"][-1]), xytext=(5, 0), textcoords="offset points",
            color=color, fontsize=9, va="center",
        )  # fmt: skip
    axes.set_xlim(right=1.01)
    axes.set_ylim(bottom=0)
    finish(axes, "α", "best γ", "The best draft length")
    return figure


def factors(new_figure: Any, rows: Sequence[Row], points: Sequence[Any]) -> Any:
    """Speed and operations by alpha, one line per gamma, with crosses for the published table."""
    figure = new_figure(figsize=(9.6, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, name, title in zip(panels, ("speed", "operations"), ("Speed", "Operations"), strict=True):
        for row, color in zip(rows, COLORS, strict=False):
            axes.plot(row["alpha"], row[name], color=color, lw=1.8, label=f"γ = {row['gamma']}")
        printed = [(one.alpha, getattr(one, name)) for one in points]
        axes.scatter(*zip(*printed, strict=True), marker="x", color=INK, zorder=4, label="table 1, printed")
        finish(axes, "α", "factor over plain decoding", f"{title}, c = 0")
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def lanes(new_figure: Any, rows: Sequence[Row]) -> Any:
    """The walltime diagram of `specjax trace`."""
    from specjax.trace import lanes as timing
    from specjax.trace import pictures

    made = [
        timing.Lane(
            row["lane"], tuple(timing.Span(timing.Activity[kind], start, spent) for kind, start, spent in row["calls"]),
            row["tokens"],
        )
        for row in rows
    ]  # fmt: skip
    return pictures.walltime(new_figure, made, title="One translation: speculative and standard decoding")
