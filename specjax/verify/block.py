"""Block verification of a chain (Sun et al. 2024, arXiv 2403.10444)."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from specjax.categorical import total
from specjax.trees import Tree
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify.token import law_left
from specjax.verify.walk import Walked, chain_of, ratio, undrafted, verdict_of


def block(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: a chain tested as a whole, which never accepts fewer tokens in expectation than token by token.

    Node i has the weight a_i = min(1, a_{i-1} p(x_i) / q(x_i)), a_0 = 1. It passes with probability
    S_i / (S_i + 1 - a_i), S_i = sum_x max(0, a_i p(x) - q(x)) of the laws after it, and the last node with a_i. The
    last node that passes is accepted with all before it, whatever those did; the token is drawn from
    norm(max(0, a_i p - q)), after the whole draft from p.

    Args:
      key: [B] typed keys, consumed once.
      tree: a chain.
      draft: the first False of valid below the root ends the row's draft. Whether a node is valid must not depend on
        its own token.
      log_p: [B, N, V], the target's law after every node, warped like log_q.

    Raises:
      ValueError: the tree branches.
    """
    return verdict_of(walk, key, tree, draft, log_p)


def weights(p: Float[Array, "B gamma"], q: Float[Array, "B gamma"]) -> Float[Array, "B gamma"]:
    """a_1 .. a_gamma: the running min(1, product of p / q)."""

    def step(a, laws):
        p, q = laws
        some = q > 0
        a = jnp.where(some, jnp.minimum(a * p / jnp.where(some, q, jnp.ones_like(q)), 1.0), 0.0)
        return a, a

    return lax.scan(step, jnp.ones_like(p[:, 0]), (p.T, q.T))[1].T


def excess(a: Float[Array, "B n"], p: Float[Array, "B n V"], q: Float[Array, "B n V"]) -> Float[Array, "B n"]:
    """S: the mass of max(0, a p - q)."""
    return total(jnp.maximum(a[..., None] * p - q, jnp.zeros_like(p)))


def chance(
    a: Float[Array, "B n"], s: Float[Array, "B n"], ends: Bool[Array, "B n"]
) -> tuple[Float[Array, "B n"], Float[Array, "B n"]]:
    """A node passes with probability S / (S + 1 - a), where the draft ends with a."""
    return jnp.where(ends, a, s), jnp.where(ends, jnp.ones_like(a), s + (1 - a))


def walk(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`block` on given uniforms. Every node from the last that passes is tested, the last of the draft first."""
    if not tree.is_chain:
        raise ValueError(f"block verification needs a chain, got a tree with parents {tree.parents}: use traversal")
    if tree.size == 1:
        return undrafted(u, log_p)
    p, q, proposed = chain_of(draft, log_p)
    ends = ~jnp.pad(proposed[:, 1:], ((0, 0), (0, 1)))
    a = weights(p, q)
    if draft.log_q is None:  # max(0, a p - 1 at the child) is a p without the child
        inner = a[:, :-1] * (1 - p[:, 1:])
    else:
        inner = excess(a[:, :-1], jnp.exp(log_p[:, 1:-1]), jnp.exp(draft.log_q[:, 1:-1]))
    num, den = chance(a, jnp.pad(inner, ((0, 0), (0, 1))), ends)
    passed = proposed & (u[:, 1:] * den < num)
    number = lax.broadcasted_iota(jnp.int32, passed.shape, 1) + 1
    node = jnp.max(jnp.where(passed, number, 0), axis=1)
    root = ((0, 0), (1, 0))
    tested = jnp.pad(proposed & (number >= node[:, None]), root)
    weight = jnp.take_along_axis(jnp.pad(a, root, constant_values=1.0), node[:, None], axis=1)[:, 0]
    more = jnp.take_along_axis(jnp.pad(proposed, ((0, 0), (0, 1))), node[:, None], axis=1)[:, 0]
    return Walked(node, law_left(draft, log_p, node, more, weight), tested, jnp.pad(ratio(num, den), root))
