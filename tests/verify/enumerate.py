"""Enumerates every draft of a small tree and every outcome of a shipped walk, in float64.

The probability of an outcome is a product of probabilities that the walk itself reports: it runs once for every node
that can be the last accepted one, with uniforms of -inf on the path to it and +inf elsewhere.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.trees import NO_CHILD, Tree
from specjax.trees.dynamic import layout_of
from specjax.types import Draft, Siblings
from specjax.verify.deterministic import follow
from specjax.verify.walk import Walk, usable
from tests import distributions
from tests.distributions import Model
from tests.verify.chains import enable_x64


class Drafts(NamedTuple):
    """Every draft of a tree, one per row, with its probability; `code` numbers the prefix at each node, in base V."""

    mass: np.ndarray
    tokens: np.ndarray
    code: np.ndarray
    valid: np.ndarray
    p: list[np.ndarray]  # [depth]: [V ** depth, V]
    q: list[np.ndarray]
    points: bool

    def batch(self, tree: Tree) -> tuple[Draft, jnp.ndarray]:
        """The draft and log_p as a verifier takes them. Requires float64."""
        with np.errstate(divide="ignore"):
            log_q, log_p = [np.log(self._at_nodes(table, tree)) for table in (self.q, self.p)]
        tokens, valid = jnp.asarray(self.tokens, jnp.int32), jnp.asarray(self.valid)
        return Draft(tokens, valid, None if self.points else jnp.asarray(log_q)), jnp.asarray(log_p)

    def _at_nodes(self, table, tree: Tree) -> np.ndarray:
        return np.stack([table[d][self.code[:, n]] for n, d in enumerate(tree.depth)], axis=1)


def tables(model: Model, vocab: int, depth: int) -> list[np.ndarray]:
    """The distributions after every prefix shorter than `depth`, by length and number of the prefix."""
    digits = lambda code, d: tuple(code // vocab ** (d - 1 - i) % vocab for i in range(d))
    return [np.stack([model(digits(code, d)) for code in range(vocab**d)]) for d in range(depth)]


@functools.cache
def all_drafts(p: Model, q: Model, vocab: int, tree: Tree, siblings: Siblings, *, proposes=None) -> Drafts:
    """Every draft with its probability.

    Args:
      siblings: point masses are the most probable tokens, in order.
      proposes: (parent's prefix number [R], node) -> [R] bool: which nodes are proposed; None: all.
    """
    p_at, q_at = (tables(model, vocab, tree.width) for model in (p, q))
    mass, tokens, code = np.ones(1), np.zeros((1, 1), int), np.zeros((1, 1), int)
    valid = np.ones((1, 1), bool)
    for node in range(1, tree.size):
        parent = tree.parents[node]
        probs = q_at[tree.depth[parent]][code[:, parent]].copy()
        older = [n for n in range(1, node) if tree.parents[n] == parent]
        if siblings is Siblings.POINTS:
            rank = len(older)
            choice = np.argsort(-probs, axis=1)[:, rank] if rank < vocab else np.zeros(len(probs), int)
            probs = np.eye(vocab)[choice]
        elif siblings is Siblings.WITHOUT_REPLACEMENT:
            for n in older:
                np.put_along_axis(probs, tokens[:, n : n + 1], 0.0, axis=1)
            gone = probs.sum(1) == 0
            probs[gone, 0] = 1.0  # a point mass
            probs /= probs.sum(1, keepdims=True)
        row, token = np.nonzero(probs >= 0)  # zero mass included: one shape for every pair of models
        here = np.ones(len(row), bool) if proposes is None else np.asarray(proposes(code[row, parent], node))
        mass = mass[row] * probs[row, token]
        code = np.column_stack([code[row], code[row, parent] * vocab + token])
        tokens, valid = np.column_stack([tokens[row], token]), np.column_stack([valid[row], here])
    return Drafts(mass, tokens, code, valid, p_at, q_at, siblings is Siblings.POINTS)


def emitted(walk: Walk, drafts: Drafts, tree: Tree) -> tuple[np.ndarray, float]:
    """The exact distribution of the first W tokens (a round, then the target), and expected tokens per round."""
    vocab, width = drafts.p[0].shape[1], tree.width
    total, expected = np.zeros((vocab,) * width), 0.0
    with enable_x64(True):
        draft, log_p = drafts.batch(tree)
        run = _compiled(walk, tree)
        for node in range(tree.size):
            forced = np.where(tree.mask[node], -np.inf, np.inf)
            end = jax.device_get(run(jnp.asarray(np.tile(forced, (len(drafts.mass), 1))), draft, log_p))
            odds = np.where(tree.mask[node][None], end.chance, 1 - end.chance)
            weight = drafts.mass * np.where(end.tested, odds, 1.0).prod(1) * (end.node == node)
            probs = end.mass / np.where(weight > 0, end.mass.sum(1), 1.0)[:, None]
            depth = int(tree.depth[node])
            part = np.zeros((vocab**depth, vocab))
            np.add.at(part, drafts.code[:, node], np.where(weight > 0, weight, 0.0)[:, None] * probs)
            expected += weight.sum() * (depth + 1)
            total += _continued(part, drafts.p, vocab, depth + 1, width)
    return total, float(expected)


def emitted_by_following(drafts: Drafts, tree: Tree) -> tuple[np.ndarray, float]:
    """`emitted` for the deterministic verifier: the target's samples, followed down the tree."""
    vocab, width, rows = drafts.p[0].shape[1], tree.width, len(drafts.mass)
    total, expected = np.zeros((vocab,) * width), 0.0
    with enable_x64(True):
        draft, log_p = drafts.batch(tree)
        child = lambda node, token: _compiled_follow(tree)(draft, jnp.full(rows, node), token)
        p, reached = np.exp(np.asarray(log_p)), {0: drafts.mass}
        for node in range(tree.size):
            if node:
                parent, token = tree.parents[node], drafts.tokens[:, node]
                there = np.asarray(child(parent, jnp.asarray(token, jnp.int32))) == node
                reached[node] = reached[parent] * there * p[np.arange(rows), parent, token]
            ends = [np.asarray(child(node, jnp.full(rows, t, jnp.int32))) == NO_CHILD for t in range(vocab)]
            part = np.zeros((vocab ** int(tree.depth[node]), vocab))
            np.add.at(part, drafts.code[:, node], reached[node][:, None] * p[:, node] * np.stack(ends, 1))
            expected += part.sum() * (tree.depth[node] + 1)
            total += _continued(part, drafts.p, vocab, int(tree.depth[node]) + 1, width)
    return total, float(expected)


@functools.cache
def _compiled(walk: Walk, tree: Tree):
    return jax.jit(lambda u, draft, log_p: walk(u, tree, draft, log_p))


@functools.cache
def _compiled_follow(tree: Tree):
    def child(draft, node, token):
        parents = layout_of(tree, None, len(token)).parents
        here = jnp.arange(tree.size, dtype=jnp.int32)[None] == node[:, None]
        below = follow(parents, draft.tokens, usable(tree, draft, in_order=False), here, token)
        return jnp.where(below.any(1), jnp.argmax(below, 1), NO_CHILD)

    return jax.jit(child)


def _continued(part: np.ndarray, p: list[np.ndarray], vocab: int, length: int, width: int) -> np.ndarray:
    """A measure over sequences of one length, continued by the target to another."""
    joint = part.reshape(-1)
    for depth in range(length, width):
        joint = (joint[:, None] * p[depth]).reshape(-1)
    return joint.reshape((vocab,) * width)


def target_joint(p: Model, tree: Tree) -> np.ndarray:
    """The exact distribution of the target's first W tokens."""
    return distributions.joint(p, tree.width)
