"""A head that drafts every position of a round in one forward pass, as a writer of chains and static trees.

No position sees a drafted token: the distribution of a node depends on its depth alone.

    depth     1         2        ...   K
    logits    [:, 0]    [:, 1]   ...   [:, K - 1]     all of the pass in `root`; `extend` looks them up
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.base import LanguageModel
from specjax.drafters.writer import Writer
from specjax.types import Commit, Output, PyTree


class Reader(NamedTuple):
    """A head that drafts in one pass, as pure functions.

    init, rewind, proposable: as those of `Writer`.
    draft: (params, memory, pending [B]) -> (logits [B,K,V], memory).
    commit: (params, memory, Commit) -> memory.
    """

    init: Callable[..., PyTree]
    draft: Callable[..., tuple[Float[Array, "B K V"], PyTree]]
    commit: Callable[..., PyTree]
    rewind: Callable[..., PyTree]
    proposable: Callable[..., Any]


class Pass(NamedTuple):
    """What one pass drafted, and how many drafted tokens a chain is past."""

    logits: Float[Array, "B K V"]
    length: Int[Array, "B"]


class OnePassMemory(NamedTuple):
    """Memory of the head; between `root` and `commit`, the `Pass` of the round beside it."""

    head: PyTree
    cache: Pass | tuple[()] = ()


def one_pass(reader: Reader, vocab_size: int, *, restricted: bool) -> Writer:
    """The head as a writer.

    Args:
      vocab_size: V, the target's.
      restricted: it has a draft vocabulary.
    """

    def init(params, prompt, length, cache_len, prefilled):
        return OnePassMemory(reader.init(params, prompt, length, cache_len, prefilled))

    def root(params, memory: OnePassMemory, pending):
        logits, head = reader.draft(params, memory.head, pending)
        return logits[:, 0], OnePassMemory(head, Pass(logits, jnp.zeros_like(pending)))

    def extend(params, tokens, cache: Pass, mask, depth, offset=0):
        del params, mask, offset
        below = cache.length[:, None] + jnp.broadcast_to(jnp.asarray(depth, jnp.int32), tokens.shape)
        logits = jnp.take_along_axis(cache.logits, below[..., None] + 1, axis=1, mode="clip")
        return Output(logits, logits[..., :0]), cache

    def keep(cache: Pass, path, n):
        del path
        return cache._replace(length=cache.length + n)

    def commit(params, memory: OnePassMemory, path, read, advanced, committed: Commit):
        del path, read, advanced  # nothing that was drafted is in the head's cache
        return OnePassMemory(reader.commit(params, memory.head, committed))

    def rewind(params, memory: OnePassMemory, back, token):
        return OnePassMemory(reader.rewind(params, memory.head, back, token))

    def proposable(params, memory: OnePassMemory, depth):
        return reader.proposable(params, memory.head, depth)

    lm = LanguageModel(no_prefill, extend, keep, vocab_size)
    return Writer(lm, init, root, commit, rewind, proposable, restricted)


def no_prefill(*args: Any) -> Any:
    """Replaces `LanguageModel.prefill`, which is not called: a head reads the target's prompt in `Writer.init`."""
    raise AssertionError("Writer.init reads the prompt of a head")
