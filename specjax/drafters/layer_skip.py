"""Layer-skip self-speculation: some of the target's layers draft, over the target's own weights and cache.

The layers that are left out add nothing to the residual stream; those that run read the keys and values that they wrote
themselves when the target last ran, so the draft's past is exact. No weight and no cache is copied: `borrowed.py`.

Draft & Verify (Zhang et al. 2023, arXiv 2309.08168), which searches the best set of layers; LayerSkip (Elhoushi et al.
2024, arXiv 2404.16710) trains models to leave after the first ones.
"""

import reprlib
from collections.abc import Sequence

from specjax import checks


def spread(count: int, kept: int) -> tuple[int, ...]:
    """`kept` of `count` layers, the first and the last among them, evenly spread: what to start a search from."""
    if kept == 1:
        return (0,)
    return tuple(round(i * (count - 1) / (kept - 1)) for i in range(kept))


def check_layers(layers: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """The layers that draft: as asked, or half of all by `spread`.

    Raises:
      ValueError: none, all of them, one twice, one that the model lacks, or not in ascending order.
    """
    if layers is None:
        if count < 2:
            raise ValueError(f"a model of {count} layer has none to skip: draft with another model or with ngram")
        return spread(count, max(count // 2, 1))
    given = checks.items(layers)
    if not given or not all(map(checks.is_integer, given)) or given != sorted(set(given)) or given[0] < 0:
        given = []
    chosen = tuple(int(layer) for layer in given)
    if not chosen or chosen[-1] >= count:
        raise ValueError(
            f"layers must be some of 0..{count - 1}, each once and in ascending order, got {reprlib.repr(layers)}"
        )
    if len(chosen) == count:
        raise ValueError(f"layers names all {count} layers, which is the target itself: leave some out")
    return chosen
