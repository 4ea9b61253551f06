"""Pictures of a tree and its mask, SVG or PNG. Requires matplotlib, which is imported on use."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specjax import plotting
from specjax.trees.static import Tree

INK, PAPER, ACCENT = "#222222", "#e6e6e6", "#31688e"


def save(tree: Tree, path: Path, *, values: Sequence[float] | None = None) -> None:
    """Draws the tree beside its mask into `path`, written atomically.

    Deterministic: equal trees give equal files (no date, no random ids).

    Args:
      path: ends in .svg or .png, which selects the format.
      values: [N], the probability that each node is accepted, shown as color.

    Raises:
      ValueError: matplotlib is not installed, or the suffix is not supported.
    """
    plotting.save(path, lambda figure: draw(tree, figure, values), font_size=9.0)


def places(tree: Tree) -> list[float]:
    """The horizontal position of every node: leaves in depth-first order, parents centered above their children."""
    kids: list[list[int]] = [[] for _ in tree.parents]
    for node, parent in enumerate(tree.parents[1:], start=1):
        kids[parent].append(node)
    column = [0.0] * tree.size
    leaves, stack = 0, [0]
    while stack:
        node = stack.pop()
        if not kids[node]:
            column[node], leaves = float(leaves), leaves + 1
        stack += reversed(kids[node])
    for node in range(tree.size - 1, -1, -1):
        if kids[node]:
            column[node] = (column[kids[node][0]] + column[kids[node][-1]]) / 2
    return column


def draw(tree: Tree, new_figure: Any, values: Sequence[float] | None) -> Any:
    """The figure: tree on the left, mask on the right."""
    column = places(tree)
    leaves, levels, n = max(column) + 1, tree.width, tree.size
    left = min(max(2.6, 0.42 * leaves), 16.0)
    height = min(max(2.8, 0.62 * levels, 0.13 * n + 0.8), 14.0)
    right = min(height, max(2.6, 0.13 * n + 1.0))
    bar = 0.7 if values is not None else 0.0
    figure = new_figure(figsize=(left + bar + right + 1.0, height), layout="constrained")
    shape, mask = figure.subplots(1, 2, width_ratios=(left + bar, right))
    _draw_tree(figure, shape, tree, column, values, cell=min(left / leaves, 0.9 * height / levels))
    _draw_mask(mask, tree)
    return figure


def _draw_tree(figure: Any, axes: Any, tree: Tree, column: list[float], values, *, cell: float) -> None:
    from matplotlib.colors import PowerNorm  # a square-root scale separates improbable deep nodes

    depth = [-int(d) for d in tree.depth]
    for node, parent in enumerate(tree.parents[1:], start=1):
        axes.plot([column[parent], column[node]], [depth[parent], depth[node]], color="#999999", lw=1, zorder=1)
    side = min(240.0, (0.75 * 72 * cell) ** 2)  # keeps neighboring circles apart
    colors: dict[str, Any] = (
        {"c": values, "cmap": "viridis", "norm": PowerNorm(0.5, 0, 1)} if values else {"color": ACCENT}
    )
    dots = axes.scatter(column, depth, s=side, zorder=2, **colors)
    if side >= 90:
        for node in range(tree.size):
            light = values is not None and values[node] > 0.4
            axes.text(
                column[node], depth[node], str(node), ha="center", va="center_baseline",
                fontsize=min(9.0, 0.48 * side**0.5), color=INK if light else "white", zorder=3,
            )  # fmt: skip
    if values is not None:
        figure.colorbar(dots, ax=axes, label="probability of being accepted", fraction=0.04, pad=0.02, aspect=30)
    levels = range(0, tree.width, 1 if tree.width <= 32 else 8)
    axes.set_yticks([-d for d in levels], [str(d) for d in levels])
    axes.set_ylabel("depth")
    axes.set_xticks([])
    axes.margins(x=0.6 / max(len(set(column)), 2), y=0.5 / max(tree.width, 2))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(
        f"{tree.size} {'nodes' if tree.size > 1 else 'node'}, root included"
        + (f"; expects {sum(values):.2f} tokens" if values else "")
    )


def _draw_mask(axes: Any, tree: Tree) -> None:
    from matplotlib.colors import ListedColormap

    n = tree.size
    axes.imshow(tree.mask, cmap=ListedColormap([PAPER, ACCENT]), vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks([i - 0.5 for i in range(1, n)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, n)], minor=True)
    axes.grid(which="minor", color="white", lw=0.8 if n <= 32 else 0.4)
    step = 1 if n <= 16 else 4 if n <= 48 else 8
    axes.set_xticks(range(0, n, step))
    axes.set_yticks(range(0, n, step))
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("is seen")
    axes.set_ylabel("node")
    axes.set_title("mask")
