"""Acceptance probabilities, from the target distribution p and the draft distribution q [..., V]."""

import numpy as np

from specjax.checks import POSITIVE, distribution, within
from specjax.theory.tokens import Numbers, Values


def beta(p: Numbers, q: Numbers) -> Values:
    """Probability that a draft token x ~ q is accepted: sum_x min(p(x), q(x)).

    Leviathan et al. 2023, arXiv 2211.17192, definition 3.1 and theorem 3.5.

    >>> print(beta([0.5, 0.3, 0.2], [0.7, 0.2, 0.1]))
    0.8

    Args:
      p: [..., V] target probabilities.
      q: [..., V] draft probabilities, after the same warps.

    Returns:
      [...] float64, between 0 and 1.

    Raises:
      ValueError: not probability distributions over one vocabulary.
    """
    target, draft = _pair(p, q)
    return np.minimum(np.minimum(target, draft).sum(-1), 1.0)


def divergence(p: Numbers, q: Numbers) -> Values:
    """D_LK = sum_x |p(x) - (p(x) + q(x)) / 2| = 1 - beta, the total variation distance of p and q.

    Symmetric; 0 iff p == q, 1 iff no token has mass in both. Leviathan et al. 2023, definition 3.2, corollary 3.4.

    >>> print(divergence([0.5, 0.3, 0.2], [0.7, 0.2, 0.1]).round(3))
    0.2

    Args, Returns, Raises: as `beta`.
    """
    target, draft = _pair(p, q)
    return np.minimum(0.5 * abs(target - draft).sum(-1), 1.0)


def alpha(p: Numbers, q: Numbers) -> float:
    """Mean acceptance probability: the mean of `beta` over all positions.

    The positions should be those that the verifier reaches. Leviathan et al. 2023, corollary 3.6.

    >>> alpha([[0.5, 0.5], [1.0, 0.0]], [[0.75, 0.25], [0.5, 0.5]])
    0.625

    Args, Raises: as `beta`.
    """
    return float(np.mean(beta(p, q)))


def lenient_beta(p: Numbers, q: Numbers, lenience: Numbers) -> Values:
    """Acceptance probability with lenience l, lossy: sum_x min(p(x) / l, q(x)).

    Emitted probabilities are at most p / l; l = 1 is `beta`. Does not apply at temperature 0, where q is a point mass
    and l * q has no effect. Leviathan et al. 2023, appendix A.5.

    Args:
      p, q: [..., V] probabilities.
      lenience: l in (0, 1], of shape [...] or scalar.

    Raises:
      ValueError: not probability distributions over one vocabulary, or lenience outside (0, 1].
    """
    target, draft = _pair(p, q)
    l = within("lenience", lenience, POSITIVE, 1)  # noqa: E741
    # min(p / l, q) as min(p, l q) / l: p / l may overflow.
    return np.minimum(np.minimum(target, l[..., None] * draft).sum(-1) / l, 1.0)


def rejection_beta(p: Numbers, q: Numbers) -> Values:
    """Acceptance probability of non-iterative rejection sampling, a lossless baseline; at most `beta`.

    x ~ q is accepted with probability p(x) / (M q(x)), M = max_x p(x) / q(x), else a token is sampled from p itself:
    1 / M = min over p(x) > 0 of q(x) / p(x). Leviathan et al. 2023, appendix A.2. Args, Raises: as `beta`.
    """
    target, draft = _pair(p, q)
    ratio = np.divide(draft, target, out=np.full(target.shape, np.inf), where=target > 0)
    return np.minimum(ratio.min(-1), 1.0)


def _pair(p: Numbers, q: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft probabilities over one vocabulary, broadcast against each other."""
    target, draft = distribution("p", p), distribution("q", q)
    if target.shape[-1] != draft.shape[-1]:
        raise ValueError(f"p and q must have one vocabulary, got {target.shape[-1]} and {draft.shape[-1]} tokens")
    try:
        target, draft = np.broadcast_arrays(target, draft)
    except ValueError:
        raise ValueError(f"p of shape {target.shape} does not broadcast against q of shape {draft.shape}") from None
    return target, draft
