"""Bytes that a chip holds, by group, without compiling: shapes, shardings and the tiles of a layout."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from specjax.types import PyTree

LANES, SUBLANES = 128, 8


def held(tree: PyTree, *, compact: bool) -> int:
    """Bytes on one chip of shapes with shardings, tiled.

    Args:
      compact: the last two axes are in the order that pads less, as in default layouts; else row-major.
    """

    def one(leaf: Any) -> int:
        shape = leaf.sharding.shard_shape(leaf.shape)
        orders = [shape, (*shape[:-2], *shape[-2:][::-1])] if compact else [shape]
        return min(_padded(order, leaf.dtype) for order in orders)

    return sum(map(one, jax.tree.leaves(tree)))


def _padded(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of an array whose last axes are those of its tiles. Small arrays have smaller tiles."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return math.prod(shape) * 8
    size = jnp.dtype(dtype).itemsize
    if len(shape) < 2 or math.prod(shape) * size < LANES * SUBLANES * 4:
        return math.prod(shape) * size
    *lead, rows, lanes = shape
    return math.prod(lead) * -(-rows // SUBLANES) * SUBLANES * -(-lanes // LANES) * LANES * size


def in_format(shape: Sequence[int], dtype: Any, layout: Any) -> int:
    """Bytes of a chip's part of an array in a compiler's layout: every tile that is begun counts whole. No layout: the
    program does not read the array, which stays where it is."""
    if layout is None:
        return _padded(shape, dtype)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return math.prod(shape) * 8
    dims = [shape[axis] for axis in layout.major_to_minor[: len(shape)]]
    for tile in (layout.tiling or ())[:1]:
        for at, size in enumerate(reversed(tile), start=1):
            if at <= len(dims):
                dims[-at] = -(-dims[-at] // size) * size
    return math.prod(dims) * jnp.dtype(dtype).itemsize
