"""K-SEQ, sequential selection with one discount (SpecTr, Sun et al. 2023, arXiv 2310.15141)."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from specjax.categorical import total
from specjax.trees import Tree
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify.token import residual
from specjax.verify.walk import SiblingRule, Walked, along, descend, mass_of, verdict_of

HALVINGS = 16  # of [1, K]: rho is found to K / 65,536, and is on the safe side of the root


def kseq(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: trees whose siblings are independent samples of q, with replacement.

    Each of the K children of a node passes with probability min(1, p(x) / (rho q(x))), where rho in [1, K] is the
    smallest value for which the K tests together give no token more than its share of p. When none passes, the token
    is sampled from the remainder of p. On a chain rho is 1, and this is `token_level`. SpecTr,
    Sun et al. 2023, arXiv 2310.15141, algorithm 2.

    Args:
      key: [B] typed keys, consumed once.
      tree: any tree; K is the number of proposed children, row by row.
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
    >>> int(verify.spectr_kseq(keys, trees.regular((2,)), draft, log_p).accepted[0])  # p == q
    1
    """
    return verdict_of(walk, key, tree, draft, log_p)


class KSeqNode(NamedTuple):
    """The distributions at a node, the number of children tested there, and their discount."""

    p: Float[Array, "B V"]
    q: Float[Array, "B V"]
    children: Int[Array, "B"]
    rho: Float[Array, "B"]


def shared(p: Float[Array, "B V"], q: Float[Array, "B V"], rho: Float[Array, "B"]) -> Float[Array, "B V"]:
    """min(p / rho, q): the mass with which one child is sampled and passes."""
    return jnp.minimum(p / rho[:, None], q)


def discount(p: Float[Array, "B V"], q: Float[Array, "B V"], children: Int[Array, "B"]) -> Float[Array, "B"]:
    """The smallest rho in [1, K] with 1 - (1 - beta)^K <= rho beta, beta = sum_x min(p(x) / rho, q(x)).

    Every larger rho is lossless too, and the smallest accepts most. The upper end of a bisection is therefore valid
    after any number of steps.
    """
    k = jnp.maximum(children, 1).astype(p.dtype)

    def enough(rho):
        beta = jnp.minimum(total(shared(p, q, rho)), 1.0)
        return any_passes(beta, k) <= rho * beta

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        good = enough(middle)
        return jnp.where(good, low, middle), jnp.where(good, middle, high)

    one = jnp.ones_like(k)
    return lax.fori_loop(0, HALVINGS, halve, (one, k))[1]


def any_passes(beta: Float[Array, "B"], children: Float[Array, "B"]) -> Float[Array, "B"]:
    """1 - (1 - beta)^K: the probability that one of K children passes."""
    return 1 - (1 - beta) ** children


def chance(at: KSeqNode, token: Int[Array, "B"]) -> tuple[Float[Array, "B"], Float[Array, "B"]]:
    """(num, den) of a child's probability to pass, p(x) / (rho q(x))."""
    return mass_of(at.p, token), at.rho * mass_of(at.q, token)


def left(at: KSeqNode) -> Float[Array, "B V"]:
    """Unnormalized remainder of p when no child passed; p itself where no child was tested."""
    mass = shared(at.p, at.q, at.rho)
    beta = jnp.minimum(total(mass), 1.0)
    some = (beta > 0) & (at.children > 0)
    share = jnp.where(some, any_passes(beta, at.children.astype(beta.dtype)) / jnp.where(some, beta, 1.0), 0.0)
    return residual(at.p, mass * share[:, None])


def walk(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`kseq` with given uniforms."""
    if draft.log_q is None:
        raise ValueError("kseq requires log_q, but this draft consists of point masses: "
                         "use multiround or deterministic")  # fmt: skip
    if tree.is_chain:
        return along(u, tree, draft, log_p)

    def enter(p, q, children):
        return KSeqNode(p, q, children, discount(p, q, children))

    return descend(SiblingRule(enter, chance, lambda at, token: at, left), u, tree, draft, log_p)
