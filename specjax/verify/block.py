"""Block verification of a chain (Sun et al. 2024, arXiv 2403.10444)."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from specjax.categorical import total
from specjax.trees import Tree
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify.token import remaining_mass
from specjax.verify.walk import Walked, chain_probs, ratio, undrafted, verdict_of


def block(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: tests a chain as a whole, and accepts at least as many tokens in expectation as `token_level`.

    Node i has the weight a_i = min(1, a_{i-1} p(x_i) / q(x_i)), with a_0 = 1. It passes with probability
    S_i / (S_i + 1 - a_i), where S_i = sum_x max(0, a_i p(x) - q(x)) over the distributions after it; the last node of
    the draft passes with probability a_i. The last node that passes is accepted together with all nodes before it.
    The next token is sampled from norm(max(0, a_i p - q)), or from p after the whole draft. Sun et al. 2024,
    arXiv 2403.10444, algorithm 2.

    Args:
      key: [B] typed keys, consumed once.
      tree: a chain.
      draft: the first False of valid below the root ends the row's draft. Whether a node is valid must not depend on
        its own token.
      log_p: [B, N, V] float32, the target's log-probabilities after every node, warped like log_q.

    Returns:
      The accepted path and one more token.

    Raises:
      ValueError: the tree branches.

    >>> import jax, jax.numpy as jnp
    >>> from specjax import trees, verify
    >>> from specjax.types import Draft
    >>> log_p = jnp.log(jnp.array([[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]]))
    >>> draft = Draft(tokens=jnp.array([[0, 1]]), valid=jnp.ones((1, 2), bool), log_q=log_p)
    >>> verdict = verify.block_verification(jax.random.split(jax.random.key(0), 1), trees.chain(1), draft, log_p)
    >>> int(verdict.accepted[0]), int(verdict.token[0])
    (1, 2)
    """
    return verdict_of(walk, key, tree, draft, log_p)


def weights(p: Float[Array, "B gamma"], q: Float[Array, "B gamma"]) -> Float[Array, "B gamma"]:
    """a_1 .. a_gamma: the running min(1, product of p / q)."""

    def step(a, probs):
        p, q = probs
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
    """(num, den) of a node's probability to pass: S / (S + 1 - a), or a at the end of the draft."""
    return jnp.where(ends, a, s), jnp.where(ends, jnp.ones_like(a), s + (1 - a))


def walk(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`block` with given uniforms. Tests the nodes from the end of the draft back to the last one that passes."""
    if not tree.is_chain:
        raise ValueError(f"block verification requires a chain, got a tree with parents {tree.parents}: use traversal")
    if tree.size == 1:
        return undrafted(u, log_p)
    p, q, proposed = chain_probs(draft, log_p)
    ends = ~jnp.pad(proposed[:, 1:], ((0, 0), (0, 1)))
    a = weights(p, q)
    if draft.log_q is None:  # q is 1 at the child, so max(0, a p - q) is a p without the child
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
    return Walked(node, remaining_mass(draft, log_p, node, more, weight), tested, jnp.pad(ratio(num, den), root))
