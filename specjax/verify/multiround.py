"""Multi-round rejection down a tree: SpecInfer (Miao et al. 2023, arXiv 2305.09781), Sequoia (Chen et al. 2024,
2402.12374)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.trees import Tree
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify.token import residual
from specjax.verify.walk import SiblingRule, Walked, along, descend, is_token, mass_of, normalized, source, verdict_of


def multiround(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: trees whose siblings are independent samples of q, with replacement, or point masses.

    The children of a node are tested oldest first: x passes with probability min(1, p(x) / q(x)), and after each
    rejection p becomes norm(max(0, p - q)). When none passes, the token is sampled from the current p. For point
    masses, x passes with the mass that p has left for it. On a chain this is `token_level`. SpecInfer, Miao et al.
    2023, arXiv 2305.09781, algorithm 2.

    Args:
      key: [B] typed keys, consumed once.
      tree: any tree; siblings are ordered by their node number.
      draft: a node that is not valid ends its branch. Whether it is valid must not depend on its own token.
      log_p: [B, N, V] float32, the target's log-probabilities after every node, warped like log_q.

    Returns:
      The accepted path and one more token.

    >>> import jax, jax.numpy as jnp
    >>> from specjax import trees, verify
    >>> from specjax.types import Draft
    >>> log_p = jnp.log(jnp.array([[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]]))
    >>> draft = Draft(tokens=jnp.array([[0, 0, 1]]), valid=jnp.ones((1, 3), bool), log_q=None)
    >>> keys = jax.random.split(jax.random.key(0), 1)
    >>> verdict = verify.multiround_with_replacement(keys, trees.regular((2,)), draft, log_p)
    >>> int(verdict.accepted[0]), int(verdict.token[0])  # the two siblings cover p
    (1, 2)
    """
    return verdict_of(walk_with, key, tree, draft, log_p)


def multiround_without(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: trees whose siblings are sampled from q without replacement, oldest first, or point masses.

    Like `multiround`, but each rejected token is removed from q, which is renormalized before the next test. Siblings
    beyond the last token with mass in q are point masses, and a sibling that was not proposed ends its family.
    Sequoia, Chen et al. 2024, arXiv 2402.12374, algorithm 2.

    Args:
      key: [B] typed keys, consumed once.
      tree: any tree; siblings are numbered in the order in which they were sampled.
      draft: log_q is the distribution of the first sample, before anything was removed.
      log_p: [B, N, V] float32, the target's log-probabilities after every node, warped like log_q.

    Returns:
      The accepted path and one more token.

    >>> import jax, jax.numpy as jnp
    >>> from specjax import trees, verify
    >>> from specjax.types import Draft
    >>> log_p = jnp.log(jnp.broadcast_to(jnp.array([0.5, 0.5]), (1, 3, 2)))
    >>> draft = Draft(tokens=jnp.array([[0, 0, 1]]), valid=jnp.ones((1, 3), bool), log_q=log_p)
    >>> keys = jax.random.split(jax.random.key(0), 1)
    >>> int(verify.multiround_without_replacement(keys, trees.regular((2,)), draft, log_p).accepted[0])  # p == q
    1
    """
    return verdict_of(walk_without, key, tree, draft, log_p)


class RoundState(NamedTuple):
    """The current distributions at a node: of the target, and of the next child (None: point masses)."""

    p: Float[Array, "B V"]
    q: Float[Array, "B V"] | None


def reject_with(at: RoundState, token: Int[Array, "B"]) -> RoundState:
    """After a rejection p is the normalized residual; q stays, since the next child is an independent sample."""
    return RoundState(normalized(residual(at.p, source(at.q, token, at.p)), at.p), at.q)


def reject_without(at: RoundState, token: Int[Array, "B"]) -> RoundState:
    """`reject_with`, and the token is removed from q, which is renormalized; q is zero if nothing is left."""
    p = reject_with(at, token).p
    if at.q is None:
        return RoundState(p, None)
    rest = jnp.where(is_token(token, at.q), jnp.zeros_like(at.q), at.q)
    return RoundState(p, normalized(rest, jnp.zeros_like(rest)))


def chance(at: RoundState, token: Int[Array, "B"]) -> tuple[Float[Array, "B"], Float[Array, "B"]]:
    """(num, den) of a child's probability to pass, p(x) / q(x) with the current p and q."""
    return mass_of(at.p, token), mass_of(source(at.q, token, at.p), token)


def _enter(p, q, children) -> RoundState:
    del children
    return RoundState(p, q)


def _last(at: RoundState) -> Float[Array, "B V"]:
    return at.p


def walk_with(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`multiround` with given uniforms."""
    if tree.is_chain:
        return along(u, tree, draft, log_p)
    return descend(SiblingRule(_enter, chance, reject_with, _last), u, tree, draft, log_p)


def walk_without(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`multiround_without` with given uniforms."""
    if tree.is_chain:
        return along(u, tree, draft, log_p)
    rule = SiblingRule(_enter, chance, reject_without, _last)
    return descend(rule, u, tree, draft, log_p, in_order=draft.log_q is not None)
