"""How long to draft: the bundled OPT pair at 1 to 10 draft tokens a round, greedy and sampled.

specjax sweep gamma --picture gamma.svg
"""

from specjax.bench.sweep import Sweep

SWEEP = Sweep(
    axis="gamma",
    about="draft tokens a round",
    ways=tuple(f"model:gamma={gamma}" for gamma in (1, 2, 3, 4, 5, 7, 10)),
    temperatures=(0.0, 1.0),
)
