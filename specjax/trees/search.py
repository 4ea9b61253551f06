"""The best static tree for measured acceptance: Medusa's greedy search, Sequoia's dynamic program, and the size.

All of it rests on one model. The child of rank r of an accepted node at depth d is the accepted one with probability
a[d, r], whatever happened before: at most one child of a node is. A node is then accepted with the product of the
a along its path, and a round commits the sum of these products over all nodes, the root's 1 (the correction or the
bonus) included. Every search here maximizes that sum; sizes count the root. Where the a of siblings sum to more than 1,
as counts of "among the first k" do, the sum is no expectation: `specjax tree show` refuses such a table.
"""

import dataclasses
import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specjax.defaults import LARGEST_TREE
from specjax.theory.arguments import integers
from specjax.trees.static import Tree, chain, from_paths

Numbers = Any  # whatever numpy makes an array of (its own ArrayLike is refused a tuple where types are checked)
IMPOSSIBLE = -np.inf  # value of a subtree that depth and ranks do not allow


class Choice(NamedTuple):
    """The tree that commits most tokens a second, and what the model expects of it."""

    tree: Tree
    expected: float  # tokens that a round commits
    seconds: float  # of a round: drafting level by level, then one call of the target
    speedup: float  # against plain decoding; 1.0 with the bare root, where no tree pays


def node_values(tree: Tree, acceptance: Numbers) -> NDArray[np.float64]:
    """The probability [N] that each node is accepted: the product of its path's acceptances, 1 at the root.

    Args:
      tree: children count their ranks in the order of `tree.children`.
      acceptance: [ranks], the same at every depth (Sequoia), or [heads, ranks], one row a depth (Medusa).

    Raises:
      ValueError: entries outside 0..1, a wrong shape, or a tree deeper or wider than the table.
    """
    table = _table(_checked(acceptance), tree.width - 1)
    most = int(np.bincount(np.asarray(tree.parents[1:], int), minlength=1).max()) if tree.size > 1 else 0
    if tree.width - 1 > len(table) or most > table.shape[1]:
        raise ValueError(
            f"the tree has {tree.width - 1} levels and up to {most} children a node, the acceptance table "
            f"{len(table)} levels and {table.shape[1]} ranks: measure more of them, or cut the tree"
        )
    value, born = np.ones(tree.size), [0] * tree.size
    for node, parent in enumerate(tree.parents[1:], start=1):
        value[node] = value[parent] * table[tree.depth[parent], born[parent]]
        born[parent] += 1
    return value


def expected_length(tree: Tree, acceptance: Numbers) -> float:
    """Tokens that a round is expected to commit with this tree: accepted ones and one more. See `node_values`."""
    return float(node_values(tree, acceptance).sum())


def best_tree(accuracies: Numbers, size: int) -> Tree:
    """Medusa's best tree of `size` nodes: greedily the node whose path is right most probably.

    No tree of that size has a greater `expected_length`. Greedy choice guarantees it where no rank is more accurate
    than the rank before it; measured tables may break that by noise, and then the dynamic program of `sequoia` is
    used instead. Cai et al. 2024, arXiv 2401.10774, section 2.3.3 (whose sizes leave the root out).

    Args:
      accuracies: [heads, ranks]; [k, i] is the probability that the guess of rank i of head k is right.
      size: N, the root included.

    Raises:
      ValueError: a table of another shape or with entries outside 0..1, or a size below 1, above LARGEST_TREE or above
        the full tree's.
    """
    table = _checked(accuracies)
    if table.ndim != 2:
        raise ValueError(f"accuracies must be a table [heads, ranks], got shape {table.shape}")
    _check_size(size, table)
    if (np.diff(table, axis=1) > 0).any():
        return sequoia(table, size)
    # A node's rivals enter when it is taken: its first child, and its next sibling. Equal values: the shallower first.
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
    """Sequoia's best tree: of all trees of `size` nodes within `depth`, none has a greater `expected_length`.

    A dynamic program, exact whatever the order of the entries. Chen et al. 2024, arXiv 2402.12374, section 4.1.

    Args:
      acceptance: [ranks], the probability that the child of rank r is the accepted one, at every depth; or a table
        [heads, ranks] with a row a depth.
      size: N, the root included.
      depth: the most levels below the root; None: as many as the table has, or as the size allows.

    Raises:
      ValueError: entries outside 0..1, a wrong shape, or a size below 1, above LARGEST_TREE or above the full tree's of
        that depth.
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
) -> Choice:
    """The tree that commits most tokens a second on hardware whose cost curve was measured.

    Every size from 1 to the largest measured one and every depth up to `depth` is weighed; between two measured sizes
    the curve is taken as straight. The bare root is among them: where no tree pays, it is the answer, with speedup 1.
    Chen et al. 2024, arXiv 2402.12374, section 4.3.

    Args:
      acceptance: as in `sequoia`.
      sizes: [M], numbers of nodes fed to the target in one call, increasing from 1.
      seconds: [M], what each of those calls takes.
      draft_seconds: what drafting one level of a tree takes.
      depth: the most levels below the root; None: as many as the table has, or as the largest size allows.

    Raises:
      ValueError: as `sequoia`; a curve that does not increase from size 1 to LARGEST_TREE at the most in `sizes`, or is
        not positive in `seconds`.
    """
    at, cost = _curve(sizes, seconds)
    if not (np.isfinite(draft_seconds) and draft_seconds >= 0):
        raise ValueError(f"draft_seconds must be at least 0 and finite, got {draft_seconds}")
    largest = int(at[-1])
    measured = _checked(acceptance)
    table = _table(measured, _levels(largest, depth))
    nodes = np.arange(1, largest + 1)
    verify = np.interp(nodes, at, cost)
    best = Choice(chain(0), 1.0, float(cost[0]), 1.0)
    chosen: tuple[list[_Level], int] | None = None
    for deep, levels in enumerate(_by_depth(table, largest, same=measured.ndim == 1), start=1):
        value, took = levels[-1].value[1:], verify + deep * draft_seconds
        rate = value / took * cost[0]
        n = int(np.argmax(rate))
        if rate[n] > best.speedup:
            best = Choice(best.tree, float(value[n]), float(took[n]), float(rate[n]))
            chosen = levels, int(nodes[n])
    if chosen is None:
        return best
    return best._replace(tree=from_paths(_paths(*chosen)))


# --- the dynamic program -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Level:
    """The best subtrees whose root stands at one depth.

    value[n]: of the best subtree of n nodes, its root included and counted 1. IMPOSSIBLE where there is none.
    given[r, m]: of m nodes left for the children of rank r and above, how many child r and what is below it get.
    """

    value: NDArray[np.float64]  # [size + 1]
    given: NDArray[np.int32]  # [ranks, size]


def _program(table: NDArray[np.float64], size: int) -> list[_Level]:
    """Levels from the deepest (leaves alone) to the root's: levels[j] has j levels below it."""
    levels = [_leaves(table.shape[1], size)]
    for depth in range(len(table) - 1, -1, -1):
        again = depth + 1 < len(table) and np.array_equal(table[depth], table[depth + 1])
        settled = again and np.array_equal(levels[-1].value, levels[-2].value)  # more depth changes nothing any more
        levels.append(levels[-1] if settled else _above(table[depth], levels[-1], size))
    return levels


def _by_depth(table: NDArray[np.float64], size: int, *, same: bool) -> Iterator[list[_Level]]:
    """The program for depth 1, 2, ...: where every depth accepts alike, each is one level more than the last."""
    whole = _program(table, size)
    for deep in range(1, len(table) + 1):
        yield whole[: deep + 1] if same else _program(table[:deep], size)


def _leaves(ranks: int, size: int) -> _Level:
    value = np.full(size + 1, IMPOSSIBLE)
    value[1] = 1.0
    return _Level(value, np.zeros((ranks, size), np.int32))


def _above(row: NDArray[np.float64], below: _Level, size: int) -> _Level:
    """One level up: the nodes below a root are shared out among its children, the last rank first."""
    shared = np.full(size, IMPOSSIBLE)  # [m]: best value of m nodes below the root, for ranks r and above
    shared[0] = 0.0
    given = np.zeros((len(row), size), np.int32)
    # left[m, k] = m - k: what is left of m nodes when child r gets k of them
    left = np.arange(size)[:, None] - np.arange(size)[None]
    for rank in range(len(row) - 1, -1, -1):
        # A child of value 0 still counts as a node; one that cannot be stays impossible.
        child = np.where(np.isfinite(below.value[:size]), row[rank] * np.maximum(below.value[:size], 0), IMPOSSIBLE)
        child[0] = IMPOSSIBLE
        total = np.where(left >= 0, child[None] + shared[np.maximum(left, 0)], IMPOSSIBLE)
        given[rank] = np.argmax(total, axis=1)
        shared = total.max(axis=1)
        shared[0] = 0.0  # no nodes: no child of this rank, nor of any later one
    value = np.full(size + 1, IMPOSSIBLE)
    value[1:] = 1.0 + shared
    return _Level(value, given)


def _paths(levels: list[_Level], size: int) -> list[tuple[int, ...]]:
    """The paths of the best tree, read back from what each child was given."""
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


# --- what is asked for, checked --------------------------------------------------------------------------------------


def _checked(acceptance: Numbers) -> NDArray[np.float64]:
    """What was measured in float64, [ranks] or [heads, ranks]."""
    try:
        given = np.asarray(acceptance)
        if given.dtype.kind in "bOSU":  # truth values, text, numbers beyond any float
            raise TypeError
        measured = given.astype(np.float64)
    except (ValueError, TypeError):
        raise ValueError("acceptance must be [ranks] or [heads, ranks] numbers, every row of the same length") from None
    if measured.ndim not in (1, 2) or measured.size == 0:
        raise ValueError(f"acceptance must be [ranks] or [heads, ranks] and not empty, got shape {measured.shape}")
    bad = ~((measured >= 0) & (measured <= 1))  # NaN is neither
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"acceptance must lie in 0..1, got {measured[where]} at {list(where)}")
    return measured


def _table(measured: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """The table [levels or fewer, ranks]: a single row holds at every depth, a table as deep as it goes."""
    return np.tile(measured, (levels, 1)) if measured.ndim == 1 else measured[:levels]


def _levels(size: int, depth: int | None) -> int:
    """How many levels below the root a tree of that size may use."""
    _check_whole(size)
    if depth is not None:
        integers("depth", depth, least=0)
    most = max(size - 1, 0)
    return most if depth is None else min(most, depth)


def _check_whole(size: int) -> None:
    integers("size", size, least=1)
    if size > LARGEST_TREE:
        raise ValueError(f"size must be at most {LARGEST_TREE}, the nodes that a round may check, got {size}")


def _check_size(size: int, table: NDArray[np.float64]) -> None:
    _check_whole(size)
    depth, ranks = table.shape
    full = 1
    for _ in range(depth):
        full = 1 + ranks * full
        if full >= size:
            break
    if size > full:
        raise ValueError(f"size {size} is more than the {full} nodes of the full tree of depth {depth}, {ranks} ranks")


def _curve(sizes: Numbers, seconds: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    try:
        at, cost = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    except OverflowError:
        raise ValueError("a cost curve holds a number that is too large for any float") from None
    if at.ndim != 1 or at.shape != cost.shape or at.size == 0:
        raise ValueError(f"a cost curve is sizes [M] and seconds [M], got shapes {at.shape} and {cost.shape}")
    if at[0] != 1 or (np.diff(at) <= 0).any() or (at % 1 != 0).any():
        raise ValueError(f"sizes of a cost curve must be whole numbers that increase from 1, got {at.tolist()}")
    if at[-1] > LARGEST_TREE:
        raise ValueError(f"sizes of a cost curve must be at most {LARGEST_TREE}, got {at[-1]:g}: leave larger ones out")
    if not (np.isfinite(cost) & (cost > 0)).all():
        raise ValueError(f"seconds of a cost curve must be positive and finite, got {cost.tolist()}")
    return at, cost
