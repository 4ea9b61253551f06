"""How large a tree: chains, and trees of two siblings near the root, of the bundled OPT pair.

specjax sweep tree_size --picture tree_size.svg
"""

from specjax.bench.sweep import Sweep, Way

CHAINS = tuple(Way(f"tree:shape={'x'.join('1' * depth)}", line="chain") for depth in (1, 2, 3, 4, 6))
SHAPES = ("2", "2x1", "2x2", "2x2x1", "3x2x1", "2x2x2x1")
WIDE = tuple(Way(f"tree:shape={shape}", line="branching") for shape in SHAPES)

SWEEP = Sweep(
    axis="nodes",
    about="nodes of the tree, the root included",
    ways=(*CHAINS, *WIDE),
    temperatures=(0.0, 1.0),
)
