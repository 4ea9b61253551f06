"""How large a tree: chains, and trees of two siblings near the root, of the bundled OPT pair.

specjax sweep tree_size --picture tree_size.svg
"""

from specjax.bench.grid import Grid

CHAINS = tuple(f"tree:shape={'x'.join('1' * depth)}" for depth in (1, 2, 3, 4, 6))
SHAPES = ("2", "2x1", "2x2", "2x2x1", "3x2x1", "2x2x2x1")

GRID = Grid(
    axis="nodes",
    about="nodes of the tree, the root included",
    drafters={"chain": CHAINS, "branching": tuple(f"tree:shape={shape}" for shape in SHAPES)},
    temperatures=(0.0, 1.0),
    ignore_eos=True,
)
