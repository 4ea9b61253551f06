"""The tokens of each row in a buffer, for drafters that look back: prompt, then all that was committed."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.models.cache import put_rows
from specjax.types import Commit


class History(NamedTuple):
    """Left-aligned tokens and how many of them there are; the last is `pending` (encoder-decoder: once it has one)."""

    tokens: Int[Array, "B T"]
    length: Int[Array, "B"]


def start(prompt: Int[Array, "B P"], length: Int[Array, "B"], cache_len: int) -> History:
    """The prompt, with room for cache_len tokens more."""
    room = jnp.zeros((prompt.shape[0], cache_len), prompt.dtype)
    return History(jnp.concatenate([prompt, room], 1), length)


def append(history: History, committed: Commit) -> History:
    """What a round committed, below what is there."""
    tokens = put_rows(history.tokens, committed.tokens, history.length, committed.length > 0)
    return History(tokens, history.length + committed.length)


def rewind(history: History, back: Int[Array, "B"], token: Int[Array, "B"]) -> History:
    """The last back[b] tokens give way to one; `back` 0 changes nothing."""
    length = history.length - back
    tokens = put_rows(history.tokens, token[:, None], length, back > 0)
    return History(tokens, length + jnp.minimum(back, 1))


def last(history: History, count: int, pending: Int[Array, "B"]) -> Int[Array, "B n"]:
    """The `count` tokens that end with `pending`; a row that has fewer repeats its first."""
    at = history.length[:, None] - count + jnp.arange(count - 1, dtype=jnp.int32)[None]
    before = jnp.take_along_axis(history.tokens, jnp.maximum(at, 0), axis=1)
    return jnp.concatenate([before, pending[:, None]], 1)
