"""How large a draft: two models of 0.4 and 0.8 million parameters, some of the target's own layers, and its int8 copy.

specjax sweep draft_size --picture draft_size.svg
"""

from specjax.bench.grid import Grid
from specjax.strategy import Strategy

GRID = Grid(
    axis="drafter",
    about="size of the draft, from nothing to all of the target",
    drafts=("bundled/opt-draft", "bundled/opt-tiny"),
    drafters={
        "prompt lookup": ("ngram",),
        "opt-tiny": (Strategy.of("model", drafts=(1,)),),
        "opt-draft": (Strategy.of("model", drafts=(0,)),),
        "layers of the target": ("layer-skip:layers=0-3", "layer-skip:layers=0-2+4+6-7"),
        "int8 target": ("quantized",),
    },
    gammas=(3,),
    temperatures=(0.0, 1.0),
    ignore_eos=True,
)
