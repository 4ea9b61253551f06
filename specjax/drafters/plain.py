"""No draft at all: plain autoregressive decoding as the same loop, which makes it the baseline."""

import jax.numpy as jnp

from specjax import trees
from specjax.base import Drafter
from specjax.programs import memoize
from specjax.types import Draft


@memoize
def plain() -> Drafter:
    """A drafter that proposes nothing: every round is one target call and one token."""

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
