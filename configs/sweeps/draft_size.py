"""How large a draft: two models of 0.4 and 0.8 million parameters, some of the target's own layers, and its int8 copy.

specjax sweep draft_size --picture draft_size.svg
"""

from specjax.bench.sweep import Sweep, Way

SWEEP = Sweep(
    axis="drafter",
    about="size of the draft, from nothing to all of the target",
    ways=(
        "ngram:gamma=3",
        Way("model:gamma=3", drafts=("bundled/opt-tiny",)),
        Way("model:gamma=3", drafts=("bundled/opt-draft",)),
        "layer-skip:gamma=3,layers=0-3",
        "layer-skip:gamma=3,layers=0-2+4+6-7",
        "quantized:gamma=3",
    ),
    temperatures=(0.0, 1.0),
)
