"""A smaller language model that drafts a chain of gamma tokens (Leviathan et al. 2023, arXiv 2211.17192).

`write_chain` is shared by all drafters whose model writes a chain, one token per forward pass; `plain` drafts nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax import sampling, trees
from specjax.base import Cache, Drafter, LanguageModel, Warp
from specjax.categorical import draw, uniforms
from specjax.drafters.loaded import LoadedDrafter
from specjax.programs import memoize
from specjax.types import Commit, Draft, KeyArray, Params

Feed = Callable[[Int[Array, "B"], Cache], tuple[Float[Array, "B V"], Cache]]


def plain() -> LoadedDrafter:
    """No draft: plain autoregressive decoding in the same loop, the baseline of all speed-ups.

    Lossless with any verifier: the chain with gamma 0 of Leviathan et al. 2023, arXiv 2211.17192.

    Returns:
      A drafter for any target; one token per target forward pass.

    >>> import specjax as sj
    >>> sj.drafters.plain().name
    'plain'
    """
    return LoadedDrafter("plain", no_draft())


@memoize
def no_draft() -> Drafter:
    """A bare root: every round is one target forward pass and one token."""

    def init(params, prompt, length, cache_len, prefilled):
        del params, prompt, length, cache_len, prefilled
        return ()

    def propose(params, key, state, pending, warp):
        del params, key, warp
        tokens = pending[:, None]
        return Draft(tokens, jnp.ones_like(tokens, bool), None), state

    def commit(params, state, committed):
        del params, committed
        return state

    def rewind(params, state, back, token):
        del params, back, token
        return state

    return Drafter(trees.chain(0), init, propose, commit, rewind=rewind)


class ModelDraft(NamedTuple):
    """State of a draft model.

    After a round that accepted everything, the last accepted token was sampled but never fed: the cache lags the
    committed tokens by one. The first forward pass of a round therefore feeds two tokens: the one that is missing, if
    any, and `pending`.
    """

    cache: Cache
    missing: Int[Array, "B"]  # the committed token that the cache lags by
    lag: Int[Array, "B"]  # 1 where it does, else 0


@memoize
def chain(lm: LanguageModel, gamma: int) -> Drafter:
    """A chain of gamma tokens sampled from `lm`, each from its warped distribution."""
    tree = trees.chain(gamma)

    def init(params, prompt, length, cache_len, prefilled):
        del prefilled
        read = lm.prefill(params, prompt, length, cache_len)
        return ModelDraft(read.cache, read.pending, jnp.zeros_like(length))

    def propose(params, key, state: ModelDraft, pending, warp):
        draft, cache = write_chain(
            lambda token, cache: next_logits(lm, params, cache, token),
            *first_logits(lm, params, state.cache, state.missing, state.lag, pending),
            pending, key, warp, gamma=gamma,
        )  # fmt: skip
        draft = draft._replace(valid=lm.proposable(state.cache.length + state.lag, tree.depth))
        return draft, ModelDraft(cache, draft.tokens[:, -1], state.lag)

    def commit(params, state: ModelDraft, committed: Commit):
        del params
        # The cache has advanced by gamma: `pending` and the first gamma - 1 draft tokens. A row keeps `length` of them
        # (`pending` and the accepted ones), all of them where everything was accepted, and then lags by one.
        lag = jnp.maximum(committed.length - gamma, 0)
        cache = lm.keep(state.cache, None, jnp.minimum(committed.length, gamma) - gamma)
        return ModelDraft(cache, state.missing, lag)

    def rewind(params, state: ModelDraft, back, token):
        del params, token
        cache, lag = roll_back(lm, state.cache, state.lag, back)
        return ModelDraft(cache, state.missing, lag)

    return Drafter(tree, init, propose, commit, lm.vocab_size, rewind=rewind)


def write_chain(
    feed: Feed,
    logits: Float[Array, "B V"] | None,
    cache: Cache,
    pending: Int[Array, "B"],
    key: KeyArray,
    warp: Warp,
    *,
    gamma: int,
    vocab_size: int | None = None,
    restricted: bool = False,
) -> tuple[Draft, Cache]:
    """Draws gamma tokens below `pending`, each from the warped distribution after the one before it.

    Args:
      feed: (token [B], cache) -> (logits after the token [B,V], cache that holds it): one forward pass.
      logits: logits after `pending` [B,V], which the cache then holds; None: the first step feeds `pending`.
      key: [B] typed keys, consumed once.
      vocab_size: V; needed where `logits` is None.
      restricted: logits are -inf outside a subset of the vocabulary. Where the warp keeps no token of it, the chain
        ends: which depends on the distribution alone, never on a drawn token.

    Returns:
      The draft, and the cache after `pending` and all draft tokens but the last.
    """
    rows = pending.shape[0]
    size = vocab_size if logits is None else logits.shape[1]
    numbers = uniforms(key, (gamma, 2))  # all random numbers of the round
    nodes = jnp.arange(gamma + 1, dtype=jnp.int32)[None]

    def node(step, logits, tokens, valid, log_q):
        token, tokens, log_q, last = draw_node(warp, numbers, step, logits, tokens, log_q)
        if not restricted:
            return tokens, valid, log_q
        empty = sampling.has_nan(last) & ~sampling.has_nan(logits)
        first = jnp.where(jnp.arange(size)[None] == 0, 0.0, -jnp.inf)  # any distribution: the node is not proposed
        tokens = jnp.where(nodes > step, jnp.where(empty, 0, token)[:, None], tokens)
        last = jnp.where(empty[:, None], first, last)
        log_q = jax.lax.dynamic_update_slice_in_dim(log_q, last[:, None], step, axis=1)
        return tokens, valid & ~((nodes > step) & empty[:, None]), log_q

    def body(carry, step):
        cache, tokens, *rest = carry
        logits, cache = feed(tokens[:, -1], cache)  # nodes that are not drawn yet repeat the newest token
        return (cache, *node(step, logits, tokens, *rest)), None

    tokens = jnp.broadcast_to(pending[:, None], (rows, gamma + 1))
    # Node i's children are drawn from log_q[:, i]; the last node has no children, and its entry is never read.
    drafted = tokens, jnp.ones_like(tokens, bool), jnp.zeros((rows, gamma + 1, size), jnp.float32)
    if logits is not None:
        drafted = node(0, logits, *drafted)
    steps = jnp.arange(0 if logits is None else 1, gamma, dtype=jnp.int32)
    (cache, *drafted), _ = jax.lax.scan(body, (cache, *drafted), steps)
    return Draft(*drafted), cache


def draw_node(
    warp: Warp,
    numbers: Float[Array, "B gamma 2"],
    step: int | Int[Array, ""],
    logits: Float[Array, "B V"],
    tokens: Int[Array, "B N"],
    log_q: Float[Array, "B N V"],
) -> tuple[Int[Array, "B"], Int[Array, "B N"], Float[Array, "B N V"], Float[Array, "B V"]]:
    """Draws node step + 1 of a chain; returns (token, tokens, log_q, the distribution that it was drawn from)."""
    warped = warp(logits[:, None], tokens[:, None])
    token = draw(numbers[:, step], jnp.exp(warped[:, 0]))
    # Nodes that are not drawn yet repeat a token that is there: `ancestors` may repeat.
    later = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] > step
    tokens = jnp.where(later, token[:, None], tokens)
    return token, tokens, jax.lax.dynamic_update_slice_in_dim(log_q, warped, step, axis=1), warped[:, 0]


def roll_back(
    lm: LanguageModel, cache: Cache, lag: Int[Array, "B"], back: Int[Array, "B"]
) -> tuple[Cache, Int[Array, "B"]]:
    """`Drafter.rewind` of a cache that lags the committed tokens: tokens that it never held go first."""
    gone = jnp.maximum(back - 1, 0)  # the token committed instead becomes `pending`, which is not in the cache
    return lm.keep(cache, None, jnp.minimum(lag - gone, 0)), jnp.maximum(lag - gone, 0)


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
