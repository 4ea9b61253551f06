"""Walks down a tree of drafts with given uniforms: what the tree verifiers share.

Every walk takes one uniform per node and tests node n by `u[:, n] * den < num`, so it passes with probability
num / den. Uniforms of -inf and +inf force the outcome of a test: exact enumeration in the tests runs the shipped walk
along every path of the tree and multiplies the probabilities that it reports.
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
from specjax.verify.token import at_node, remaining_mass, split_roles, token_probs


class Walked(NamedTuple):
    """Where a walk ended, and its tests. XLA removes the fields that are not used."""

    node: Int[Array, "B"]  # the last accepted node; the root if none was accepted
    mass: Float[Array, "B V"]  # unnormalized distribution of the next token
    tested: Bool[Array, "B N"]
    chance: Float[Array, "B N"]  # probability that a tested node passes, given all earlier tests


Walk = Callable[[Float[Array, "B N"], Tree, Draft, Float[Array, "B N V"]], Walked]


class SiblingRule(NamedTuple):
    """How the children of one node are tested, oldest first; the state is a pytree of arrays with leading axis B.

    Attributes:
      enter: (p [B, V], q [B, V] or None, children [B]) -> state, at a node with this number of children to test.
      chance: (state, token [B]) -> (num [B], den [B]). A den of 0 marks a token with zero mass under the distribution
        it was sampled from: it is not a sample and is skipped.
      reject: (state, token [B]) -> state, after the child with this token was rejected.
      last: state -> [B, V], unnormalized distribution of the next token when no child is left.
    """

    enter: Callable[..., PyTree]
    chance: Callable[..., tuple[Float[Array, "B"], Float[Array, "B"]]]
    reject: Callable[..., PyTree]
    last: Callable[..., Float[Array, "B V"]]


def verdict_of(walk: Walk, key: KeyArray, tree: Tree, draft: Draft, log_p: Float[Array, "B N V"]) -> Verdict:
    """The verdict of a walk with uniforms from each row's key, which is consumed."""
    accept, correct = split_roles(key)
    end = walk(uniforms(accept, (tree.size,), log_p.dtype), tree, draft, log_p)
    token = draw(uniforms(correct, (2,), log_p.dtype), end.mass)
    return verdict_at(layout_of(tree, draft.parents, token.shape[0]), end.node, token)


def verdict_at(shape: Layout, node: Int[Array, "B"], token: Int[Array, "B"]) -> Verdict:
    """The verdict that accepts the path to one node per row."""
    rows = jnp.arange(node.shape[0], dtype=jnp.int32)
    return Verdict(shape.paths[rows, node], shape.depth[rows, node], token)


def usable(tree: Tree, draft: Draft, *, in_order: bool) -> Bool[Array, "B N"]:
    """Which nodes may be tested: those proposed together with all their ancestors.

    Args:
      in_order: also require the older siblings of the node and of its ancestors: samples without replacement are
        valid only together with the earlier ones. Static trees only.
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
    rule: SiblingRule,
    u: Float[Array, "B N"],
    tree: Tree,
    draft: Draft,
    log_p: Float[Array, "B N V"],
    *,
    in_order: bool = False,
) -> Walked:
    """Descends from the root: the children of a node are tested in order, and the first that passes is entered.

    Both loops end with their last active row: the number of passes over [B, V] is that of the row with most tests.
    """
    rows = jnp.arange(u.shape[0], dtype=jnp.int32)
    proposed = usable(tree, draft, in_order=in_order)
    kids = jnp.asarray(tree.children)
    real = kids != NO_CHILD
    counts = jnp.sum(proposed[:, jnp.maximum(kids, 0)] & real[None], axis=-1, dtype=jnp.int32)
    most = kids.shape[1]

    def level(carry):
        moving, node, mass, tested, chance = carry
        q = None if draft.log_q is None else jnp.exp(at_node(draft.log_q, node))
        state = rule.enter(jnp.exp(at_node(log_p, node)), q, counts[rows, node])
        # skip ranks beyond the last child of any row: each rank is a pass over the vocabulary
        ranks = jnp.max(jnp.where(moving[:, None] & real[node], jnp.arange(1, most + 1, dtype=jnp.int32)[None], 0))

        def test(carry):
            rank, found, entered, state, tested, chance = carry
            child = jnp.maximum(kids[node, rank], 0)
            token = draft.tokens[rows, child]
            num, den = rule.chance(state, token)
            here = moving & ~found & real[node, rank] & proposed[rows, child] & (den > 0)
            passed = here & (u[rows, child] * den < num)
            state = choose(here & ~passed, rule.reject(state, token), state)
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
    """The token-level walk down a chain, where x passes with probability min(1, p(x) / (lenience q(x))).

    The sibling rules reduce to it on chains. It reads one distribution per row for any length of the chain.
    """
    if tree.size == 1:
        return undrafted(u, log_p)
    p, q, proposed = chain_probs(draft, log_p)
    passed = proposed & (u[:, 1:] * (lenience * q) < p)
    node = jnp.sum(jnp.cumprod(passed, axis=1, dtype=jnp.int32), axis=1, dtype=jnp.int32)
    tested = proposed & (lax.broadcasted_iota(jnp.int32, proposed.shape, 1) <= node[:, None])
    rejected = jnp.any(tested & ~passed, axis=1)
    root = ((0, 0), (1, 0))
    odds = jnp.where(tested, ratio(p, lenience * q), jnp.zeros_like(p))
    return Walked(node, remaining_mass(draft, log_p, node, rejected), jnp.pad(tested, root), jnp.pad(odds, root))


def undrafted(u: Float[Array, "B 1"], log_p: Float[Array, "B 1 V"]) -> Walked:
    """The walk of a bare root: plain decoding, one pass over the vocabulary."""
    nothing = jnp.zeros_like(u)
    return Walked(jnp.zeros(u.shape[:1], jnp.int32), jnp.exp(log_p[:, 0]), nothing > 0, nothing)


def chain_probs(
    draft: Draft, log_p: Float[Array, "B N V"]
) -> tuple[Float[Array, "B gamma"], Float[Array, "B gamma"], Bool[Array, "B gamma"]]:
    """(p, q, proposed) of a chain's tokens; a token with zero mass in q ends the row's draft."""
    p, q = token_probs(draft, log_p)
    return p, q, jnp.cumprod(draft.valid[:, 1:] & (q > 0), axis=1, dtype=jnp.int32) > 0


def choose(rows: Bool[Array, "B"], yes: PyTree, no: PyTree) -> PyTree:
    """Selects one of two states per row."""
    pick = lambda a, b: jnp.where(rows.reshape(-1, *(1,) * (a.ndim - 1)), a, b)
    return jax.tree.map(pick, yes, no)


def mass_of(mass: Float[Array, "B V"], token: Int[Array, "B"]) -> Float[Array, "B"]:
    """The mass of one token per row."""
    return jnp.take_along_axis(mass, token[:, None], axis=1)[:, 0]


def is_token(token: Int[Array, "B"], like: Float[Array, "B V"]) -> Bool[Array, "B V"]:
    """One-hot mask of each row's token."""
    return lax.broadcasted_iota(jnp.int32, like.shape, 1) == token[:, None]


def source(q: Float[Array, "B V"] | None, token: Int[Array, "B"], like: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """What a child came from: q, or where q is None or has no mass left, its own token as a point mass."""
    point = is_token(token, like).astype(like.dtype)
    return point if q is None else jnp.where(jnp.any(q > 0, axis=-1, keepdims=True), q, point)


def normalized(mass: Float[Array, "B V"], otherwise: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """Normalizes each row; a row without mass is `otherwise`."""
    whole = total(mass)[:, None]
    some = whole > 0
    return jnp.where(some, mass / jnp.where(some, whole, jnp.ones_like(whole)), otherwise)


def ratio(num: Float[Array, "*n"], den: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The probability of a test: min(1, num / den), or 0 where den is 0."""
    some = den > 0
    return jnp.where(some, jnp.minimum(num / jnp.where(some, den, jnp.ones_like(den)), 1.0), 0.0)
