"""Reductions over the vocabulary: argmax, sampling and exact thresholds, in blocks, without a sort.

A row of V numbers is read in blocks of BLOCK. One pass reduces each block to one number; the answer is then located
among the blocks, and inside one of them. The window of the last block is the last BLOCK numbers of the row, so V need
not be divisible:

    V = 10, BLOCK = 4      0 1 2 3 | 4 5 6 7 | 8 9
                                      [6 7 | 8 9]   window of the last block; entries before 8 are masked
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt

from specjax.types import KeyArray, PositionKeys

BLOCK = 256  # about the square root of a vocabulary, and a multiple of the vector lanes of every platform
RANKED = 256  # numbers ranked before a wide row is bisected: a nucleus is rarely larger
WIDE = 16_384  # rows at least this wide are ranked before they are bisected, on CPU


def argmax(x: Float[Array, "*lead V"]) -> Int[Array, "*lead"]:
    """Index of the largest number of each row: the lowest index among ties, or the first NaN.

    Args:
      x: [*lead, V] floats.

    Returns:
      [*lead] int32.
    """
    size = min(BLOCK, x.shape[-1])
    block = jnp.argmax(_per_block(jnp.max, x), axis=-1).astype(jnp.int32)
    start, window, outside = _window(x, block, size)
    # the last block is selected only for a number that no earlier block contains: masked entries cannot win
    return start + jnp.argmax(jnp.where(outside, -jnp.inf, window), axis=-1).astype(jnp.int32)


def maximum(x: Float[Array, "*lead V"]) -> Float[Array, "*lead"]:
    """Largest number of each row, or NaN. Within one jit, XLA shares the pass over x with `argmax`."""
    return jnp.max(_per_block(jnp.max, x), axis=-1)


def total(x: Float[Array, "*lead V"]) -> Float[Array, "*lead"]:
    """Sum of each row.

    On CPU, several wide rows are multiplied by ones: XLA's CPU reduction uses one thread, and fuses the computation of
    its operand (such as an exponential) into it.
    """
    plain = lambda x: jnp.sum(x, axis=-1)
    if x.shape[-1] < WIDE or x.size == x.shape[-1]:
        return plain(x)
    product = lambda x: jnp.matmul(x, jnp.ones(x.shape[-1:], x.dtype))
    return lax.platform_dependent(x, cpu=product, default=plain)


def largest(x: Float[Array, "*lead V"], k: int) -> tuple[Float[Array, "*lead k"], Int[Array, "*lead k"]]:
    """The k largest numbers of each row in descending order (ties: lowest index first), and their indices.

    `lax.top_k` behind an optimization barrier: XLA would merge a slice of the result with its own, no longer recognize
    the selection, and sort the whole row on CPU (2 ms for 8,192 numbers).
    """
    best, index = lax.optimization_barrier(lax.top_k(x, k))
    return best, index


def uniforms(key: KeyArray, shape: tuple[int, ...], dtype: jax.typing.DTypeLike = jnp.float32) -> Float[Array, "..."]:
    """Uniforms on [0, 1) of the given shape for every key in an array of keys: [*keys, *shape].

    Each key is consumed once; its numbers do not depend on the other keys.
    """
    flat = jax.vmap(lambda k: jax.random.uniform(k, shape, dtype))(key.reshape(-1))
    return flat.reshape(*key.shape, *shape)


def draw(uniform: Float[Array, "*lead 2"], mass: Float[Array, "*lead V"]) -> Int[Array, "*lead"]:
    """Samples one index per row from unnormalized masses, by inverse transform sampling in two levels.

    Samples a block by its mass, then an index inside it; two independent uniforms keep the resolution of float32 at
    both levels. An index of zero mass is never returned, for any uniforms in [0, 1). For a row without mass, or with
    NaN, the index is in range and otherwise unspecified.

    Args:
      uniform: [*lead, 2] on [0, 1).
      mass: [*lead, V], at least 0, any V >= 1.

    Returns:
      [*lead] int32 indices.

    >>> import jax.numpy as jnp
    >>> from specjax import categorical
    >>> int(categorical.draw(jnp.array([0.0, 0.99]), jnp.array([2.0, 1.0, 0.0])))
    1
    """
    size = min(BLOCK, mass.shape[-1])
    block = _pick(uniform[..., 0], _per_block(jnp.sum, mass))
    start, window, outside = _window(mass, block, size)
    return start + _pick(uniform[..., 1], jnp.where(outside, jnp.zeros_like(window), window))


def gumbel(key: KeyArray, size: int, dtype: jax.typing.DTypeLike = jnp.float32) -> Float[Array, "B V"]:
    """Gumbel noise for every token, [*keys, V]. Twice the random bits keep the tails: of tokens that a float32 uniform
    cannot tell from impossible ones, and of the largest values, which decide."""
    flat = jax.vmap(lambda k: jax.random.gumbel(k, (size,), dtype, mode="high"))(key.reshape(-1))
    return flat.reshape(*key.shape, size)


def perturbed(keys: PositionKeys, ahead: int | Int[Array, "..."], log_p: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """Log-probabilities plus the Gumbel noise of the token that is `ahead` positions further.

    Their argmax is a sample (Gumbel-max), and their k largest are a sample without replacement (Gumbel top-k). Tokens
    of mass 0 stay at -inf.
    """
    return log_p + gumbel(keys.at(ahead), log_p.shape[-1], log_p.dtype)


class Noise(NamedTuple):
    """Random numbers of a chain: two uniforms for each token, or keys by position."""

    source: Float[Array, "B gamma 2"] | PositionKeys

    def draw(self, step: int | Int[Array, ""], log_q: Float[Array, "B V"]) -> Int[Array, "B"]:
        """Samples token `step`, 0 for the first below the root."""
        if isinstance(self.source, PositionKeys):
            return argmax(perturbed(self.source, step, log_q))
        return draw(self.source[:, step], jnp.exp(log_q))


def noise(key: KeyArray | PositionKeys, gamma: int) -> Noise:
    """The random numbers of a chain of gamma tokens. Keys of a round are consumed."""
    return Noise(key if isinstance(key, PositionKeys) else uniforms(key, (gamma, 2)))


def categorical(key: KeyArray, log_p: Float[Array, "*lead V"]) -> Int[Array, "*lead"]:
    """Samples one token per row from log-probabilities, up to a constant; -inf is never sampled.

    The same distribution as `jax.random.categorical`, with two random numbers per row instead of V.

    Args:
      key: typed keys, consumed once. Their shape is a prefix of *lead (or a scalar key): rows that share a key use its
        stream in order, so with keys [B] and log_p [B, V] a row does not depend on its position in the batch.
      log_p: [*lead, V].

    Returns:
      [*lead] int32 tokens.

    Raises:
      ValueError: the shape of `key` is not a prefix of *lead.

    >>> import jax, jax.numpy as jnp
    >>> from specjax import categorical
    >>> log_p = jnp.log(jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> categorical.categorical(jax.random.split(jax.random.key(0), 2), log_p).tolist()
    [1, 2]
    """
    lead = log_p.shape[:-1]
    if key.shape != lead[: key.ndim]:
        raise ValueError(f"key has shape {key.shape}, which must be a prefix of the leading shape {lead} of log_p")
    top = jnp.max(log_p, axis=-1, keepdims=True)
    return draw(uniforms(key, (*lead[key.ndim :], 2), log_p.dtype), jnp.exp(log_p - top))


def threshold(
    x: Float[Array, "*lead V"],
    weight: Float[Array, "*lead V"],
    target: Float[Array, "*lead"],
    active: Bool[Array, "*lead"],
) -> Float[Array, "*lead"]:
    """The largest t such that the weight of {x >= t} is at least `target`: exact, by bisection over the floats.

    Unit weights and target k give the k-th largest number; weights exp(x) and a fraction of their sum give the
    threshold of nucleus sampling. Ties are included or excluded together.

    Args:
      x: [*lead, V], float32.
      weight: [*lead, V], at least 0.
      target: [*lead], above 0 and at most the sum of the weights.
      active: [*lead]; inactive rows return -inf at no cost.

    Returns:
      [*lead] float32.
    """
    if x.shape[-1] < WIDE:
        return _bisect(x, weight, target, active)
    return lax.platform_dependent(x, weight, target, active, cpu=_rank_or_bisect, default=_bisect)


def _rank_or_bisect(x, weight, target, active):
    """Searches the RANKED largest numbers, and bisects the rows whose threshold is not among them."""
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

    A row is done when a single number is left between its bounds (about 20 passes at V = 50,000), or after 32 passes
    if there are ties.
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
    """Reduces each block; the ragged end of the row is a block of its own, which avoids padding the row."""
    size = min(BLOCK, x.shape[-1])
    whole = x.shape[-1] // size * size
    blocks = reduce(x[..., :whole].reshape(*x.shape[:-1], -1, size), axis=-1)
    if whole == x.shape[-1]:
        return blocks
    return jnp.concatenate([blocks, reduce(x[..., whole:], axis=-1, keepdims=True)], axis=-1)


def _window(x: Float[Array, "*lead V"], block: Int[Array, "*lead"], size: int):
    """First index, content and mask (True: ignore) of the window that covers each row's block."""
    rows = x.reshape(-1, x.shape[-1])
    begin = block * size
    start = jnp.minimum(begin, x.shape[-1] - size)
    window = jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (size,)))(rows, start.reshape(-1))
    window = window.reshape(*block.shape, size)
    return start, window, _index(window) < (begin - start)[..., None]


def _index(x: Float[Array, "*lead n"]) -> Int[Array, "*lead n"]:
    """Index of every number in its row."""
    return lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)


def _pick(uniform: Float[Array, "*lead"], mass: Float[Array, "*lead n"]) -> Int[Array, "*lead"]:
    """First index whose cumulative mass exceeds uniform * total.

    Rounding may make uniform * total equal the total, and a parallel cumulative sum may increase at a zero: only
    indices with mass count, and if none exceeds, the last of them is returned.
    """
    index = _index(mass)
    below = jnp.cumsum(mass, axis=-1)
    exceeds = (below > uniform[..., None] * below[..., -1:]) & (mass > 0)
    first = jnp.min(jnp.where(exceeds, index, mass.shape[-1] - 1), axis=-1)
    last = jnp.max(jnp.where(mass > 0, index, 0), axis=-1)
    return jnp.minimum(first, last)


def _ordered(x: Float[Array, "..."]) -> UInt[Array, "..."]:
    """Floats as unsigned integers in the same order, for bisection."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _float(ordered: UInt[Array, "..."]) -> Float[Array, "..."]:
    """The inverse of `_ordered`, except that denormals become 0, as most hardware compares them."""
    bits = jnp.where(ordered >> 31 == 1, ordered & jnp.uint32(0x7FFFFFFF), ~ordered)
    x = lax.bitcast_convert_type(bits, jnp.float32)
    return jnp.where(jnp.abs(x) < jnp.finfo(jnp.float32).tiny, 0.0, x)
