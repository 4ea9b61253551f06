"""Chains written over the target's own cache, by a variant of the target: fewer layers, or coarser weights.

The variant reads the target's keys and values of all that is committed, and writes its own past them, where the
target's next call overwrites them. So it needs no prefill, holds no cache, and what it reads of the past is exact:

    slots      0 ............ length-1 | length ........ length+gamma-1 |
    content    written by the target   | written by the variant         |    draft
               written by the target   | written by the target ................. verify
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax import trees
from specjax.base import Cache, Drafter, LanguageModel, Warp
from specjax.categorical import draw, uniforms
from specjax.programs import memoize
from specjax.types import Draft, KeyArray

Feed = Callable[[Int[Array, "B"], Cache], tuple[Float[Array, "B V"], Cache]]


@memoize
def chain_on_loan(lm: LanguageModel, gamma: int) -> Drafter:
    """A chain of gamma tokens sampled from `lm`, which reads and writes the cache of the target.

    `lm` must understand that cache: a variant of the target (`Model.variant`).

    Raises:
      ValueError: gamma below 1.
    """
    check_gamma(gamma)
    one = trees.chain(0)

    def init(params, prompt, length, cache_len, prefilled):
        del params, prompt, length, cache_len, prefilled
        return ()

    def propose(params, key, state, pending, warp, cache):
        def feed(token, cache):
            out, cache = lm.extend(params, token[:, None], cache, one.mask, one.depth)
            return out.logits[:, 0], lm.keep(cache, None, jnp.ones_like(token))

        draft, cache = write_chain(feed, cache, pending, key, warp, gamma=gamma, vocab_size=lm.vocab_size)
        return draft, state, lm.keep(cache, None, jnp.full_like(pending, -gamma))

    def commit(params, state, committed, cache):
        del params, committed, cache
        return state

    def rewind(params, state, back, token, cache):
        del params, back, token, cache  # nothing is remembered
        return state

    return Drafter(trees.chain(gamma), init, propose, commit, lm.vocab_size, borrows=True, rewind=rewind)


def check_gamma(gamma: int) -> None:
    """Raises ValueError where no token would be drafted."""
    if gamma < 1:
        raise ValueError(f"gamma must be at least 1, got {gamma}; for plain decoding use drafters.plain()")


def write_chain(
    feed: Feed, cache: Cache, pending: Int[Array, "B"], key: KeyArray, warp: Warp, *, gamma: int, vocab_size: int
) -> tuple[Draft, Cache]:
    """Draws gamma tokens below `pending`, each from the warped law that `feed` gives after the one before it.

    Args:
      feed: (token [B], cache) -> (logits after it [B,V], cache that holds it).
      cache: everything committed but `pending`.
      key: consumed once.

    Returns:
      The draft, and the cache after `pending` and all drafted tokens but the last.
    """
    rows = pending.shape[0]
    numbers = uniforms(key, (gamma, 2))  # all of the round's randomness at once
    at = jnp.arange(gamma + 1, dtype=jnp.int32)[None]

    def body(carry, step):
        cache, token, drafted, laws = carry
        logits, cache = feed(token, cache)
        log_q = warp(logits[:, None], drafted[:, None])
        token = draw(numbers[:, step], jnp.exp(log_q[:, 0]))
        # Places not drawn yet repeat a token that is there: `ancestors` may repeat.
        drafted = jnp.where(at > step, token[:, None], drafted)
        return (cache, token, drafted, jax.lax.dynamic_update_slice_in_dim(laws, log_q, step, axis=1)), None

    drafted = jnp.broadcast_to(pending[:, None], (rows, gamma + 1))
    # Node i's children were drawn from law i; the last node has no children, and its law is never read.
    laws = jnp.zeros((rows, gamma + 1, vocab_size), jnp.float32)
    start = (cache, pending, drafted, laws)
    (cache, _, drafted, laws), _ = jax.lax.scan(body, start, jnp.arange(gamma, dtype=jnp.int32))
    return Draft(drafted, jnp.ones_like(drafted, bool), laws), cache
