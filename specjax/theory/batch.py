"""Speculation for a batch: tokens a second of all rows together, where longer drafts of one row delay the others."""

import itertools
from typing import NamedTuple

import numpy as np

from specjax.theory.arguments import Numbers, Values, chance, whole, within
from specjax.theory.tokens import expected_tokens


class StepTime(NamedTuple):
    """Seconds of one pass of a model over a batch: context * cached tokens + token * fed tokens + constant.

    Liu et al. 2024 (SmartSpec), arXiv 2406.14066, the model of the execution time.
    """

    context: float
    token: float
    constant: float


def step_time(model: StepTime, context: Numbers, tokens: Numbers) -> Values:
    """Seconds of one pass over `tokens` new tokens of the whole batch, with `context` cached tokens of all rows."""
    cached, fed = within("context", context, 0), within("tokens", tokens, 0)
    return (model.context * cached + model.token * fed + model.constant)[()]


def fit_step_time(context: Numbers, tokens: Numbers, seconds: Numbers) -> StepTime:
    """The `StepTime` of least squared error with no negative coefficient: no pass gets faster by doing more.

    Args:
      context, tokens, seconds: [n] measured passes.

    Raises:
      ValueError: arrays of different shapes, or measurements that cannot tell the three apart.
    """
    x, y, s = (np.atleast_1d(within(n, v, 0)) for n, v in zip(
        ("context", "tokens", "seconds"), (context, tokens, seconds), strict=True
    ))  # fmt: skip
    if not x.shape == y.shape == s.shape or x.ndim != 1:
        raise ValueError(f"context, tokens and seconds must be one number a pass, got {x.shape}, {y.shape}, {s.shape}")
    table = np.stack([x, y, np.ones_like(x)], -1)
    scale = np.maximum(table.max(0, initial=0), np.finfo(np.float64).tiny)
    if np.linalg.matrix_rank(table / scale) < 3:
        raise ValueError("context and tokens must vary independently over at least three passes: measure more of them")
    fits = []
    # The constrained optimum is the unconstrained one over some subset of the columns: there are seven.
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
    """Tokens a second that a batch is expected to commit: sum_b expected_tokens(alpha_b, gamma_b) / T.

    T is the target's pass over sum_b (gamma_b + 1) tokens and, with `draft`, max_b gamma_b steps of the drafter, the
    i-th over the rows that draft at least i tokens. Liu et al. 2024 (SmartSpec), arXiv 2406.14066, goodput.

    Args:
      alphas: [B] chance of acceptance of each row.
      gammas: draft length of all rows, or [B].
      target: fitted to the target. draft: fitted to the drafter; None: drafting takes no time (n-grams).
      context: cached tokens of each row, or [B].

    Raises:
      ValueError: arguments out of range or no row.
    """
    a = np.atleast_1d(chance("alphas", alphas))
    if a.ndim != 1 or not a.size:
        raise ValueError(f"alphas must be one number a row, got shape {np.shape(alphas)}")
    g = np.broadcast_to(whole("gammas", gammas), a.shape)
    cached = np.broadcast_to(within("context", context, 0), a.shape)
    seconds = step_time(target, cached.sum(), (g + 1).sum())
    if draft is not None:
        for i in range(1, int(g.max()) + 1):
            drafting = g >= i
            seconds += step_time(draft, (cached * drafting).sum(), drafting.sum())
    return float(np.sum(expected_tokens(a, g)) / seconds)


class BestGoodput(NamedTuple):
    """The best common draft length of a batch and its tokens a second."""

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
    """The draft length in 0..gamma_max, common to all rows, of greatest `goodput`; the least of equals.

    0 is plain decoding: a large batch that is bound by arithmetic often has nothing to gain. SmartSpec's choice.
    """
    rates = [
        goodput(alphas, gamma, target, draft=draft, context=context)
        for gamma in range(int(whole("gamma_max", gamma_max)) + 1)
    ]
    best = int(np.argmax(rates))
    return BestGoodput(best, rates[best])
