"""Rejection sampling without a residual, a weaker baseline (Leviathan et al. 2023, arXiv 2211.17192, A.2)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.trees import Tree
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify.walk import SiblingRule, Walked, descend, mass_of, verdict_of


def non_iterative(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: chains, and trees whose siblings are independent samples of q. A baseline with lower acceptance.

    A child x passes with probability p(x) / (M q(x)), M = max p / q, as in textbook rejection sampling; when none
    passes, the token is sampled from p. The acceptance rate 1 / M is at most sum_x min(p, q). Leviathan et al. 2023,
    arXiv 2211.17192, appendix A.2.

    Args:
      key: [B] typed keys, consumed once.
      tree: any tree.
      draft: a node that is not valid ends its branch. Whether it is valid must not depend on its own token.
      log_p: [B, N, V] float32, the target's log-probabilities after every node, warped like log_q.

    Returns:
      The accepted path and one more token.

    Raises:
      ValueError: the draft consists of point masses.

    >>> import jax, jax.numpy as jnp
    >>> from specjax import trees, verify
    >>> from specjax.types import Draft
    >>> log_p = jnp.log(jnp.broadcast_to(jnp.array([0.5, 0.5]), (1, 3, 2)))
    >>> draft = Draft(tokens=jnp.array([[0, 0, 1]]), valid=jnp.ones((1, 3), bool), log_q=log_p)
    >>> keys = jax.random.split(jax.random.key(0), 1)
    >>> int(verify.non_iterative_rejection(keys, trees.regular((2,)), draft, log_p).accepted[0])  # p == q
    1
    """
    return verdict_of(walk, key, tree, draft, log_p)


class ScaledTarget(NamedTuple):
    """The distributions at a node, and 1 / M: the largest m for which m p is nowhere above q."""

    p: Float[Array, "B V"]
    q: Float[Array, "B V"]
    m: Float[Array, "B"]


def largest_scale(p: Float[Array, "B V"], q: Float[Array, "B V"]) -> Float[Array, "B"]:
    """min q / p over the support of p; 0 where q lacks one of its tokens, so that no child passes."""
    has = p > 0
    smallest = jnp.min(jnp.where(has, q / jnp.where(has, p, jnp.ones_like(p)), jnp.inf), axis=-1)
    return jnp.minimum(smallest, 1.0)  # rounding may exceed 1


def chance(at: ScaledTarget, token: Int[Array, "B"]) -> tuple[Float[Array, "B"], Float[Array, "B"]]:
    """(num, den) of a child's probability to pass, m p(x) / q(x)."""
    return at.m * mass_of(at.p, token), mass_of(at.q, token)


def walk(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`non_iterative` with given uniforms."""
    if draft.log_q is None:
        raise ValueError("non_iterative requires log_q, but this draft consists of point masses: "
                         "use token_level, multiround or deterministic")  # fmt: skip
    enter = lambda p, q, children: ScaledTarget(p, q, largest_scale(p, q))
    return descend(SiblingRule(enter, chance, lambda at, token: at, lambda at: at.p), u, tree, draft, log_p)
