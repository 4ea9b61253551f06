"""Greedy to hot: a draft model, and prompt lookup, at temperatures 0 to 1.5.

specjax sweep temperature --picture temperature.svg
"""

from specjax.bench.grid import Grid

GRID = Grid(
    axis="temperature",
    about="temperature, with a draft model and with prompt lookup",
    drafters=("model", "ngram"),
    gammas=(3,),
    temperatures=(0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5),
    ignore_eos=True,
)
