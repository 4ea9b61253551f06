"""Unigram, bigram and n-gram tables as drafters: distributions that are looked up, at next to no cost.

Leviathan et al. 2023 (arXiv 2211.17192), table 3: even a bigram is accepted often enough to pay where drafting is free.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax import checks, trees
from specjax.base import Drafter
from specjax.drafters import fitting
from specjax.drafters.chain import write_chain
from specjax.drafters.fitting import Table, bucket
from specjax.drafters.loaded import LoadedDrafter
from specjax.drafters.ngram import History, drafter_of_history
from specjax.programs import memoize
from specjax.types import Siblings


def table(fitted: Any, *, gamma: int = 5) -> LoadedDrafter:
    """A unigram, bigram, or n-gram table drafts a chain at almost no cost.

    Lossless with any lossless verifier of chains. Leviathan et al. 2023, arXiv 2211.17192, section 3.6 and table 3.

    Args:
      fitted: from `fitting.fit`, `fitting.fit_texts` or `training.table.fit_samples`, or the path of a file that
        `fitting.save` wrote.
      gamma: draft tokens per round, at least 1.

    Returns:
      The drafter.

    Raises:
      ValueError: not a table, or distributions that do not sum to 1.

    >>> import specjax as sj
    >>> fitted = sj.drafters.fitting.fit([[1, 2, 3, 1, 2]], vocab_size=8)
    >>> sj.drafters.table(fitted, gamma=3).name
    'bigram x3'
    """
    checks.integer("gamma", gamma, least=1)
    if isinstance(fitted, str | os.PathLike):
        fitted = fitting.load(fitted)
    elif not isinstance(fitted, Table):
        raise ValueError(
            f"a table comes from drafters.fitting, or is the path of a saved one; got {type(fitted).__name__}"
        )
    else:
        fitting.check(fitted)
    kind = {1: "unigram", 2: "bigram"}.get(fitted.order, f"{fitted.order}-gram table")
    made = table_drafter(fitted.order, fitted.vocab_size, gamma)
    return LoadedDrafter(f"{kind} x{gamma}", made, jax.tree.map(jnp.asarray, fitted))


@memoize
def table_drafter(order: int, vocab_size: int, gamma: int) -> Drafter:
    """A chain of gamma tokens, each drawn from the table's distribution, warped like the target's.

    The weights are a `Table` of that order and vocabulary.
    """

    def propose(params: Table, key, state: History, pending, warp):
        def feed(token, context):
            context = jnp.concatenate([context[:, 1:], token[:, None]], 1)
            return log_probs(params, context), context

        context = last_tokens(state, max(order - 1, 1), pending)
        draft, _ = write_chain(feed, log_probs(params, context), context, pending, key, warp, gamma=gamma)
        return draft, state

    return drafter_of_history(trees.chain(gamma), propose, vocab_size, Siblings.WITH_REPLACEMENT)


def last_tokens(history: History, count: int, pending: Int[Array, "B"]) -> Int[Array, "B n"]:
    """The `count` tokens that end with `pending`; a row that has fewer repeats its first."""
    at = history.length[:, None] - count + jnp.arange(count - 1, dtype=jnp.int32)[None]
    before = jnp.take_along_axis(history.tokens, jnp.maximum(at, 0), axis=1)
    return jnp.concatenate([before, pending[:, None]], 1)


def log_probs(table: Table, context: Int[Array, "B n"]) -> Float[Array, "B V"]:
    """log q after each row's last tokens, of which there must be order - 1 or more."""
    batch = context.shape[0]
    rows = jnp.arange(batch, dtype=jnp.int32)[:, None]
    x = jnp.broadcast_to(table.log_unigram, (batch, table.vocab_size))
    for size, level in enumerate(table.levels, start=1):
        row = bucket(context[:, context.shape[1] - size :], level.log_back.shape[0])
        x = x + level.log_back[row][:, None]
        tokens = level.successors[row]
        listed = jnp.take_along_axis(x, jnp.minimum(tokens, table.vocab_size - 1), axis=1)
        x = x.at[rows, tokens].set(jnp.logaddexp(listed, level.log_mass[row]), mode="drop")
    return x
