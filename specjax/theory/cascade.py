"""Speculative decoding with n levels: each draft model is accelerated by the next, smaller one.

Level k is the pair (model k, model k + 1); the target is model 0. Model k verifies blocks of gammas[k] tokens, which
rounds of level k + 1 fill; the last model drafts token by token.

    target  --gammas[0]-->  model 1  --gammas[1]-->  model 2        alphas[0]: model 1 against the target
             alphas[0]               alphas[1]                      alphas[1]: model 2 against model 1
             costs[0]: a pass of model 1      costs[1]: a pass of model 2, both relative to a target pass
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax.checks import integers, probability, within
from specjax.theory.tokens import Numbers, Values, expected_tokens, tokens_distribution


def cascade_factor(alphas: Numbers, costs: Numbers, gammas: Numbers) -> Values:
    """Speed-up over plain decoding if each level pays the average price of a draft token.

    From the last model upwards: price_k = (gamma_k price_(k+1) + cost_k) / expected_tokens_k, with cost 1 for the
    target; the factor is 1 / price_0. With one level it is `walltime_factor`: Leviathan et al. 2023, arXiv 2211.17192,
    theorem 3.8, applied recursively. It assumes that no token of an inner round is discarded; for blocks of fixed
    length see `cascade_factor_whole_rounds`.

    >>> print(cascade_factor([0.8, 0.9], [0.2, 0.01], [6, 3]).round(3))
    2.82

    Args:
      alphas: [..., levels] probability that model k accepts a token of model k + 1.
      costs: [..., levels] a pass of model k + 1, relative to a target pass.
      gammas: [..., levels] tokens per block.

    Returns:
      [...] float64.

    Raises:
      ValueError: an argument out of range, or different numbers of levels.
    """
    a, c, g = _levels(alphas, costs, gammas)
    calls = np.concatenate([np.ones_like(c[..., :1]), c], -1)
    price = calls[..., -1]
    for k in reversed(range(a.shape[-1])):
        price = (g[..., k] * price + calls[..., k]) / expected_tokens(a[..., k], g[..., k])
    with np.errstate(divide="ignore"):
        return np.divide(1.0, price)[()]


def cascade_factor_whole_rounds(alphas: Numbers, costs: Numbers, gammas: Numbers) -> Values:
    """`cascade_factor` for blocks that whole inner rounds fill and whose surplus tokens are discarded.

    block_k = rounds_to_fill(alpha_(k+1), gamma_(k+1), gamma_k, alpha_k^gamma_k) (block_(k+1) + cost of model k + 1),
    and gamma_k passes of the last model at the last level; the factor is expected_tokens_0 / (block_0 + 1). At most
    `cascade_factor`. A model with inner blocks of 0 drafts by itself, in gamma_k passes.

    Args:
      alphas, costs: [..., levels], as in `cascade_factor`.
      gammas: [levels] tokens per block.
    """
    a, c, g = _levels(alphas, costs, gammas)
    if np.ndim(gammas) != 1:
        raise ValueError(f"gammas must have one integer per level, got shape {np.shape(gammas)}")
    block_lengths = [int(x) for x in np.asarray(gammas)]
    last = len(block_lengths) - 1
    block = block_lengths[last] * c[..., last]
    for k in reversed(range(last)):
        inner_round = block + c[..., k]
        whole = a[..., k] ** block_lengths[k] if block_lengths[k + 1] else 0.0
        block = rounds_to_fill(a[..., k + 1], block_lengths[k + 1], block_lengths[k], whole) * inner_round
    return (expected_tokens(a[..., 0], g[..., 0]) / (block + 1))[()]


def rounds_to_fill(alpha: Numbers, gamma: int, count: int, kept: Numbers = 0.0) -> Values:
    """Expected number of rounds until at least `count` tokens are committed.

    The renewal equation R(m) = 1 + sum_j P(j) R(m - j), R(m <= 0) = 0, with P of `tokens_distribution`; and a further
    round, of the next block, if this block is kept whole and its last token ended a round: no pass has read that token
    yet. A round ends at token m with probability U(m) = sum_j P(j) U(m - j), U(0) = 1.

    Args:
      alpha: [...] acceptance probability.
      gamma: draft length of the rounds.
      count: tokens, from 0.
      kept: [...] probability that all `count` tokens are kept, as the draft of an outer round.

    Returns:
      [...] float64, at least count / expected_tokens.
    """
    chances = tokens_distribution(alpha, gamma)
    zero = np.zeros(chances.shape[:-1])
    rounds, ends = [zero], [zero + 1]
    for m in range(1, int(integers("count", count)) + 1):
        before = [(chances[..., j - 1], m - j) for j in range(1, min(chances.shape[-1], m) + 1)]
        rounds.append(1 + sum((chance * rounds[left] for chance, left in before), zero))
        ends.append(sum((chance * ends[left] for chance, left in before), zero))
    return (rounds[-1] + (probability("kept", kept) * ends[-1] if count else 0.0))[()]


class BestCascade(NamedTuple):
    """The best block lengths, one per level, and their speed-up."""

    gammas: tuple[int, ...]
    factor: float


def best_cascade(alphas: Numbers, costs: Numbers, *, gamma_max: int = 8, gamma_min: Sequence[int] = ()) -> BestCascade:
    """The block lengths up to gamma_max of greatest `cascade_factor_whole_rounds`, by exhaustive search.

    An inner 0 means that the smaller models are not worth their cost; an outer 0 that plain decoding is the fastest:
    then all are 0 and the factor is 1. In a tie the shortest blocks win, outer levels first.

    >>> best_cascade([0.8, 0.9], [0.2, 0.01]).gammas
    (8, 8)

    Args:
      alphas, costs: [levels], as in `cascade_factor`.
      gamma_max: longest block; the search takes (gamma_max + 1)^levels evaluations.
      gamma_min: shortest block of each level; default: 0.
    """
    if np.ndim(alphas) != 1:
        raise ValueError(f"alphas must have one number per level, got shape {np.shape(alphas)}")
    least, most = gamma_min or (0,) * np.size(alphas), int(integers("gamma_max", gamma_max))
    best = BestCascade(tuple(least), 0.0)
    for gammas in itertools.product(*(range(shortest, most + 1) for shortest in least)):
        factor = float(cascade_factor_whole_rounds(alphas, costs, gammas))
        if factor > best.factor:
            best = BestCascade(gammas, factor)
    return best


def _levels(alphas: Numbers, costs: Numbers, gammas: Numbers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    given = probability("alphas", alphas), within("costs", costs, 0), integers("gammas", gammas)
    sizes = [x.shape[-1] if x.ndim else None for x in given]
    if None in sizes or len(set(sizes)) > 1 or not sizes[0]:
        raise ValueError(
            f"alphas, costs and gammas must each have one entry per level, got shapes "
            f"{', '.join(str(x.shape) for x in given)}"
        )
    a, c, g = np.broadcast_arrays(*given)
    return a, c, g
