"""Unigram, bigram and n-gram tables as drafters: distributions that are looked up, at next to no cost.

Leviathan et al. 2023 (arXiv 2211.17192), table 3: even a bigram is accepted often enough to pay where drafting is
free. The distribution after a context is built from the shortest one upwards,

    q(x | context) = mass of x among the successors listed for the context + back-off mass * q(x | shorter context)

down to the unigram, which gives every token some mass: a proper distribution over the whole vocabulary (Witten and
Bell 1991).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax import trees
from specjax.base import Drafter
from specjax.categorical import draw as draw_mass
from specjax.categorical import uniforms
from specjax.drafters import history
from specjax.programs import memoize
from specjax.types import Commit, Draft

MIXER = np.uint32(0x9E3779B1)  # odd, near 2**32 over the golden ratio: multiplying by it spreads neighbors
SHIFT = np.uint32(15)


class Level(NamedTuple):
    """The likeliest successors of every context of one length; R rows, m successors, V where a row has fewer."""

    successors: Int[Array | np.ndarray, "R m"]
    log_mass: Float[Array | np.ndarray, "R m"]  # -inf where a row has fewer
    log_back: Float[Array | np.ndarray, "R"]  # what the listed masses leave to the shorter context


class Table(NamedTuple):
    """Fitted distributions: 4 V bytes, and 8 m + 4 bytes for each context (V = 50,000 and m = 32: 13 MB for a bigram).

    levels[n - 2] is for contexts of n - 1 tokens: one row a token, or where there are more, one row a bucket of
    contexts, so that a drafter of any order has a fixed size. Contexts in one bucket share a distribution.
    """

    log_unigram: Float[Array | np.ndarray, "V"]
    levels: tuple[Level, ...] = ()

    @property
    def order(self) -> int:
        """1 for a unigram, 2 for a bigram, n for contexts of n - 1 tokens."""
        return len(self.levels) + 1

    @property
    def vocab_size(self) -> int:
        return self.log_unigram.shape[0]


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


def bucket(context: Int[Array | np.ndarray, "*lead n"], rows: int) -> Int[Array | np.ndarray, "*lead"]:
    """The row of each context in its level: the token itself, or a hash of several. The same in numpy and in jax."""
    if context.shape[-1] == 1:
        return context[..., 0]
    mixed = context[..., 0].astype(np.uint32) * MIXER
    for column in range(1, context.shape[-1]):
        mixed = (mixed ^ (mixed >> SHIFT) ^ context[..., column].astype(np.uint32)) * MIXER
    return ((mixed ^ (mixed >> SHIFT)) % np.uint32(rows)).astype(np.int32)


@memoize
def table(order: int, vocab_size: int, gamma: int) -> Drafter:
    """A chain of gamma tokens, each drawn from the table's distribution, warped like the target's.

    The weights are a `Table` of that order and vocabulary. Encoder-decoder models are drafted for alike.
    """

    def init(params, prompt, length, cache_len, prefilled):
        del params, prefilled
        return history.start(prompt, length, cache_len)

    def propose(params: Table, key, state: history.History, pending, warp):
        numbers = uniforms(key, (gamma, 2))  # [B, gamma, 2]: all of the round's randomness at once

        def one(carry, step):
            context, drafted = carry
            log_q = warp(log_probs(params, context)[:, None], drafted[:, None])[:, 0]
            token = draw_mass(numbers[:, step], jnp.exp(log_q))
            # Places not drawn yet repeat a token that is there: `ancestors` may repeat.
            later = jnp.arange(gamma + 1, dtype=jnp.int32)[None] > step
            drafted = jnp.where(later, token[:, None], drafted)
            return (jnp.concatenate([context[:, 1:], token[:, None]], 1), drafted), log_q

        context = history.last(state, max(order - 1, 1), pending)
        drafted = jnp.broadcast_to(pending[:, None], (pending.shape[0], gamma + 1))
        (_, drafted), log_q = jax.lax.scan(one, (context, drafted), jnp.arange(gamma, dtype=jnp.int32))
        # The last node has no children: its entry is never read.
        log_q = jnp.pad(jnp.swapaxes(log_q, 0, 1), ((0, 0), (0, 1), (0, 0)))
        return Draft(drafted, jnp.ones_like(drafted, bool), log_q), state

    def commit(params, state: history.History, committed: Commit):
        del params
        return history.append(state, committed)

    def rewind(params, state: history.History, back, token):
        del params
        return history.rewind(state, back, token)

    return Drafter(trees.chain(gamma), init, propose, commit, vocab_size, rewind=rewind)
