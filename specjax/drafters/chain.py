"""A smaller language model that drafts a chain of gamma tokens (Leviathan et al. 2023, arXiv 2211.17192).

`write_chain` is shared by all drafters whose model writes a chain, one token per forward pass; `plain` drafts nothing.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax import trees
from specjax.base import Cache, Drafter, Warp
from specjax.categorical import Noise, maximum, noise
from specjax.drafters.loaded import LoadedDrafter
from specjax.drafters.writer import Writer, next_logits
from specjax.programs import memoize
from specjax.types import Commit, Draft, KeyArray, PositionKeys

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


@memoize
def chain(writer: Writer, gamma: int) -> Drafter:
    """A chain of gamma tokens sampled from a writer, each from its warped distribution."""
    tree, lm = trees.chain(gamma), writer.lm

    def propose(params, key, memory, pending, warp):
        logits, memory = writer.root(params, memory, pending)
        valid = writer.proposable(params, memory, tree.depth)
        draft, cache = write_chain(
            lambda token, cache: next_logits(lm, params, cache, token), logits, memory.cache, pending, key, warp,
            gamma=gamma, restricted=writer.restricted,
        )  # fmt: skip
        return draft._replace(valid=draft.valid & valid), memory._replace(cache=cache)

    def commit(params, memory, committed: Commit):
        # The cache has advanced by the first gamma - 1 draft tokens.
        read = jnp.minimum(committed.length, gamma) - 1
        return writer.commit(params, memory, None, read, gamma - 1, committed)

    return Drafter(tree, writer.init, propose, commit, lm.vocab_size, rewind=writer.rewind)


def write_chain(
    feed: Feed,
    logits: Float[Array, "B V"] | None,
    cache: Cache,
    pending: Int[Array, "B"],
    key: KeyArray | PositionKeys,
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
    numbers = noise(key, gamma)  # all random numbers of the round
    nodes = jnp.arange(gamma + 1, dtype=jnp.int32)[None]

    def node(step, logits, tokens, valid, log_q):
        token, tokens, log_q, last = draw_node(warp, numbers, step, logits, tokens, log_q)
        if not restricted:
            return tokens, valid, log_q
        last, empty = without_empty(logits, last)
        tokens = jnp.where(nodes > step, jnp.where(empty, 0, token)[:, None], tokens)
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


def without_empty(
    logits: Float[Array, "*B V"], log_q: Float[Array, "*B V"]
) -> tuple[Float[Array, "*B V"], Bool[Array, "*B"]]:
    """Warped distributions, any proper one where the warp kept no token of a draft vocabulary; and where that is."""
    empty = jnp.isfinite(maximum(logits)) & ~jnp.isfinite(maximum(log_q))
    first = jnp.where(jax.lax.broadcasted_iota(jnp.int32, log_q.shape, log_q.ndim - 1) == 0, 0.0, -jnp.inf)
    return jnp.where(empty[..., None], first, log_q), empty


def draw_node(
    warp: Warp,
    numbers: Noise,
    step: int | Int[Array, ""],
    logits: Float[Array, "B V"],
    tokens: Int[Array, "B N"],
    log_q: Float[Array, "B N V"],
) -> tuple[Int[Array, "B"], Int[Array, "B N"], Float[Array, "B N V"], Float[Array, "B V"]]:
    """Draws node step + 1 of a chain; returns (token, tokens, log_q, the distribution that it was drawn from)."""
    warped = warp(logits[:, None], tokens[:, None])
    token = numbers.draw(step, warped[:, 0])
    # Nodes that are not drawn yet repeat a token that is there: `ancestors` may repeat.
    later = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] > step
    tokens = jnp.where(later, token[:, None], tokens)
    return token, tokens, jax.lax.dynamic_update_slice_in_dim(log_q, warped, step, axis=1), warped[:, 0]
