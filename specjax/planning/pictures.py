"""A plan as a picture: memory of a chip by group, and predicted speed by number of rows."""

import dataclasses
from pathlib import Path
from typing import Any

from specjax import plotting
from specjax.planning import roofline
from specjax.planning.planner import Plan
from specjax.sharding import DATA

GIB, MOST = 2**30, 2048  # rows


def draw(plan: Plan, file: Path) -> None:
    """Writes the picture to an .svg or .png file. Requires matplotlib."""
    plotting.save(file, lambda figure: _figure(plan, figure(figsize=(9, 3.6), layout="constrained")))


def _figure(plan: Plan, figure: Any) -> Any:
    left, right = figure.subplots(1, 2, width_ratios=(1, 2))
    bottom = 0.0
    parts = {**plan.groups, **({} if plan.temporaries is None else {"temporaries": plan.temporaries})}
    for (name, size), color in zip(parts.items(), plotting.COLORS, strict=False):
        left.bar([0], [size / GIB], 0.5, bottom=bottom, label=name, color=color)
        bottom += size / GIB
    left.axhline(plan.memory / GIB, color=plotting.INK, linestyle="--", label="chip")
    plotting.finish(left, "", "GiB", "memory of a chip")
    left.set(xticks=[], xlim=(-0.6, 1.6))
    left.legend(frameon=False, fontsize=8)
    data = plan.request.axes[DATA]
    rows = [data * 2**power for power in range(11) if data * 2**power <= MOST]
    speeds = [roofline.speed(dataclasses.replace(plan.request, rows=count), plan.alpha) for count in rows]
    curves = {"plain": [one.plain_per_second for one in speeds]}
    if plan.request.draft is not None:
        curves[f"with the draft, α = {plan.alpha:g}"] = [one.tokens_per_second for one in speeds]
    for (name, curve), color in zip(curves.items(), (plotting.GREY, plotting.BLUE), strict=False):
        right.plot(rows, [one.value for one in curve], label=name, color=color)
        bounds = [one.least for one in curve], [one.most for one in curve]
        right.fill_between(rows, *bounds, color=color, alpha=0.2, lw=0)
    right.set(xscale="log", yscale="log")
    plotting.finish(right, "rows", "tokens per second", plan.request.target)
    right.legend(frameon=False, fontsize=8)
    return figure
