"""How many tokens a round commits: the accepted ones and one more."""

from collections.abc import Sequence

import numpy as np

from specjax.theory.arguments import Numbers, Values, chance, whole, within

BISECTIONS = 64  # halve [0, 1] below the spacing of float64


def expected_tokens(alpha: Numbers, gamma: Numbers) -> Values:
    """(1 - alpha^(gamma + 1)) / (1 - alpha): the mean of a geometric variable that is capped at gamma + 1.

    gamma + 1 at alpha = 1, without cancellation on the way there. Leviathan et al. 2023, arXiv 2211.17192, equation 1.

    Args:
      alpha: chance of acceptance, the same and independent at each position.
      gamma: draft length; 0 is plain decoding. Broadcasts against alpha.

    Returns:
      float64, between 1 and gamma + 1.

    Raises:
      ValueError: an alpha outside 0..1, or a gamma that is no whole number from 0.
    """
    a, g = np.broadcast_arrays(chance("alpha", alpha), whole("gamma", gamma))
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens = -np.expm1((g + 1) * np.log(a)) / (1 - a)
    return np.where(a == 1, g + 1.0, np.clip(tokens, 1, g + 1))[()]


def expected_tokens_by_position(betas: Numbers) -> Values:
    """1 + sum_i prod_(j <= i) beta_j: `expected_tokens` where the chance of acceptance depends on the position.

    beta_j is conditional: accepted / tested at depth j, `Stats.by_depth`. Independence across positions is not needed
    then, only that a position is tested iff all before it were accepted. Follows from the proof of equation 1 of
    Leviathan et al. 2023.

    Args:
      betas: [..., gamma].

    Returns:
      [...].
    """
    b = chance("betas", betas)
    if b.ndim == 0:
        raise ValueError(f"betas must have an axis of draft positions, got the single number {b:g}")
    return (1 + np.cumprod(b, -1).sum(-1))[()]


def tokens_law(alpha: Numbers, gamma: int) -> np.ndarray:
    """The law of a round's tokens: P(k) = (1 - alpha) alpha^(k - 1) for k = 1..gamma, P(gamma + 1) = alpha^gamma.

    Leviathan et al. 2023, section 3.1.

    Args:
      alpha: [...].
      gamma: one draft length.

    Returns:
      [..., gamma + 1]; entry k - 1 is P(k).
    """
    g = int(whole("gamma", gamma))
    reached = chance("alpha", alpha)[..., None] ** np.arange(g + 1)  # chance of at least k tokens
    return reached - np.concatenate([reached[..., 1:], np.zeros((*reached.shape[:-1], 1))], -1)


def oracle_tokens(alpha: Numbers) -> Values:
    """1 / (1 - alpha): tokens a target call where an oracle tells before each round how many would be accepted.

    The limit of `expected_tokens` in gamma, infinite at alpha = 1. Leviathan et al. 2023, section 3.5.
    """
    with np.errstate(divide="ignore"):
        return np.divide(1.0, 1 - chance("alpha", alpha))


def alpha_from_tokens(tokens: Numbers, gamma: Numbers) -> Values:
    """The alpha at which `expected_tokens` is `tokens`: reads a run's tokens a call as an acceptance rate.

    Args:
      tokens: mean tokens a round, `Stats.tokens_per_call`; between 1 and gamma + 1.
      gamma: draft length, at least 1.

    Raises:
      ValueError: a gamma below 1, or more or fewer tokens than a round can commit.
    """
    n, g = np.broadcast_arrays(within("tokens", tokens, 1), whole("gamma", gamma, least=1))
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
    """The alpha behind accepted / drafted, which counts tokens after a rejection as drafted and so lies lower.

    accepted / drafted = (expected_tokens - 1) / gamma. Some reports print it as their acceptance rate.

    Args:
      rate: accepted / drafted, `Stats.accepted_per_drafted`.
      gamma: draft length, at least 1.
    """
    return alpha_from_tokens(1 + chance("rate", rate) * whole("gamma", gamma, least=1), gamma)


def tree_tokens(parents: Sequence[int], acceptance: Numbers) -> Values:
    """Tokens that a round is expected to commit with a static tree: sum over nodes of the product along their path.

    Sequoia, Chen et al. 2024, arXiv 2402.12374, section 3.1 (positional acceptance); Medusa, Cai et al. 2024, arXiv
    2401.10774, section 2.3.3, where chances depend on the depth too.

    Args:
      parents: `Tree.parents`: that of node 0, the root, is -1; each parent precedes its children. The children of a
        node have ranks 0, 1, ... in their order.
      acceptance: [ranks], the chance that the child of rank r is the one accepted, given that its parent was; or
        [..., depths, ranks], with a row for each depth.

    Returns:
      1, or [...] for tables; the root counts for the token that is always added.

    Raises:
      ValueError: no tree, chances outside 0..1 or of siblings that sum to more than 1, or a tree that is deeper or
        wider than the table.
    """
    table = chance("acceptance", acceptance)
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
    """Raises ValueError where the chances of siblings, [..., ranks], sum to more than 1."""
    most = np.asarray(table, np.float64).sum(-1).max(initial=0)
    if most > 1 + 1e-9:
        raise ValueError(
            f"at most one child is accepted, but the chances of siblings sum to {most:g}: "
            "give the chance of each rank, not the chance of any up to it"
        )


def _places(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Depth, and rank among its siblings, of each node; the root's rank is -1."""
    if not parents or parents[0] != -1:
        raise ValueError(f"a tree starts with its root: parents[0] must be -1, got {tuple(parents[:1])}")
    depth, rank, kids = [0], [-1], [0] * len(parents)
    for node, parent in enumerate(parents[1:], start=1):
        if not 0 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}: parents must precede their children (0..{node - 1})")
        depth.append(depth[parent] + 1)
        rank.append(kids[parent])
        kids[parent] += 1
    return depth, rank
