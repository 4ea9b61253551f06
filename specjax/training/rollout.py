"""Texts that a model writes within a training step: distillation on the student's own texts, or on the target's."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax import trees
from specjax.base import LanguageModel
from specjax.types import Params


def sample(
    lm: LanguageModel, params: Params, prompt: Int[Array, "B P"], length: Int[Array, "B"], new: int, key: jax.Array
) -> Int[Array, "B new"]:
    """Samples `new` tokens after each prompt at temperature 1; of an encoder-decoder, its output. No gradient flows."""
    params = jax.lax.stop_gradient(params)
    prefilled = lm.prefill(params, prompt, length, prompt.shape[1] + new)
    one = trees.chain(0)

    def step(carry, key):
        pending, cache = carry
        out, cache = lm.extend(params, pending[:, None], cache, one.mask, one.depth)
        token = jax.random.categorical(key, out.logits[:, 0]).astype(jnp.int32)
        return (token, lm.keep(cache, None, jnp.ones_like(length))), token

    _, tokens = jax.lax.scan(step, (prefilled.pending, prefilled.cache), jax.random.split(key, new))
    return tokens.T
