"""Traversal verification of a tree, from its leaves upward (Weng et al. 2025, arXiv 2505.12398).

The tree is traversed depth first. Only the distributions along the path to the tested node change, so one slot per
level holds them.

       0           events     enter 1, test 3, test 4, test 1, enter 2, test 5, test 6, test 2
      / \\          slot 0     distributions after 0, reduced by the rejected 1 and 2
     1   2         slot 1     distributions after 1, reduced by 3 and 4; from "enter 2" on, those after 2
    / \\ / \\
   3  4 5  6
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax.categorical import total
from specjax.trees import NO_CHILD, Tree
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify import block
from specjax.verify.token import at_node, residual
from specjax.verify.walk import Walked, choose, is_token, mass_of, normalized, source, usable, verdict_of


def traversal(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: trees whose siblings are independent samples of q, with replacement, or point masses.

    Every node has the weight a = min(1, a_parent p(x) / q(x)) under the distributions after its parent; the root has
    weight 1. Leaves are tested first, depth first from the oldest: a leaf passes with probability a, which accepts its
    whole path. A rejected leaf is deleted; its parent's p becomes norm(max(0, a p - q)) and its weight Z / (Z + 1 - a),
    where Z is the mass of this residual. A parent without remaining children is a leaf. The next token is sampled from
    the current p of the accepted node. On a chain this is `block`. Weng et al. 2025, arXiv
    2505.12398, algorithm 1.

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
    >>> log_p = jnp.log(jnp.broadcast_to(jnp.array([0.5, 0.5]), (1, 3, 2)))
    >>> draft = Draft(tokens=jnp.array([[0, 0, 1]]), valid=jnp.ones((1, 3), bool), log_q=log_p)
    >>> keys = jax.random.split(jax.random.key(0), 1)
    >>> int(verify.traversal_with_replacement(keys, trees.regular((2,)), draft, log_p).accepted[0])  # p == q
    1
    """
    return verdict_of(walk_with, key, tree, draft, log_p)


def traversal_without(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: trees whose siblings are sampled from q without replacement, oldest first, or point masses.

    Like `traversal`, but each deleted token is removed from its parent's q, which is renormalized. Siblings beyond the
    last token with mass in q are point masses, and a sibling that was not proposed ends its family.
    Weng et al. 2025, arXiv 2505.12398, with the removal of Sequoia's rule.

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
    >>> int(verify.traversal_without_replacement(keys, trees.regular((2,)), draft, log_p).accepted[0])  # p == q
    1
    """
    return verdict_of(walk_without, key, tree, draft, log_p)


class PathNode(NamedTuple):
    """The node of the current path at one depth, as its deleted children have left it."""

    live: Bool[Array, "*level B"]  # whether the node is a sample at all
    a: Float[Array, "*level B"]
    p: Float[Array, "*level B V"]
    q: Float[Array, "*level B V"] | None  # None: point masses


def child_weight(parent: PathNode, token: Int[Array, "B"]) -> Float[Array, "B"]:
    """min(1, a p(x) / q(x)); 0 for a token with zero mass in q."""
    p, q = mass_of(parent.p, token), mass_of(source(parent.q, token, parent.p), token)
    some = q > 0
    return jnp.where(some, jnp.minimum(parent.a * p / jnp.where(some, q, jnp.ones_like(q)), 1.0), 0.0)


def delete_with(parent: PathNode, token: Int[Array, "B"]) -> PathNode:
    """The parent after a child was rejected: the residual of p, and the remaining weight."""
    weighed = parent.a[:, None] * parent.p
    q = source(parent.q, token, parent.p)
    left = jnp.maximum(weighed - q, jnp.zeros_like(q))
    z = total(left)
    den = z + (1 - parent.a)
    a = jnp.where(den > 0, z / jnp.where(den > 0, den, jnp.ones_like(den)), 1.0)  # a 1 and p == q: a stays 1
    return PathNode(parent.live, a, normalized(residual(weighed, q), parent.p), parent.q)


def delete_without(parent: PathNode, token: Int[Array, "B"]) -> PathNode:
    """`delete_with`, and the token is removed from q, which is renormalized; q is zero if nothing is left."""
    after = delete_with(parent, token)
    if parent.q is None:
        return after
    rest = jnp.where(is_token(token, parent.q), jnp.zeros_like(parent.q), parent.q)
    return after._replace(q=normalized(rest, jnp.zeros_like(rest)))


def walk_with(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`traversal` with given uniforms."""
    return _climb(delete_with, u, tree, draft, log_p, in_order=False)


def walk_without(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`traversal_without` with given uniforms."""
    return _climb(delete_without, u, tree, draft, log_p, in_order=draft.log_q is not None)


def events(tree: Tree) -> list[tuple[int, bool]]:
    """(node, True to enter it or False to test it) for all nodes but the root, in depth-first order.

    An inner node is entered before its subtree and tested after it; a leaf is only tested.
    """
    order: list[tuple[int, bool]] = []
    stack = [(0, True)]
    while stack:
        node, enter = stack.pop()
        kids = tree.children[node]
        kids = kids[kids != NO_CHILD].tolist()
        enter = enter and bool(kids)
        if enter:
            stack.append((node, False))
            stack += [(kid, True) for kid in reversed(kids)]
        if node:
            order.append((node, enter))
    return order


def _climb(delete, u, tree: Tree, draft: Draft, log_p, *, in_order: bool) -> Walked:
    """Runs the events until every row is done. A chain is block verification, which reads all nodes at once."""
    if tree.is_chain:
        return block.walk(u, tree, draft, log_p)
    order = events(tree)
    nodes = jnp.asarray(np.array([node for node, _ in order], np.int32))
    enters = jnp.asarray(np.array([enter for _, enter in order], bool))
    depth = jnp.asarray(tree.depth)
    inner = jnp.asarray((tree.children != NO_CHILD).any(-1))
    proposed = usable(tree, draft, in_order=in_order)
    batch = u.shape[0]

    def fresh(node) -> PathNode:
        after = lambda log_probs: jnp.exp(lax.dynamic_index_in_dim(log_probs, node, axis=1, keepdims=False))
        ones = jnp.ones_like(u[:, 0])
        return PathNode(ones > 0, ones, after(log_p), None if draft.log_q is None else after(draft.log_q))

    def event(carry):
        step, done, accepted, levels, tested, chance = carry
        node, enter = nodes[step], enters[step]
        at = depth[node]
        parent, here, token = _read(levels, at - 1), _read(levels, at), draft.tokens[:, node]
        sample = mass_of(source(parent.q, token, parent.p), token) > 0
        live = parent.live & proposed[:, node] & sample
        weight = child_weight(parent, token)
        is_inner = inner[node]  # it was entered: its slot holds the state after its rejected children
        a = jnp.where(is_inner & ~enter, here.a, weight)
        test = live & ~done & ~enter
        passed = test & (u[:, node] < a)
        rejected = test & ~passed
        changed = lax.cond(
            enter,
            lambda: choose(done, here, fresh(node)._replace(live=live, a=weight)),
            lambda: choose(rejected, delete(parent, token), parent),
        )
        levels = _write(levels, changed, jnp.where(enter, at, at - 1))
        tested = tested.at[:, node].set(tested[:, node] | test)
        chance = chance.at[:, node].set(jnp.where(test, a, chance[:, node]))
        return step + 1, done | passed, jnp.where(passed, node, accepted), levels, tested, chance

    root = fresh(jnp.int32(0))
    levels = _stack(root, int(tree.width))
    none_done = jnp.zeros(batch, bool)
    start = (jnp.int32(0), none_done, jnp.zeros(batch, jnp.int32), levels, jnp.zeros(u.shape, bool), jnp.zeros_like(u))
    _, _, node, levels, tested, chance = lax.while_loop(
        lambda carry: (carry[0] < len(order)) & jnp.any(~carry[1]), event, start
    )
    left = levels.p[depth[node], jnp.arange(batch, dtype=jnp.int32)]
    mass = jnp.where(inner[node][:, None], left, jnp.exp(at_node(log_p, node)))
    return Walked(node, mass, tested, chance)


def _stack(root: PathNode, width: int) -> PathNode:
    """Slots for every depth, with the root in the first."""
    return jax.tree.map(lambda x: jnp.zeros((width, *x.shape), x.dtype).at[0].set(x), root)


def _read(levels: PathNode, at) -> PathNode:
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, at, keepdims=False), levels)


def _write(levels: PathNode, row: PathNode, at) -> PathNode:
    return jax.tree.map(lambda x, new: lax.dynamic_update_index_in_dim(x, new, at, axis=0), levels, row)
