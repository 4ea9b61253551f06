"""How plots of measurements look: colors of Okabe and Ito, which color-blind readers tell apart, and few lines."""

from typing import Any

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#54278f")
INK = "#222222"


def finish(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", lw=0.7)
    axes.set_axisbelow(True)
