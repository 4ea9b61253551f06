"""What a round costs and gains, and the draft length that gains most. Costs are relative to one step of the target."""

from typing import NamedTuple

import numpy as np

from specjax.theory.arguments import POSITIVE, Numbers, Values, chance, whole, within
from specjax.theory.tokens import expected_tokens


def walltime_factor(
    alpha: Numbers, gamma: Numbers, c: Numbers, *, verify_cost: Numbers = 1.0, overhead: Numbers = 0.0
) -> Values:
    """Speed over plain decoding: (1 - alpha^(gamma + 1)) / ((1 - alpha) (gamma c + 1)); below 1 it is a loss.

    Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8, which assumes that the target checks gamma + 1 tokens in the
    time of one. Where it does not, the 1 of the denominator is `verify_cost + overhead`: ours, not the paper's.

    Args:
      alpha: chance of acceptance.
      gamma: draft length.
      c: one step of the drafter.
      verify_cost: one pass of the target over gamma + 1 tokens.
      overhead: what else a round takes.

    Returns:
      float64, all arguments broadcast.

    Raises:
      ValueError: an alpha outside 0..1, a gamma that is no whole number from 0, or a negative cost.
    """
    tokens = expected_tokens(alpha, gamma)
    check = within("verify_cost", verify_cost, POSITIVE) + within("overhead", overhead, 0)
    return (tokens / (np.asarray(gamma) * within("c", c, 0) + check))[()]


def implied_cost(alpha: Numbers, gamma: Numbers, factor: Numbers) -> Values:
    """The c at which `walltime_factor` is `factor`: what a published alpha, gamma and speed say of the drafter's cost.

    Negative where the speed is above `expected_tokens`, the formula's limit at c = 0: then alpha is rounded, or
    acceptances are not independent, or the two programs differ in more than speculation.

    Args:
      alpha, gamma: as in `walltime_factor`; gamma at least 1.
      factor: speed over plain decoding.
    """
    ratio = expected_tokens(alpha, gamma) / within("factor", factor, POSITIVE)
    return ((ratio - 1) / whole("gamma", gamma, least=1))[()]


def operations_factor(alpha: Numbers, gamma: Numbers, c_ops: Numbers) -> Values:
    """Arithmetic operations a token over plain decoding: (1 - alpha) (gamma c + gamma + 1) / (1 - alpha^(gamma + 1)).

    At least 1: speculation buys time with operations. Leviathan et al. 2023, theorem 3.11.

    Args:
      alpha, gamma: as in `walltime_factor`.
      c_ops: the drafter's operations a token over the target's (the paper's c with a hat).
    """
    tokens = expected_tokens(alpha, gamma)
    g = np.asarray(gamma)
    return ((g * within("c_ops", c_ops, 0) + g + 1) / tokens)[()]


def memory_factor(alpha: Numbers, gamma: Numbers, c_bytes: Numbers = 0.0) -> Values:
    """By how much the bytes read a token shrink: expected tokens / (gamma c + 1).

    With c = 0 the paper's statement: the target's weights and cache are read once a round (Leviathan et al. 2023,
    section 3.4). With c the drafter's reads count too, and the walltime of a machine that memory binds is the same.

    Args:
      alpha, gamma: as in `walltime_factor`.
      c_bytes: bytes that a step of the drafter reads over those of a step of the target.
    """
    return walltime_factor(alpha, gamma, c_bytes)


def oracle_factor(alpha: Numbers, c: Numbers) -> Values:
    """Speed over plain decoding where an oracle drafts only tokens that will be accepted: 1 / (1 - alpha + alpha c).

    `oracle_tokens` over the cost of alpha / (1 - alpha) drafted tokens and one call; 1 where c > 1, since the oracle
    then drafts nothing. No rule for the draft length does better with this alpha. Follows from Leviathan et al. 2023,
    section 3.5.
    """
    a = chance("alpha", alpha)
    with np.errstate(divide="ignore"):
        return np.divide(1.0, 1 - a + a * np.minimum(within("c", c, 0), 1))


class BestGamma(NamedTuple):
    """The best draft length and what it gains, of the shape that the arguments broadcast to."""

    gamma: np.ndarray | np.int64
    factor: Values


def best_gamma(
    alpha: Numbers,
    c: Numbers,
    *,
    gamma_max: int = 32,
    verify_cost: Numbers | None = None,
    overhead: Numbers = 0.0,
) -> BestGamma:
    """The gamma in 0..gamma_max of greatest `walltime_factor`, by trying all; the least of equals.

    0, plain decoding at factor 1, where speculation does not pay: with the paper's cost model iff alpha <= c
    (Leviathan et al. 2023, section 3.5, corollary 3.9).

    Args:
      alpha: [...] chance of acceptance.
      c: [...] one step of the drafter.
      gamma_max: the longest draft.
      verify_cost: [..., gamma_max + 1], measured: entry g is one pass over g + 1 tokens, entry 0, a step of
        plain decoding, counts as 1 whatever it says. None: 1 throughout.
      overhead: [...] what else a round takes; plain decoding has none.

    Raises:
      ValueError: arguments out of range, or a curve of another length.
    """
    most = int(whole("gamma_max", gamma_max))
    gammas = np.arange(most + 1)
    curve = np.ones(most + 1) if verify_cost is None else within("verify_cost", verify_cost, POSITIVE)
    if curve.ndim == 0 or curve.shape[-1] != most + 1:
        raise ValueError(
            f"verify_cost must have gamma_max + 1 = {most + 1} entries, for 1 to {most + 1} tokens, "
            f"got shape {curve.shape}"
        )
    a, price, extra = (np.asarray(x)[..., None] for x in (chance("alpha", alpha), within("c", c, 0), overhead))
    # Sums of powers, not the closed form: at alpha == c and gamma 1 the ratio is then exactly 1, and 0 wins the tie.
    tokens = np.cumsum(a**gammas, -1)
    factor = tokens / (gammas * price + curve + within("overhead", extra, 0))
    factor[..., 0] = 1.0
    best = factor.argmax(-1)
    return BestGamma(best[()], np.take_along_axis(factor, best[..., None], -1)[..., 0][()])
