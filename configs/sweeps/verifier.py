"""Who judges: the lossless verifiers of a chain, and of a tree of two siblings a level whose children differ or not.

specjax sweep verifier --picture verifier.svg
"""

from specjax.bench.sweep import Sweep, Way

SWEEP = Sweep(
    axis="verifier",
    about="verifiers of a chain of four, and of trees of 2 x 2",
    ways=(
        Way("model:gamma=4", verifiers=("token", "block", "non-iterative"), line="chain"),
        Way("tree:shape=2x2,siblings=with", verifiers=("multiround", "kseq", "traversal"), line="tree, independent"),
        Way("tree:shape=2x2", verifiers=("multiround-without", "traversal-without"), line="tree, siblings that differ"),
    ),
    temperatures=(1.0,),
    count=8,
)
