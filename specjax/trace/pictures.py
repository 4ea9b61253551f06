"""Figures of a trace with matplotlib: strip of tokens, walltime diagram, acceptance by depth.

Every color has a second cue, such as a line style or a height.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from specjax.plotting import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, SKY, VERMILLION, YELLOW
from specjax.trace.lanes import Activity, Lane, longest, summary
from specjax.trace.rounds import DepthCount
from specjax.trace.strip import Mark, StripCell, StripLine, used, wrap

# --- the strip of tokens ---------------------------------------------------------------------------------------------

FONT, MONO, LETTER = 9.0, "DejaVu Sans Mono", 0.602  # size in points, family, width of a letter relative to the size
WIDTH, CONTEXT = 110, 12  # columns of a line, and the least number of them for the context
ROW = 16.0  # points from one row to the next


class MarkStyle(NamedTuple):
    """Appearance of a mark."""

    text: str
    fill: str
    edge: str
    line: Literal["solid", "dashed"] = "solid"
    bold: bool = False
    struck: bool = False


STYLES = {
    Mark.CONTEXT: MarkStyle(GREY, "none", "none"),
    Mark.ACCEPTED: MarkStyle(INK, "#b5e3d3", GREEN),
    Mark.REJECTED: MarkStyle(INK, "#f7cfae", VERMILLION, struck=True),
    Mark.UNTESTED: MarkStyle(GREY, PALE, GREY, line="dashed"),
    Mark.CORRECTION: MarkStyle("white", BLUE, BLUE, bold=True),
    Mark.BONUS: MarkStyle(BLUE, "white", BLUE, bold=True),
}


def strip(new_figure: Any, lines: Sequence[StripLine], *, title: str, note: str = "") -> Any:
    """Strip of tokens: one line per round with the context, accepted and rejected tokens, and the target's token.

    Args:
      lines: lines of one row of the batch, from `strip.lines`.
      note: text below the figure, such as the number of rounds shown.
    """
    wrapped = [wrap(line, WIDTH, context=CONTEXT) for line in lines]
    rows = sum(map(len, wrapped))
    left, right, top, bottom = 44.0, 70.0, 46.0, 40.0 + (12.0 if note else 0.0)
    width, height = WIDTH * FONT * LETTER, rows * ROW
    figure = new_figure(figsize=((left + width + right) / 72, (top + height + bottom) / 72))
    size = (left + width + right, top + height + bottom)
    axes = figure.add_axes((left / size[0], bottom / size[1], width / size[0], height / size[1]))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(rows, 0)
    axes.axis("off")
    figure.text(left / size[0], 1 - 15 / size[1], title, fontsize=11, va="center", parse_math=False)
    heads = {"fontsize": 8.5, "color": INK, "va": "center"}
    figure.text((left - 8) / size[0], 1 - 36 / size[1], "round", ha="right", **heads)
    figure.text((left + width + 8) / size[0], 1 - 36 / size[1], "accepted /\ndrafted", ha="left", **heads)
    at = 0
    for line, parts in zip(lines, wrapped, strict=True):
        aside = {"fontsize": FONT, "color": INK, "va": "center_baseline", "clip_on": False}
        axes.text(-8 / (FONT * LETTER), at + 0.5, str(line.round), ha="right", **aside)
        axes.text(WIDTH + 8 / (FONT * LETTER), at + 0.5, f"{line.accepted} / {line.drafted}", ha="left", **aside)
        for part in parts:
            _draw_cells(axes, part, at)
            at += 1
    _strip_legend(figure, used(lines), note, below=bottom / size[1])
    return figure


def _draw_cells(axes: Any, cells: Sequence[StripCell], row: int) -> None:
    from matplotlib.patches import Rectangle

    column = 0.0
    for cell in cells:
        style, pad = STYLES[cell.mark], 0.0 if cell.mark is Mark.CONTEXT else 1.0
        if style.fill != "none":
            box = Rectangle(
                (column + 0.1, row + 0.08), cell.width + 0.8, 0.84, facecolor=style.fill, edgecolor=style.edge,
                linestyle=style.line, linewidth=1.0,
            )  # fmt: skip
            axes.add_patch(box)
        axes.text(
            column + pad / 2, row + 0.5, cell.text, color=style.text, fontsize=FONT, family=[MONO, "monospace"],
            va="center_baseline", ha="left", weight="bold" if style.bold else "normal", parse_math=False,
        )  # fmt: skip
        if style.struck:
            axes.plot([column + 0.3, column + cell.width + 0.7], [row + 0.5] * 2, color=VERMILLION, lw=1.4, zorder=4)
        column += cell.width + pad


def _strip_legend(figure: Any, marks: Sequence[Mark], note: str, *, below: float) -> None:
    from matplotlib.patches import Patch

    handles = []
    for mark in marks:
        style = STYLES[mark]
        fill, edge = ("#dddddd", "#dddddd") if mark is Mark.CONTEXT else (style.fill, style.edge)
        label = mark.value + (" (struck through)" if style.struck else "")
        handles.append(Patch(facecolor=fill, edgecolor=edge, linestyle=style.line, label=label))
    figure.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, below), ncols=3, frameon=False, fontsize=8.5,
        handlelength=1.4, columnspacing=1.8,
    )  # fmt: skip
    if note:
        figure.text(0.99, 0.01, note, fontsize=8, color=GREY, ha="right", va="bottom")


# --- walltime --------------------------------------------------------------------------------------------------------

BARS = {  # color and height
    Activity.TARGET_PROMPT: (YELLOW, 0.62),
    Activity.DRAFT_PROMPT: (ORANGE, 0.62),
    Activity.DRAFT: (SKY, 0.40),
    Activity.TARGET: (PURPLE, 0.62),
}


def walltime(new_figure: Any, lanes: Sequence[Lane], *, title: str, note: str = "") -> Any:
    """Walltime diagram: forward passes on a time axis, one lane per request."""
    from matplotlib.patches import Patch

    figure = new_figure(figsize=(10.0, 1.7 + 0.95 * len(lanes)), layout="constrained")
    axes = figure.subplots()
    whole = longest(lanes)
    for place, one in enumerate(lanes):
        for kind, (color, height) in BARS.items():
            spans = [(1e3 * span.start, 1e3 * span.seconds) for span in one.spans if span.kind is kind]
            axes.broken_barh(
                spans, (place - height / 2, height), facecolor=color, edgecolor="white",
                linewidth=_gap([span.seconds / whole for span in one.spans if span.kind is kind]),
            )  # fmt: skip
        axes.text(0, place - 0.36, summary(one), fontsize=9, color=INK, va="bottom")
    axes.set_yticks(range(len(lanes)), [one.name for one in lanes], fontsize=10)
    axes.set_ylim(len(lanes) - 0.5, -0.75)
    axes.set_xlim(0, 1e3 * whole * 1.01)
    axes.set_xlabel("walltime (ms)")
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    seen = [kind for kind in Activity if any(span.kind is kind for one in lanes for span in one.spans)]
    handles = [Patch(facecolor=BARS[kind][0], edgecolor="white", label=f"{kind.value}") for kind in seen]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9.5)
    if note:
        axes.annotate(note, (1, 1.02), xycoords="axes fraction", ha="right", fontsize=8.5, color=GREY)
    return figure


def _gap(shares: Sequence[float]) -> float:
    """Gap in points between spans of these shares of the width; 0 if it would hide them."""
    return 0.0 if not shares else min(0.7, max(0.0, 150 * statistics.median(shares) - 0.1))


# --- acceptance by depth ---------------------------------------------------------------------------------------------


def wilson(accepted: int, tested: int) -> tuple[float, float]:
    """95 % confidence interval of a rate (Wilson score interval)."""
    if tested == 0:
        return 0.0, 1.0
    z, rate = 1.96, accepted / tested
    middle = (rate + z * z / (2 * tested)) / (1 + z * z / tested)
    half = z * math.sqrt(rate * (1 - rate) / tested + z * z / (4 * tested * tested)) / (1 + z * z / tested)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def depths(new_figure: Any, found: Sequence[DepthCount], *, title: str) -> Any:
    """Acceptance by depth: accepted / tested as bars with 95 % intervals, share of rounds as a line."""
    figure = new_figure(figsize=(max(6.4, 2.5 + 0.72 * len(found)), 4.2), layout="constrained")
    axes = figure.subplots()
    places = [one.depth for one in found]
    tested = [one for one in found if one.tested]
    rates = [one.rate for one in tested]
    ends = [wilson(one.accepted, one.tested) for one in tested]
    below = [max(rate - low, 0.0) for rate, (low, _) in zip(rates, ends, strict=True)]
    above = [max(high - rate, 0.0) for rate, (_, high) in zip(rates, ends, strict=True)]
    if tested:
        axes.bar(
            [one.depth for one in tested], rates, width=0.7, color=SKY, edgecolor=BLUE, yerr=[below, above],
            ecolor=INK, capsize=3, label="accepted / tested, with 95 % interval",
        )  # fmt: skip
    axes.plot(
        places, [one.reached for one in found], color=VERMILLION, marker="D", ms=6, lw=1.8,
        label="share of rounds that accepted at least this many",
    )  # fmt: skip
    for one in tested:
        counts = f"{one.accepted} of {one.tested}"
        axes.text(one.depth, 1.04, counts, ha="center", va="bottom", fontsize=8.5, color=INK)
    axes.set_xticks(places)
    axes.set_ylim(0, 1.12)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.set_xlabel("depth: position of the token in the draft")
    axes.set_ylabel("share")
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
