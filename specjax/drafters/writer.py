"""What writes drafts token by token: a draft model, or a trained head on the target's hidden states.

Chains and trees are grown alike by both. They differ in how they absorb what a round committed: a draft model keeps
what it has read of the accepted path; a head drops all that it wrote, and reads the target's features instead.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax import trees
from specjax.base import Cache, LanguageModel
from specjax.programs import memoize
from specjax.types import Commit, Params, PyTree

Memory = PyTree  # a NamedTuple with a field `cache`; `root` leaves all committed tokens in it


class Writer(NamedTuple):
    """A model that writes drafts, as pure functions.

    lm: its `extend`, `keep`, vocabulary and positions; its `prefill` is not used.
    init: (params, prompt [B,P], length [B], cache_len, prefilled) -> Memory, where `prefilled` is the target's.
    root: (params, memory, pending [B]) -> (logits [B,V] after `pending`, Memory): reads what it has not read yet.
    commit: (params, memory, path [B,D] or None, read [B], advanced, Commit) -> Memory. `path` and `read`: the nodes
        below the root that were read and accepted; `advanced`: how many nodes the cache's length counts beyond the
        root, an integer.
    rewind: (params, memory, back [B], token [B]) -> Memory, as `Drafter.rewind`.
    proposable: (params, memory, depth [N]) -> valid [B,N], between `root` and `commit`.
    restricted: logits are -inf outside a part of the vocabulary.
    """

    lm: LanguageModel
    init: Callable[..., Memory]
    root: Callable[..., tuple[Float[Array, "B V"], Memory]]
    commit: Callable[..., Memory]
    rewind: Callable[..., Memory]
    proposable: Callable[..., Any]
    restricted: bool = False


class ModelMemory(NamedTuple):
    """Memory of a draft model.

    If the accepted path ends in a token that was drawn but never read, the cache lags the committed tokens by one; no
    path can end in two. The first forward pass of a round therefore feeds two tokens: the missing one, if any, and
    `pending`.
    """

    cache: Cache
    missing: Int[Array, "B"]  # the committed token that the cache lags by
    lag: Int[Array, "B"]  # 1 where it does, else 0


@memoize
def model_writer(lm: LanguageModel) -> Writer:
    """A draft model as a writer."""

    def init(params, prompt, length, cache_len, prefilled):
        del prefilled
        read = lm.prefill(params, prompt, length, cache_len)
        return ModelMemory(read.cache, read.pending, jnp.zeros_like(length))

    def root(params, memory: ModelMemory, pending):
        logits, cache = first_logits(lm, params, *memory, pending)
        return logits, memory._replace(cache=cache)

    def commit(params, memory: ModelMemory, path, read, advanced, committed: Commit):
        del params
        # The root is in the cache, as is what lagged: a row that has stopped takes the root back, and lags no more.
        running = committed.length > 0
        cache = lm.keep(memory.cache, path, jnp.where(running, read, -1) - advanced)
        last = jnp.take_along_axis(committed.tokens, jnp.maximum(committed.length - 2, 0)[:, None], axis=1)[:, 0]
        return ModelMemory(cache, last, jnp.where(running, committed.length - 1 - read, 0))

    def rewind(params, memory: ModelMemory, back, token):
        del params, token
        cache, lag = roll_back(lm, memory.cache, memory.lag, back)
        return memory._replace(cache=cache, lag=lag)

    def proposable(params, memory: ModelMemory, depth):
        del params
        return lm.proposable(memory.cache.length - 1, depth)

    return Writer(lm, init, root, commit, rewind, proposable)


def first_logits(
    lm: LanguageModel,
    params: Params,
    cache: Cache,
    missing: Int[Array, "B"],
    lag: Int[Array, "B"],
    pending: Int[Array, "B"],
) -> tuple[Float[Array, "B V"], Cache]:
    """Feeds [missing, pending], or [pending, filler] where nothing is missing; advances past the real tokens."""
    lagging, pair = lag == 1, trees.chain(1)
    block = jnp.stack([jnp.where(lagging, missing, pending), pending], 1)
    out, cache = lm.extend(params, block, cache, pair.mask, pair.depth)
    logits = jnp.where(lagging[:, None], out.logits[:, 1], out.logits[:, 0])
    return logits, lm.keep(cache, None, lag + 1)


def next_logits(
    lm: LanguageModel,
    params: Params,
    cache: Cache,
    token: Int[Array, "B"],
    depth: Int[Array, "B 1"] | None = None,
) -> tuple[Float[Array, "B V"], Cache]:
    """Feeds one token; `depth`: its distance from the cache's length, where that is not its position."""
    one = trees.chain(0)
    out, cache = lm.extend(params, token[:, None], cache, one.mask, one.depth if depth is None else depth)
    return out.logits[:, 0], lm.keep(cache, None, jnp.ones_like(token))


def roll_back(
    lm: LanguageModel, cache: Cache, lag: Int[Array, "B"], back: Int[Array, "B"]
) -> tuple[Cache, Int[Array, "B"]]:
    """`Drafter.rewind` of a cache that lags the committed tokens: tokens that it never held go first."""
    gone = jnp.maximum(back - 1, 0)  # the token committed instead becomes `pending`, which is not in the cache
    return lm.keep(cache, None, jnp.minimum(lag - gone, 0)), jnp.maximum(lag - gone, 0)
