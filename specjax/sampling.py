"""From logits to the sampled distribution: one stack of warps for target and draft, with parameters per row.

The order is that of transformers' `generate`: logit bias, repetition penalty, temperature, top-k, top-p, min-p.
Temperature 0 is the one-hot distribution at the argmax, so greedy rows need no code of their own.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax.categorical import argmax, maximum, threshold, total
from specjax.defaults import LARGEST_TEMPERATURE

LARGEST_BIAS = 1e30  # within float32 even after division by the smallest penalty
STRONGEST = 1e6  # largest repetition penalty: products with logits stay within float32

PerRow = int | float | Sequence[int | float] | np.ndarray  # one number for all rows, or one per row
LogitBias = Mapping[int, float] | Sequence[Mapping[int, float] | None] | np.ndarray


class SamplingParams(NamedTuple):
    """Sampling parameters per row. They are arrays, so changing a value does not recompile.

    Two choices are part of the structure and compile apart: a batch whose rows are all greedy, for which no softmax is
    computed, and a logit bias.
    """

    temperature: Float[Array, "B"] | None  # 0: greedy; None: every row is greedy, without a penalty
    top_k: Int[Array, "B"]  # 0: off
    top_p: Float[Array, "B"]  # 1: off
    min_p: Float[Array, "B"]  # 0: off
    repetition_penalty: Float[Array, "B"]  # 1: off
    processed: Bool[Array, ""]  # False: every row has a temperature above 0 alone, and all other stages are skipped
    logit_bias: Float[Array, "B V"] | None = None


def sampling_params(
    batch: int,
    vocab_size: int,
    *,
    temperature: PerRow = 1.0,
    top_k: PerRow = 0,
    top_p: PerRow = 1.0,
    min_p: PerRow = 0.0,
    repetition_penalty: PerRow = 1.0,
    logit_bias: LogitBias | None = None,
) -> SamplingParams:
    """Validates sampling options on the host and puts them on the device.

    Args:
      batch: B.
      vocab_size: V.
      temperature: at least 0; 0 is greedy, as are values below the smallest normal float32.
      top_k: at least 0; 0 is off. Ties with the k-th largest logit are kept.
      top_p: above 0, at most 1; 1 is off. Keeps the smallest set of most probable tokens with this mass, including
        ties with its last token.
      min_p: at least 0, below 1; 0 is off. Removes tokens with less than this fraction of the largest probability.
      repetition_penalty: 1e-6 to 1e6; 1 is off. Divides the positive logits of tokens seen and multiplies the negative
        ones.
      logit_bias: token -> bias for all rows, one such mapping (or None) per row, or an array [V] or [B, V]; -inf bans
        a token.

    Each option but logit_bias is one number for all rows or B numbers.

    Returns:
      The arrays. Rows that are changed later must not need more than `temperature` and `processed` state.

    Raises:
      ValueError: a number out of range, NaN, a wrong length, or a token outside the vocabulary.

    >>> from specjax.sampling import sampling_params
    >>> params = sampling_params(2, 100, temperature=[0.0, 0.7], top_k=50)
    >>> params.top_k.tolist()
    [50, 50]
    """
    warmth = _rows(
        "temperature", temperature, batch, "at least 0 and finite", lambda x: (x >= 0) & (x <= LARGEST_TEMPERATURE)
    )
    warmth = np.where(warmth < np.finfo(np.float32).tiny, 0.0, warmth)  # XLA may read denormals as 0: 0 / 0
    best = _rows("top_k", top_k, batch, "an integer, at least 0", lambda x: (x >= 0) & (x == np.floor(x)))
    nucleus = _rows("top_p", top_p, batch, "above 0 and at most 1", lambda x: (x > 0) & (x <= 1))
    floor = _rows("min_p", min_p, batch, "at least 0 and below 1", lambda x: (x >= 0) & (x < 1))
    penalty = _rows(
        "repetition_penalty", repetition_penalty, batch, f"in {1 / STRONGEST:g}..{STRONGEST:g}",
        lambda x: (x >= 1 / STRONGEST) & (x <= STRONGEST),
    )  # fmt: skip
    bias = None if logit_bias is None else _bias(logit_bias, batch, vocab_size)
    warm, plain = warmth > 0, penalty == 1
    filtered = ((best > 0) & (best < vocab_size)) | (nucleus < 1) | (floor > 0)
    return SamplingParams(*jax.device_put((  # numpy converts without compiling a program for each shape
        None if np.all(~warm & plain) else np.asarray(warmth, np.float32),
        np.asarray(np.minimum(best, vocab_size), np.int32),
        np.asarray(nucleus, np.float32),
        np.asarray(floor, np.float32),
        np.asarray(penalty, np.float32),
        np.bool_(np.any(~(warm & plain) | filtered)),
        None if bias is None else np.asarray(bias, np.float32),
    )))  # fmt: skip


def warp(
    params: SamplingParams,
    logits: Float[Array, "B S V"],
    seen: Bool[Array, "B V"] | None = None,
    ancestors: Int[Array, "B S A"] | None = None,
) -> Float[Array, "B S V"]:
    """Normalized log-probabilities from which tokens are sampled, float32; -inf for excluded tokens.

    Rows with temperature 0 are one-hot at the argmax (the lowest index among ties). Tokens tied at the boundary of a
    filter are all kept. Stages that no row uses are skipped at run time.

    Args:
      params: sampling parameters per row.
      logits: [B, S, V], unwarped. The result for a row that `has_nan` is unspecified.
      seen: [B, V] bool, tokens of each row so far, for the repetition penalty. None without one.
      ancestors: [B, S, A] int32, tokens that precede each position in addition to `seen`, in any order.

    Returns:
      [B, S, V] float32.

    >>> import jax.numpy as jnp
    >>> from specjax.sampling import sampling_params, warp
    >>> params = sampling_params(1, 3, top_k=2)
    >>> jnp.exp(warp(params, jnp.log(jnp.array([[[0.6, 0.3, 0.1]]])))).round(3).tolist()[0][0][2]
    0.0
    """
    x = logits.astype(jnp.float32)
    if params.logit_bias is not None:
        x = x + params.logit_bias[:, None, :]
    if params.temperature is None:
        return _one_hot(x)
    row = lambda p: p[:, None, None]
    cold = row(params.temperature) == 0

    def scaled(x, top):
        # Subtract the maximum first: no temperature can overflow, and the largest logit is exactly 0
        return (x - top[..., None]) / jnp.where(cold, 1.0, row(params.temperature))

    def all_stages(x, top):
        if seen is not None:
            x = _penalize(row(params.repetition_penalty), x, _present(seen, ancestors, x.shape))
            top = maximum(x)
        return jnp.where(cold, _one_hot(x), _normalize(_filter(params, scaled(x, top))))

    return lax.cond(params.processed, all_stages, lambda x, top: _normalize(scaled(x, top)), x, maximum(x))


def has_nan(logits: Float[Array, "B *rest V"]) -> Bool[Array, "B"]:
    """Which rows contain logits that define no distribution: NaN, +inf, or only -inf.

    Needs one maximum (which propagates NaN); XLA shares it with the warp within one jit.
    """
    bad = ~jnp.isfinite(maximum(logits))
    return jnp.any(bad, axis=tuple(range(1, bad.ndim)))


def _present(seen: Bool[Array, "B V"], ancestors: Int[Array, "B S A"] | None, shape) -> Bool[Array, "B S V"]:
    """The tokens that precede each position."""
    if ancestors is None:
        return jnp.broadcast_to(seen[:, None], shape)
    # On a mesh, a scatter over mapped rows stays on the device of each row.
    mark = jax.vmap(lambda row, tokens: row.at[tokens].set(True), in_axes=(None, 0))
    return jax.vmap(mark)(seen, ancestors)


def _penalize(penalty: Float[Array, "B 1 1"], x: Float[Array, "B S V"], seen: Bool[Array, "B S V"]):
    """Repetition penalty, which also applies to greedy rows."""
    return jnp.where(seen, jnp.where(x < 0, x * penalty, x / penalty), x)


def _filter(params: SamplingParams, x: Float[Array, "B S V"]) -> Float[Array, "B S V"]:
    """Top-k, top-p and min-p on logits whose maximum is 0; excluded tokens become -inf. A filter that no row uses is
    skipped."""
    shape = x.shape[:-1]
    row = lambda p: jnp.broadcast_to(p[:, None], shape)

    def kept(x, cut, active):
        cut = lax.cond(jnp.any(active), cut, lambda x: jnp.full(shape, -jnp.inf), x)
        return jnp.where(x >= cut[..., None], x, -jnp.inf)

    def kth(x):
        return threshold(x, jnp.ones_like(x), jnp.minimum(row(params.top_k), x.shape[-1]).astype(x.dtype), row(ranked))

    def nucleus(x):
        mass = jnp.exp(x)
        return threshold(x, mass, row(params.top_p) * total(mass), row(massive))

    ranked, massive = params.top_k > 0, params.top_p < 1
    x = kept(kept(x, kth, ranked), nucleus, massive)
    return jnp.where(jnp.exp(x) >= row(params.min_p)[..., None], x, -jnp.inf)


def _normalize(x: Float[Array, "*lead V"]) -> Float[Array, "*lead V"]:
    """Log-softmax of logits whose maximum is 0."""
    return x - jnp.log(total(jnp.exp(x)))[..., None]


def _one_hot(x: Float[Array, "*lead V"]) -> Float[Array, "*lead V"]:
    """Log-probabilities of the one-hot distribution at the argmax: 0 there, -inf elsewhere."""
    index = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    return jnp.where(index == argmax(x)[..., None], jnp.zeros_like(x), -jnp.inf)


def _rows(name: str, value, batch: int, rule: str, holds) -> np.ndarray:
    """[B] float64, validated."""
    rows = np.asarray(value, dtype=np.float64)
    if rows.ndim > 1 or (rows.ndim == 1 and rows.shape[0] != batch):
        raise ValueError(f"{name} must be one number, or one for each of the {batch} rows, got shape {rows.shape}")
    rows = np.broadcast_to(rows, (batch,))
    if not np.all(holds(rows)):
        bad = int(np.argmin(holds(rows)))
        raise ValueError(f"{name} must be {rule}, got {rows[bad]:g} in row {bad}")
    return rows


def _bias(bias: LogitBias, batch: int, vocab_size: int) -> np.ndarray:
    """[B, V] from mappings or an array, validated."""
    if isinstance(bias, Mapping) or not isinstance(bias, np.ndarray):
        per_row = [bias] * batch if isinstance(bias, Mapping) else list(bias)
        if len(per_row) != batch or not all(one is None or isinstance(one, Mapping) for one in per_row):
            raise ValueError(f"logit_bias must be a mapping, an array or {batch} mappings, got {type(bias).__name__}")
        table = np.zeros((batch, vocab_size), np.float64)
        for row, mapping in enumerate(per_row):
            for token, value in (mapping or {}).items():
                if not 0 <= token < vocab_size:
                    raise ValueError(f"logit_bias contains token {token}, outside the vocabulary of {vocab_size}")
                table[row, token] = value
    elif bias.shape in ((vocab_size,), (batch, vocab_size)):
        table = np.broadcast_to(bias, (batch, vocab_size))
    else:
        raise ValueError(f"logit_bias must have shape ({vocab_size},) or ({batch}, {vocab_size}), got {bias.shape}")
    table = np.asarray(table, np.float64)
    if np.any(np.isnan(table)) or np.any(table > LARGEST_BIAS) or np.any((table < -LARGEST_BIAS) & (table != -np.inf)):
        raise ValueError("logit_bias must be at most 1e30 in magnitude, or -inf to ban a token")
    if np.any(np.all(table == -np.inf, axis=-1)):
        raise ValueError("logit_bias bans every token of a row: leave at least one")
    return table
