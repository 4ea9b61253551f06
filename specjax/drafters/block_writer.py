"""A DFlash head as a writer: its cache holds keys and values of the target's features, and no drafted token.

slots     0 ........ length-1 | length ........... | ...
content   features of the     | the block under    |
          committed tokens    | way, not kept      |
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from specjax.drafters.head_writer import HeadParams, widen
from specjax.drafters.one_pass import Reader, one_pass
from specjax.drafters.writer import Writer
from specjax.heads import head as heads
from specjax.models import cache as caches
from specjax.models.cache import KV
from specjax.models.family import Family
from specjax.models.format import Format
from specjax.programs import memoize
from specjax.types import Commit


class Context(NamedTuple):
    """Keys and values of the committed tokens that the target has read."""

    layers: tuple[KV, ...] | KV
    length: Int[Array, "B"]


@memoize
def block_writer(
    model: type[nnx.Module], config: Any, fmt: Format, width: int, target: tuple[Family, Any, Format], restricted: bool
) -> Writer:
    """A DFlash head of this shape as a writer, with `HeadParams`.

    Args:
      width: W, the most tokens that a round commits.
      target: family, configuration and format of the target.
      restricted: it has a draft vocabulary.
    """
    graph, layer = heads.structure(model, config, fmt), config.layer
    family, target_config, target_fmt = target
    ends_of = family.ends(target_config, target_fmt)
    drafting = slice(config.drafting.start, config.drafting.start + width - 1)

    def init(params: HeadParams, prompt, length, cache_len, prefilled):
        # The slots of a draft block come with `cache_len`; the head's own block may be longer.
        slots = cache_len + config.block
        layers = caches.allocate(prompt.shape[0], layer.kv_heads, slots, layer.head_width, layer.layers, fmt)
        known = prompt.shape[1] - 1
        if known:
            hiddens = tuple(hidden[:, :known] for hidden in prefilled.hiddens)
            layers = nnx.merge(graph, params.head).read_context(hiddens, layers, jnp.zeros_like(length))
        return Context(layers, length - 1)

    def draft(params: HeadParams, memory: Context, pending):
        module, ends = nnx.merge(graph, params.head), ends_of(params.ends)
        out, layers = module.draft(ends, pending, memory.layers, memory.length)
        logits = widen(module.logits(ends, out[:, drafting]), params.places)
        return logits, memory._replace(layers=layers)

    def commit(params: HeadParams, memory: Context, committed: Commit):
        module = nnx.merge(graph, params.head)
        layers = module.read_context(committed.hiddens, memory.layers, memory.length)
        return Context(layers, memory.length + committed.length)

    def rewind(params: HeadParams, memory: Context, back, token):
        del params, token  # `pending` is in no feature
        return memory._replace(length=memory.length - jnp.maximum(back - 1, 0))

    def proposable(params, memory: Context, depth):
        """A prompt of one token has no feature before it: nothing is drafted in its first round."""
        del params
        valid = (jnp.asarray(depth)[None] == 0) | (memory.length > 0)[:, None]
        return jnp.broadcast_to(valid, (memory.length.shape[0], len(depth)))

    return one_pass(Reader(init, draft, commit, rewind, proposable), target_config.vocab_size, restricted=restricted)
