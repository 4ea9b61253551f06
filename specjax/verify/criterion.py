"""Lossy: the longest path of which every token meets a criterion. Shared by typical acceptance and its kin."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.categorical import total
from specjax.trees import NO_CHILD, Tree
from specjax.trees.dynamic import layout_of
from specjax.types import Draft
from specjax.verify.walk import usable


class Criterion(NamedTuple):
    """Which tokens pass after a law of the target.

    floor: log_p [B,n,V] -> [B,n], the probability that a token is measured against.
    strict: whether a token must be above the floor, or may be at it.
    """

    floor: Callable[[Float[Array, "B n V"]], Float[Array, "B n"]]
    strict: bool


def longest(criterion: Criterion, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Int[Array, "B"]:
    """The deepest node of each row that meets the criterion with all its ancestors; of equals the likeliest path."""
    if tree.size == 1:
        return jnp.zeros(log_p.shape[:1], jnp.int32)
    if draft.parents is None:  # laws after later nodes do not matter
        log_p = log_p[:, : int(np.flatnonzero((tree.children != NO_CHILD).any(-1)).max()) + 1]
    shape = layout_of(tree, draft.parents, log_p.shape[0])
    above = jnp.maximum(shape.parents[:, 1:], 0)
    floor = jnp.take_along_axis(criterion.floor(log_p), above, axis=1)
    log_x = log_p[jnp.arange(log_p.shape[0], dtype=jnp.int32)[:, None], above, draft.tokens[:, 1:]]
    met = jnp.exp(log_x) > floor if criterion.strict else jnp.exp(log_x) >= floor
    met = jnp.pad(met & (log_x > -jnp.inf), ((0, 0), (1, 0)), constant_values=True)
    met = met & usable(tree, draft, in_order=False)
    passed = ~jnp.any(~met[:, None, :] & shape.mask, axis=-1)
    score = jnp.pad(jnp.where(met[:, 1:], log_x, jnp.zeros_like(log_x)), ((0, 0), (1, 0)))
    score = jnp.sum(jnp.where(shape.mask, score[:, None, :], jnp.zeros_like(score[:, None, :])), axis=-1)
    depth = jnp.where(passed, shape.depth, -1)
    deepest = depth == jnp.max(depth, axis=-1, keepdims=True)
    return jnp.argmax(jnp.where(deepest, score, -jnp.inf), axis=-1).astype(jnp.int32)


def entropy(log_p: Float[Array, "B n V"]) -> Float[Array, "B n"]:
    """H = - sum p log p, in nats; tokens of no mass count nothing."""
    p = jnp.exp(log_p)
    return -total(jnp.where(p > 0, p * log_p, jnp.zeros_like(p)))
