"""Prompt lookup: propose what followed the last n tokens where they occurred before (Saxena 2023).

The longest match wins, and among equally long ones the latest. Point masses: `log_q` is None.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax import trees
from specjax.base import Drafter
from specjax.drafters import history
from specjax.drafters.history import History
from specjax.programs import memoize
from specjax.types import Commit, Draft, Siblings


@memoize
def ngram(gamma: int = 8, longest: int = 3, shortest: int = 1) -> Drafter:
    """Copies up to gamma tokens that followed the latest of the longest matches of `shortest`..`longest` tokens.

    Encoder-decoder models look their output up in the encoder's prompt and in what they have written.
    """
    tree = trees.chain(gamma)

    def init(params, prompt, length, cache_len, prefilled):
        del params, prefilled
        return history.start(prompt, length, cache_len)

    def propose(params, key, state: History, pending, warp):
        del params, key, warp
        follow, found = lookup(state.tokens, state.length, longest=longest, shortest=shortest)
        at = follow[:, None] + jnp.arange(gamma, dtype=jnp.int32)[None]
        copied = jnp.take_along_axis(state.tokens, at, axis=1, mode="clip")
        valid = found[:, None] & (at < state.length[:, None])
        tokens = jnp.concatenate([pending[:, None], copied], 1)
        return Draft(tokens, jnp.concatenate([jnp.ones_like(valid[:, :1]), valid], 1), None), state

    def commit(params, state: History, committed: Commit):
        del params
        return history.append(state, committed)

    def rewind(params, state: History, back, token):
        del params
        return history.rewind(state, back, token)

    return Drafter(tree, init, propose, commit, siblings=Siblings.POINTS, rewind=rewind)


def lookup(tokens: Int[Array, "B T"], length: Int[Array, "B"], *, longest: int, shortest: int):
    """Where the continuation of the best earlier match of each row's last tokens begins, and whether there is one."""
    slots = tokens.shape[1]
    at = jnp.arange(slots, dtype=jnp.int32)[None]
    run = runs(tokens, length, longest)
    best = jnp.argmax(jnp.where(run >= shortest, run * slots + at, -1), axis=1).astype(jnp.int32)
    found = jnp.take_along_axis(run, best[:, None], axis=1)[:, 0] >= shortest
    return best + 1, found


def runs(tokens: Int[Array, "B T"], length: Int[Array, "B"], longest: int) -> Int[Array, "B T"]:
    """How many tokens that end at each slot equal the tokens that end at length - 1, up to `longest`.

    tokens  a b c a b x a b     runs of "a b"   0 2 0 0 2 0 0 .     the latest 2 wins: what follows it begins at 5
    """
    slots = tokens.shape[1]
    at = jnp.arange(slots, dtype=jnp.int32)[None]
    run = jnp.zeros(tokens.shape, jnp.int32)
    going = jnp.broadcast_to(at < length[:, None] - 1, tokens.shape)
    for back in range(longest):
        wanted = jnp.take_along_axis(tokens, jnp.maximum(length - 1 - back, 0)[:, None], axis=1)
        shifted = jnp.pad(tokens, ((0, 0), (back, 0)))[:, :slots]
        going = going & (shifted == wanted) & (at >= back)
        run = run + going.astype(jnp.int32)
    return run
