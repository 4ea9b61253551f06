"""Advice as a picture, SVG or PNG: speed-up against draft length with what was measured, and the verify-cost curve."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax import plotting
from specjax.advisor import say, ways
from specjax.plotting import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, VERMILLION

if TYPE_CHECKING:
    from specjax.advisor.desk import Advice

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
MARKERS = "oDs^vP"


def write(path: Path, advice: "Advice") -> None:
    """Draws into `path`, whose ending says the format.

    Raises:
      ValueError: nothing was timed, matplotlib is not installed, or the ending is neither .svg nor .png.
    """
    if advice.measured is None:
        raise ValueError("there is nothing to draw: the run was interrupted before anything was timed")
    plotting.save(path, lambda figure: draw(figure, advice))


def draw(new_figure: Any, advice: "Advice") -> Any:
    """Left: predicted and measured speed-up by the levels of a draft. Right: a call of the target by its tokens."""
    assert advice.measured is not None
    figure = new_figure(figsize=(10.5, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    figure.suptitle(say.verdict(advice), fontsize=11, x=0.01, ha="left", parse_math=False)
    _speeds(left, advice)
    _curve(right, advice)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _speeds(axes: Any, advice: "Advice") -> None:
    lines: dict[str, dict[int, float]] = {}
    for one in advice.candidates:
        best = lines.setdefault(_series(advice, one.way), {})
        at = ways.levels(one.way)
        best[at] = max(best.get(at, 0.0), one.speedup)
    for place, (name, line) in enumerate(lines.items()):
        places = sorted(line)
        axes.plot(
            places, [line[at] for at in places], color=COLOURS[place % len(COLOURS)], ms=4, lw=1.4,
            marker=MARKERS[place % len(MARKERS)],
            label=f"{name}, predicted",
        )  # fmt: skip
    series = list(lines)
    for one in advice.trials:
        place = series.index(_series(advice, one.way))
        ends, color = [[one.speedup - one.least], [one.most - one.speedup]], COLOURS[place % len(COLOURS)]
        axes.errorbar(
            [ways.levels(one.way)], [one.speedup], yerr=ends, color=color, ecolor=INK, capsize=3,
            marker=MARKERS[place % len(MARKERS)], ms=8, mec=INK, ls="none",
            label=f"{ways.label(one.way, advice.drafts)}, measured",
        )  # fmt: skip
    axes.axhline(1.0, color=GREY, lw=1, ls="--")
    axes.text(0.99, 1.0, "plain decoding", transform=axes.get_yaxis_transform(), ha="right", va="bottom", color=GREY,
              fontsize=8.5)  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens drafted one after the other: \u03b3, or levels of a tree")
    axes.set_ylabel("speed over plain decoding")
    axes.set_title("Predicted and measured", fontsize=10, loc="left")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)


def _curve(axes: Any, advice: "Advice") -> None:
    assert advice.measured is not None
    curve = advice.measured.curve
    relative = [took / curve.step for took in curve.seconds]
    axes.errorbar(
        curve.widths, relative, yerr=[off / curve.step for off in curve.spread], color=PURPLE, ecolor=INK, capsize=2,
        marker="o", ms=4, lw=1.4,
    )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xticks(curve.widths)
    axes.set_xlabel("tokens checked in one call")
    axes.set_ylabel("time, in steps of plain decoding")
    axes.set_title("Cost of verifying here", fontsize=10, loc="left")


def _series(advice: "Advice", way: ways.Way) -> str:
    models = " > ".join(ways.short(advice.drafts[number]) for number in way.drafts)
    return f"{way.kind} {models}".strip()
