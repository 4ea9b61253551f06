"""A template for new drafters: proposes the token that last followed the current one in the row.

docs/guides/writing-a-drafter.md writes this file step by step. Real drafters differ in what they store and in the
distribution that they derive from it; the rest stays as it is here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax import trees
from specjax.base import Drafter
from specjax.categorical import draw, uniforms
from specjax.programs import memoize
from specjax.types import Draft

UNMET = -1


class Memory(NamedTuple):
    """State: arrays led by the rows of the batch."""

    follows: Int[Array, "B V"]  # the token that followed each token last; UNMET for one without a successor
    last: Int[Array, "B"]  # the newest committed token


@memoize  # equal arguments give the same object: the decoding loop compiles once for each drafter
def template(vocab_size: int, gamma: int, trust: float = 3.0) -> Drafter:
    """A chain of gamma tokens; the remembered successor is exp(trust) times as likely as any other token."""

    def learn(memory: Memory, tokens, count) -> Memory:
        rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)

        def one(memory, step):
            real = step < count  # rows have their own lengths: what lies past one is ignored
            token = jnp.where(real, tokens[:, step], memory.last)
            newer = jnp.where(real, token, memory.follows[rows, memory.last])
            return Memory(memory.follows.at[rows, memory.last].set(newer), token), None

        return jax.lax.scan(one, memory, jnp.arange(tokens.shape[1], dtype=jnp.int32))[0]

    def init(params, prompt, length, cache_len, prefilled):
        del params, cache_len, prefilled
        empty = jnp.full((prompt.shape[0], vocab_size), UNMET, jnp.int32)
        return learn(Memory(empty, prompt[:, 0]), prompt[:, 1:], length - 1)

    def propose(params, key, state: Memory, pending, warp):
        del params
        rows = jnp.arange(pending.shape[0], dtype=jnp.int32)
        numbers = uniforms(key, (gamma, 2))  # each row's own stream, consumed once
        tokens, log_q = [pending], []
        for step in range(gamma):
            bet = trust * jax.nn.one_hot(state.follows[rows, tokens[-1]], vocab_size)
            log_q.append(warp(bet[:, None], jnp.stack(tokens, 1)[:, None])[:, 0])  # exactly what is drawn from
            tokens.append(draw(numbers[:, step], jnp.exp(log_q[-1])))
        log_q.append(jnp.zeros_like(log_q[-1]))  # the last node has no children: its entry is never read
        drafted = jnp.stack(tokens, 1)
        return Draft(drafted, jnp.ones_like(drafted, bool), jnp.stack(log_q, 1)), state._replace(last=pending)

    def commit(params, state: Memory, committed):
        del params
        return learn(state, committed.tokens, committed.length)

    def rewind(params, state: Memory, back, token):
        del params, back, token  # rejected tokens stay in memory: drafts get worse, the output does not
        return state

    return Drafter(trees.chain(gamma), init, propose, commit, vocab_size, rewind=rewind)
