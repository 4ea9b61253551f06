"""Constructors of self-speculation: the target drafts for itself, over few slots, few layers or coarse weights."""

from collections.abc import Sequence
from typing import Any

from specjax import checks
from specjax.drafters import borrowed as _borrowed
from specjax.drafters import bounded as _bounded
from specjax.drafters import layer_skip as _layer_skip
from specjax.drafters import quantized as _quantized
from specjax.drafters import sparse as _sparse
from specjax.drafters.loaded import LoadedDrafter
from specjax.model import Model


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


def bounded(
    draft: Any, *, budget: int = 256, selection: _sparse.Selection = _sparse.SINKS, slack: int = 32, block: int = 32
) -> Model:
    """The same model over a cache that never grows, to draft with: `model(bounded(small))`, or in a cascade.

    `cascade(bounded(target, budget=4096, selection=Retrieval()), model(bounded(small)))` under the target is TriForce.

    Args:
      draft: a model from `specjax.load`.
      budget: slots of the kept and the settled tokens.
      selection: what is kept beside the latest tokens; chosen once, after the prompt.
      slack: tokens that can be taken back; at least what is drafted in a round.
      block: longest block that is fed at once; at least what is drafted in a round, and one.
    """
    needs_model("bounded", draft)
    return _bounded.bound(draft, budget=budget, selection=selection, slack=slack, block=block)


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
    chosen = _layer_skip.check_layers(layers, count)
    drafter = _borrowed.chain_on_loan(target.variant(chosen=chosen), gamma)
    return LoadedDrafter(f"{target.name}, {len(chosen)} of {count} layers x{gamma}", drafter, target.params, target)


def quantized(target: Any, *, gamma: int = 4) -> LoadedDrafter:
    """The target with int8 weights drafts for the target, over its cache; the int8 weights are made here, once.

    Args:
      target: the model that will be the target, from `specjax.load`.
      gamma: draft tokens a round, at least 1.
    """
    needs_model("quantized", target)
    checks.integer("gamma", gamma, least=1)
    lm, weights = _quantized.int8(target)
    return LoadedDrafter(f"{target.name} in int8 x{gamma}", _borrowed.chain_on_loan(lm, gamma), weights, target)


def needs_model(caller: str, target: Any) -> None:
    """Raises ValueError unless the target is a model from `specjax.load`, over whole caches."""
    if isinstance(target, _bounded.BoundedModel):
        raise ValueError(f"{caller} needs a model over whole caches, and {target.name} has given most of its up")
    if not isinstance(target, Model):
        raise ValueError(f"{caller} takes a model from specjax.load, got {target!r}: load it first")
