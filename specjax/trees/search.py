"""Optimal static trees for measured acceptance: Medusa's greedy search, Sequoia's dynamic program, and the tree size.

All searches use one model: the child of rank r of an accepted node at depth d is accepted with probability a[d, r],
independently of earlier levels, and at most one child per node is accepted. A node is then accepted with the product
of a along its path, and the expected number of tokens per round is the sum of these products over all nodes, including
1 for the root (the correction or bonus token). Every search maximizes this sum; sizes include the root. If the a of
siblings sum to more than 1, as counts of "among the first k" do, the sum is not an expectation: `specjax tree show`
rejects such tables.
"""

import dataclasses
import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specjax.checks import integers
from specjax.defaults import LARGEST_TREE
from specjax.trees.static import Tree, chain, from_paths

Numbers = Any  # array-like (numpy's ArrayLike does not pass the run-time type checks of the tests)
IMPOSSIBLE = -np.inf  # value of a subtree that exceeds depth or ranks


class TreeChoice(NamedTuple):
    """The tree with the most tokens per second, and its predicted speed."""

    tree: Tree
    expected: float  # expected tokens per round
    seconds: float  # per round: drafting level by level, then one target forward pass
    speedup: float  # over plain decoding; 1.0 with the bare root, if no tree is faster


def node_values(tree: Tree, acceptance: Numbers) -> NDArray[np.float64]:
    """The probability that each node is accepted: the product of acceptance along its path, 1 at the root.

    Args:
      tree: the rank of a child is its index in `tree.children`.
      acceptance: [ranks], the same at every depth (Sequoia), or [heads, ranks], one row per depth (Medusa).

    Returns:
      [N] float64.

    Raises:
      ValueError: entries outside 0..1, a wrong shape, or a tree deeper or wider than the table.

    >>> from specjax import trees
    >>> trees.node_values(trees.chain(2), [0.5]).tolist()
    [1.0, 0.5, 0.25]
    """
    table = _table(_checked(acceptance), tree.width - 1)
    most = int(np.bincount(np.asarray(tree.parents[1:], int), minlength=1).max()) if tree.size > 1 else 0
    if tree.width - 1 > len(table) or most > table.shape[1]:
        raise ValueError(
            f"acceptance has {len(table)} levels and {table.shape[1]} ranks, but the tree has {tree.width - 1} levels "
            f"and up to {most} children per node"
        )
    value, born = np.ones(tree.size), [0] * tree.size
    for node, parent in enumerate(tree.parents[1:], start=1):
        value[node] = value[parent] * table[tree.depth[parent], born[parent]]
        born[parent] += 1
    return value


def expected_length(tree: Tree, acceptance: Numbers) -> float:
    """Expected tokens per round with this tree: the accepted tokens and one more. See `node_values`.

    >>> from specjax import trees
    >>> trees.expected_length(trees.chain(2), [0.5])
    1.75
    """
    return float(node_values(tree, acceptance).sum())


def best_tree(accuracies: Numbers, size: int) -> Tree:
    """Medusa's best tree of `size` nodes: greedily adds the node with the most probable path.

    No tree of this size has a larger `expected_length`. The greedy search guarantees this if no rank is more accurate
    than the previous one; for noisy tables that violate this, the dynamic program of `sequoia` is used instead.
    Cai et al. 2024, arXiv 2401.10774, section 2.3.3 (whose sizes exclude the root).

    Args:
      accuracies: [heads, ranks]; [k, i] is the probability that the prediction of rank i of head k is correct.
      size: N, including the root.

    Raises:
      ValueError: a table of another shape or with entries outside 0..1, or a size below 1, above LARGEST_TREE or above
        that of the full tree.

    >>> from specjax import trees
    >>> trees.best_tree([[0.6, 0.25, 0.1], [0.5, 0.3, 0.1]], 5).parents
    (-1, 0, 0, 1, 1)
    """
    table = _checked(accuracies)
    if table.ndim != 2:
        raise ValueError(f"accuracies must be a table [heads, ranks], got shape {table.shape}")
    _check_size(size, table)
    if (np.diff(table, axis=1) > 0).any():
        return sequoia(table, size)
    # Taking a node adds two candidates: its first child and its next sibling. Ties prefer the shallower node.
    taken: list[tuple[int, ...]] = []
    border: list[tuple[float, int, tuple[int, ...]]] = [(-table[0, 0], 1, (0,))] if size > 1 else []
    while len(taken) < size - 1:
        value, depth, path = heapq.heappop(border)
        taken.append(path)
        if depth < len(table):
            heapq.heappush(border, (value * table[depth, 0], depth + 1, (*path, 0)))
        if path[-1] + 1 < table.shape[1]:
            above = np.prod([table[d, rank] for d, rank in enumerate(path[:-1])])
            heapq.heappush(border, (-above * table[depth - 1, path[-1] + 1], depth, (*path[:-1], path[-1] + 1)))
    return from_paths(taken)


def sequoia(acceptance: Numbers, size: int, *, depth: int | None = None) -> Tree:
    """Sequoia's best tree: no tree of `size` nodes within `depth` has a larger `expected_length`.

    A dynamic program, exact for entries in any order. Chen et al. 2024, arXiv 2402.12374, section 4.1.

    Args:
      acceptance: [ranks], the probability that the child of rank r is accepted, at every depth; or [heads, ranks], one
        row per depth.
      size: N, including the root.
      depth: maximum number of levels below the root; None: the levels of the table, or as many as the size allows.

    Raises:
      ValueError: entries outside 0..1, a wrong shape, or a size below 1, above LARGEST_TREE or above that of the full
        tree of this depth.

    >>> from specjax import trees
    >>> trees.sequoia([0.6, 0.2], 5).parents
    (-1, 0, 0, 1, 3)
    """
    table = _table(_checked(acceptance), _levels(size, depth))
    _check_size(size, table)
    return from_paths(_paths(_program(table, size), size))


def fastest(
    acceptance: Numbers,
    sizes: Numbers,
    seconds: Numbers,
    *,
    draft_seconds: float = 0.0,
    depth: int | None = None,
) -> TreeChoice:
    """The tree with the most tokens per second, given the measured cost curve of the hardware.

    Tries every size from 1 to the largest measured one and every depth up to `depth`; the curve is interpolated
    linearly. The bare root is a candidate: if no tree is faster, it is returned with speedup 1. Chen et al. 2024,
    arXiv 2402.12374, section 4.3.

    Args:
      acceptance: as in `sequoia`.
      sizes: [M], numbers of nodes per target forward pass, increasing from 1.
      seconds: [M], time of each forward pass.
      draft_seconds: time to draft one level of a tree.
      depth: maximum number of levels below the root; None: the levels of the table, or as many as the largest size
        allows.

    Raises:
      ValueError: as `sequoia`; `sizes` that do not increase from 1 to at most LARGEST_TREE; `seconds` that are not
        positive.

    >>> from specjax import trees
    >>> choice = trees.fastest([0.6, 0.2], sizes=[1, 4, 8], seconds=[1.0, 1.0, 1.1])
    >>> choice.tree.size, round(choice.speedup, 2)
    (8, 2.5)
    """
    at, cost = _curve(sizes, seconds)
    if not (np.isfinite(draft_seconds) and draft_seconds >= 0):
        raise ValueError(f"draft_seconds must be finite and at least 0, got {draft_seconds}")
    largest = int(at[-1])
    measured = _checked(acceptance)
    table = _table(measured, _levels(largest, depth))
    nodes = np.arange(1, largest + 1)
    verify = np.interp(nodes, at, cost)
    best = TreeChoice(chain(0), 1.0, float(cost[0]), 1.0)
    chosen: tuple[list[_BestSubtrees], int] | None = None
    for deep, levels in enumerate(_by_depth(table, largest, same=measured.ndim == 1), start=1):
        value, took = levels[-1].value[1:], verify + deep * draft_seconds
        rate = value / took * cost[0]
        n = int(np.argmax(rate))
        if rate[n] > best.speedup:
            best = TreeChoice(best.tree, float(value[n]), float(took[n]), float(rate[n]))
            chosen = levels, int(nodes[n])
    if chosen is None:
        return best
    return best._replace(tree=from_paths(_paths(*chosen)))


# --- the dynamic program ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _BestSubtrees:
    """The best subtrees whose root is at one depth.

    value[n]: value of the best subtree of n nodes, whose root counts 1; IMPOSSIBLE if there is none.
    given[r, m]: with m nodes left for the children of rank r and above, the size of the subtree of child r.
    """

    value: NDArray[np.float64]  # [size + 1]
    given: NDArray[np.int32]  # [ranks, size]


def _program(table: NDArray[np.float64], size: int) -> list[_BestSubtrees]:
    """From the deepest level (only leaves) to the root: levels[j] has j levels below it."""
    levels = [_leaves(table.shape[1], size)]
    for depth in range(len(table) - 1, -1, -1):
        again = depth + 1 < len(table) and np.array_equal(table[depth], table[depth + 1])
        settled = again and np.array_equal(levels[-1].value, levels[-2].value)  # more depth changes nothing
        levels.append(levels[-1] if settled else _above(table[depth], levels[-1], size))
    return levels


def _by_depth(table: NDArray[np.float64], size: int, *, same: bool) -> Iterator[list[_BestSubtrees]]:
    """The program for depth 1, 2, ...: where every depth accepts alike, each is one level more than the last."""
    whole = _program(table, size)
    for deep in range(1, len(table) + 1):
        yield whole[: deep + 1] if same else _program(table[:deep], size)


def _leaves(ranks: int, size: int) -> _BestSubtrees:
    value = np.full(size + 1, IMPOSSIBLE)
    value[1] = 1.0
    return _BestSubtrees(value, np.zeros((ranks, size), np.int32))


def _above(row: NDArray[np.float64], below: _BestSubtrees, size: int) -> _BestSubtrees:
    """One level up: distributes the nodes below a root among its children, last rank first."""
    shared = np.full(size, IMPOSSIBLE)  # [m]: best value of m nodes for ranks r and above
    shared[0] = 0.0
    given = np.zeros((len(row), size), np.int32)
    # left[m, k] = m - k: nodes left of m when child r gets k
    left = np.arange(size)[:, None] - np.arange(size)[None]
    for rank in range(len(row) - 1, -1, -1):
        # A child of value 0 still counts as a node; an impossible one stays impossible.
        child = np.where(np.isfinite(below.value[:size]), row[rank] * np.maximum(below.value[:size], 0), IMPOSSIBLE)
        child[0] = IMPOSSIBLE
        total = np.where(left >= 0, child[None] + shared[np.maximum(left, 0)], IMPOSSIBLE)
        given[rank] = np.argmax(total, axis=1)
        shared = total.max(axis=1)
        shared[0] = 0.0  # no nodes: no child of this rank, nor of any later one
    value = np.full(size + 1, IMPOSSIBLE)
    value[1:] = 1.0 + shared
    return _BestSubtrees(value, given)


def _paths(levels: list[_BestSubtrees], size: int) -> list[tuple[int, ...]]:
    """The paths of the best tree, read back from `given`."""
    paths: list[tuple[int, ...]] = []
    open_nodes: list[tuple[tuple[int, ...], int, int]] = [((), len(levels) - 1, size)]
    while open_nodes:
        path, level, nodes = open_nodes.pop()
        left, rank = nodes - 1, 0
        while left:
            share = int(levels[level].given[rank, left])
            paths.append((*path, rank))
            open_nodes.append(((*path, rank), level - 1, share))
            left, rank = left - share, rank + 1
    return paths


# --- argument checks -------------------------------------------------------------------------------------------------


def _checked(acceptance: Numbers) -> NDArray[np.float64]:
    """Acceptance as float64, [ranks] or [heads, ranks]."""
    try:
        given = np.asarray(acceptance)
        if given.dtype.kind in "bOSU":  # booleans, text, integers beyond float64
            raise TypeError
        measured = given.astype(np.float64)
    except (ValueError, TypeError):
        raise ValueError("acceptance must be numbers of shape [ranks] or [heads, ranks]") from None
    if measured.ndim not in (1, 2) or measured.size == 0:
        raise ValueError(f"acceptance must have shape [ranks] or [heads, ranks], not empty, got {measured.shape}")
    bad = ~((measured >= 0) & (measured <= 1))  # NaN is neither
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"acceptance must be in 0..1, got {measured[where]} at {list(where)}")
    return measured


def _table(measured: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """The table [at most levels, ranks]; a single row is used at every depth."""
    return np.tile(measured, (levels, 1)) if measured.ndim == 1 else measured[:levels]


def _levels(size: int, depth: int | None) -> int:
    """Number of levels below the root that a tree of this size may use."""
    _check_whole(size)
    if depth is not None:
        integers("depth", depth, least=0)
    most = max(size - 1, 0)
    return most if depth is None else min(most, depth)


def _check_whole(size: int) -> None:
    integers("size", size, least=1)
    if size > LARGEST_TREE:
        raise ValueError(f"size must be at most {LARGEST_TREE}, got {size}")


def _check_size(size: int, table: NDArray[np.float64]) -> None:
    _check_whole(size)
    depth, ranks = table.shape
    full = 1
    for _ in range(depth):
        full = 1 + ranks * full
        if full >= size:
            break
    if size > full:
        raise ValueError(f"size must be at most {full}, the full tree of depth {depth} and {ranks} ranks, got {size}")


def _curve(sizes: Numbers, seconds: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    at, cost = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    if at.ndim != 1 or at.shape != cost.shape or at.size == 0:
        raise ValueError(f"sizes and seconds must have the same shape [M], got {at.shape} and {cost.shape}")
    if at[0] != 1 or (np.diff(at) <= 0).any() or (at % 1 != 0).any():
        raise ValueError(f"sizes must be integers that increase from 1, got {at.tolist()}")
    if at[-1] > LARGEST_TREE:
        raise ValueError(f"sizes must be at most {LARGEST_TREE}, got {at[-1]:g}")
    if not (np.isfinite(cost) & (cost > 0)).all():
        raise ValueError(f"seconds must be positive and finite, got {cost.tolist()}")
    return at, cost
