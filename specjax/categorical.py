"""Everything that walks the vocabulary: argmax, draws and exact thresholds, in blocks, without a sort.

A row of V numbers is read in blocks of BLOCK. One pass leaves a number a block; the answer is then looked for among
the blocks, and inside one of them. The last block is the last BLOCK numbers of the row, so V need not divide:

    V = 10, BLOCK = 4      0 1 2 3 | 4 5 6 7 | 8 9
                                      [6 7 | 8 9]   window of the last block; what lies left of 8 is masked
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt

from specjax.types import KeyArray

BLOCK = 256  # about the root of a vocabulary, and a whole number of vector lanes on every platform
RANKED = 256  # numbers ranked before a wide row is bisected: a nucleus of text is rarely larger
WIDE = 16_384  # of rows from here on, passes are worth avoiding on CPU: they are ranked before they are bisected


def argmax(x: Float[Array, "*lead V"]) -> Int[Array, "*lead"]:
    """Index of the largest number of each row; the lowest index among equals, the first NaN where there is one."""
    size = min(BLOCK, x.shape[-1])
    block = jnp.argmax(_per_block(jnp.max, x), axis=-1).astype(jnp.int32)
    start, window, outside = _window(x, block, size)
    # the last block is chosen only for a number that no earlier block has: the masked ones cannot win
    return start + jnp.argmax(jnp.where(outside, -jnp.inf, window), axis=-1).astype(jnp.int32)


def maximum(x: Float[Array, "*lead V"]) -> Float[Array, "*lead"]:
    """Largest number of each row, NaN where there is one; inside one jit XLA shares its pass over x with `argmax`."""
    return jnp.max(_per_block(jnp.max, x), axis=-1)


def total(x: Float[Array, "*lead V"]) -> Float[Array, "*lead"]:
    """Sum of each row.

    Of several wide rows, on CPU, their product with ones: XLA's reduction there keeps to one thread, and takes what it
    sums, an exponential say, along.
    """
    plain = lambda x: jnp.sum(x, axis=-1)
    if x.shape[-1] < WIDE or x.size == x.shape[-1]:
        return plain(x)
    product = lambda x: jnp.matmul(x, jnp.ones(x.shape[-1:], x.dtype))
    return lax.platform_dependent(x, cpu=product, default=plain)


def largest(x: Float[Array, "*lead V"], k: int) -> tuple[Float[Array, "*lead k"], Int[Array, "*lead k"]]:
    """The k largest numbers of each row, the largest first and of equals the first, and where they stand.

    `lax.top_k` of floats, behind a barrier: a slice that is taken of its result XLA would merge with its own, know the
    selection no more, and on CPU sort the whole row, 2 ms of 8,192 numbers.
    """
    best, index = lax.optimization_barrier(lax.top_k(x, k))
    return best, index


def uniforms(key: KeyArray, shape: tuple[int, ...], dtype: jax.typing.DTypeLike = jnp.float32) -> Float[Array, "..."]:
    """Uniforms on [0, 1) of the given shape for every key of an array of keys: [*keys, *shape].

    Each key is consumed once; what one key gives does not depend on its neighbors.
    """
    flat = jax.vmap(lambda k: jax.random.uniform(k, shape, dtype))(key.reshape(-1))
    return flat.reshape(*key.shape, *shape)


def draw(uniform: Float[Array, "*lead 2"], mass: Float[Array, "*lead V"]) -> Int[Array, "*lead"]:
    """Draws one index a row from masses that need not sum to one, by the inverse of the distribution, in two levels.

    A block is drawn by its mass, then an index inside it; two independent uniforms keep the resolution of float32 at
    both levels. An index of zero mass is never returned, whatever the uniforms in [0, 1). A row without any mass, or
    with NaN, gives an index in range and no other promise.

    Args:
      uniform: [*lead, 2] on [0, 1).
      mass: [*lead, V], at least 0, any V >= 1.

    Returns:
      [*lead] int32 indices.
    """
    size = min(BLOCK, mass.shape[-1])
    block = _pick(uniform[..., 0], _per_block(jnp.sum, mass))
    start, window, outside = _window(mass, block, size)
    return start + _pick(uniform[..., 1], jnp.where(outside, jnp.zeros_like(window), window))


def categorical(key: KeyArray, log_p: Float[Array, "*lead V"]) -> Int[Array, "*lead"]:
    """Draws one token a row from log-probabilities, given up to a constant; -inf is never drawn.

    The law of `jax.random.categorical`, without a random number for every entry of the vocabulary.

    Args:
      key: typed keys, consumed once. Their shape is a prefix of *lead (a scalar key included): the rows that share a
        key are drawn from its stream in order, so keys [B] with laws [B, V] make a row independent of its place.
      log_p: [*lead, V].

    Returns:
      [*lead] int32 tokens.
    """
    lead = log_p.shape[:-1]
    if key.shape != lead[: key.ndim]:
        raise ValueError(f"keys of shape {key.shape} must be a prefix of the laws' leading shape {lead}")
    top = jnp.max(log_p, axis=-1, keepdims=True)
    return draw(uniforms(key, (*lead[key.ndim :], 2), log_p.dtype), jnp.exp(log_p - top))


def threshold(
    x: Float[Array, "*lead V"],
    weight: Float[Array, "*lead V"],
    target: Float[Array, "*lead"],
    active: Bool[Array, "*lead"],
) -> Float[Array, "*lead"]:
    """The largest t such that {x >= t} weighs at least `target`: exact, by bisection over the floats, without a sort.

    Unit weights and target k give the k-th largest number; weights exp(x) and a share of their sum give the threshold
    of the nucleus. Equal numbers stand or fall together.

    Args:
      x: [*lead, V], float32.
      weight: [*lead, V], at least 0.
      target: [*lead], above 0 and at most the sum of the weights.
      active: [*lead]; a row that is not active answers -inf at once.
    """
    if x.shape[-1] < WIDE:
        return _bisect(x, weight, target, active)
    return lax.platform_dependent(x, weight, target, active, cpu=_rank_or_bisect, default=_bisect)


def _rank_or_bisect(x, weight, target, active):
    """Looks for the threshold among the RANKED largest numbers; bisects where some row's is not among them."""
    best, index = largest(x, RANKED)
    enough = jnp.cumsum(jnp.take_along_axis(weight, index, axis=-1), axis=-1) >= target[..., None]
    t = jnp.take_along_axis(best, jnp.argmax(enough, axis=-1, keepdims=True), axis=-1)[..., 0]
    t = jnp.where(active, t, -jnp.inf)
    open_rows = active & ~jnp.any(enough, axis=-1)
    return lax.cond(
        jnp.any(open_rows), lambda: jnp.where(open_rows, _bisect(x, weight, target, open_rows), t), lambda: t
    )


def _bisect(x, weight, target, active):
    """`threshold` by halving the floats between -inf and +inf.

    A row stops once a single number is left between its bounds (about 20 passes at V = 50,000), or after 32 passes
    where there are ties.
    """
    low = jnp.broadcast_to(_ordered(jnp.float32(-jnp.inf)), target.shape)
    high = jnp.where(active, _ordered(jnp.float32(jnp.inf)) + jnp.uint32(1), low + jnp.uint32(1))
    count = jnp.full(target.shape, x.shape[-1], jnp.int32)

    def unsettled(carry):
        low, high, count_low, count_high = carry
        return jnp.any((high - low > 1) & (count_low - count_high > 1))

    def halve(carry):
        low, high, count_low, count_high = carry
        middle = low + (high - low) // 2
        kept = x >= _float(middle)[..., None]
        enough = jnp.sum(jnp.where(kept, weight, jnp.zeros_like(weight)), axis=-1) >= target
        count = jnp.sum(kept, axis=-1, dtype=jnp.int32)
        return (
            jnp.where(enough, middle, low),
            jnp.where(enough, high, middle),
            jnp.where(enough, count, count_low),
            jnp.where(enough, count_high, count),
        )

    low, *_ = lax.while_loop(unsettled, halve, (low, high, count, jnp.zeros_like(count)))
    return _float(low)


def _per_block(reduce, x: Float[Array, "*lead V"]) -> Float[Array, "*lead blocks"]:
    """One number a block; the ragged end of the row is a block of its own, which saves padding the whole row."""
    size = min(BLOCK, x.shape[-1])
    whole = x.shape[-1] // size * size
    blocks = reduce(x[..., :whole].reshape(*x.shape[:-1], -1, size), axis=-1)
    if whole == x.shape[-1]:
        return blocks
    return jnp.concatenate([blocks, reduce(x[..., whole:], axis=-1, keepdims=True)], axis=-1)


def _window(x: Float[Array, "*lead V"], block: Int[Array, "*lead"], size: int):
    """First index, contents, and what to ignore of each row's window that covers its block."""
    rows = x.reshape(-1, x.shape[-1])
    begin = block * size
    start = jnp.minimum(begin, x.shape[-1] - size)
    window = jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (size,)))(rows, start.reshape(-1))
    window = window.reshape(*block.shape, size)
    return start, window, _index(window) < (begin - start)[..., None]


def _index(x: Float[Array, "*lead n"]) -> Int[Array, "*lead n"]:
    """Position of every number in its row."""
    return lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)


def _pick(uniform: Float[Array, "*lead"], mass: Float[Array, "*lead n"]) -> Int[Array, "*lead"]:
    """First index whose cumulated mass exceeds uniform * total.

    Rounding may put uniform * total at the total itself, and a parallel cumulated sum may step up at a zero: so only
    indices with mass count, and the last of them answers where none exceeds.
    """
    index = _index(mass)
    below = jnp.cumsum(mass, axis=-1)
    exceeds = (below > uniform[..., None] * below[..., -1:]) & (mass > 0)
    first = jnp.min(jnp.where(exceeds, index, mass.shape[-1] - 1), axis=-1)
    last = jnp.max(jnp.where(mass > 0, index, 0), axis=-1)
    return jnp.minimum(first, last)


def _ordered(x: Float[Array, "..."]) -> UInt[Array, "..."]:
    """Floats as unsigned integers in the same order: what bisection halves."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _float(ordered: UInt[Array, "..."]) -> Float[Array, "..."]:
    """The inverse of `_ordered`, but for denormals: 0, as which most hardware compares them."""
    bits = jnp.where(ordered >> 31 == 1, ordered & jnp.uint32(0x7FFFFFFF), ~ordered)
    x = lax.bitcast_convert_type(bits, jnp.float32)
    return jnp.where(jnp.abs(x) < jnp.finfo(jnp.float32).tiny, 0.0, x)
