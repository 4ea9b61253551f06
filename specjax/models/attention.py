"""Attention of a block of new positions over a row's slots: grouped heads, additive bias, float32 softmax."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from specjax.models.cache import KV, Prefix, read_window
from specjax.models.format import Format

MASKED = float(np.finfo(np.float32).min)  # not -inf: a row that sees nothing must not become NaN
PREFIX_BLOCK = 256  # keys; slots before a block of a prompt are read in pieces, as many as hold tokens
QUERY_CHUNK = 512  # more queries are taken in pieces, so that the scores of a long prompt fit


def attend(
    q: Float[Array, "B S H D"],
    kv: KV | Prefix,
    visible: Bool[Array, "B S T"],
    *,
    scale: float,
    fmt: Format,
    bias: Float[Array, "#B H S T"] | None = None,
) -> Float[Array, "B S F"]:
    """Softmax attention; H query heads share K key-value heads in groups of H / K. Returns heads joined, F = H * D.

    Args:
      q: queries.
      kv: keys and values [B,K,T,D]; of a block of a prompt, its own (T = S) and a prefix that all queries see.
      visible: slots that each query sees; of a block of a prompt, positions of the block.
      scale: multiplies the scores (T5 has 1.0: no scaling).
      fmt: of the model.
      bias: added to the scores (T5's relative positions); its batch axis may be 1.
    """
    rows, block, heads, width = q.shape
    if block > QUERY_CHUNK and not isinstance(kv, Prefix):
        return _in_chunks(q, kv, visible, scale=scale, fmt=fmt, bias=bias)
    k, v = kv.block if isinstance(kv, Prefix) else kv
    kv_heads, slots = k.shape[1], k.shape[2]
    group = heads // kv_heads
    # Queries of one key-value head side by side: [B, K, G * S, D].
    q = (q * scale).reshape(rows, block, kv_heads, group, width).transpose(0, 2, 3, 1, 4)
    q = q.reshape(rows, kv_heads, group * block, width).astype(k.dtype)
    scores = fmt.products.scores(q, k, fmt.precision).reshape(rows, heads, block, slots)
    if bias is not None:
        scores = scores + jnp.broadcast_to(bias, scores.shape)
    scores = jnp.where(visible[:, None], scores, MASKED)
    if isinstance(kv, Prefix):
        out = _with_prefix(q, scores.reshape(rows, kv_heads, group * block, slots), kv, fmt)
    else:
        weights = jax.nn.softmax(scores, axis=-1).reshape(rows, kv_heads, group * block, slots)
        out = fmt.products.mix(weights.astype(v.dtype), v, fmt.precision)
    out = out.reshape(rows, kv_heads, group, block, width).transpose(0, 3, 1, 2, 4)
    return out.reshape(rows, block, heads * width)


def _with_prefix(
    q: Float[Array, "B K M D"], scores: Float[Array, "B K M S"], prefix: Prefix, fmt: Format
) -> Float[Array, "B K M D"]:
    """Softmax over a block's own masked scores and the slots before it.

    The softmax is accumulated over pieces of the prefix (Milakov and Gimelshein 2018, arXiv 1805.02867), so that the
    cost follows the number of tokens before the block and not the size of the cache.
    """
    slots = jax.tree.leaves(prefix.layers)[0].shape[-2]
    size = min(PREFIX_BLOCK, slots)
    # Every query sees at least itself, so the first maximum is finite.
    highest = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - highest)
    mass = weights.sum(-1, keepdims=True)
    total = fmt.products.mix(weights.astype(prefix.block.v.dtype), prefix.block.v, fmt.precision)

    def step(carry):
        at, highest, mass, total = carry
        first = jnp.minimum(at, slots - size)  # the last piece overlaps the one before
        k, v = read_window(prefix.layers, prefix.index, first, size)
        slot = first + jnp.arange(size, dtype=jnp.int32)
        past = (slot >= at) & (slot < prefix.start)
        scores = jnp.where(past[None, None, None], fmt.products.scores(q, k, fmt.precision), MASKED)
        higher = jnp.maximum(highest, scores.max(-1, keepdims=True))
        shrink, weights = jnp.exp(highest - higher), jnp.exp(scores - higher)
        mass = mass * shrink + weights.sum(-1, keepdims=True)
        total = total * shrink + fmt.products.mix(weights.astype(v.dtype), v, fmt.precision)
        return at + size, higher, mass, total

    carry = jnp.zeros((), jnp.int32), highest, mass, total
    _, _, mass, total = jax.lax.while_loop(lambda carry: carry[0] < prefix.start, step, carry)
    return total / mass


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
