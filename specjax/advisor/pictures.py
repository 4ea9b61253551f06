"""Advice as a figure: predicted and measured speed-up by draft length, and the verify curve."""

from pathlib import Path
from typing import Any

from specjax import plotting
from specjax.advisor import report
from specjax.advisor.report import Advice
from specjax.plotting import COLORS, GREY, INK, PURPLE
from specjax.registry import Strategy

MARKERS = "oDs^vP"


def write(path: Path, advice: Advice) -> None:
    """Draws into an .svg or .png file.

    Raises:
      ValueError: nothing was timed, matplotlib is not installed, or another suffix.
    """
    if advice.measured is None:
        raise ValueError("the advice has nothing to draw: it was interrupted before anything was timed")
    plotting.save(path, lambda figure: draw(figure, advice))


def draw(new_figure: Any, advice: Advice) -> Any:
    """Left: predicted and measured speed-up by the levels of a draft. Right: cost of verification by width."""
    figure = new_figure(figsize=(10.5, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    figure.suptitle(report.verdict(advice), fontsize=11, x=0.01, ha="left", parse_math=False)
    _speeds(left, advice)
    _curve(right, advice)
    return figure


def _speeds(axes: Any, advice: Advice) -> None:
    lines: dict[str, dict[int, float]] = {}
    for one in advice.candidates:
        best, at = lines.setdefault(_family(advice, one.strategy), {}), one.strategy.levels
        best[at] = max(best.get(at, 0.0), one.speedup)
    look = {
        name: {"color": COLORS[place % len(COLORS)], "marker": MARKERS[place % len(MARKERS)]}
        for place, name in enumerate(lines)
    }
    for name, line in lines.items():
        levels = sorted(line)
        axes.plot(levels, [line[at] for at in levels], ms=4, lw=1.4, label=f"{name}, predicted", **look[name])
    for one in advice.trials:
        ends = [[one.speedup - one.least], [one.most - one.speedup]]
        axes.errorbar(
            [one.strategy.levels], [one.speedup], yerr=ends, ecolor=INK, capsize=3, ms=8, mec=INK, ls="none",
            label=f"{report.named(advice, one.strategy)}, measured", **look[_family(advice, one.strategy)],
        )  # fmt: skip
    axes.axhline(1.0, color=GREY, lw=1, ls="--")
    axes.text(0.99, 1.0, "plain decoding", transform=axes.get_yaxis_transform(), ha="right", va="bottom", color=GREY,
              fontsize=8.5)  # fmt: skip
    plotting.finish(axes, "levels of the draft: \u03b3, or depth of a tree", "speed-up", "Predicted and measured")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)


def _curve(axes: Any, advice: Advice) -> None:
    assert advice.measured is not None
    curve = advice.measured.curve
    relative = [took / curve.step for took in curve.seconds]
    axes.errorbar(
        curve.widths, relative, yerr=[off / curve.step for off in curve.spread], color=PURPLE, ecolor=INK, capsize=2,
        marker="o", ms=4, lw=1.4,
    )  # fmt: skip
    plotting.finish(axes, "verified tokens per row", "time, in steps of plain decoding", "Cost of verification")
    axes.set_ylim(bottom=0)
    axes.set_xticks(curve.widths)


def _family(advice: Advice, strategy: Strategy) -> str:
    return f"{strategy.name} {' > '.join(report.short(advice.drafts[number]) for number in strategy.drafts)}".strip()
