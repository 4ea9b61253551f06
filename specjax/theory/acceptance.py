"""How often a draft token is accepted, from the target's law p and the drafter's law q [..., V]."""

import numpy as np

from specjax.theory.arguments import POSITIVE, Numbers, Values, laws, within


def beta(p: Numbers, q: Numbers) -> Values:
    """Chance that a token x ~ q is accepted: sum_x min(p(x), q(x)).

    Leviathan et al. 2023, arXiv 2211.17192, definition 3.1 and theorem 3.5.

    Args:
      p: [..., V] the target's laws; q: [..., V] the drafter's, after the same warps.

    Returns:
      [...] between 0 and 1.

    Raises:
      ValueError: not laws over one vocabulary.
    """
    target, draft = laws(p, q)
    return np.minimum(np.minimum(target, draft).sum(-1), 1.0)


def divergence(p: Numbers, q: Numbers) -> Values:
    """D_LK = sum_x |p(x) - (p(x) + q(x)) / 2| = 1 - beta, the total variation distance of p and q.

    Symmetric; 0 iff p == q, 1 iff no token has mass in both. Leviathan et al. 2023, definition 3.2, corollary 3.4.
    Args, Raises: those of `beta`. Returns: [...].
    """
    target, draft = laws(p, q)
    return np.minimum(0.5 * abs(target - draft).sum(-1), 1.0)


def alpha(p: Numbers, q: Numbers) -> float:
    """The mean of `beta` over all given positions: how well the drafter approximates the target.

    Positions should be those that the verifier reaches. Leviathan et al. 2023, corollary 3.6.
    """
    return float(np.mean(beta(p, q)))


def lenient_beta(p: Numbers, q: Numbers, lenience: Numbers) -> Values:
    """Lossy: the chance of acceptance with lenience l, sum_x min(p(x) / l, q(x)); the emitted law is at most p / l.

    l = 1 is `beta`. It says nothing of temperature 0, where q is a point mass and l * q has no effect.
    Leviathan et al. 2023, appendix A.5.

    Args:
      p, q: [..., V].
      lenience: l in (0, 1], of shape [...] or scalar.

    Raises:
      ValueError: not laws over one vocabulary, or a lenience outside (0, 1].
    """
    target, draft = laws(p, q)
    l = within("lenience", lenience, POSITIVE, 1)  # noqa: E741
    # min(p / l, q) is written min(p, l q) / l where it would overflow, which is the same.
    return np.minimum(np.minimum(target, l[..., None] * draft).sum(-1) / l, 1.0)


def rejection_beta(p: Numbers, q: Numbers) -> Values:
    """Chance of acceptance of non-iterative rejection sampling, a lossless but weaker baseline; at most `beta`.

    x ~ q is kept with chance p(x) / (M q(x)), M = max_x p(x) / q(x), else a token of the unmodified p is drawn:
    1 / M = min over p(x) > 0 of q(x) / p(x). Leviathan et al. 2023, appendix A.2. Args, Raises: those of `beta`.
    """
    target, draft = laws(p, q)
    ratio = np.divide(draft, target, out=np.full(target.shape, np.inf), where=target > 0)
    return np.minimum(ratio.min(-1), 1.0)
