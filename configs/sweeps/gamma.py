"""How long to draft: the bundled OPT pair at 1 to 10 draft tokens per round, greedy and sampled.

specjax sweep gamma --picture gamma.svg
"""

from specjax.bench.grid import Grid

GRID = Grid(
    axis="gamma",
    about="draft tokens per round",
    drafters=("model",),
    gammas=(1, 2, 3, 4, 5, 7, 10),
    temperatures=(0.0, 1.0),
    ignore_eos=True,
)
