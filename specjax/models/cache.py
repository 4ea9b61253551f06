"""Key-value caches with a length per row: allocate, write a block in place, move a kept path, read.

    slots    0 ........ length-1 | length .. length+N-1 | ...
    content  committed tokens    | the block under test | free

A block is written past the committed slots and becomes visible only through `mask`; rolling back is not advancing the
length. Keys and values are stored as [B, K, T, H], the operand of the attention dots.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Bool, Float, Int, Shaped

from specjax.models.format import Format
from specjax.types import PyTree

LIMIT = 127.0  # of int8; symmetric: -128 is not used


class Int8(NamedTuple):
    """Keys or values [B,K,T,H] in int8, with a scale for each head and slot: x = values * scale, |x| <= 127 * scale.

    Attributes:
      values: [B,K,T,H] int8.
      scale: [B,K,T,1] in the dtype to which keys and values are widened when they are read.
    """

    values: Array
    scale: Array


class KV(NamedTuple):
    """Keys and values of one layer [B,K,T,H], or of all layers [L,B,K,T,H]; in a cache, each may be `Int8`."""

    k: Any
    v: Any


class Cache(NamedTuple):
    """What a decoder remembers of each row.

    Attributes:
      layers: one KV a layer in a tuple, or one stacked KV.
      length: committed slots of each row.
      cross: encoder-decoder only: keys and values of the encoder's output and its visibility.
      positions: the true position of each slot, where that is not the slot's index (a cache that left some out). Only
        relative positions read it: rotary and learned ones are in the keys already.
    """

    layers: tuple[KV, ...] | KV
    length: Int[Array, "B"]
    cross: PyTree = None
    positions: Int[Array, "B T"] | None = None


class ReadOnly(NamedTuple):
    """Replaces `Cache.layers` where the block's keys and values are stored already: nothing is written."""

    layers: tuple[KV, ...] | KV


class Filling(NamedTuple):
    """Replaces `Cache.layers` while a prompt is read: a block starts at the same slot of consecutive rows.

    Attributes:
      start: first slot of the block; all earlier slots hold the prompt. None: the caches are empty.
      row: first row of the block.
    """

    layers: tuple[KV, ...] | KV
    start: Int[Array, ""] | None
    row: Int[Array, ""] | int = 0


class Stored(NamedTuple):
    """What a block attends to once its own keys and values are in the cache: the slots of layer `index`."""

    layers: tuple[KV, ...] | KV
    index: Int[Array, ""] | int

    def window(self, first: Int[Array, ""], size: int) -> KV:
        """Keys and values [B,K,size,H] of consecutive slots."""
        return _window(self.layers, self.index, 0, None, first, size)


class Prefix(NamedTuple):
    """What a block of a prompt attends to: itself, and the slots of layer `index` before `start`, of the rows from
    `row`."""

    block: KV
    layers: tuple[KV, ...] | KV
    index: Int[Array, ""] | int
    start: Int[Array, ""]
    row: Int[Array, ""] | int

    def window(self, first: Int[Array, ""], size: int) -> KV:
        """Keys and values [B,K,size,H] of consecutive slots."""
        return _window(self.layers, self.index, self.row, self.block.k.shape[0], first, size)


def allocate(batch: int, heads: int, slots: int, width: int, count: int, fmt: Format) -> tuple[KV, ...] | KV:
    """Zeroed keys and values for `count` layers."""

    def empty(*lead: int) -> Array | Int8:
        shape = (*lead, batch, heads, slots, width)
        if not fmt.int8_cache:
            return jnp.zeros(shape, fmt.cache_dtype)
        return Int8(jnp.zeros(shape, jnp.int8), jnp.zeros((*shape[:-1], 1), fmt.cache_dtype))

    if fmt.stacked:
        return KV(empty(count), empty(count))
    return tuple(KV(empty(), empty()) for _ in range(count))


def quantized(x: Float[Array, "*L B K S H"]) -> Int8:
    """Keys or values in int8. The scale is rounded to its dtype first, so that its rounding adds no error."""
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    scale = jnp.where(largest > 0, largest / LIMIT, 1.0).astype(x.dtype)
    return Int8(jnp.clip(jnp.round(x / scale), -LIMIT, LIMIT).astype(jnp.int8), scale)


def widened(x: Array | Int8) -> Float[Array, "*L B K S H"]:
    """Keys or values as floating-point numbers."""
    return x.values.astype(x.scale.dtype) * x.scale if isinstance(x, Int8) else x


def stored(x: Float[Array, "*L B K S H"], fmt: Format) -> Array | Int8:
    """Keys or values as caches of the format store them."""
    x = x.astype(fmt.cache_dtype)
    return quantized(x) if fmt.int8_cache else x


def _like(cache: Array | Int8, new: Float[Array, "*L B K S H"]) -> Array | Int8:
    """Keys or values as `cache` stores them."""
    return quantized(new.astype(cache.scale.dtype)) if isinstance(cache, Int8) else new.astype(cache.dtype)


def slots(cache: Cache) -> int:
    """T, the number of slots of each row."""
    return slot_count(cache.layers)


def slot_count(layers: tuple[KV, ...] | KV) -> int:
    """The number of slots of keys and values."""
    return jax.tree.leaves(layers)[0].shape[-2]


def put_windows(buffer: Shaped[Array, "*L B K T H"], new: Shaped[Array, "B K S H"], start: Int[Array, "B"], layer=None):
    """Writes new[b] into buffer[b, :, start[b]:start[b]+S] in place; a window that does not fit is dropped whole.

    One scatter of B windows: a dynamic-update-slice would clamp at the end and overwrite committed slots of a full row.
    A scatter of a single window XLA rewrites into a guarded slice update, for which its CPU backend copies the whole
    buffer; so a single row writes a second window past the end, which is always dropped.
    """
    rows = new.shape[0]
    windows = 2 if rows == 1 else 1
    past = jnp.maximum(start, buffer.shape[-2]) + 1
    index = jnp.stack([start, past][:windows], 1)[..., None]
    updates = jnp.broadcast_to(new[:, None], (rows, windows, *new.shape[1:]))
    lead: tuple[int, ...] = ()
    if layer is not None:
        index = jnp.concatenate([jnp.full_like(index, layer), index], -1)
        lead = (0,)
    n = len(lead)
    dims = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(2, 3, 4),
        inserted_window_dims=lead,
        scatter_dims_to_operand_dims=(*lead, n + 2),
        operand_batching_dims=(n,),  # each row writes to itself: under a mesh nothing crosses the data axis
        scatter_indices_batching_dims=(0,),
    )
    out = jax.lax.scatter(
        buffer,
        index,
        updates.astype(buffer.dtype),
        dims,
        indices_are_sorted=True,
        unique_indices=True,
        mode=jax.lax.GatherScatterMode.FILL_OR_DROP,
    )
    return jax.lax.platform_dependent(out, tpu=_row_major, default=lambda out: out)


def _row_major(buffer: Array) -> Array:
    """Keeps a buffer in the layout in which it is passed around. Left to itself, the TPU compiler fits a cache to the
    block that is written into it, and copies all of it in and out of every step."""
    return with_layout_constraint(buffer, Layout(tuple(range(buffer.ndim))))


def take_slots(layers: PyTree, at: PyTree) -> PyTree:
    """Keys and values [..., B,K,N,H] of some slots of every layer; indices past the end give the last slot.

    Args:
      at: [B,N] for all layers and heads; or, in the structure of `layers` with one array for each KV, [B,K,N] (stacked
        [L,B,K,N]): a choice of each layer and head.
    """

    def take(buffer: Array, index: Array) -> Array:
        return jnp.take_along_axis(buffer, index[..., None], axis=-2, mode="clip")

    if isinstance(at, jax.Array) and at.ndim == 2:
        return jax.tree.map(lambda a: take(a, jnp.expand_dims(at, (*range(a.ndim - 4), -2))), layers)
    if isinstance(layers, KV):
        return jax.tree.map(lambda a: take(a, at), layers)
    return tuple(jax.tree.map(functools.partial(take, index=one), kv) for kv, one in zip(layers, at, strict=True))


def put_slots(layers: PyTree, new: PyTree, at: Int[Array, "B N"]) -> PyTree:
    """Writes new [..., B,K,N,H] to slots at[b] of every layer and head; what points past the end is dropped.

    Of one row, no slot may be named twice.
    """

    def put(buffer: Array, rows: Array) -> Array:
        if buffer.ndim == 5:
            return jax.vmap(put)(buffer, rows)
        dims = jax.lax.ScatterDimensionNumbers(
            update_window_dims=(2, 3),
            inserted_window_dims=(2,),
            scatter_dims_to_operand_dims=(2,),
            operand_batching_dims=(0,),  # each row writes to itself
            scatter_indices_batching_dims=(0,),
        )
        return jax.lax.scatter(
            buffer, at[..., None], jnp.moveaxis(rows, 2, 1), dims, unique_indices=True,
            mode=jax.lax.GatherScatterMode.FILL_OR_DROP,
        )  # fmt: skip

    return jax.tree.map(put, layers, new)


def map_layers(function: Callable[..., PyTree], layers: PyTree, *others: PyTree) -> PyTree:
    """function(KV of a layer, widened, ...) of every layer; stacked layers are mapped one after another.

    Args:
      others: more arguments by layer: tuples, or arrays stacked along the first axis, as `layers` are.
    """
    if isinstance(layers, KV):
        return jax.lax.map(lambda one: function(_wide(one[0]), *one[1:]), (layers, *others))
    return tuple(function(_wide(one), *more) for one, *more in zip(layers, *others, strict=True))


def where_rows(rows: Bool[Array, "B"], new: PyTree, old: PyTree) -> PyTree:
    """Keys and values of `new` in the rows that are set, of `old` in all others."""
    return jax.tree.map(lambda a, b: jnp.where(_of_rows(rows, b), a, b), new, old)


def put_front(layers: PyTree, new: PyTree, rows: Bool[Array, "B"]) -> PyTree:
    """Writes new [..., B,K,N,H] to the first N slots of the rows that are set."""

    def put(buffer: Array, front: Array) -> Array:
        front = jnp.where(_of_rows(rows, front), front, buffer[..., : front.shape[-2], :])
        return jax.lax.dynamic_update_slice_in_dim(buffer, front, 0, axis=-2)

    return jax.tree.map(put, layers, new)


def with_room(layers: PyTree, count: int) -> PyTree:
    """Appends `count` zeroed slots."""
    return jax.tree.map(lambda a: jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, count), (0, 0)]), layers)


def _of_rows(flags: Bool[Array, "B"], like: Array) -> Array:
    return flags.reshape((*(1 for _ in range(like.ndim - 4)), -1, 1, 1, 1))


def chunk_means(k: Float[Array, "B K T H"], size: int) -> Float[Array, "B K C H"]:
    """Mean key of every whole chunk of `size` slots."""
    count = k.shape[2] // size
    return k[:, :, : count * size].reshape(*k.shape[:2], count, size, k.shape[3]).mean(3)


def products(q: Float[Array, "B S Q H"], k: Float[Array, "B K T H"]) -> Float[Array, "B K G S T"]:
    """Products of queries with the keys of their own key-value head (Q = K * G), float32."""
    rows, block, heads, width = q.shape
    kv_heads = k.shape[1]
    q = q.reshape(rows, block, kv_heads, heads // kv_heads, width).transpose(0, 2, 3, 1, 4)
    flat = q.reshape(rows, kv_heads, -1, width).astype(k.dtype)
    out = jax.lax.dot_general(flat, k, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)
    return out.reshape(rows, kv_heads, heads // kv_heads, block, k.shape[2])


def size_in_bytes(layers: PyTree) -> int:
    """Bytes of keys and values; also of abstract arrays."""
    return sum(leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(layers))


def put_rows(
    buffer: Shaped[Array, "B T"], new: Shaped[Array, "B W"], start: Int[Array, "B"], active: Bool[Array, "B"]
) -> Shaped[Array, "B T"]:
    """Writes new[b] into buffer[b, start[b]:start[b]+W] of the active rows; a window that does not fit is dropped."""
    index = jnp.where(active, start, buffer.shape[1])[:, None]
    dims = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1,),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=(1,),
        operand_batching_dims=(0,),
        scatter_indices_batching_dims=(0,),
    )
    return jax.lax.scatter(
        buffer, index, new, dims, indices_are_sorted=True, unique_indices=True,
        mode=jax.lax.GatherScatterMode.FILL_OR_DROP,
    )  # fmt: skip


def write(layers, index, k: Float[Array, "B S K H"], v: Float[Array, "B S K H"], start: Int[Array, "B"] | None):
    """Puts a block's keys and values into layer `index`; returns (layers, what the block attends to).

    Args:
      layers: `Cache.layers`, `Filling` or `ReadOnly`; None where nothing is cached (scoring, training).
      start: first slot of each row's block; None: as `layers` implies.
    """
    if isinstance(layers, ReadOnly):
        return layers, Stored(layers.layers, index)
    block = KV(k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3))
    if isinstance(layers, Filling):
        first = 0 if layers.start is None else layers.start
        after, block = _put(layers.layers, index, block, functools.partial(_fill, layers.row, first))
        filled, block = layers._replace(layers=after), _wide(block)  # as later blocks read it
        seen = block if layers.start is None else Prefix(block, filled.layers, index, layers.start, layers.row)
        return filled, seen
    if layers is None or start is None:
        return None, block
    layers, _ = _put(layers, index, block, lambda buffer, new, layer: put_windows(buffer, new, start, layer))
    return layers, Stored(layers, index)


def _put(layers: tuple[KV, ...] | KV, index, block: KV, put: Callable[..., Array]) -> tuple[tuple[KV, ...] | KV, KV]:
    """Returns the layers with the block in layer `index`, and the block as it is stored."""
    stacked = isinstance(layers, KV)
    old = layers if stacked else layers[index]
    new = KV(*(_like(a, b) for a, b in zip(old, block, strict=True)))
    one = jax.tree.map(lambda a, b: put(a, b, index if stacked else None), old, new)
    return (one if stacked else (*layers[:index], one, *layers[index + 1 :])), new


def _fill(row, first, buffer: Shaped[Array, "*L B K T H"], new: Shaped[Array, "R K S H"], layer) -> Array:
    """Writes a block to the same slots of consecutive rows; it must fit."""
    lead = () if layer is None else (layer,)
    at = [jnp.asarray(i, jnp.int32) for i in (*lead, row, 0, first, 0)]
    out = jax.lax.dynamic_update_slice(buffer, new.reshape(*(1 for _ in lead), *new.shape), at)
    return jax.lax.platform_dependent(out, tpu=_row_major, default=lambda out: out)


def _window(layers: tuple[KV, ...] | KV, index, row, rows: int | None, first: Int[Array, ""], size: int) -> KV:
    """Keys and values [B,K,size,H] of consecutive rows and slots of one layer; `rows` None: of all."""

    def read(buffer: Array) -> Array:
        lead = () if buffer.ndim == 4 else (index,)
        at = [jnp.asarray(i, jnp.int32) for i in (*lead, row, 0, first, 0)]
        count, heads, _, width = buffer.shape[-4:]
        sizes = (*(1 for _ in lead), count if rows is None else rows, heads, size, width)
        return jax.lax.dynamic_slice(buffer, at, sizes).reshape(sizes[-4:])

    return _wide(jax.tree.map(read, layers if isinstance(layers, KV) else layers[index]))


def one_layer(layers: tuple[KV, ...] | KV, index) -> KV:
    """Keys and values of one layer, widened; its index is traced where layers are stacked."""
    if isinstance(layers, KV):
        return _wide(jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, index, keepdims=False), layers))
    return _wide(layers[index])


def _wide(kv: Any) -> KV:
    return KV(widened(kv.k), widened(kv.v))


def visibility(length: Int[Array, "B"], mask: Bool[Array, "... S N"], slots: int, rows: int) -> Bool[Array, "B S T"]:
    """Which slots each block position sees: the committed ones, and those of the block that `mask` names.

    mask[..., i, j] is for slot length + j.
    """
    mask = jnp.broadcast_to(mask, (rows, *mask.shape[-2:]))
    committed = jnp.arange(slots)[None, None] < length[:, None, None]
    base = jnp.broadcast_to(committed, (rows, mask.shape[1], slots))
    dims = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=(2,),
        operand_batching_dims=(0,),
        scatter_indices_batching_dims=(0,),
    )
    index = length[:, None]
    return jax.lax.scatter(
        base, index, mask, dims, indices_are_sorted=True, unique_indices=True,
        mode=jax.lax.GatherScatterMode.FILL_OR_DROP,
    )  # fmt: skip


def keep(cache: Cache, path: Int[Array, "B W"] | None, n: Int[Array, "B"]) -> Cache:
    """Commits the first n[b] nodes of `path` (block positions): moves them to the front of the block, advances length.

    A chain (path None) moves nothing. A row whose window does not fit keeps its slots as they are.
    """
    if path is None:
        return cache._replace(length=cache.length + n)

    def move(buffer: Array) -> Array:
        if buffer.ndim == 5:
            return jax.vmap(move)(buffer)
        at = (cache.length[:, None] + path)[:, None, :, None]
        picked = jnp.take_along_axis(buffer, at, axis=2, mode="clip")
        return put_windows(buffer, picked, cache.length)

    return cache._replace(layers=jax.tree.map(move, cache.layers), length=cache.length + n)
