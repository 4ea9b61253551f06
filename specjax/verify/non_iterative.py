"""Rejection sampling without the residual, a weaker baseline (Leviathan et al. 2023, arXiv 2211.17192, A.2)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.trees import Tree
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify.walk import Rule, Walked, descend, mass_of, verdict_of


def non_iterative(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: chains, and trees whose siblings are independent draws of q. The weaker baseline: it accepts less.

    A child x passes with probability p(x) / (M q(x)), M = max p / q, as in textbook rejection sampling; when none
    passes, the token is drawn from p as it stands. The chance to pass is 1 / M, at most sum_x min(p, q).

    Args:
      key: [B] typed keys, consumed once.
      tree: any.
      draft: a node that is not valid ends its branch. Whether one is valid must not depend on its own token.
      log_p: [B, N, V], the target's law after every node, warped like log_q.

    Raises:
      ValueError: the draft is of point masses.
    """
    return verdict_of(walk, key, tree, draft, log_p)


class Envelope(NamedTuple):
    """The laws at a node, and 1 / M: the largest m for which m p lies below q."""

    p: Float[Array, "B V"]
    q: Float[Array, "B V"]
    m: Float[Array, "B"]


def envelope(p: Float[Array, "B V"], q: Float[Array, "B V"]) -> Float[Array, "B"]:
    """min q / p over the tokens that p has: 0 where q lacks one of them, and then nothing may pass."""
    has = p > 0
    least = jnp.min(jnp.where(has, q / jnp.where(has, p, jnp.ones_like(p)), jnp.inf), axis=-1)
    return jnp.minimum(least, 1.0)  # rounding may put it above


def chance(at: Envelope, token: Int[Array, "B"]) -> tuple[Float[Array, "B"], Float[Array, "B"]]:
    """A child passes with probability m p(x) / q(x)."""
    return at.m * mass_of(at.p, token), mass_of(at.q, token)


def walk(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`non_iterative` on given uniforms."""
    if draft.log_q is None:
        raise ValueError("non_iterative compares each child with the law it was drawn from, and this draft is of point "
                         "masses: use token_level, multiround, or deterministic")  # fmt: skip
    enter = lambda p, q, children: Envelope(p, q, envelope(p, q))
    return descend(Rule(enter, chance, lambda at, token: at, lambda at: at.p), u, tree, draft, log_p)
