"""Speed-up, operations and memory traffic of a round, and the best draft length. Costs are in steps of the target."""

from typing import NamedTuple

import numpy as np

from specjax.checks import POSITIVE, integers, probability, within
from specjax.theory.tokens import Numbers, Values, expected_tokens


def walltime_factor(
    alpha: Numbers, gamma: Numbers, c: Numbers, *, verify_cost: Numbers = 1.0, overhead: Numbers = 0.0
) -> Values:
    """Speed-up over plain decoding: (1 - alpha^(gamma + 1)) / ((1 - alpha) (gamma c + 1)); below 1 it is slower.

    Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8, which assumes that a target pass over gamma + 1 tokens takes
    as long as one over a single token. Here the 1 of the denominator is `verify_cost + overhead`, an extension.

    >>> print(walltime_factor(0.8, 5, 0.02).round(3), walltime_factor(0.8, 5, 0.02, verify_cost=1.5).round(3))
    3.354 2.306

    Args:
      alpha: acceptance probability.
      gamma: draft length.
      c: cost of one draft step.
      verify_cost: cost of one target pass over gamma + 1 tokens.
      overhead: remaining cost of a round.

    Returns:
      float64; all arguments broadcast.

    Raises:
      ValueError: alpha outside 0..1, gamma not an integer from 0, or a negative cost.
    """
    tokens = expected_tokens(alpha, gamma)
    check = within("verify_cost", verify_cost, POSITIVE) + within("overhead", overhead, 0)
    return (tokens / (np.asarray(gamma) * within("c", c, 0) + check))[()]


def implied_cost(alpha: Numbers, gamma: Numbers, factor: Numbers) -> Values:
    """The draft cost c at which `walltime_factor` equals `factor`: what a published alpha, gamma and speed-up imply.

    Negative if the speed-up is above `expected_tokens`, the limit at c = 0: alpha is rounded, acceptances are not
    independent, or the two programs differ in more than speculation.

    >>> print(implied_cost(0.75, 7, 3.4).round(4))
    0.0084

    Args:
      alpha, gamma: as in `walltime_factor`; gamma at least 1.
      factor: speed-up over plain decoding.
    """
    ratio = expected_tokens(alpha, gamma) / within("factor", factor, POSITIVE)
    return ((ratio - 1) / integers("gamma", gamma, least=1))[()]


def operations_factor(alpha: Numbers, gamma: Numbers, c_ops: Numbers) -> Values:
    """Arithmetic operations per token, relative to plain decoding.

    (1 - alpha) (gamma c + gamma + 1) / (1 - alpha^(gamma + 1)), at least 1: speculation trades operations for time.
    Leviathan et al. 2023, theorem 3.11.

    >>> print(operations_factor(0.8, 5, 0).round(2))
    1.63

    Args:
      alpha, gamma: as in `walltime_factor`.
      c_ops: operations per token of the draft, relative to the target's (c-hat in the paper).
    """
    tokens = expected_tokens(alpha, gamma)
    g = np.asarray(gamma)
    return ((g * within("c_ops", c_ops, 0) + g + 1) / tokens)[()]


def memory_factor(alpha: Numbers, gamma: Numbers, c_bytes: Numbers = 0.0) -> Values:
    """Reduction of the bytes read per token: expected tokens / (gamma c + 1).

    With c = 0 as in the paper: weights and cache of the target are read once per round (Leviathan et al. 2023, section
    3.4). With c > 0 the reads of the draft are included; on a memory-bound machine the walltime shrinks equally.

    Args:
      alpha, gamma: as in `walltime_factor`.
      c_bytes: bytes that a draft step reads, relative to a step of the target.
    """
    return walltime_factor(alpha, gamma, c_bytes)


def oracle_factor(alpha: Numbers, c: Numbers) -> Values:
    """Speed-up if an oracle drafts only tokens that will be accepted: 1 / (1 - alpha + alpha c).

    `oracle_tokens` over the cost of alpha / (1 - alpha) draft tokens and one target pass; 1 if c > 1, where the oracle
    drafts nothing. An upper bound for every draft-length policy with this alpha. Follows from Leviathan et al. 2023,
    section 3.5.
    """
    a = probability("alpha", alpha)
    with np.errstate(divide="ignore"):
        return np.divide(1.0, 1 - a + a * np.minimum(within("c", c, 0), 1))


class BestGamma(NamedTuple):
    """The best draft length and its speed-up, of the shape that the arguments broadcast to."""

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
    """The draft length in 0..gamma_max of greatest `walltime_factor`, by exhaustive search; the smallest one in a tie.

    0 is plain decoding at factor 1. With the cost model of the paper it is optimal iff alpha <= c (Leviathan et al.
    2023, section 3.5, corollary 3.9).

    >>> best = best_gamma(0.8, 0.05)
    >>> print(best.gamma, best.factor.round(3))
    8 3.092

    Args:
      alpha: [...] acceptance probability.
      c: [...] cost of one draft step.
      gamma_max: longest draft.
      verify_cost: [..., gamma_max + 1] measured cost: entry g is a pass over g + 1 tokens. Entry 0, a step of plain
        decoding, counts as 1. None: 1 throughout.
      overhead: [...] remaining cost of a round; 0 in plain decoding.

    Raises:
      ValueError: an argument out of range, or verify_cost of another length.
    """
    most = int(integers("gamma_max", gamma_max))
    gammas = np.arange(most + 1)
    curve = np.ones(most + 1) if verify_cost is None else within("verify_cost", verify_cost, POSITIVE)
    if curve.ndim == 0 or curve.shape[-1] != most + 1:
        raise ValueError(
            f"verify_cost must have gamma_max + 1 = {most + 1} entries, for 1 to {most + 1} tokens, "
            f"got shape {curve.shape}"
        )
    a, price, extra = (np.asarray(x)[..., None] for x in (probability("alpha", alpha), within("c", c, 0), overhead))
    # Sums of powers, not the closed form: at alpha == c and gamma 1 the ratio is then exactly 1, and 0 wins the tie.
    tokens = np.cumsum(a**gammas, -1)
    factor = tokens / (gammas * price + curve + within("overhead", extra, 0))
    factor[..., 0] = 1.0
    best = factor.argmax(-1)
    return BestGamma(best[()], np.take_along_axis(factor, best[..., None], -1)[..., 0][()])
