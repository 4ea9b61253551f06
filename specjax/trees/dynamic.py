"""Dynamic trees with static shapes: each row grows its own tree by path probability (EAGLE-2, arXiv 2406.16858).

    expand  level by level: the `width` best nodes of a level are fed to the draft model, each proposes its `width`
            most probable tokens, and the best `width` of these form the next level
    rerank  among all proposed nodes, selects the N - 1 nodes with the most probable paths, at any level

A path's score is the sum of its log-probabilities under the drafter. It never increases along a path, and ties prefer
the earlier node, so the parent of a selected node is always selected.

Contract. Nodes are selected, not sampled: they are point masses (`Draft.log_q` is None), and the verifier must not
need a table of children. N and W stay static: `Drafter.tree` is `envelope(N, depth)`, a tree of the right size and
depth that is never fed. The only array that differs by row is `Draft.parents` [B, N], from which `layout` computes the
inputs of the loop: mask [B, N, N] and depth [B, N] for `LanguageModel.extend`, paths [B, N, W] for the warp. Parents
precede children and node 0 is the root, as in a static tree.

Feeding the draft model. Level d >= 1 feeds `growth.frontier_tokens` [B, K] at offset K * (d - 1) past the root, with
`growth.sees[:, :, : K * d]`. The root is committed to the draft's cache before (`keep`), or it has slot 0 and one True
column is prepended to the mask. `Nodes.slot` is the position of an accepted node in that block. Only the last node of
an accepted path can be one that was not fed: nodes that were not fed have no children.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.categorical import largest
from specjax.trees.static import ROOT, Tree, check_size

NOT_FED = -1  # in `slot`: the draft model has not seen this node


class Growth(NamedTuple):
    """All candidates so far: M = 1 + K + (levels - 1) * K * K, the root first, level by level."""

    tokens: Int[Array, "B M"]
    parent: Int[Array, "B M"]  # a candidate; ROOT for the root
    score: Float[Array, "B M"]  # log-probability of the path below the root; -inf: impossible
    slot: Int[Array, "B M"]  # index in feeding order, below the root; NOT_FED: never in a frontier
    frontier: Int[Array, "B F"]  # candidates to feed next, best first: the root, then K per level
    sees: Bool[Array, "B F S"]  # fed nodes (S so far, itself included) on the path of each frontier node

    @property
    def frontier_tokens(self) -> Int[Array, "B F"]:
        """The tokens to feed next."""
        return jnp.take_along_axis(self.tokens, self.frontier, axis=1)


class Nodes(NamedTuple):
    """A tree of N nodes per row: the content of a `Draft`, and what the drafter stores to follow the verdict."""

    tokens: Int[Array, "B N"]
    parents: Int[Array, "B N"]  # parents[:, 0] == ROOT; parents precede their children
    valid: Bool[Array, "B N"]  # False: a node of zero probability that only fills the shape
    score: Float[Array, "B N"]
    slot: Int[Array, "B N"]  # index among the nodes fed below the root, or NOT_FED (the last frontier)


class Layout(NamedTuple):
    """The tables of `Tree`, one per row."""

    parents: Int[Array, "B N"]
    mask: Bool[Array, "B N N"]  # [b, i, j]: node i attends to node j, itself and its ancestors
    depth: Int[Array, "B N"]
    paths: Int[Array, "B N W"]  # from the root to node i, padded with node i


def start(pending: Int[Array, "B"]) -> Growth:
    """The bare root: `pending` is committed, so its score is 0."""
    column = pending[:, None]
    zero = jnp.zeros_like(column)
    return Growth(
        tokens=column,
        parent=jnp.full_like(column, ROOT),
        score=jnp.zeros(column.shape, jnp.float32),
        slot=jnp.full_like(column, NOT_FED),
        frontier=zero,
        sees=jnp.zeros((*column.shape, 0), bool),
    )


def expand(growth: Growth, log_q: Float[Array, "B F V"], *, width: int) -> Growth:
    """Adds one level: every frontier node proposes its `width` best tokens; the best `width` form the new frontier.

    Deterministic. Ties between tokens prefer the smaller id, ties between paths the earlier parent. NaN counts as zero
    probability: the output distribution does not depend on the proposed nodes. EAGLE-2, section 4.1.

    Args:
      growth: from `start`, or from the previous level with the same width.
      log_q: [B, F, V] float32, the warped log-probabilities after each frontier node, in order.
      width: K, at least 1 and at most V.

    Raises:
      ValueError: a width outside 1..V, or different from the previous level.
    """
    rows, fed, vocab = log_q.shape
    _check_width(growth, fed, width, vocab)
    # at most 0: rounding must not let a path gain probability
    log_q = jnp.where(jnp.isnan(log_q), -jnp.inf, jnp.minimum(log_q, 0.0)).astype(jnp.float32)
    step, tokens = largest(log_q, width)  # [B, F, K]
    above = jnp.take_along_axis(growth.score, growth.frontier, axis=1)
    score = (above[..., None] + step).reshape(rows, fed * width)
    parent = jnp.repeat(growth.frontier, width, axis=1)
    _, chosen = largest(score, width)
    held = growth.tokens.shape[1]
    born = growth.sees.shape[2]
    slots = born + jnp.arange(width, dtype=jnp.int32)
    slot = jnp.full((rows, fed * width), NOT_FED, jnp.int32)
    slot = jax.vmap(lambda line, at: line.at[at].set(slots, unique_indices=True))(slot, chosen)
    inherited = jnp.take_along_axis(growth.sees, (chosen // width)[..., None], axis=1)
    own = jnp.broadcast_to(jnp.eye(width, dtype=bool)[None], (rows, width, width))
    join = functools.partial(jnp.concatenate, axis=1)
    return Growth(
        tokens=join([growth.tokens, tokens.reshape(rows, fed * width).astype(growth.tokens.dtype)]),
        parent=join([growth.parent, parent]),
        score=join([growth.score, score]),
        slot=join([growth.slot, slot]),
        frontier=(held + chosen).astype(jnp.int32),
        sees=jnp.concatenate([inherited, own], axis=2),
    )


def rerank(growth: Growth, *, size: int) -> Nodes:
    """The root and the `size` - 1 nodes with the most probable paths, level by level.

    The result is a tree: the parent of a selected node is selected and precedes it. A node of zero probability is not
    valid, nor are its descendants. EAGLE-2, section 4.2.

    Args:
      growth: after one `expand` or more.
      size: N, including the root, at most the number of candidates.

    Raises:
      ValueError: a size outside 1..M.
    """
    candidates = growth.score.shape[1]
    if not 1 <= size <= candidates:
        raise ValueError(f"size must be in 1..{candidates} (the candidates, including the root), got {size}")
    # The root has the highest possible score, 0, and ties take the first.
    _, chosen = largest(growth.score, size)
    chosen = jnp.sort(chosen, axis=1)
    pick = lambda x: jnp.take_along_axis(x, chosen, axis=1)
    # A parent's new index: the number of chosen nodes before it.
    parents = jax.vmap(lambda line, at: jnp.searchsorted(line, at).astype(jnp.int32))(chosen, pick(growth.parent))
    root = jnp.arange(size, dtype=jnp.int32)[None] == 0
    score, slot = pick(growth.score), pick(growth.slot)
    fed = growth.sees.shape[2] - growth.frontier.shape[1]
    return Nodes(
        tokens=pick(growth.tokens),
        parents=jnp.where(root, ROOT, parents),
        valid=score > -jnp.inf,
        score=score,
        slot=jnp.where(slot < fed, slot, NOT_FED),
    )


def layout(parents: Int[Array, "B N"], *, width: int) -> Layout:
    """Mask, depth and paths of every row's tree, by `width` - 1 gathers.

    Args:
      parents: [B, N] int32; parents[:, 0] == ROOT, all others precede their node.
      width: W, one more than the deepest possible level.
    """
    rows, size = parents.shape
    node = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32)[None], (rows, size))
    up = jnp.maximum(parents, 0)
    climb = [node]  # climb[k]: the ancestor k levels up, or the root
    for _ in range(width - 1):
        climb.append(jnp.take_along_axis(up, climb[-1], axis=1))
    climbed = jnp.stack(climb, axis=-1)  # [B, N, W]
    mask = (climbed[..., None] == jnp.arange(size, dtype=jnp.int32)[None, None, None]).any(2)
    depth = (climbed != 0).sum(-1, dtype=jnp.int32)
    level = jnp.arange(width, dtype=jnp.int32)[None, None]
    paths = jnp.take_along_axis(climbed, jnp.maximum(depth[..., None] - level, 0), axis=2)
    return Layout(parents, mask, depth, paths)


def layout_of(tree: Tree, parents: Int[Array, "B N"] | None, rows: int) -> Layout:
    """The layout of a draft: from each row's `parents`, or if None, from `tree` for all rows."""
    if parents is not None:
        return layout(parents, width=tree.width)
    tables = (np.array(tree.parents, np.int32), tree.mask, tree.depth, tree.paths)
    return Layout(*(jnp.broadcast_to(jnp.asarray(table)[None], (rows, *table.shape)) for table in tables))


def envelope(size: int, depth: int) -> Tree:
    """A static tree of N = `size` nodes and W = `depth` + 1: the `Drafter.tree` of a dynamic drafter.

    Its parents (a chain, then children of the root) are not used where a draft carries `parents`.

    Raises:
      ValueError: a depth below 1, more levels than nodes, or more than LARGEST_TREE nodes.
    """
    check_size(size, "size")
    if not 1 <= depth < size:
        raise ValueError(f"depth must be in 1..{size - 1} (size - 1), got {depth}")
    return Tree((*range(-1, depth), *[0] * (size - depth - 1)))


def candidates(width: int, depth: int) -> int:
    """M, the candidates after `depth` levels of `expand`, including the root: the largest size for `rerank`."""
    return 1 + width + (depth - 1) * width * width if depth else 1


def _check_width(growth: Growth, fed: int, width: int, vocab: int) -> None:
    if not 1 <= width <= vocab:
        raise ValueError(f"width must be in 1..{vocab} (the vocabulary size), got {width}")
    frontier = growth.frontier.shape[1]
    if fed != frontier:
        raise ValueError(f"log_q must cover the {frontier} frontier nodes, got {fed}")
    if growth.sees.shape[2] and frontier != width:
        raise ValueError(f"width must be the same at all levels: got {width}, previously {frontier}")
