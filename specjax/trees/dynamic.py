"""Dynamic trees with static shapes: each row grows its own tree by path probability (EAGLE-2, arXiv 2406.16858).

    expand  level by level: the `width` best nodes of a level are fed to the draft model, each proposes its `width`
            most probable tokens, and the best `width` of these are the next level's
    rerank  of all that was proposed, the N - 1 nodes whose paths are most probable, whatever their level

A path's score is the sum of its log-probabilities under the drafter. It falls, or stays, with every step, and equal
scores prefer the earlier node: whatever is chosen, its parent is chosen too.

How it fits. The nodes are chosen, not drawn: point masses (`Draft.log_q` None), for a verifier that needs no table of
children, since a node's children differ by token. Static stay N and W, so `Drafter.tree` is `envelope(N, depth)`, a
tree of the right size and depth that nobody feeds; what differs by row is one array, `Draft.parents` [B, N], of
which `layout` makes all that the loop needs: mask [B, N, N] and depth [B, N] for `LanguageModel.extend`, paths
[B, N, W] for the warp. Parents precede children and node 0 is the root, as in a static tree.

How a drafter feeds its own model. Level d >= 1 feeds `growth.frontier_tokens` [B, K] at offset K * (d - 1) past the
root, with `growth.sees[:, :, : K * d]`; the root is committed to the draft's cache before (`keep`), or it is slot 0 and
one True column goes in front of the mask. `Nodes.slot` says where an accepted node lies in that block. At most the last
node of an accepted path was never fed: who was not fed has no children.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.categorical import largest
from specjax.trees.static import ROOT, Tree, check_size

NOT_FED = -1  # in `slot`: the draft model has not read this node


class Growth(NamedTuple):
    """Everything proposed so far. M = 1 + K + (levels - 1) * K * K candidates, the root first, level after level."""

    tokens: Int[Array, "B M"]
    parent: Int[Array, "B M"]  # a candidate; ROOT for the root
    score: Float[Array, "B M"]  # log-probability of the path below the root; -inf: cannot be
    slot: Int[Array, "B M"]  # place in the order of feeding, below the root; NOT_FED: was never in a frontier
    frontier: Int[Array, "B F"]  # candidates to be fed next, best first: the root, then K a level
    sees: Bool[Array, "B F S"]  # which of the S nodes fed before and with it each frontier node continues, or is

    @property
    def frontier_tokens(self) -> Int[Array, "B F"]:
        """The tokens to be fed next."""
        return jnp.take_along_axis(self.tokens, self.frontier, axis=1)


class Nodes(NamedTuple):
    """A tree of N nodes a row: what goes into a `Draft`, and what the drafter remembers to follow the verdict."""

    tokens: Int[Array, "B N"]
    parents: Int[Array, "B N"]  # parents[:, 0] == ROOT; parents precede their children
    valid: Bool[Array, "B N"]  # False: the drafter gives the node no probability, it only fills the shape
    score: Float[Array, "B N"]
    slot: Int[Array, "B N"]  # place among the nodes fed below the root, or NOT_FED: the last frontier is not fed


class Layout(NamedTuple):
    """The tables of `Tree`, one a row."""

    parents: Int[Array, "B N"]
    mask: Bool[Array, "B N N"]  # [b, i, j]: node i sees node j, itself and its ancestors
    depth: Int[Array, "B N"]
    paths: Int[Array, "B N W"]  # from the root to node i, the rest repeating node i


def start(pending: Int[Array, "B"]) -> Growth:
    """The bare root: `pending` is known, so its score is 0."""
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
    """One level more: every frontier node proposes its `width` most probable tokens, the best `width` go on.

    Deterministic. Equal probabilities prefer the smaller token id, equal paths the earlier parent. NaN counts as no
    probability: the verifier's law does not depend on what is proposed.

    Args:
      growth: of `start`, or of the level before with the same width.
      log_q: [B, F, V], the warped law after each frontier node, in their order.
      width: K, at least 1 and at most V.

    Raises:
      ValueError: a width outside 1..V, or another than the level before had.
    """
    rows, fed, vocab = log_q.shape
    _check_width(growth, fed, width, vocab)
    law = jnp.where(jnp.isnan(log_q), -jnp.inf, jnp.minimum(log_q, 0.0)).astype(jnp.float32)  # no step gains
    step, tokens = largest(law, width)  # [B, F, K]
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
    """The `size` - 1 nodes with the most probable paths, and the root, level after level.

    A tree: parents are chosen before their children and precede them. A node without probability is not valid, nor is
    anything below it.

    Args:
      growth: after one `expand` or more.
      size: N, the root included, at most the number of candidates.

    Raises:
      ValueError: a size outside 1..M.
    """
    candidates = growth.score.shape[1]
    if not 1 <= size <= candidates:
        raise ValueError(f"size must lie in 1..{candidates}, the nodes proposed, the root included; got {size}")
    # The root has the best score there is, 0, and of equal scores the first is taken.
    _, chosen = largest(growth.score, size)
    chosen = jnp.sort(chosen, axis=1)
    pick = lambda x: jnp.take_along_axis(x, chosen, axis=1)
    # A parent's place among the chosen: how many of them come before it.
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
    """Mask, depth and paths of every row's tree, in `width` - 1 gathers.

    Args:
      parents: [B, N]; parents[:, 0] == ROOT, others below their own index.
      width: W, one more than the deepest level that may occur.
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
    """The layout of a draft: of each row's own `parents`, or where there are none, of `tree` in every row."""
    if parents is not None:
        return layout(parents, width=tree.width)
    tables = (np.array(tree.parents, np.int32), tree.mask, tree.depth, tree.paths)
    return Layout(*(jnp.broadcast_to(jnp.asarray(table)[None], (rows, *table.shape)) for table in tables))


def envelope(size: int, depth: int) -> Tree:
    """A static tree of N = `size` nodes and W = `depth` + 1: what `Drafter.tree` of a dynamic drafter says.

    Its own parents mean nothing where a draft carries `parents`: a chain, and the rest at the root.

    Raises:
      ValueError: a depth below 1, more levels than nodes, or more than LARGEST_TREE nodes.
    """
    check_size(size, "nodes")
    if not 1 <= depth < size:
        raise ValueError(f"depth must lie in 1..size - 1 = {size - 1}, got {depth}")
    return Tree((*range(-1, depth), *[0] * (size - depth - 1)))


def candidates(width: int, depth: int) -> int:
    """M, the nodes proposed by `depth` levels of `expand`, the root included: the largest size for `rerank`."""
    return 1 + width + (depth - 1) * width * width if depth else 1


def _check_width(growth: Growth, fed: int, width: int, vocab: int) -> None:
    if not 1 <= width <= vocab:
        raise ValueError(f"width must lie in 1..{vocab}, the size of the vocabulary, got {width}")
    frontier = growth.frontier.shape[1]
    if fed != frontier:
        raise ValueError(f"log_q holds laws after {fed} nodes, but the frontier has {frontier}: one law a node")
    if growth.sees.shape[2] and frontier != width:
        raise ValueError(f"width is {width}, but the level before had {frontier}: keep it the same at all levels")
