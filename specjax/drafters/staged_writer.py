"""A head with one stage per drafted token, Medusa or MLP speculator, as a writer of trees.

It reads one feature of the target, that of the token before `pending`. A stage computes the states of the nodes at one
depth, and the logits of their children, from the states of their parents:

    depth     0          1      ...
    stage     0          1      ...
    cache     pending    nodes in the order in which they are read
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specjax.base import LanguageModel
from specjax.drafters.head_writer import HeadParams, parent_slots, widen
from specjax.drafters.one_pass import no_prefill
from specjax.drafters.writer import Writer
from specjax.heads import head as heads
from specjax.models.family import Family
from specjax.models.format import Format
from specjax.programs import memoize
from specjax.types import Commit, Output

RECENT = 32  # features that are kept, for cascades, which roll back


class StagedMemory(NamedTuple):
    """Features of the last tokens before `pending`; between `root` and `commit`, the states of the nodes read."""

    recent: Float[Array, "B R D"]  # the last one is that of the token before `pending`
    known: Int[Array, "B"]  # how many of them, from the last one on, are of this text
    cache: Float[Array, "B T S"] | tuple[()] = ()


@memoize
def staged_writer(
    model: type[nnx.Module], config: Any, fmt: Format, target: tuple[Family, Any, Format], restricted: bool
) -> Writer:
    """A head of this module and shape as a writer, with `HeadParams`. It reads level by level: trees, no `chain`.

    Args:
      target: family, configuration and format of the target.
      restricted: it has a draft vocabulary.
    """
    graph = heads.structure(model, config, fmt)
    family, target_config, target_fmt = target
    ends_of = family.ends(target_config, target_fmt)

    def stage(params: HeadParams, index: int, state, tokens):
        state, logits = nnx.merge(graph, params.head).stage(index, ends_of(params.ends), state, tokens)
        return widen(logits, params.places), state

    def extend(params: HeadParams, tokens, cache, mask, depth, offset=0):
        """Nodes at one depth, which is counted from the children of the root and must be static."""
        above = parent_slots(mask, offset, tokens.shape[0]) + 1
        state = jnp.take_along_axis(cache, above[..., None], axis=1)
        logits, state = stage(params, int(depth[0]) + 1, state, tokens)
        return Output(logits, state), jnp.concatenate([cache, state], 1)

    def init(params: HeadParams, prompt, length, cache_len, prefilled):
        del params, cache_len
        known = jnp.zeros_like(length) if family.model.encoder_decoder else jnp.minimum(length - 1, RECENT)
        return StagedMemory(window(prefilled.features, length - 1), known)

    def root(params: HeadParams, memory: StagedMemory, pending):
        state = nnx.merge(graph, params.head).start(memory.recent[:, -1:])
        logits, state = stage(params, 0, state, pending[:, None])
        return logits[:, 0], memory._replace(cache=state)

    def commit(params: HeadParams, memory: StagedMemory, path, read, advanced, committed: Commit):
        del params, path, read, advanced  # nothing that was drafted is kept
        features = jnp.concatenate([memory.recent, committed.features.astype(jnp.float32)], 1)
        known = jnp.minimum(memory.known + committed.length, RECENT)
        return StagedMemory(window(features, RECENT + committed.length), known)

    def rewind(params: HeadParams, memory: StagedMemory, back, token):
        """The token committed instead becomes `pending`, whose feature is not known."""
        del params, token
        gone = jnp.maximum(back - 1, 0)
        return StagedMemory(window(memory.recent, RECENT - gone), jnp.maximum(memory.known - gone, 0))

    def proposable(params, memory: StagedMemory, depth):
        """Without a feature before `pending` nothing is drafted: in the first round after a prompt of one token, and of
        an encoder-decoder; and after a cascade rolled back more than was kept."""
        del params
        valid = (jnp.asarray(depth)[None] == 0) | (memory.known > 0)[:, None]
        return jnp.broadcast_to(valid, (memory.known.shape[0], len(depth)))

    lm = LanguageModel(no_prefill, extend, no_prefill, target_config.vocab_size)
    return Writer(lm, init, root, commit, rewind, proposable, restricted)


def window(features: Float[Array, "B S D"], end: Int[Array, "B"]) -> Float[Array, "B R D"]:
    """The RECENT features before `end`; those before the first one are repeats of it."""
    at = end[:, None] - RECENT + jnp.arange(RECENT, dtype=jnp.int32)[None]
    return jnp.take_along_axis(features.astype(jnp.float32), jnp.maximum(at, 0)[..., None], axis=1, mode="clip")
