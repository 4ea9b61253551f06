"""Attention of a block of new positions over a row's slots: grouped heads, additive bias, float32 softmax."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.models.cache import KV, Prefix, Stored, one_layer, slot_count
from specjax.models.format import Format
from specjax.models.kernels import Kernel

MASKED = float(np.finfo(np.float32).min)  # not -inf: a row that sees nothing must not become NaN
WHOLE = 256  # slots; a cache of at most so many is read whole
FIRST = 128  # slots of a larger one that are always read, besides a block's own: most requests need no loop
ALIGN = 8  # to which the latter are rounded up
PIECE = 512  # slots; the others are read in pieces, as many as hold tokens
PREFIX_PIECE = 256  # slots before a block of a prompt are read in pieces as large as the block, at least so large
CAUSAL_PIECE = 128  # queries of a block of a prompt that are multiplied with the same keys of the block
QUERY_CHUNK = 512  # more queries are taken in pieces, so that the scores of a long prompt fit


def attend(
    q: Float[Array, "B S H D"],
    kv: KV | Stored | Prefix,
    visible: Bool[Array, "B S T"],
    *,
    scale: float,
    fmt: Format,
    bias: Float[Array, "#B H S T"] | None = None,
) -> Float[Array, "B S F"]:
    """Softmax attention; H query heads share K key-value heads in groups of H / K. Returns heads joined, F = H * D.

    Args:
      q: queries.
      kv: keys and values [B,K,T,D]; or those of a layer's cache, of which slots past the last visible one are not
        read; or, of a block of a prompt, its own (T = S) and a prefix that all queries see.
      visible: slots that each query sees; of a block of a prompt, positions of the block, none after the query's own.
      scale: multiplies the scores (T5 has 1.0: no scaling).
      fmt: of the model; its kernel reads blocks of a prompt that have no bias.
      bias: added to the scores (T5's relative positions); its batch axis may be 1.
    """
    rows, block, heads, width = q.shape
    if isinstance(kv, Prefix) and bias is None and fmt.kernel is not None and fmt.kernel.takes(block, width):
        return _by_kernel(q * scale, kv, fmt.kernel).reshape(rows, block, heads * width)
    if block > QUERY_CHUNK and not isinstance(kv, Prefix):
        return _in_chunks(q, kv, visible, scale=scale, fmt=fmt, bias=bias)
    stored = kv.layers if isinstance(kv, Stored | Prefix) else kv
    kv_heads = jax.tree.leaves(stored)[0].shape[-3]
    group = heads // kv_heads
    # Queries of one key-value head side by side: [B, K, G * S, D].
    q = (q * scale).reshape(rows, block, kv_heads, group, width).transpose(0, 2, 3, 1, 4)
    q = q.reshape(rows, kv_heads, group * block, width)

    slots = visible.shape[-1]

    def masked(q: Array, k: Array, visible: Bool[Array, "B S N"], bias: Array | None) -> Float[Array, "B K M N"]:
        queries = visible.shape[1]
        scores = fmt.products.scores(q.astype(k.dtype), k, fmt.precision).reshape(rows, heads, queries, k.shape[2])
        if bias is not None:
            scores = scores + jnp.broadcast_to(bias, scores.shape)
        scores = jnp.where(visible[:, None], scores, MASKED)
        return scores.reshape(rows, kv_heads, group * queries, k.shape[2])

    def triangle(kv: KV) -> Softmax:
        """Attention of a causal block to itself: groups of queries, each with the keys up to its last query."""
        ends = [*range(CAUSAL_PIECE, block, CAUSAL_PIECE), block]
        by_query = q.reshape(rows, kv_heads, group, block, width)
        parts = []
        for first, end in zip([0, *ends], ends, strict=False):
            some = by_query[:, :, :, first:end].reshape(rows, kv_heads, group * (end - first), width)
            seen = visible[:, first:end, :end], None if bias is None else bias[..., first:end, :end]
            done = _weighted(masked(some, kv.k[:, :, :end], *seen), kv.v[:, :, :end], fmt)
            parts.append([a.reshape(rows, kv_heads, group, end - first, -1) for a in done])
        joined = [
            jnp.concatenate(a, axis=3).reshape(rows, kv_heads, group * block, -1) for a in zip(*parts, strict=True)
        ]
        return Softmax(*joined)

    def whole(k: Array, v: Array) -> Float[Array, "B K M D"]:
        weights = jax.nn.softmax(masked(q, k, visible, bias), axis=-1)
        return fmt.products.mix(weights.astype(v.dtype), v, fmt.precision)

    def before(k: Array, first: Array, fresh: Bool[Array, "N"]) -> Float[Array, "B K M N"]:
        del first
        scores = fmt.products.scores(q.astype(k.dtype), k, fmt.precision)
        mask = lambda scores: jnp.where(fresh[None, None, None], scores, MASKED)
        return jax.lax.cond(fresh.all(), lambda scores: scores, mask, scores)  # only the last piece is in parts

    def part_of(k: Array, first: Array, fresh: Bool[Array, "N"]) -> Float[Array, "B K M N"]:
        part = lambda a: jax.lax.dynamic_slice_in_dim(a, first, k.shape[2], axis=-1)
        return masked(q, k, part(visible) & fresh[None, None], None if bias is None else part(bias))

    def pieces(kv: Stored, live: Int[Array, ""]) -> Float[Array, "B K M D"]:
        first = min(slots, FIRST + -(-(block - 1) // ALIGN) * ALIGN)
        k, v = kv.window(jnp.zeros((), jnp.int32), first)
        scores = masked(q, k, visible[..., :first], None if bias is None else bias[..., :first])
        begun = _weighted(scores, v, fmt)
        return _accumulated(begun, kv, part_of, fmt, start=first, stop=live, size=min(PIECE, slots // 2))

    if isinstance(kv, KV):
        out = whole(*kv)
    elif isinstance(kv, Prefix):
        size = min(max(PREFIX_PIECE, block), slot_count(kv.layers))
        out = _accumulated(triangle(kv.block), kv, before, fmt, start=0, stop=kv.start, size=size)
    elif slots <= WHOLE:
        out = whole(*one_layer(kv.layers, kv.index))
    else:
        # Of rows and slots first: the numbers of slots, which XLA keeps apart for each layer, are then not laid over
        # the mask. Not over the rows too: parts of a mesh then agree on one number, and not on all slots.
        seen = visible.any(1)
        live = jnp.max(jnp.where(seen, jnp.arange(1, slots + 1, dtype=jnp.int32), 0))
        if rows > 1 or fmt.int8_cache:  # masked pieces leave a row's numbers as they are, whatever longer rows need
            out = pieces(kv, live)
        else:  # a piece is copied before it is multiplied, the whole cache is not
            all_of_it = lambda: whole(*one_layer(kv.layers, kv.index))
            out = jax.lax.cond(live > slots // 2, all_of_it, lambda: pieces(kv, live))
    out = out.reshape(rows, kv_heads, group, block, width).transpose(0, 3, 1, 2, 4)
    return out.reshape(rows, block, heads * width)


class Softmax(NamedTuple):
    """A softmax over some of the keys.

    Attributes:
      highest: of the scores. mass: sum of exp(score - highest). total: values weighted so, not divided.
    """

    highest: Float[Array, "B K M 1"]
    mass: Float[Array, "B K M 1"]
    total: Float[Array, "B K M D"]


def _weighted(scores: Float[Array, "B K M N"], v: Float[Array, "B K N D"], fmt: Format) -> Softmax:
    highest = scores.max(-1, keepdims=True)  # finite: masked scores are
    weights = jnp.exp(scores - highest)
    return Softmax(highest, weights.sum(-1, keepdims=True), fmt.products.mix(weights.astype(v.dtype), v, fmt.precision))


def _by_kernel(q: Float[Array, "B S H D"], kv: Prefix, kernel: Kernel) -> Float[Array, "B S H D"]:
    """A block of a prompt and the slots before it, in one call of a kernel: a softmax in parts would be merged by
    normalizers that not all kernels return.

        slots    0 ............ start ............ start + S ......... T
        seen     [ all queries |  by later queries ]
        read     the first S, 2S, 4S, ... or T slots, whichever hold them: the shapes of a kernel are static
    """
    block, slots = q.shape[1], slot_count(kv.layers)
    sizes = [block]
    while sizes[-1] < slots:
        sizes.append(min(2 * sizes[-1], slots))
    last = kv.start + jnp.arange(block, dtype=jnp.int32)  # slot that each query sees last: its own

    def read(size: int) -> Float[Array, "B S H D"]:
        k, v = kv.window(jnp.zeros((), jnp.int32), size)
        return kernel.attend(q, k, v, jnp.arange(size, dtype=jnp.int32)[None] <= last[:, None])

    smaller = sum((last[-1] >= size).astype(jnp.int32) for size in sizes)
    return jax.lax.switch(smaller, [functools.partial(read, size) for size in sizes])


def _accumulated(
    begun: Softmax, kv: Stored | Prefix, masked: Callable[[Array, Array, Array], Float[Array, "B K M N"]], fmt: Format,
    *, start: int, stop: Int[Array, ""], size: int,
) -> Float[Array, "B K M D"]:  # fmt: skip
    """Values weighted by a softmax over what it was begun with and a layer's slots from `start` to `stop`, in pieces of
    `size`.

    The softmax is accumulated (Milakov and Gimelshein 2018, arXiv 1805.02867), so that the cost follows the number of
    tokens and not the size of the cache.

        slots    0 ....... start | piece | piece | piece | ........
                                                  ^ stop

    Args:
      masked: (keys of a piece, its first slot, which of its slots no earlier piece had) -> masked scores.
    """
    slots = slot_count(kv.layers)

    def step(carry):
        at, done = carry
        first = jnp.minimum(at, slots - size)  # the last piece overlaps the one before
        k, v = kv.window(first, size)
        slot = first + jnp.arange(size, dtype=jnp.int32)
        scores = masked(k, first, (slot >= at) & (slot < stop))
        highest = jnp.maximum(done.highest, scores.max(-1, keepdims=True))
        shrink, weights = jnp.exp(done.highest - highest), jnp.exp(scores - highest)
        mass = done.mass * shrink + weights.sum(-1, keepdims=True)
        total = done.total * shrink + fmt.products.mix(weights.astype(v.dtype), v, fmt.precision)
        return at + size, Softmax(highest, mass, total)

    carry = jnp.full((), start, jnp.int32), begun
    _, done = jax.lax.while_loop(lambda carry: carry[0] < stop, step, carry)
    return done.total / done.mass


def _in_chunks(q, kv, visible, *, scale, fmt, bias):
    rows, block, heads, width = q.shape
    pieces = -(-block // QUERY_CHUNK)
    pad = pieces * QUERY_CHUNK - block

    def split(a: Array, axis: int) -> Array:
        widths = [(0, pad if i == axis else 0) for i in range(a.ndim)]
        a = jnp.pad(a, widths)
        shape = (*a.shape[:axis], pieces, QUERY_CHUNK, *a.shape[axis + 1 :])
        return jnp.moveaxis(a.reshape(shape), axis, 0)

    parts = (split(q, 1), split(visible, 1), None if bias is None else split(bias, 2))
    out = jax.lax.map(lambda p: attend(p[0], kv, p[1], scale=scale, fmt=fmt, bias=p[2]), parts)
    return jnp.moveaxis(out, 0, 1).reshape(rows, pieces * QUERY_CHUNK, heads * width)[:, :block]
