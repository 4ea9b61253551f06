"""Goodput of a batch: tokens per second of all rows, where a longer draft of one row delays the others."""

import itertools
from typing import NamedTuple

import numpy as np

from specjax.checks import integers, probability, within
from specjax.theory.tokens import Numbers, Values, expected_tokens


class StepTime(NamedTuple):
    """Seconds of one forward pass over a batch: context * cached tokens + token * new tokens + constant.

    Liu et al. 2024 (SmartSpec), arXiv 2406.14066, execution time model.
    """

    context: float
    token: float
    constant: float


class StepTimes(NamedTuple):
    """Times of forward passes, for `policies.goodput(times.target, draft=times.draft)`.

    Attributes:
      target: of the target. draft: of a step of the draft; None without one.
    """

    target: StepTime
    draft: StepTime | None


def step_time(model: StepTime, context: Numbers, tokens: Numbers) -> Values:
    """Seconds of one pass over `tokens` new tokens of the batch, with `context` cached tokens in all rows."""
    cached, fed = within("context", context, 0), within("tokens", tokens, 0)
    return (model.context * cached + model.token * fed + model.constant)[()]


def fit_step_time(context: Numbers, tokens: Numbers, seconds: Numbers) -> StepTime:
    """Fits a `StepTime` by non-negative least squares.

    Args:
      context, tokens, seconds: [n] measured passes.

    Raises:
      ValueError: arrays of different shapes, or measurements that do not determine all three coefficients.
    """
    x, y, s = (np.atleast_1d(within(n, v, 0)) for n, v in zip(
        ("context", "tokens", "seconds"), (context, tokens, seconds), strict=True
    ))  # fmt: skip
    if not x.shape == y.shape == s.shape or x.ndim != 1:
        raise ValueError(f"context, tokens, seconds must have one number per pass, got {x.shape}, {y.shape}, {s.shape}")
    table = np.stack([x, y, np.ones_like(x)], -1)
    scale = np.maximum(table.max(0, initial=0), np.finfo(np.float64).tiny)
    if np.linalg.matrix_rank(table / scale) < 3:
        raise ValueError("context and tokens must vary independently over at least three passes: measure more of them")
    fits = []
    # The constrained optimum is the unconstrained one over one of the seven subsets of the columns.
    for kept in (list(k) for n in (3, 2, 1) for k in itertools.combinations(range(3), n)):
        found = np.zeros(3)
        found[kept] = np.linalg.lstsq(table[:, kept] / scale[kept], s, rcond=None)[0] / scale[kept]
        if (found >= 0).all():
            fits.append((float(((table @ found - s) ** 2).sum()), found))
    best = min(fits, key=lambda fit: fit[0])[1]
    return StepTime(*map(float, best))


def goodput(
    alphas: Numbers, gammas: Numbers, target: StepTime, *, draft: StepTime | None = None, context: Numbers = 0.0
) -> float:
    """Expected tokens per second of a batch: sum_b expected_tokens(alpha_b, gamma_b) / T.

    T is the target pass over sum_b (gamma_b + 1) tokens and, with `draft`, max_b gamma_b draft steps, step i over the
    rows that draft at least i tokens. Liu et al. 2024 (SmartSpec), arXiv 2406.14066, goodput.

    >>> print(round(goodput([0.8, 0.6], 3, StepTime(0.0, 1e-3, 0.02)), 1))
    183.1

    Args:
      alphas: [B] acceptance probability of each row.
      gammas: draft length of all rows, or [B].
      target: time model of the target.
      draft: time model of the draft; None: drafting takes no time (n-grams).
      context: cached tokens of each row, or [B].

    Raises:
      ValueError: an argument out of range, or no row.
    """
    a = np.atleast_1d(probability("alphas", alphas))
    if a.ndim != 1 or not a.size:
        raise ValueError(f"alphas must have one number per row, got shape {np.shape(alphas)}")
    g = np.broadcast_to(integers("gammas", gammas), a.shape)
    cached = np.broadcast_to(within("context", context, 0), a.shape)
    seconds = step_time(target, cached.sum(), (g + 1).sum())
    if draft is not None:
        for i in range(1, int(g.max()) + 1):
            drafting = g >= i
            seconds += step_time(draft, (cached * drafting).sum(), drafting.sum())
    return float(np.sum(expected_tokens(a, g)) / seconds)


class BestGoodput(NamedTuple):
    """The best common draft length of a batch and its tokens per second."""

    gamma: int
    goodput: float


def best_goodput(
    alphas: Numbers,
    target: StepTime,
    *,
    draft: StepTime | None = None,
    context: Numbers = 0.0,
    gamma_max: int = 16,
) -> BestGoodput:
    """The draft length in 0..gamma_max, common to all rows, of greatest `goodput`; the smallest one in a tie.

    0 is plain decoding, which is often optimal for a large, compute-bound batch. The rule of SmartSpec.

    Args: as `goodput`; gamma_max: longest draft.
    """
    rates = [
        goodput(alphas, gamma, target, draft=draft, context=context)
        for gamma in range(int(integers("gamma_max", gamma_max)) + 1)
    ]
    best = int(np.argmax(rates))
    return BestGoodput(best, rates[best])
