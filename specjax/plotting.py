"""Figures as SVG or PNG files, and the colors and axes that they share. matplotlib is imported when one is drawn."""

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specjax import files

FORMATS = ("svg", "png")
DPI = 150

# Colors of Okabe and Ito, which color-blind readers can distinguish.
INK, GREY, PALE = "#222222", "#8a8a8a", "#f2f2f2"
GREEN, VERMILLION, BLUE, SKY, YELLOW, ORANGE, PURPLE = (
    "#009e73", "#d55e00", "#0072b2", "#56b4e9", "#f0e442", "#e69f00", "#54278f",
)  # fmt: skip
COLORS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY)  # of lines, in this order
MARKERS = "oDs^vP"
STROKES = ("-", "--", ":", "-.")


def looks(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Color, marker and line style of each line: no two of up to 36 look the same."""
    found = {}
    for place, name in enumerate(names):
        turn, at = divmod(place, len(COLORS))
        marker, stroke = MARKERS[(at + turn) % len(MARKERS)], STROKES[turn % len(STROKES)]
        found[name] = {"color": COLORS[at], "marker": marker, "ls": stroke}
    return found


def save(path: Path, draw: Callable[[Any], Any], *, font_size: float = 10.0) -> None:
    """Draws a figure into a file, atomically and reproducibly: the same figure gives the same bytes.

    Args:
      path: file with the suffix .svg or .png.
      draw: receives matplotlib's Figure class and returns a figure.
      font_size: default text size in points.

    Raises:
      ValueError: matplotlib is not installed, or another suffix.
    """
    kind = path.suffix[1:]
    if kind not in FORMATS:
        raise ValueError(f"a picture's name ends in .svg or .png, got {path.name!r}")
    require()
    import matplotlib
    from matplotlib.figure import Figure

    with (
        files.whole(path) as aside,
        matplotlib.rc_context({"svg.hashsalt": "specjax", "svg.fonttype": "none", "font.size": font_size}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # drawn as a box
        metadata = {"Date": None} if kind == "svg" else None
        draw(Figure).savefig(aside, format=kind, dpi=DPI, metadata=metadata)


def require() -> None:
    """Raises ValueError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError("drawing pictures needs matplotlib (pip install 'specjax[plot]')") from error


def finish(axes: Any, x: str, y: str, title: str) -> None:
    """Labels the axes, removes the frame and adds horizontal grid lines."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", lw=0.7)
    axes.set_axisbelow(True)
