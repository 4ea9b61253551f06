"""Which verifier: the lossless verifiers of a chain, and of a tree of two siblings per level, independent or distinct.

specjax sweep verifier --picture verifier.svg
"""

from specjax.bench.grid import Grid
from specjax.strategy import Strategy


def each(drafter: str, *verifiers: str) -> tuple[Strategy, ...]:
    """The drafter with each of the verifiers."""
    strategy = Strategy.parse(drafter)
    return tuple(Strategy(strategy.name, strategy.settings, verifier) for verifier in verifiers)


GRID = Grid(
    axis="verifier",
    about="verifiers of a chain of four, and of trees of 2 x 2",
    drafters={
        "chain": each("model:gamma=4", "token", "block", "non-iterative"),
        "tree, independent siblings": each("tree:shape=2x2,siblings=with", "multiround", "kseq", "traversal"),
        "tree, distinct siblings": each("tree:shape=2x2", "multiround-without", "traversal-without"),
    },
    temperatures=(1.0,),
    ignore_eos=True,
)
