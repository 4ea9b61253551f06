"""Pictures as SVG or PNG files. matplotlib is imported when one is made."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specjax import files

FORMATS = ("svg", "png")
DPI = 150


def save(path: Path, draw: Callable[[Any], Any], *, font_size: float = 10.0) -> None:
    """Draws into `path`, whose ending says the format; the file appears whole or not at all.

    The same figure gives the same file: no date, no random names.

    Args:
      draw: takes matplotlib's Figure class and returns a figure.
      font_size: points, of text that asks for no other.

    Raises:
      ValueError: matplotlib is not installed, or the ending is another.
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
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # shown as a box, and so be it
        metadata = {"Date": None} if kind == "svg" else None
        draw(Figure).savefig(aside, format=kind, dpi=DPI, metadata=metadata)


def require() -> None:
    """Raises ValueError where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError("drawing pictures needs matplotlib (pip install 'specjax[plot]')") from error
