"""From logits to the law that is sampled: one stack of warps for target and draft, with parameters of each row.

The order is that of transformers' `generate`: logit bias, repetition penalty, temperature, top-k, top-p, min-p.
Temperature 0 is the one-hot law at the argmax, so greedy rows need no code of their own anywhere.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax.categorical import argmax, maximum, threshold, total
from specjax.defaults import LARGEST_TEMPERATURE

LARGEST_BIAS = 1e30  # divided by the smallest penalty it is within float32 yet
STRONGEST = 1e6  # repetition penalty: logits times it stay far within float32

PerRow = int | float | Sequence[int | float] | np.ndarray  # one number for all rows, or one for each
LogitBias = Mapping[int, float] | Sequence[Mapping[int, float] | None] | np.ndarray


class SamplingParams(NamedTuple):
    """How each row is sampled; arrays, so a change of value compiles nothing."""

    temperature: Float[Array, "B"]  # 0: greedy
    top_k: Int[Array, "B"]  # 0: off
    top_p: Float[Array, "B"]  # 1: off
    min_p: Float[Array, "B"]  # 0: off
    repetition_penalty: Float[Array, "B"]  # 1: off
    logit_bias: Float[Array, "B V"] | None = None


@dataclasses.dataclass(frozen=True)
class Stages:
    """Which stages exist at all, known when the stack is traced: the others cost nothing.

    Args:
      greedy: some row may have temperature 0.
      sampled: some row may have a temperature above 0. False: no softmax is computed.
      logit_bias, repetition_penalty, top_k, top_p, min_p: some row may use the stage.
    """

    greedy: bool = True
    sampled: bool = True
    logit_bias: bool = False
    repetition_penalty: bool = False
    top_k: bool = False
    top_p: bool = False
    min_p: bool = False


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
) -> tuple[SamplingParams, Stages]:
    """Checks the user's choices on the host, and says which stages they need.

    Args:
      batch: B.
      vocab_size: V.
      temperature: at least 0; 0 is greedy, and so is anything below the smallest normal float32.
      top_k: at least 0; 0 is off. Numbers that equal the k-th largest stay.
      top_p: above 0, at most 1; 1 is off. The smallest set of most probable tokens that holds this mass, with the
        tokens that equal its last one.
      min_p: at least 0, below 1; 0 is off. Tokens less probable than this share of the most probable one go.
      repetition_penalty: 1e-6 to 1e6; 1 is off. Divides the positive logits of tokens seen, multiplies the negative
        ones.
      logit_bias: token -> bias for all rows, one such mapping (or None) a row, or an array [V] or [B, V]; -inf bans.
        Each but the last is a number for all rows, or B numbers.

    Returns:
      The arrays, and the stages that they need. Rows that change later must stay within those stages.

    Raises:
      ValueError: a number out of its range, NaN, a wrong length, or a token outside the vocabulary.
    """
    warmth = _rows(
        "temperature", temperature, batch, "at least 0 and finite", lambda x: (x >= 0) & (x <= LARGEST_TEMPERATURE)
    )
    warmth = np.where(warmth < np.finfo(np.float32).tiny, 0.0, warmth)  # XLA may read denormals as 0: 0 / 0
    best = _rows("top_k", top_k, batch, "a whole number, at least 0", lambda x: (x >= 0) & (x == np.floor(x)))
    nucleus = _rows("top_p", top_p, batch, "above 0 and at most 1", lambda x: (x > 0) & (x <= 1))
    floor = _rows("min_p", min_p, batch, "at least 0 and below 1", lambda x: (x >= 0) & (x < 1))
    penalty = _rows(
        "repetition_penalty", repetition_penalty, batch, f"in {1 / STRONGEST:g}..{STRONGEST:g}",
        lambda x: (x >= 1 / STRONGEST) & (x <= STRONGEST),
    )  # fmt: skip
    bias = None if logit_bias is None else _bias(logit_bias, batch, vocab_size)
    params = SamplingParams(
        temperature=np.asarray(warmth, np.float32),
        top_k=np.asarray(np.minimum(best, vocab_size), np.int32),
        top_p=np.asarray(nucleus, np.float32),
        min_p=np.asarray(floor, np.float32),
        repetition_penalty=np.asarray(penalty, np.float32),
        logit_bias=None if bias is None else np.asarray(bias, np.float32),
    )
    params = jax.device_put(params)  # numpy converts without compiling a program for each shape
    warm = warmth > 0
    stages = Stages(
        greedy=bool(np.any(~warm)),
        sampled=bool(np.any(warm)),
        logit_bias=bias is not None,
        repetition_penalty=bool(np.any(penalty != 1)),
        top_k=bool(np.any(warm & (best > 0) & (best < vocab_size))),
        top_p=bool(np.any(warm & (nucleus < 1))),
        min_p=bool(np.any(warm & (floor > 0))),
    )
    return params, stages


def warp(
    params: SamplingParams,
    stages: Stages,
    logits: Float[Array, "B S V"],
    seen: Bool[Array, "B S V"] | None = None,
) -> Float[Array, "B S V"]:
    """The normalized log-probabilities, float32, that a row's tokens are drawn from; -inf for excluded tokens.

    Rows of temperature 0 are one-hot at the argmax (the lowest index among equals). With a filter that ties cut, the
    tied tokens all stay.

    Args:
      params: how each row is sampled.
      stages: which stages exist, static.
      logits: [B, S, V], before any warp. A row that `has_nan` has no law; what comes out for it means nothing.
      seen: [B, S, V], tokens that precede each position; needed where stages.repetition_penalty.

    Raises:
      ValueError: a stage without the array that it needs.
    """
    x = _adjust(params, stages, logits.astype(jnp.float32), seen)
    if not stages.sampled:
        return _one_hot(x)
    row = lambda p: p[:, None, None]
    cold = row(params.temperature) == 0
    # The maximum goes first: no temperature can then overflow, and the largest number is exactly 0
    x_warm = (x - maximum(x)[..., None]) / jnp.where(cold, 1.0, row(params.temperature))
    log_p = _normalize(_filter(params, stages, x_warm))
    return jnp.where(cold, _one_hot(x), log_p) if stages.greedy else log_p


def has_nan(logits: Float[Array, "B *rest V"]) -> Bool[Array, "B"]:
    """Which rows have logits without a law somewhere: NaN, +inf, or nothing but -inf.

    One maximum answers (NaN passes through it), which XLA shares with the warp's own inside one jit.
    """
    bad = ~jnp.isfinite(maximum(logits))
    return jnp.any(bad, axis=tuple(range(1, bad.ndim)))


def _adjust(params: SamplingParams, stages: Stages, x, seen):
    """Logit bias, then repetition penalty: what changes single logits, greedy rows included."""
    if stages.logit_bias:
        if params.logit_bias is None:
            raise ValueError("stages.logit_bias is on but params.logit_bias is None: give an array [B, V]")
        x = x + params.logit_bias[:, None, :]
    if stages.repetition_penalty:
        if seen is None:
            raise ValueError("stages.repetition_penalty is on but seen is None: give the tokens seen, bool [B, S, V]")
        penalty = params.repetition_penalty[:, None, None]
        x = jnp.where(seen, jnp.where(x < 0, x * penalty, x / penalty), x)
    return x


def _filter(params: SamplingParams, stages: Stages, x: Float[Array, "B S V"]) -> Float[Array, "B S V"]:
    """Top-k, top-p and min-p over logits whose maximum is 0: excluded tokens become -inf."""
    shape = x.shape[:-1]
    row = lambda p: jnp.broadcast_to(p[:, None], shape)
    if stages.top_k:
        k = row(params.top_k)
        cut = threshold(x, jnp.ones_like(x), jnp.minimum(k, x.shape[-1]).astype(x.dtype), active=k > 0)
        x = _keep(x, x >= cut[..., None])
    if stages.top_p:
        mass, share = jnp.exp(x), row(params.top_p)
        cut = threshold(x, mass, share * total(mass), active=share < 1)
        x = _keep(x, x >= cut[..., None])
    if stages.min_p:
        x = _keep(x, jnp.exp(x) >= row(params.min_p)[..., None])
    return x


def _keep(x, kept):
    return jnp.where(kept, x, -jnp.inf)


def _normalize(x: Float[Array, "*lead V"]) -> Float[Array, "*lead V"]:
    """Log-softmax of logits whose maximum is 0."""
    return x - jnp.log(total(jnp.exp(x)))[..., None]


def _one_hot(x: Float[Array, "*lead V"]) -> Float[Array, "*lead V"]:
    """The log of the one-hot law at the argmax: 0 there, -inf elsewhere."""
    index = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    return jnp.where(index == argmax(x)[..., None], jnp.zeros_like(x), -jnp.inf)


def _rows(name: str, value, batch: int, rule: str, holds) -> np.ndarray:
    """One float64 number a row, checked."""
    rows = np.asarray(value, dtype=np.float64)
    if rows.ndim > 1 or (rows.ndim == 1 and rows.shape[0] != batch):
        raise ValueError(f"{name} has shape {rows.shape} for {batch} rows: give one number, or one for each row")
    rows = np.broadcast_to(rows, (batch,))
    if not np.all(holds(rows)):
        bad = int(np.argmin(holds(rows)))
        raise ValueError(f"{name} must be {rule}, got {rows[bad]:g} in row {bad}")
    return rows


def _bias(bias: LogitBias, batch: int, vocab_size: int) -> np.ndarray:
    """[B, V] float32 from mappings or an array, checked."""
    if isinstance(bias, Mapping) or not isinstance(bias, np.ndarray):
        per_row = [bias] * batch if isinstance(bias, Mapping) else list(bias)
        if len(per_row) != batch or not all(one is None or isinstance(one, Mapping) for one in per_row):
            raise ValueError(f"logit_bias must be a mapping, an array, or {batch} mappings: got {type(bias).__name__}")
        table = np.zeros((batch, vocab_size), np.float64)
        for row, mapping in enumerate(per_row):
            for token, value in (mapping or {}).items():
                if not 0 <= token < vocab_size:
                    raise ValueError(f"logit_bias names token {token}, outside the vocabulary of {vocab_size}")
                table[row, token] = value
    elif bias.shape in ((vocab_size,), (batch, vocab_size)):
        table = np.broadcast_to(bias, (batch, vocab_size))
    else:
        raise ValueError(f"logit_bias has shape {bias.shape}: it must be ({vocab_size},) or ({batch}, {vocab_size})")
    table = np.asarray(table, np.float64)
    if np.any(np.isnan(table)) or np.any(table > LARGEST_BIAS) or np.any((table < -LARGEST_BIAS) & (table != -np.inf)):
        raise ValueError("logit_bias holds NaN, +inf or more than 1e30: use smaller numbers, or -inf to ban")
    if np.any(np.all(table == -np.inf, axis=-1)):
        raise ValueError("logit_bias bans every token of a row: leave at least one")
    return table
