"""Ways to guess what the target will say: pure functions with explicit state, joined to their weights.

Here are the user's constructors; each returns a `Guide` for `specjax.generate(..., drafter=...)`. The `base.Drafter`s
behind them are in the modules of this folder.
"""

import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import checks
from specjax import verify as _verify
from specjax.base import Drafter
from specjax.drafters import cascade as _cascade
from specjax.drafters import chain
from specjax.drafters import fitting as fitting
from specjax.drafters import ngram as _ngram
from specjax.drafters import plain as _plain
from specjax.drafters import table as _table
from specjax.types import Params


class Guide(NamedTuple):
    """A drafter with its weights and its name.

    Attributes:
      name: for reports.
      drafter: pure functions.
      params: what they read.
      source: the model that it runs, None where it has none.
      positions: positions that it can draft at; None where they are unbounded.
    """

    name: str
    drafter: Drafter
    params: Params = ()
    source: Any = None
    positions: int | None = None

    def check(self, target: Any) -> None:
        """Raises ValueError where this drafter cannot serve the target; names both."""
        if self.source is None:
            return
        if self.source.vocab_size != target.vocab_size:
            raise ValueError(
                f"draft {self.source.name} has a vocabulary of {self.source.vocab_size} tokens and target "
                f"{target.name} one of {target.vocab_size}: their laws are compared token by token, so use models "
                "that share a tokenizer"
            )
        if self.source.encoder_decoder != target.encoder_decoder:
            kinds = {True: "encoder-decoder", False: "decoder-only"}
            raise ValueError(
                f"draft {self.source.name} is {kinds[self.source.encoder_decoder]} and target {target.name} is "
                f"{kinds[target.encoder_decoder]}: use two models of one kind"
            )


def plain() -> Guide:
    """No draft: plain autoregressive decoding, by the same loop. The baseline."""
    return Guide("plain", _plain.plain())


def model(draft: Any, *, gamma: int = 5) -> Guide:
    """A smaller model writes a chain of gamma tokens (Leviathan et al. 2023).

    Args:
      draft: a model from `specjax.load` that shares the target's tokenizer.
      gamma: draft tokens a round, at least 1.
    """
    positions = getattr(draft.config, "max_positions", None)
    return Guide(f"{draft.name} x{gamma}", chain.chain(draft.lm, gamma), draft.params, draft, positions)


def ngram(*, gamma: int = 8, longest: int = 3, shortest: int = 1) -> Guide:
    """Prompt lookup: copies what followed the last few tokens where they occurred before."""
    return Guide(f"ngram x{gamma}", _ngram.ngram(gamma, longest, shortest))


def table(fitted: Any, *, gamma: int = 5) -> Guide:
    """A unigram, bigram or n-gram table: laws that are looked up, at next to no cost (Leviathan et al. 2023, table 3).

    Args:
      fitted: from `fitting.fit`, `fit_texts` or `fit_samples`, or the path of one that `fitting.save` wrote.
      gamma: draft tokens a round, at least 1.

    Raises:
      ValueError: no table, or laws that do not sum to 1.
    """
    checks.whole("gamma", gamma, least=1)
    if isinstance(fitted, str | os.PathLike):
        fitted = fitting.load(fitted)
    elif not isinstance(fitted, _table.Table):
        raise ValueError(
            f"a table comes from drafters.fitting, or is the path of a saved one; got {type(fitted).__name__}"
        )
    else:
        fitting.check(fitted)
    kind = {1: "unigram", 2: "bigram"}.get(fitted.order, f"{fitted.order}-gram table")
    made = _table.table(fitted.order, fitted.vocab_size, gamma)
    return Guide(f"{kind} x{gamma}", made, jax.tree.map(jnp.asarray, fitted))


def cascade(draft: Any, drafter: Any, *, gamma: int = 6, verifier: str | _verify.Verifier = "token") -> Guide:
    """A smaller model writes a chain of gamma tokens, itself sped up by a drafter: speculation of three levels or more.

    `cascade(middle, model(small))` under a target is the hierarchy target > middle > small; the drafter may be a
    cascade again. The output has the target's law all the same.

    Args:
      draft: a model from `specjax.load` that shares the target's tokenizer.
      drafter: a `Guide` that drafts for it.
      gamma: draft tokens a round of the target, at least 1: more than a round of the inner levels yields.
      verifier: of the inner rounds: a name of `specjax.verify.TABLE`, or a `Verifier`; a lossless one.

    Raises:
      ValueError: parts that do not fit together, a lossy verifier, or a drafter that cannot take tokens back.
    """
    checks.whole("gamma", gamma, least=1)
    if not isinstance(drafter, Guide):
        raise ValueError(
            f"the inner drafter must be one from specjax.drafters, got {type(drafter).__name__}: for a draft model "
            "write specjax.drafters.model(draft)"
        )
    chosen = _verify.get(verifier) if isinstance(verifier, str) else verifier
    chosen.require_lossless()
    drafter.check(draft)
    part = drafter.drafter
    chosen.check(part.tree, part.siblings, f"inner drafter {drafter.name!r}", dynamic=part.dynamic)
    if part.rewind is None:
        raise ValueError(
            f"drafter {drafter.name!r} cannot take tokens back (it has no `rewind`), so it cannot serve in a cascade: "
            "use a model, ngram, table, plain or cascade"
        )
    limits = [p for p in (getattr(draft.config, "max_positions", None), drafter.positions) if p is not None]
    return Guide(
        f"{draft.name} x{gamma} ({drafter.name})",
        _cascade.cascade(draft.lm, part, chosen.fn, gamma),
        _cascade.CascadeParams(draft.params, drafter.params),
        draft,
        min(limits, default=None),
    )
