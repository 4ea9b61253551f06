"""K-SEQ, sequential selection with one discount (SpecTr, Sun et al. 2023, arXiv 2310.15141)."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from specjax.categorical import total
from specjax.trees import Tree
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify.token import residual
from specjax.verify.walk import Rule, Walked, along, descend, mass_of, verdict_of

HALVINGS = 16  # of [1, K]: rho is found to K / 65,536, and is on the safe side of its root


def kseq(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: a tree whose siblings are independent draws of q, with replacement.

    Of K children of a node, each passes with probability min(1, p(x) / (rho q(x))), where rho in [1, K] is the least
    for which the K tests together give no token more than its share of p. When none passes, the token is drawn from
    what the K tests have left of p. On a chain rho is 1, and this is `token_level`.

    Args:
      key: [B] typed keys, consumed once.
      tree: any; K is the number of children that were proposed, row by row.
      draft: a node that is not valid ends its branch. Whether one is valid must not depend on its own token.
      log_p: [B, N, V], the target's law after every node, warped like log_q.

    Raises:
      ValueError: the draft is of point masses.
    """
    return verdict_of(walk, key, tree, draft, log_p)


class Selection(NamedTuple):
    """The laws at a node, how many children are tested there, and their discount."""

    p: Float[Array, "B V"]
    q: Float[Array, "B V"]
    children: Int[Array, "B"]
    rho: Float[Array, "B"]


def shared(p: Float[Array, "B V"], q: Float[Array, "B V"], rho: Float[Array, "B"]) -> Float[Array, "B V"]:
    """min(p / rho, q): with which mass one child is drawn and passes."""
    return jnp.minimum(p / rho[:, None], q)


def discount(p: Float[Array, "B V"], q: Float[Array, "B V"], children: Int[Array, "B"]) -> Float[Array, "B"]:
    """The least rho in [1, K] with 1 - (1 - beta)^K <= rho beta, beta = sum_x min(p(x) / rho, q(x)).

    Every rho from there on is lossless; the least accepts most. The upper end of a bisection is therefore the answer
    however short the bisection.
    """
    k = jnp.maximum(children, 1).astype(p.dtype)

    def enough(rho):
        beta = jnp.minimum(total(shared(p, q, rho)), 1.0)
        return taken(beta, k) <= rho * beta

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        good = enough(middle)
        return jnp.where(good, low, middle), jnp.where(good, middle, high)

    one = jnp.ones_like(k)
    return lax.fori_loop(0, HALVINGS, halve, (one, k))[1]


def taken(beta: Float[Array, "B"], children: Float[Array, "B"]) -> Float[Array, "B"]:
    """1 - (1 - beta)^K: the chance that one of K children passes."""
    return 1 - (1 - beta) ** children


def chance(at: Selection, token: Int[Array, "B"]) -> tuple[Float[Array, "B"], Float[Array, "B"]]:
    """A child passes with probability p(x) / (rho q(x))."""
    return mass_of(at.p, token), at.rho * mass_of(at.q, token)


def left(at: Selection) -> Float[Array, "B V"]:
    """Masses of the token when no child passed: p less what the K tests have given, p where there was no test."""
    mass = shared(at.p, at.q, at.rho)
    beta = jnp.minimum(total(mass), 1.0)
    some = (beta > 0) & (at.children > 0)
    share = jnp.where(some, taken(beta, at.children.astype(beta.dtype)) / jnp.where(some, beta, 1.0), 0.0)
    return residual(at.p, mass * share[:, None])


def walk(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`kseq` on given uniforms."""
    if draft.log_q is None:
        raise ValueError("kseq compares each child with the law it was drawn from, and this draft is of point masses: "
                         "use multiround, or deterministic")  # fmt: skip
    if tree.is_chain:
        return along(u, tree, draft, log_p)

    def enter(p, q, children):
        return Selection(p, q, children, discount(p, q, children))

    return descend(Rule(enter, chance, lambda at, token: at, left), u, tree, draft, log_p)
