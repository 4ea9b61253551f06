"""Walking a tree of drafts on given uniforms: what the verifiers of trees share.

Every walk takes one uniform a node and tests node n by `u[:, n] * den < num`, so its chance is num / den. Uniforms of
-inf and +inf force a test either way: an exact enumeration runs the shipped walk along every path of the tree, and
multiplies the chances that it reports.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax.categorical import draw, total, uniforms
from specjax.trees import NO_CHILD, Tree
from specjax.trees.dynamic import Layout, layout_of
from specjax.types import Draft, KeyArray, PyTree, Verdict
from specjax.verify.token import chances, law_after, law_left, roles


class Walked(NamedTuple):
    """Where a walk ended, and what each of its tests was. What nobody reads costs nothing."""

    node: Int[Array, "B"]  # the last accepted node; the root where none was
    mass: Float[Array, "B V"]  # of the token that follows, not normalized
    tested: Bool[Array, "B N"]
    chance: Float[Array, "B N"]  # that a tested node passes, given all tests before it


Walk = Callable[[Float[Array, "B N"], Tree, Draft, Float[Array, "B N V"]], Walked]


class Rule(NamedTuple):
    """How the children of one node are tested, oldest first; the state is a pytree of arrays with B first.

    enter: (p [B,V], q [B,V] or None, children [B]) -> state, at a node with so many children to test.
    chance: (state, token [B]) -> (num [B], den [B]). A den of 0 marks a token that its law could not have drawn: it
        is no sample, and is passed over.
    refuse: (state, token [B]) -> state, after the child with this token was refused.
    last: state -> masses [B,V] of the token that follows, when no child is left.
    """

    enter: Callable[..., PyTree]
    chance: Callable[..., tuple[Float[Array, "B"], Float[Array, "B"]]]
    refuse: Callable[..., PyTree]
    last: Callable[..., Float[Array, "B V"]]


def verdict_of(walk: Walk, key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """The verdict of a walk, on uniforms from each row's key, which is consumed."""
    accept, correct = roles(key)
    end = walk(uniforms(accept, (tree.size,), log_p.dtype), tree, draft, log_p)
    token = draw(uniforms(correct, (2,), log_p.dtype), end.mass)
    return verdict_at(layout_of(tree, draft.parents, token.shape[0]), end.node, token)


def verdict_at(shape: Layout, node: Int[Array, "B"], token: Int[Array, "B"]) -> Verdict:
    """The verdict that accepts the path to one node of each row."""
    rows = jnp.arange(node.shape[0], dtype=jnp.int32)
    return Verdict(shape.paths[rows, node], shape.depth[rows, node], token)


def usable(tree: Tree, draft: Draft, *, in_order: bool) -> Bool[Array, "B N"]:
    """Which nodes may be tested: proposed, as are all their ancestors.

    Args:
      in_order: older siblings must have been proposed too, theirs and their ancestors': a draw without replacement
        is a sample only beside those before it. Of static trees.
    """
    if draft.parents is not None:
        mask = layout_of(tree, draft.parents, draft.tokens.shape[0]).mask
        return ~jnp.any((~draft.valid[:, None, :] & mask)[:, :, 1:], axis=-1)
    needs = tree.mask.copy()
    if in_order:
        for kids in tree.children:
            older: list[int] = []
            for child in kids[kids != NO_CHILD]:
                needs[child, older] = True
                older.append(int(child))
        needs = tree.mask.astype(int) @ needs.astype(int) > 0
    missing = ~draft.valid[:, None, :] & jnp.asarray(needs)[None]
    return ~jnp.any(missing[:, :, 1:], axis=-1)


def descend(
    rule: Rule,
    u: Float[Array, "B N"],
    tree: Tree,
    draft: Draft,
    log_p: Float[Array, "B N V"],
    *,
    in_order: bool = False,
) -> Walked:
    """Goes down from the root: the children of a node are tested in turn, and the first that passes is entered.

    Both loops end with their last row: a round costs as many passes over [B, V] as its deepest row makes tests.
    """
    rows = jnp.arange(u.shape[0], dtype=jnp.int32)
    proposed = usable(tree, draft, in_order=in_order)
    kids = jnp.asarray(tree.children)
    real = kids != NO_CHILD
    counts = jnp.sum(proposed[:, jnp.maximum(kids, 0)] & real[None], axis=-1, dtype=jnp.int32)
    most = kids.shape[1]

    def level(carry):
        moving, node, mass, tested, chance = carry
        q = None if draft.log_q is None else jnp.exp(law_after(draft.log_q, node))
        state = rule.enter(jnp.exp(law_after(log_p, node)), q, counts[rows, node])
        # ranks past the last child that any row has are not worth a pass over the vocabulary
        ranks = jnp.max(jnp.where(moving[:, None] & real[node], jnp.arange(1, most + 1, dtype=jnp.int32)[None], 0))

        def test(carry):
            rank, found, entered, state, tested, chance = carry
            child = jnp.maximum(kids[node, rank], 0)
            token = draft.tokens[rows, child]
            num, den = rule.chance(state, token)
            here = moving & ~found & real[node, rank] & proposed[rows, child] & (den > 0)
            passed = here & (u[rows, child] * den < num)
            state = choose(here & ~passed, rule.refuse(state, token), state)
            tested = tested.at[rows, child].set(tested[rows, child] | here)
            odds = jnp.where(here, ratio(num, den), chance[rows, child])
            chance = chance.at[rows, child].set(odds)
            return rank + 1, found | passed, jnp.where(passed, child, entered), state, tested, chance

        first = (jnp.int32(0), ~moving, node, state, tested, chance)
        _, found, entered, state, tested, chance = lax.while_loop(
            lambda carry: (carry[0] < ranks) & jnp.any(~carry[1]), test, first
        )
        stopped = moving & ~found
        mass = jnp.where(stopped[:, None], rule.last(state), mass)
        return moving & found, jnp.where(moving, entered, node), mass, tested, chance

    start = (
        jnp.ones_like(rows, bool),
        jnp.zeros_like(rows),
        jnp.zeros_like(log_p[:, 0]),
        jnp.zeros(u.shape, bool),
        jnp.zeros_like(u),
    )
    _, node, mass, tested, chance = lax.while_loop(lambda carry: jnp.any(carry[0]), level, start)
    return Walked(node, mass, tested, chance)


def along(
    u: Float[Array, "B N"], tree: Tree, draft: Draft, log_p: Float[Array, "B N V"], *, lenience: float = 1.0
) -> Walked:
    """Down a chain token by token, x passing with probability min(1, p(x) / (lenience q(x))): what the walks of trees
    are there. One law a row is read, however long the chain.
    """
    if tree.size == 1:
        return undrafted(u, log_p)
    p, q, proposed = chain_of(draft, log_p)
    passed = proposed & (u[:, 1:] * (lenience * q) < p)
    node = jnp.sum(jnp.cumprod(passed, axis=1, dtype=jnp.int32), axis=1, dtype=jnp.int32)
    tested = proposed & (lax.broadcasted_iota(jnp.int32, proposed.shape, 1) <= node[:, None])
    refused = jnp.any(tested & ~passed, axis=1)
    root = ((0, 0), (1, 0))
    odds = jnp.where(tested, ratio(p, lenience * q), jnp.zeros_like(p))
    return Walked(node, law_left(draft, log_p, node, refused), jnp.pad(tested, root), jnp.pad(odds, root))


def undrafted(u: Float[Array, "B 1"], log_p: Float[Array, "B 1 V"]) -> Walked:
    """The walk of a root alone: plain decoding, one pass over the vocabulary."""
    nothing = jnp.zeros_like(u)
    return Walked(jnp.zeros(u.shape[:1], jnp.int32), jnp.exp(log_p[:, 0]), nothing > 0, nothing)


def chain_of(
    draft: Draft, log_p: Float[Array, "B N V"]
) -> tuple[Float[Array, "B gamma"], Float[Array, "B gamma"], Bool[Array, "B gamma"]]:
    """(p, q, proposed) of a chain's tokens; the row's draft ends at one that its law could not have drawn."""
    p, q = chances(draft, log_p)
    return p, q, jnp.cumprod(draft.valid[:, 1:] & (q > 0), axis=1, dtype=jnp.int32) > 0


def choose(rows: Bool[Array, "B"], yes: PyTree, no: PyTree) -> PyTree:
    """Row by row, one of two states."""
    pick = lambda a, b: jnp.where(rows.reshape(-1, *(1,) * (a.ndim - 1)), a, b)
    return jax.tree.map(pick, yes, no)


def mass_of(mass: Float[Array, "B V"], token: Int[Array, "B"]) -> Float[Array, "B"]:
    """What each row's masses say of its token."""
    return jnp.take_along_axis(mass, token[:, None], axis=1)[:, 0]


def is_token(token: Int[Array, "B"], like: Float[Array, "B V"]) -> Bool[Array, "B V"]:
    """True at each row's token."""
    return lax.broadcasted_iota(jnp.int32, like.shape, 1) == token[:, None]


def normalized(mass: Float[Array, "B V"], otherwise: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """The law of these masses; a row without any is `otherwise`."""
    whole = total(mass)[:, None]
    some = whole > 0
    return jnp.where(some, mass / jnp.where(some, whole, jnp.ones_like(whole)), otherwise)


def ratio(num: Float[Array, "*n"], den: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The chance of a test: min(1, num / den), 0 where den is 0."""
    some = den > 0
    return jnp.where(some, jnp.minimum(num / jnp.where(some, den, jnp.ones_like(den)), 1.0), 0.0)
