"""Self-speculation: the target drafts for itself, with fewer layers, coarser weights or a small part of its cache.

`layer_skip` and `quantized` draft over the target's own cache: a variant of the target reads the keys and values of all
committed tokens, and writes its own past them, where the next target forward pass overwrites them. So the draft needs
no prefill and holds no cache, and its past is exact:

    slots      0 ............ length-1 | length ........ length+gamma-1 |
    content    written by the target   | written by the variant         |    draft
               written by the target   | written by the target ................. verify

`small_kv` (sparse.py) copies some slots of that cache.

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
from specjax.drafters import sparse as _sparse
from specjax.drafters.bounded import needs_model
from specjax.drafters.chain import check_gamma, next_logits, write_chain
from specjax.drafters.loaded import LoadedDrafter
from specjax.models import quantize
from specjax.programs import memoize


def small_kv(
    target: Any, *, gamma: int = 4, budget: int = 256, selection: _sparse.Selection = _sparse.SINKS
) -> LoadedDrafter:
    """The target drafts for itself over a small part of its cache: self-speculation for long contexts.

    A draft step reads budget + gamma slots of keys and values instead of the whole row. By default the first four
    tokens and the latest 252 (StreamingLLM); `SnapKV` and `Retrieval` choose by what recent queries look at.

    Args:
      target: the model that will be the target, from `specjax.load`; its weights are shared.
      gamma: draft tokens a round, at least 1.
      budget: committed slots that a draft step reads.
      selection: what is kept beside the latest tokens.
    """
    needs_model("small_kv", target)
    checks.integer("gamma", gamma, least=1)
    checks.integer("budget", budget, least=1)
    kept = selection.kept(budget)
    drafter = _sparse.small_kv(target.lm, selection.choice(target, kept), gamma, budget, kept)
    return LoadedDrafter(f"{target.name} on {budget} slots x{gamma}", drafter, target.params, target)


def layer_skip(target: Any, *, gamma: int = 4, layers: Sequence[int] | None = None) -> LoadedDrafter:
    """Some of the target's layers draft for all of them, over its own weights and cache: nothing is held twice.

    Args:
      target: the model that will be the target, from `specjax.load`.
      gamma: draft tokens a round, at least 1.
      layers: which layers draft (of the decoder, in T5), ascending; by default half, evenly spread.
    """
    needs_model("layer_skip", target)
    checks.integer("gamma", gamma, least=1)
    count = target.config.decoder_layers if target.encoder_decoder else target.config.layers
    chosen = check_layers(layers, count)
    drafter = borrowed_chain(target.variant(chosen=chosen), gamma)
    return LoadedDrafter(f"{target.name}, {len(chosen)} of {count} layers x{gamma}", drafter, target.params, target)


def quantized(target: Any, *, gamma: int = 4) -> LoadedDrafter:
    """The target with int8 weights drafts for the target, over its cache; the int8 weights are made here, once.

    Args:
      target: the model that will be the target, from `specjax.load`.
      gamma: draft tokens a round, at least 1.
    """
    needs_model("quantized", target)
    checks.integer("gamma", gamma, least=1)
    if target.fmt.dtype == quantize.INT8:
        raise ValueError(f"{target.name} has int8 weights already: its quantized draft would be the target itself")
    weights = quantize.quantized(target.params, fmt=target.fmt)
    lm = target.variant(fmt=quantize.format_of(target.fmt))
    return LoadedDrafter(f"{target.name} in int8 x{gamma}", borrowed_chain(lm, gamma), weights, target)


@memoize
def borrowed_chain(lm: LanguageModel, gamma: int) -> Drafter:
    """A chain of gamma tokens sampled from `lm`, which reads and writes the cache of the target.

    `lm` must understand that cache: a variant of the target (`Model.variant`).

    Raises:
      ValueError: gamma below 1.
    """
    check_gamma(gamma)

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
