"""Speculation of n levels: each drafter is sped up by the next, smaller one.

Level k is the pair (model k, model k + 1), the target being model 0. Model k checks blocks of gammas[k] tokens, which
the rounds of level k + 1 fill; the last model drafts token by token.

    target  --gammas[0]-->  model 1  --gammas[1]-->  model 2        alphas[0]: model 1 against the target
             alphas[0]               alphas[1]                      alphas[1]: model 2 against model 1
             costs[0]: a call of model 1      costs[1]: a call of model 2, both relative to a call of the target
"""

import itertools
from typing import NamedTuple

import numpy as np

from specjax.theory.arguments import Numbers, Values, chance, whole, within
from specjax.theory.tokens import expected_tokens, tokens_law


def cascade_factor(alphas: Numbers, costs: Numbers, gammas: Numbers) -> Values:
    """Speed over plain decoding, each level paying its drafter's average price of a token.

    The recursion, from the last model upwards: price_k = (gamma_k price_(k+1) + cost_k) / expected_tokens_k, cost of
    the target 1; the factor is 1 / price_0. With one level it is `walltime_factor`: Leviathan et al. 2023, arXiv
    2211.17192, theorem 3.8, applied to itself. It assumes that no token of an inner round is thrown away; see
    `cascade_factor_whole_rounds` for what a block of fixed length costs.

    Args:
      alphas: [..., levels] chance that a token of model k + 1 is accepted by model k.
      costs: [..., levels] one call of model k + 1, relative to one of the target.
      gammas: [..., levels] tokens of a block.

    Returns:
      [...].

    Raises:
      ValueError: arguments out of range, or not one of each for each level.
    """
    a, c, g = _levels(alphas, costs, gammas)
    calls = np.concatenate([np.ones_like(c[..., :1]), c], -1)
    price = calls[..., -1]
    for k in reversed(range(a.shape[-1])):
        price = (g[..., k] * price + calls[..., k]) / expected_tokens(a[..., k], g[..., k])
    with np.errstate(divide="ignore"):
        return np.divide(1.0, price)[()]


def cascade_factor_whole_rounds(alphas: Numbers, costs: Numbers, gammas: Numbers) -> Values:
    """As `cascade_factor`, for blocks that are filled by whole inner rounds whose surplus tokens are dropped.

    block_k = rounds_to_fill(alpha_(k+1), gamma_(k+1), gamma_k) (block_(k+1) + cost of model k + 1), and gamma_k calls
    of the last model at the last level; the factor is expected_tokens_0 / (block_0 + 1). Never above
    `cascade_factor`.

    Args:
      alphas, costs: [..., levels].
      gammas: [levels].
    """
    a, c, g = _levels(alphas, costs, gammas)
    if np.ndim(gammas) != 1:
        raise ValueError(f"gammas must be one whole number a level, got shape {np.shape(gammas)}")
    block_lengths = [int(x) for x in np.asarray(gammas)]
    last = len(block_lengths) - 1
    block = block_lengths[last] * c[..., last]
    for k in reversed(range(last)):
        inner_round = block + c[..., k]
        block = rounds_to_fill(a[..., k + 1], block_lengths[k + 1], block_lengths[k]) * inner_round
    return (expected_tokens(a[..., 0], g[..., 0]) / (block + 1))[()]


def rounds_to_fill(alpha: Numbers, gamma: int, count: int) -> Values:
    """How many rounds it takes on average until they have yielded at least `count` tokens.

    The renewal equation R(m) = 1 + sum_j P(j) R(m - j), R(m <= 0) = 0, with P of `tokens_law`.

    Args:
      alpha: [...]; gamma: the rounds' draft length; count: tokens wanted, from 0.

    Returns:
      [...], at least count / expected_tokens.
    """
    chances = tokens_law(alpha, gamma)
    rounds = [np.zeros(chances.shape[:-1])]
    for m in range(1, int(whole("count", count)) + 1):
        steps = range(1, min(chances.shape[-1], m - 1) + 1)
        rounds.append(np.asarray(1 + sum(chances[..., j - 1] * rounds[m - j] for j in steps)) + rounds[0])
    return rounds[-1][()]


class BestCascade(NamedTuple):
    """The best block lengths, one a level, and what they gain."""

    gammas: tuple[int, ...]
    factor: float


def best_cascade(alphas: Numbers, costs: Numbers, *, gamma_max: int = 8) -> BestCascade:
    """The block lengths in 0..gamma_max of greatest `cascade_factor_whole_rounds`, by trying all.

    An inner 0 says that the smaller models below it are not worth their cost; an outer 0 that nothing is: then all
    are 0 and the factor is 1. Of equals it takes the shortest, outer levels first.

    Args:
      alphas, costs: [levels].
      gamma_max: the longest block; the search takes (gamma_max + 1)^levels evaluations.
    """
    if np.ndim(alphas) != 1:
        raise ValueError(f"alphas must be one number a level, got shape {np.shape(alphas)}")
    lengths = range(int(whole("gamma_max", gamma_max)) + 1)
    best = BestCascade((0,) * np.size(alphas), 1.0)
    for gammas in itertools.product(lengths, repeat=np.size(alphas)):
        factor = float(cascade_factor_whole_rounds(alphas, costs, gammas))
        if factor > best.factor:
            best = BestCascade(gammas, factor)
    return best


def _levels(alphas: Numbers, costs: Numbers, gammas: Numbers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    given = chance("alphas", alphas), within("costs", costs, 0), whole("gammas", gammas)
    sizes = [x.shape[-1] if x.ndim else None for x in given]
    if None in sizes or len(set(sizes)) > 1 or not sizes[0]:
        raise ValueError(
            f"alphas, costs and gammas must each have one entry for each level, got shapes "
            f"{', '.join(str(x.shape) for x in given)}"
        )
    a, c, g = np.broadcast_arrays(*given)
    return a, c, g
