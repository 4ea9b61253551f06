"""Multi-round rejection down a tree: SpecInfer (Miao et al. 2023, arXiv 2305.09781), Sequoia (Chen et al. 2024,
2402.12374)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.trees import Tree
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify.token import residual
from specjax.verify.walk import Rule, Walked, along, descend, is_token, mass_of, normalized, verdict_of


def multiround(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: a tree whose siblings are independent draws of q, with replacement, or point masses.

    The children of a node are tested oldest first: x passes with probability min(1, p(x) / q(x)), and after each
    refusal p becomes norm(max(0, p - q)). When none passes, the token is drawn from what p has become. Of point masses,
    x passes with what p has left for it. On a chain this is `token_level`.

    Args:
      key: [B] typed keys, consumed once.
      tree: any; siblings are ordered by their number.
      draft: a node that is not valid ends its branch. Whether one is valid must not depend on its own token.
      log_p: [B, N, V], the target's law after every node, warped like log_q.
    """
    return verdict_of(walk_with, key, tree, draft, log_p)


def multiround_without(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: a tree whose siblings are drawn from q without replacement, oldest first, or point masses.

    As `multiround`, but each refused token leaves q, which is normalized anew before the next test. A sibling past the
    last token that q has mass for is passed over, and a sibling that was not proposed ends its family.

    Args:
      key: [B] typed keys, consumed once.
      tree: any; siblings are numbered in the order of their draws.
      draft: log_q is the law of the first draw, as if nothing had been drawn before.
      log_p: [B, N, V], the target's law after every node, warped like log_q.
    """
    return verdict_of(walk_without, key, tree, draft, log_p)


class Laws(NamedTuple):
    """What is left to draw from at a node: the token's law, and that of the next child (None: point masses)."""

    p: Float[Array, "B V"]
    q: Float[Array, "B V"] | None


def refuse_with(laws: Laws, token: Int[Array, "B"]) -> Laws:
    """After a refusal p is the normalized residual; q stays, for the next child is drawn as this one was."""
    q = is_token(token, laws.p).astype(laws.p.dtype) if laws.q is None else laws.q
    return Laws(normalized(residual(laws.p, q), laws.p), laws.q)


def refuse_without(laws: Laws, token: Int[Array, "B"]) -> Laws:
    """After a refusal the token leaves q as well, which is normalized over the rest; where no rest is, q is zero."""
    p = refuse_with(laws, token).p
    if laws.q is None:
        return Laws(p, None)
    rest = jnp.where(is_token(token, laws.q), jnp.zeros_like(laws.q), laws.q)
    return Laws(p, normalized(rest, jnp.zeros_like(rest)))


def chance(laws: Laws, token: Int[Array, "B"]) -> tuple[Float[Array, "B"], Float[Array, "B"]]:
    """A child passes with probability p(x) / q(x): both as they are now."""
    p = mass_of(laws.p, token)
    return p, jnp.ones_like(p) if laws.q is None else mass_of(laws.q, token)


def _enter(p, q, children) -> Laws:
    del children
    return Laws(p, q)


def _last(laws: Laws) -> Float[Array, "B V"]:
    return laws.p


def walk_with(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`multiround` on given uniforms."""
    if tree.is_chain:
        return along(u, tree, draft, log_p)
    return descend(Rule(_enter, chance, refuse_with, _last), u, tree, draft, log_p)


def walk_without(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`multiround_without` on given uniforms."""
    if tree.is_chain:
        return along(u, tree, draft, log_p)
    rule = Rule(_enter, chance, refuse_without, _last)
    return descend(rule, u, tree, draft, log_p, in_order=draft.log_q is not None)
