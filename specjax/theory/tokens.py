"""Tokens that a round commits: the accepted draft tokens and one token of the target."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from specjax.checks import integers, probability, within

Numbers = float | int | np.number | np.ndarray | Sequence[Any]  # broadcasts: one number, an array, or nested lists
Values = np.ndarray | np.float64
BISECTIONS = 64  # narrow [0, 1] below the spacing of float64


def expected_tokens(alpha: Numbers, gamma: Numbers) -> Values:
    """Expected tokens per round: (1 - alpha^(gamma + 1)) / (1 - alpha), the mean of a capped geometric variable.

    gamma + 1 at alpha = 1, without cancellation near it. Leviathan et al. 2023, arXiv 2211.17192, equation 1.

    >>> print(expected_tokens(0.8, [1, 3, 5]).round(3))
    [1.8   2.952 3.689]

    Args:
      alpha: acceptance probability, equal and independent at all positions.
      gamma: draft length; 0 is plain decoding. Broadcasts against alpha.

    Returns:
      float64, between 1 and gamma + 1.

    Raises:
      ValueError: alpha outside 0..1, or gamma not an integer from 0.
    """
    a, g = np.broadcast_arrays(probability("alpha", alpha), integers("gamma", gamma))
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens = -np.expm1((g + 1) * np.log(a)) / (1 - a)
    return np.where(a == 1, g + 1.0, np.clip(tokens, 1, g + 1))[()]


def expected_tokens_by_position(betas: Numbers) -> Values:
    """Expected tokens per round where acceptance depends on the position: 1 + sum_i prod_(j <= i) beta_j.

    beta_j is conditional: accepted / tested at depth j, `Stats.by_depth`. Positions need not be independent; a position
    is tested iff all previous ones were accepted. Follows from the proof of equation 1 of Leviathan et al. 2023.

    >>> print(expected_tokens_by_position([0.8, 0.5]))
    2.2

    Args:
      betas: [..., gamma] conditional acceptance probabilities.

    Returns:
      [...].
    """
    b = probability("betas", betas)
    if b.ndim == 0:
        raise ValueError(f"betas must have an axis of draft positions, got the single number {b:g}")
    return (1 + np.cumprod(b, -1).sum(-1))[()]


def tokens_distribution(alpha: Numbers, gamma: int) -> np.ndarray:
    """Distribution of the tokens per round: P(k) = (1 - alpha) alpha^(k - 1), k = 1..gamma; P(gamma + 1) = alpha^gamma.

    Leviathan et al. 2023, section 3.1.

    >>> print(tokens_distribution(0.5, 2))
    [0.5  0.25 0.25]

    Args:
      alpha: [...] acceptance probability.
      gamma: draft length, a single integer.

    Returns:
      [..., gamma + 1]; entry k - 1 is P(k).
    """
    g = int(integers("gamma", gamma))
    reached = probability("alpha", alpha)[..., None] ** np.arange(g + 1)  # probability of at least k tokens
    return reached - np.concatenate([reached[..., 1:], np.zeros((*reached.shape[:-1], 1))], -1)


def oracle_tokens(alpha: Numbers) -> Values:
    """Expected tokens per target pass if an oracle predicts how many draft tokens are accepted: 1 / (1 - alpha).

    The limit of `expected_tokens` for large gamma; infinite at alpha = 1. Leviathan et al. 2023, section 3.5.
    """
    with np.errstate(divide="ignore"):
        return np.divide(1.0, 1 - probability("alpha", alpha))


def alpha_from_tokens(tokens: Numbers, gamma: Numbers) -> Values:
    """The alpha at which `expected_tokens` equals `tokens`: block efficiency as an acceptance probability.

    >>> print(alpha_from_tokens(2.952, 3).round(3))
    0.8

    Args:
      tokens: mean tokens per round, between 1 and gamma + 1.
      gamma: draft length, at least 1.

    Raises:
      ValueError: gamma below 1, or tokens outside 1..gamma + 1.
    """
    n, g = np.broadcast_arrays(within("tokens", tokens, 1), integers("gamma", gamma, least=1))
    if (n > g + 1).any():
        raise ValueError(
            f"a round of gamma {g[n > g + 1].flat[0]} commits at most gamma + 1 tokens, got {n[n > g + 1].flat[0]:g}"
        )
    low, high = np.zeros(n.shape), np.ones(n.shape)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = expected_tokens(middle, g) < n
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return high[()]


def alpha_from_drafted(rate: Numbers, gamma: Numbers) -> Values:
    """The alpha that corresponds to a ratio accepted / drafted, which is lower: it counts tokens after a rejection.

    accepted / drafted = (expected_tokens - 1) / gamma. Some publications report it as the acceptance rate.

    Args:
      rate: accepted / drafted, `Stats.accepted_per_drafted`.
      gamma: draft length, at least 1.
    """
    return alpha_from_tokens(1 + probability("rate", rate) * integers("gamma", gamma, least=1), gamma)


def tree_tokens(parents: Sequence[int], acceptance: Numbers) -> Values:
    """Expected tokens per round with a static tree: sum over nodes of the product along their path.

    Sequoia, Chen et al. 2024, arXiv 2402.12374, section 3.1 (positional acceptance); Medusa, Cai et al. 2024, arXiv
    2401.10774, section 2.3.3, where probabilities depend on the depth too.

    >>> print(tree_tokens((-1, 0, 0, 1), [0.6, 0.2]))
    2.16

    Args:
      parents: as `Tree.parents`: -1 for node 0, the root; each parent precedes its children. The children of a node
        have ranks 0, 1, ... in their order.
      acceptance: [ranks], the probability that the child of rank r is accepted, given that its parent was; or
        [..., depths, ranks], with one row per depth.

    Returns:
      [...] expected tokens; the root accounts for the token of the target.

    Raises:
      ValueError: not a tree, probabilities outside 0..1 or with a sum above 1 over siblings, or a tree that is deeper
        or wider than the table.
    """
    table = probability("acceptance", acceptance)
    if table.ndim == 0:
        raise ValueError(f"acceptance must have an axis of ranks, got the single number {table:g}")
    check_siblings(table)
    depth, rank = _places(parents)
    depths = np.inf if table.ndim == 1 else table.shape[-2]
    if max(depth) > depths or max(rank) >= table.shape[-1]:
        raise ValueError(
            f"a tree of depth {max(depth)} with ranks up to {max(rank)} needs a larger table than {table.shape}"
        )
    values = [np.ones(table.shape[:-2])]
    for node in range(1, len(parents)):
        row = table if table.ndim == 1 else table[..., depth[node] - 1, :]
        values.append(values[parents[node]] * row[..., rank[node]])
    return np.sum(values, axis=0)[()]


def check_siblings(table: Numbers) -> None:
    """Raises ValueError if the probabilities of siblings, [..., ranks], sum to more than 1."""
    most = np.asarray(table, np.float64).sum(-1).max(initial=0)
    if most > 1 + 1e-9:
        raise ValueError(
            f"acceptance probabilities of siblings must sum to at most 1, got {most:g}: at most one child is "
            "accepted, so pass the probability of each rank, not a cumulative one"
        )


def _places(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Depth of each node and its rank among its siblings; the root has rank -1."""
    if not parents or parents[0] != -1:
        raise ValueError(f"parents[0] must be -1, the root, got {tuple(parents[:1])}")
    depth, rank, kids = [0], [-1], [0] * len(parents)
    for node, parent in enumerate(parents[1:], start=1):
        if not 0 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}: parents must precede their children (0..{node - 1})")
        depth.append(depth[parent] + 1)
        rank.append(kids[parent])
        kids[parent] += 1
    return depth, rank
