"""Self-speculation over the target's own cache: the target drafts for itself, with fewer layers or int8 weights.

A variant of the target reads the target's keys and values of all committed tokens, and writes its own past them, where
the next target forward pass overwrites them. The draft needs neither a prefill nor a cache of its own, and the keys
and values that it reads are exact:

    slots      0 ............ length-1 | length ........ length+gamma-1 |
    content    written by the target   | written by the variant         |    draft
               written by the target   | written by the target ................. verify

Draft & Verify (Zhang et al. 2023, arXiv 2309.08168) searches the best set of layers; LayerSkip (Elhoushi et al. 2024,
arXiv 2404.16710) trains models to exit early. QuantSpec (Tiwari et al. 2025, arXiv 2502.10424) quantizes to 4 bits; the
int8 weights here have one scale for each output channel.
"""

import reprlib
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from specjax import checks, trees
from specjax.base import Drafter, LanguageModel
from specjax.drafters.chain import write_chain
from specjax.drafters.loaded import LoadedDrafter, check_model, layer_count
from specjax.drafters.writer import next_logits
from specjax.models import quantize
from specjax.programs import memoize


def layer_skip(target: Any, *, gamma: int = 4, layers: Sequence[int] | None = None) -> LoadedDrafter:
    """Self-speculation with some of the target's layers, over its own weights and cache: nothing is held twice.

    Draft & Verify, Zhang et al. 2023, arXiv 2309.08168, section 3. Lossless with any lossless verifier of chains.

    Args:
      target: the model that will be the target, from `specjax.load`.
      gamma: draft tokens per round, at least 1.
      layers: which layers draft (of the decoder, in T5), ascending; by default half of them, evenly spaced.

    Returns:
      The drafter of this target.

    Raises:
      ValueError: layers that are not some of the model's, in ascending order.

    >>> import specjax as sj
    >>> drafter = sj.drafters.layer_skip(sj.load("bundled/opt-target"), gamma=3, layers=[0, 1, 6, 7])
    >>> drafter.name
    'bundled/opt-target, 4 of 8 layers x3'
    """
    check_model("target", target, bounded=False)
    checks.integer("gamma", gamma, least=1)
    count = layer_count(target)
    chosen = check_layers(layers, count)
    drafter = borrowed_chain(target.variant(chosen=chosen), gamma)
    return LoadedDrafter(f"{target.name}, {len(chosen)} of {count} layers x{gamma}", drafter, target.params, target)


def quantized(target: Any, *, gamma: int = 4) -> LoadedDrafter:
    """Self-speculation with int8 weights, over the target's cache; the int8 weights are made here, once.

    One float32 scale per output channel. Lossless with any lossless verifier of chains. QuantSpec, Tiwari et al. 2025,
    arXiv 2502.10424, does the same with 4 bits.

    Args:
      target: the model that will be the target, from `specjax.load`.
      gamma: draft tokens per round, at least 1.

    Returns:
      The drafter of this target.

    Raises:
      ValueError: the target has int8 weights already.

    >>> import specjax as sj
    >>> sj.drafters.quantized(sj.load("bundled/opt-target"), gamma=3).name
    'bundled/opt-target in int8 x3'
    """
    check_model("target", target, bounded=False)
    checks.integer("gamma", gamma, least=1)
    if target.fmt.int8_weights:
        raise ValueError(f"{target.name} has int8 weights already: its quantized draft would be the target itself")
    weights = quantize.quantized(target.params, fmt=target.fmt)
    lm = target.variant(fmt=target.fmt.quantized())
    return LoadedDrafter(f"{target.name} in int8 x{gamma}", borrowed_chain(lm, gamma), weights, target)


@memoize
def borrowed_chain(lm: LanguageModel, gamma: int) -> Drafter:
    """A chain of gamma tokens sampled from `lm`, a variant of the target that reads and writes the target's cache."""

    def init(params, prompt, length, cache_len, prefilled):
        del params, prompt, length, cache_len, prefilled
        return ()

    def propose(params, key, state, pending, warp, cache):
        feed = lambda token, cache: next_logits(lm, params, cache, token)
        draft, cache = write_chain(feed, None, cache, pending, key, warp, gamma=gamma, vocab_size=lm.vocab_size)
        return draft, state, lm.keep(cache, None, jnp.full_like(pending, -gamma))

    def commit(params, state, committed, cache):
        del params, committed, cache
        return state

    def rewind(params, state, back, token, cache):
        del params, back, token, cache  # nothing is remembered
        return state

    return Drafter(trees.chain(gamma), init, propose, commit, lm.vocab_size, borrows=True, rewind=rewind)


def spread(count: int, kept: int) -> tuple[int, ...]:
    """`kept` of `count` layers, the first and the last among them, evenly spaced: where a search may start."""
    if kept == 1:
        return (0,)
    return tuple(round(i * (count - 1) / (kept - 1)) for i in range(kept))


def check_layers(layers: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """The layers that draft: the given ones, or half of all by `spread`.

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
