"""Traversal verification of a tree, from its leaves upwards (Weng et al. 2025, arXiv 2505.12398).

A tree in depth-first order, and what is read at each test: only the laws along the path that leads to the node change,
so one slot a level holds them.

       0           events     enter 1, test 3, test 4, test 1, enter 2, test 5, test 6, test 2
      / \\          slot 0     the laws after 0, less what 1 and then 2 have taken
     1   2         slot 1     the laws after 1, less what 3 and 4 have taken; from "enter 2" on, those after 2
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
from specjax.verify.token import law_after, residual
from specjax.verify.walk import Walked, choose, is_token, mass_of, normalized, usable, verdict_of


def traversal(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: a tree whose siblings are independent draws of q, with replacement, or point masses.

    Every node has the weight a = min(1, a_parent p(x) / q(x)) of the laws after its parent, the root 1. Leaves are
    tested first, depth-first from the oldest: one passes with probability a, which accepts its whole path. A leaf that
    is refused is deleted, and its parent's p becomes norm(max(0, a p - q)), its weight Z / (Z + 1 - a) with Z the mass
    of that; a parent without children left is a leaf. The token is drawn from p of the accepted node as it then is.
    On a chain this is `block`.

    Args:
      key: [B] typed keys, consumed once.
      tree: any; siblings are ordered by their number.
      draft: a node that is not valid ends its branch. Whether one is valid must not depend on its own token.
      log_p: [B, N, V], the target's law after every node, warped like log_q.
    """
    return verdict_of(walk_with, key, tree, draft, log_p)


def traversal_without(key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """Lossless: a tree whose siblings are drawn from q without replacement, oldest first, or point masses.

    As `traversal`, but each deleted token leaves its parent's q, which is normalized anew. A sibling past the last
    token that q has mass for is passed over, and a sibling that was not proposed ends its family.

    Args:
      key: [B] typed keys, consumed once.
      tree: any; siblings are numbered in the order of their draws.
      draft: log_q is the law of the first draw, as if nothing had been drawn before.
      log_p: [B, N, V], the target's law after every node, warped like log_q.
    """
    return verdict_of(walk_without, key, tree, draft, log_p)


class Level(NamedTuple):
    """The node of the current path at one depth, as its deleted children have left it."""

    live: Bool[Array, "*level B"]  # whether it is a sample at all
    a: Float[Array, "*level B"]
    p: Float[Array, "*level B V"]
    q: Float[Array, "*level B V"] | None  # None: point masses


def child_weight(parent: Level, token: Int[Array, "B"]) -> Float[Array, "B"]:
    """min(1, a p(x) / q(x)); 0 for a token that q could not have drawn."""
    p = mass_of(parent.p, token)
    q = jnp.ones_like(p) if parent.q is None else mass_of(parent.q, token)
    some = q > 0
    return jnp.where(some, jnp.minimum(parent.a * p / jnp.where(some, q, jnp.ones_like(q)), 1.0), 0.0)


def delete_with(parent: Level, token: Int[Array, "B"]) -> Level:
    """The parent after a child was refused: p less what that child could have taken, and the weight that is left."""
    weighed = parent.a[:, None] * parent.p
    q = is_token(token, parent.p).astype(parent.p.dtype) if parent.q is None else parent.q
    left = jnp.maximum(weighed - q, jnp.zeros_like(q))
    z = total(left)
    den = z + (1 - parent.a)
    a = jnp.where(den > 0, z / jnp.where(den > 0, den, jnp.ones_like(den)), 1.0)  # a 1 and p == q: a stays 1
    return Level(parent.live, a, normalized(residual(weighed, q), parent.p), parent.q)


def delete_without(parent: Level, token: Int[Array, "B"]) -> Level:
    """`delete_with`, and the token leaves q, which is normalized over the rest; where no rest is, q is zero."""
    after = delete_with(parent, token)
    if parent.q is None:
        return after
    rest = jnp.where(is_token(token, parent.q), jnp.zeros_like(parent.q), parent.q)
    return after._replace(q=normalized(rest, jnp.zeros_like(rest)))


def walk_with(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`traversal` on given uniforms."""
    return _climb(delete_with, u, tree, draft, log_p, in_order=False)


def walk_without(u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Walked:
    """`traversal_without` on given uniforms."""
    return _climb(delete_without, u, tree, draft, log_p, in_order=draft.log_q is not None)


def events(tree: Tree) -> list[tuple[int, bool]]:
    """(node, whether it is entered or else tested), root apart: each inner node before its subtree and after it."""
    order: list[tuple[int, bool]] = []

    def visit(node: int) -> None:
        kids = tree.children[node]
        kids = kids[kids != NO_CHILD].tolist()
        if node and kids:
            order.append((node, True))
        for kid in kids:
            visit(kid)
        if node:
            order.append((node, False))

    visit(0)
    return order


def _climb(delete, u, tree: Tree, draft: Draft, log_p, *, in_order: bool) -> Walked:
    """Goes through the events; ends with its last row. A chain is block verification, which reads all laws at once."""
    if tree.is_chain:
        return block.walk(u, tree, draft, log_p)
    order = events(tree)
    nodes = jnp.asarray(np.array([node for node, _ in order], np.int32))
    enters = jnp.asarray(np.array([enter for _, enter in order], bool))
    depth = jnp.asarray(tree.depth)
    inner = jnp.asarray((tree.children != NO_CHILD).any(-1))
    proposed = usable(tree, draft, in_order=in_order)
    batch = u.shape[0]

    def fresh(node) -> Level:
        law = lambda laws: jnp.exp(lax.dynamic_index_in_dim(laws, node, axis=1, keepdims=False))
        ones = jnp.ones_like(u[:, 0])
        return Level(ones > 0, ones, law(log_p), None if draft.log_q is None else law(draft.log_q))

    def event(carry):
        step, done, accepted, levels, tested, chance = carry
        node, enter = nodes[step], enters[step]
        at = depth[node]
        parent, here, token = _read(levels, at - 1), _read(levels, at), draft.tokens[:, node]
        sample = jnp.ones_like(done) if parent.q is None else mass_of(parent.q, token) > 0
        live = parent.live & proposed[:, node] & sample
        weight = child_weight(parent, token)
        is_inner = inner[node]  # it was entered: its slot holds what its children have left
        a = jnp.where(is_inner & ~enter, here.a, weight)
        test = live & ~done & ~enter
        passed = test & (u[:, node] < a)
        refused = test & ~passed
        changed = lax.cond(
            enter,
            lambda: choose(done, here, fresh(node)._replace(live=live, a=weight)),
            lambda: choose(refused, delete(parent, token), parent),
        )
        levels = _write(levels, changed, jnp.where(enter, at, at - 1))
        tested = tested.at[:, node].set(tested[:, node] | test)
        chance = chance.at[:, node].set(jnp.where(test, a, chance[:, node]))
        return step + 1, done | passed, jnp.where(passed, node, accepted), levels, tested, chance

    root = fresh(jnp.int32(0))
    levels = _stack(root, int(tree.width))
    nobody = jnp.zeros(batch, bool)
    start = (jnp.int32(0), nobody, jnp.zeros(batch, jnp.int32), levels, jnp.zeros(u.shape, bool), jnp.zeros_like(u))
    _, _, node, levels, tested, chance = lax.while_loop(
        lambda carry: (carry[0] < len(order)) & jnp.any(~carry[1]), event, start
    )
    left = levels.p[depth[node], jnp.arange(batch, dtype=jnp.int32)]
    mass = jnp.where(inner[node][:, None], left, jnp.exp(law_after(log_p, node)))
    return Walked(node, mass, tested, chance)


def _stack(root: Level, width: int) -> Level:
    """Slots for every depth, the root's filled."""
    return jax.tree.map(lambda x: jnp.zeros((width, *x.shape), x.dtype).at[0].set(x), root)


def _read(levels: Level, at) -> Level:
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, at, keepdims=False), levels)


def _write(levels: Level, row: Level, at) -> Level:
    return jax.tree.map(lambda x, new: lax.dynamic_update_index_in_dim(x, new, at, axis=0), levels, row)
