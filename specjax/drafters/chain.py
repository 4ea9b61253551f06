"""A smaller language model as drafter: it writes a chain of gamma tokens (Leviathan et al. 2023, arXiv 2211.17192)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax import trees
from specjax.base import Cache, Drafter, LanguageModel, Warp
from specjax.categorical import draw as draw_mass
from specjax.categorical import uniforms
from specjax.programs import memoize
from specjax.types import Commit, Draft, Params


class ModelDraft(NamedTuple):
    """State of a draft model.

    After a round that accepted everything, the last accepted token was sampled but never fed: the cache lags the
    committed tokens by one. The first call of a round therefore feeds two tokens: the one that lags, if any, and
    `pending`.
    """

    cache: Cache
    missing: Int[Array, "B"]  # the committed token that the cache lags by
    lag: Int[Array, "B"]  # 1 where it does, else 0


@memoize
def chain(lm: LanguageModel, gamma: int) -> Drafter:
    """A chain of gamma tokens sampled from `lm`, each from its warped law.

    Raises:
      ValueError: gamma below 1.
    """
    if gamma < 1:
        raise ValueError(f"gamma must be at least 1, got {gamma}; for plain decoding use drafters.plain()")
    tree = trees.chain(gamma)

    def init(params, prompt, length, cache_len, prefilled):
        del prefilled
        read = lm.prefill(params, prompt, length, cache_len)
        return ModelDraft(read.cache, read.pending, jnp.zeros_like(length))

    def propose(params, key, state: ModelDraft, pending, warp):
        numbers = uniforms(key, (gamma, 2))  # [B, gamma, 2]: all of the round's randomness at once
        rows = pending.shape[0]

        logits, cache = first_logits(lm, params, state.cache, state.missing, state.lag, pending)
        drafted = jnp.broadcast_to(pending[:, None], (rows, gamma + 1))
        # Node i's children were drawn from law i; the last node has no children, and its law is never read.
        laws = jnp.zeros((rows, gamma + 1, lm.vocab_size), jnp.float32)
        token, drafted, laws, _ = draw(warp, numbers, 0, logits, drafted, laws)

        def body(carry, step):
            cache, token, drafted, laws = carry
            logits, cache = next_logits(lm, params, cache, token)
            token, drafted, laws, _ = draw(warp, numbers, step, logits, drafted, laws)
            return (cache, token, drafted, laws), None

        carry, _ = jax.lax.scan(body, (cache, token, drafted, laws), jnp.arange(1, gamma, dtype=jnp.int32))
        cache, token, drafted, laws = carry
        valid = lm.proposable(state.cache.length + state.lag, tree.depth)
        return Draft(drafted, valid, laws), ModelDraft(cache, token, state.lag)

    def commit(params, state: ModelDraft, committed: Commit):
        del params
        # The cache has advanced by gamma: `pending` and the first gamma - 1 drafts. A row keeps `length` of them
        # (`pending` and the accepted drafts), all of them where everything was accepted, and then lags by one.
        lag = jnp.maximum(committed.length - gamma, 0)
        cache = lm.keep(state.cache, None, jnp.minimum(committed.length, gamma) - gamma)
        return ModelDraft(cache, state.missing, lag)

    def rewind(params, state: ModelDraft, back, token):
        del params, token
        cache, lag = taken_back(lm, state.cache, state.lag, back)
        return ModelDraft(cache, state.missing, lag)

    return Drafter(tree, init, propose, commit, lm.vocab_size, rewind=rewind)


def taken_back(
    lm: LanguageModel, cache: Cache, lag: Int[Array, "B"], back: Int[Array, "B"]
) -> tuple[Cache, Int[Array, "B"]]:
    """`Drafter.rewind` of a cache that lags the committed tokens: what it never had goes first."""
    gone = jnp.maximum(back - 1, 0)  # the token that is committed instead becomes `pending`, which is not in the cache
    return lm.keep(cache, None, jnp.minimum(lag - gone, 0)), jnp.maximum(lag - gone, 0)


def first_logits(
    lm: LanguageModel,
    params: Params,
    cache: Cache,
    missing: Int[Array, "B"],
    lag: Int[Array, "B"],
    pending: Int[Array, "B"],
) -> tuple[Float[Array, "B V"], Cache]:
    """Feeds [missing, pending], or [pending, filler] where nothing lags; advances past what is real."""
    lagging, pair = lag == 1, trees.chain(1)
    block = jnp.stack([jnp.where(lagging, missing, pending), pending], 1)
    out, cache = lm.extend(params, block, cache, pair.mask, pair.depth)
    logits = jnp.where(lagging[:, None], out.logits[:, 1], out.logits[:, 0])
    return logits, lm.keep(cache, None, lag + 1)


def next_logits(
    lm: LanguageModel, params: Params, cache: Cache, token: Int[Array, "B"]
) -> tuple[Float[Array, "B V"], Cache]:
    """Feeds one token."""
    one = trees.chain(0)
    out, cache = lm.extend(params, token[:, None], cache, one.mask, one.depth)
    return out.logits[:, 0], lm.keep(cache, None, jnp.ones_like(token))


def draw(
    warp: Warp,
    numbers: Float[Array, "B gamma 2"],
    step: int | Int[Array, ""],
    logits: Float[Array, "B V"],
    drafted: Int[Array, "B N"],
    laws: Float[Array, "B N V"],
) -> tuple[Int[Array, "B"], Int[Array, "B N"], Float[Array, "B N V"], Float[Array, "B V"]]:
    """Draws node step + 1 from the warped law, writes both down; returns (token, drafted, laws, this law)."""
    log_q = warp(logits[:, None], drafted[:, None])
    token = draw_mass(numbers[:, step], jnp.exp(log_q[:, 0]))
    # Places not drawn yet repeat a token that is there: `ancestors` may repeat.
    later = jnp.arange(drafted.shape[1], dtype=jnp.int32)[None] > step
    drafted = jnp.where(later, token[:, None], drafted)
    return token, drafted, jax.lax.dynamic_update_slice_in_dim(laws, log_q, step, axis=1), log_q[:, 0]
