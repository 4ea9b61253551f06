"""T5's relative position bias: which bucket a distance falls into, and the bias of a tree block over a row's slots.

Distances are key position minus query position, so a causal model sees none above 0. Short distances have a bucket
each, longer ones share buckets of logarithmic width, and all from `max_distance` on share the last one
(Raffel et al. 2020, arXiv 1910.10683, section 2.1).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


def bucket(distance: np.ndarray, *, count: int, max_distance: int, bidirectional: bool) -> np.ndarray:
    """The bucket 0..count-1 of each distance; float32 throughout, as the published models were trained."""
    if bidirectional:  # the upper half of the buckets is for keys that follow the query
        count //= 2
        base, reach = np.where(distance > 0, count, 0), np.abs(distance)
    else:
        base, reach = 0, np.maximum(-distance, 0)
    exact = count // 2
    ratio = np.log(np.maximum(reach, 1).astype(np.float32) / np.float32(exact))
    shared = exact + (ratio / np.float32(np.log(max_distance / exact)) * np.float32(count - exact)).astype(np.int32)
    return (base + np.where(reach < exact, reach, np.minimum(shared, count - 1))).astype(np.int32)


def position_bias(
    table: Float[Array, "R H"], distance: Int[Array, "B S T"], *, max_distance: int, bidirectional: bool
) -> Float[Array, "B H S T"]:
    """What each head adds to its scores at each distance, by one gather from a table of distances.

    The buckets of -max_distance .. max_distance (or .. 0) are known at trace time, so nothing is left of the logarithm
    at run time.
    """
    last = max_distance if bidirectional else 0
    buckets = bucket(
        np.arange(-max_distance, last + 1),
        count=table.shape[0],
        max_distance=max_distance,
        bidirectional=bidirectional,
    )
    row = jnp.clip(distance, -max_distance, last) + max_distance
    by_distance = table[buckets].T
    return jnp.moveaxis(by_distance[:, row], 0, 1)


def plain_distance(queries: int, keys: int) -> Int[Array, "1 S T"]:
    """Distances within one sequence whose positions are its indices."""
    return (jnp.arange(keys, dtype=jnp.int32)[None] - jnp.arange(queries, dtype=jnp.int32)[:, None])[None]


def block_distance(
    length: Int[Array, "B"],
    mask: Bool[Array, "... S N"],
    depth: Int[Array, "B S"],
    slots: int,
    positions: Int[Array, "B T"] | None = None,
) -> Int[Array, "B S T"]:
    """Distances from the nodes of a block to the slots of their row. Slots that a node does not see may hold anything.

        slots      0 ... length-1   | length ... length+N-S-1   | length+N-S ... length+N-1
        position   the slot's index | length + nodes seen before | length + the depth passed

    A block grown level by level is fed the depths of its newest nodes alone. Those of the older ones follow from the
    mask: the block slots that a node sees are its ancestors from the root on, in order, so an ancestor's depth is the
    number of visible slots before it.

    `positions` (`Cache.positions`) gives the true positions of the committed slots in a cache that leaves some out.
    `depth` then counts from its length too, so that the ancestors of a block grown by levels would be misplaced there:
    blocks are fed whole (S = N).
    """
    rows, block = depth.shape
    mask = jnp.broadcast_to(mask, (rows, *mask.shape[-2:]))
    old = mask[..., : mask.shape[-1] - block].astype(jnp.int32)
    key_depth = jnp.concatenate(
        [jnp.cumsum(old, -1) - 1, jnp.broadcast_to(depth[:, None], (rows, block, block))], axis=-1
    )
    index = jnp.arange(slots, dtype=jnp.int32)[None] if positions is None else positions
    base = index[:, None] - (length[:, None] + depth)[..., None]
    dims = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=(2,),
        operand_batching_dims=(0,),  # each row writes to itself
        scatter_indices_batching_dims=(0,),
    )
    return jax.lax.scatter(
        base, length[:, None], key_depth - depth[..., None], dims, indices_are_sorted=True, unique_indices=True,
        mode=jax.lax.GatherScatterMode.FILL_OR_DROP,
    )  # fmt: skip
