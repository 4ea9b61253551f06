"""Prompt lookup: propose what followed the last n tokens where they occurred before (Saxena 2023).

The longest match wins, and among equally long ones the latest. Point masses: `log_q` is None. `drafter_of_history` is
shared by all drafters that look back at the tokens of a row.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax import checks, trees
from specjax.base import Drafter
from specjax.defaults import LONGEST_MATCH
from specjax.drafters.loaded import LoadedDrafter
from specjax.models.cache import put_rows
from specjax.programs import memoize
from specjax.trees import Tree
from specjax.types import Commit, Draft, Siblings


def ngram(*, gamma: int = 8, longest: int = 3, shortest: int = 1) -> LoadedDrafter:
    """Prompt lookup: copies what followed the last few tokens where they occurred before in the row.

    The longest match wins, then the latest. Lossless with any lossless verifier of chains. Prompt lookup decoding,
    Saxena 2023; LLMA, Yang et al. 2023, arXiv 2304.04487, section 3.

    Args:
      gamma: draft tokens per round, at least 1.
      longest: tokens of the longest match that is tried, at most 64.
      shortest: tokens of the shortest match, at least 1.

    Returns:
      The drafter.

    Raises:
      ValueError: a number out of range.

    >>> import specjax as sj
    >>> sj.drafters.ngram(gamma=6).name
    'ngram x6'
    """
    checks.integer("gamma", gamma, least=1)
    check_matches(longest, shortest)
    return LoadedDrafter(f"ngram x{gamma}", ngram_drafter(gamma, longest, shortest))


def check_matches(longest: int, shortest: int, confidence: float = 0.0) -> None:
    """Raises ValueError unless 1 <= shortest <= longest <= LONGEST_MATCH and confidence is in 0..1."""
    checks.integer("longest", longest, least=1, most=LONGEST_MATCH)
    checks.integer("shortest", shortest, least=1, most=longest)
    checks.number("confidence", confidence, least=0, most=1)


class History(NamedTuple):
    """The tokens of each row, left-aligned: the prompt, then all that was committed.

    The last of the `length` tokens is `pending` (encoder-decoder: once it has one).
    """

    tokens: Int[Array, "B T"]
    length: Int[Array, "B"]


def drafter_of_history(
    tree: Tree, propose: Callable, vocab_size: int | None = None, siblings: Siblings = Siblings.POINTS, *,
    dynamic: bool = False, room: int = 0,
) -> Drafter:  # fmt: skip
    """A drafter whose state is the row's `History`; `room` is the least number of slots past the prompt."""

    def init(params, prompt, length, cache_len, prefilled):
        del params, prefilled
        return History(jnp.pad(prompt, ((0, 0), (0, max(cache_len, room)))), length)

    def commit(params, state: History, committed: Commit):
        del params
        tokens = put_rows(state.tokens, committed.tokens, state.length, committed.length > 0)
        return History(tokens, state.length + committed.length)

    def rewind(params, state: History, back, token):
        del params
        length = state.length - back
        tokens = put_rows(state.tokens, token[:, None], length, back > 0)
        return History(tokens, length + jnp.minimum(back, 1))

    return Drafter(tree, init, propose, commit, vocab_size, siblings, dynamic, rewind=rewind)


@memoize
def ngram_drafter(gamma: int, longest: int, shortest: int) -> Drafter:
    """Copies up to gamma tokens that followed the latest of the longest matches of `shortest`..`longest` tokens.

    Encoder-decoder models look their output up in the encoder's prompt and in what they have written.
    """

    def propose(params, key, state: History, pending, warp):
        del params, key, warp
        follow, found = lookup(state.tokens, state.length, longest=longest, shortest=shortest)
        at = follow[:, None] + jnp.arange(gamma, dtype=jnp.int32)[None]
        copied = jnp.take_along_axis(state.tokens, at, axis=1, mode="clip")
        valid = found[:, None] & (at < state.length[:, None])
        tokens = jnp.concatenate([pending[:, None], copied], 1)
        return Draft(tokens, jnp.concatenate([jnp.ones_like(valid[:, :1]), valid], 1), None), state

    return drafter_of_history(trees.chain(gamma), propose)


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
