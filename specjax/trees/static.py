"""Static trees of draft nodes: which node continues which, in numpy, known at trace time.

A tree is a static argument of jitted functions and is never traced: a round compiles once per tree. Node 0 is the
root, the pending token; parents precede children.

    regular((2, 2)):       0            mask[i, j]: node i sees node j
                         /   \\            0 1 2 3 4 5 6
                        1     2        3: x x . x . . .
                       / \\   / \\       6: x . x . . . x
                      3   4 5   6
"""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterable, Sequence

import numpy as np

from specjax.defaults import LARGEST_TREE

ROOT = -1  # parents[0]
SCRATCH = -2  # parent of a node that is fed to the target but never accepted
NO_CHILD = -1  # padding of `children`


@dataclasses.dataclass(frozen=True)
class Tree:
    """A rooted tree of N nodes in topological order; hashable, so a static argument.

    Args:
      parents: parents[i] < i is the node that node i continues; parents[0] == ROOT. SCRATCH marks a node that is fed
        to the target, whose argmax after it the drafter receives, but is never accepted (a lookahead window). Any
        sequence of at most LARGEST_TREE integers.
      attends: for every scratch node, in order, (node, the other nodes that it attends to). A scratch node has the
        position after the last of those. Scratch nodes attend to earlier nodes, and only scratch nodes attend to them.

    Raises:
      ValueError: no nodes or more than LARGEST_TREE, a parent that is not an integer, a first parent other than ROOT,
        a cycle, a parent that does not precede its child or is scratch, or `attends` for other nodes than the scratch
        nodes.

    >>> from specjax import trees
    >>> tree = trees.Tree((trees.ROOT, 0, 0, 1))
    >>> tree.size, tree.width, tree.depth.tolist()
    (4, 3, [0, 1, 1, 2])
    >>> tree.mask.astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    """

    parents: tuple[int, ...]
    attends: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def __post_init__(self) -> None:
        try:
            read = tuple(map(operator.index, itertools.islice(self.parents, LARGEST_TREE + 1)))
        except TypeError:
            raise ValueError(f"parents must be integers, got {self.parents!r}") from None
        check_size(len(read), "parents")
        object.__setattr__(self, "parents", read)
        if not self.parents or self.parents[0] != ROOT:
            raise ValueError(f"parents[0] must be {ROOT} (the root), got {self.parents[:1]}")
        for node, parent in enumerate(self.parents[1:], start=1):
            if not 0 <= parent < node and parent != SCRATCH:
                raise ValueError(
                    f"node {node} has parent {parent}{_cycle(self.parents, node)}: "
                    f"parents must precede their children (0..{node - 1})"
                )
            if parent != SCRATCH and self.parents[parent] == SCRATCH:
                raise ValueError(f"node {node} has parent {parent}, which is a scratch node and never accepted")
        object.__setattr__(self, "attends", _checked(self.parents, self.attends))

    @property
    def size(self) -> int:
        """N, including the root."""
        return len(self.parents)

    @functools.cached_property
    def depth(self) -> np.ndarray:
        """[N] int32: edges from the root; for a scratch node, one more than the deepest node it attends to."""
        depth = np.zeros(self.size, np.int32)
        seen = dict(self.attends)
        for node, parent in enumerate(self.parents[1:], start=1):
            depth[node] = 1 + (depth[parent] if parent != SCRATCH else max(depth[list(seen[node])]))
        return _frozen(depth)

    @functools.cached_property
    def scratch(self) -> np.ndarray:
        """[N] bool: nodes that are never accepted."""
        return _frozen(np.array(self.parents) == SCRATCH)

    @property
    def width(self) -> int:
        """W = 1 + the deepest level that can be accepted: the most tokens that one round commits."""
        return int(self.depth[~self.scratch].max()) + 1

    @functools.cached_property
    def mask(self) -> np.ndarray:
        """[N, N] bool: node i attends to node j: itself and its ancestors; for scratch nodes, `attends`."""
        mask = np.eye(self.size, dtype=bool)
        for node, parent in enumerate(self.parents[1:], start=1):
            if parent != SCRATCH:
                mask[node] |= mask[parent]
        for node, seen in self.attends:
            mask[node, list(seen)] = True
        return _frozen(mask)

    @functools.cached_property
    def children(self) -> np.ndarray:
        """[N, C] int32: the children of each node, oldest first, padded with NO_CHILD."""
        lists: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            if parent != SCRATCH:
                lists[parent].append(node)
        table = np.full((self.size, max(1, max(map(len, lists)))), NO_CHILD, np.int32)
        for node, kids in enumerate(lists):
            table[node, : len(kids)] = kids
        return _frozen(table)

    @functools.cached_property
    def paths(self) -> np.ndarray:
        """[N, W] int32: the path from the root to node i, padded with node i (for scratch nodes, only node i)."""
        table = np.tile(np.arange(self.size, dtype=np.int32)[:, None], (1, self.width))
        for node in range(self.size):
            chain = [node]
            while self.parents[chain[0]] >= 0:
                chain.insert(0, self.parents[chain[0]])
            table[node, : len(chain)] = chain
        return _frozen(table)

    @property
    def is_chain(self) -> bool:
        """Whether each node continues the previous one; keeping a path then moves no data."""
        return self.parents == tuple(range(-1, self.size - 1))


def chain(gamma: int) -> Tree:
    """A chain of `gamma` draft nodes below the root; gamma 0 is the bare root, which is plain decoding.

    Args:
      gamma: number of draft tokens, 0 to LARGEST_TREE - 1.

    Raises:
      ValueError: gamma is out of range.

    >>> from specjax import trees
    >>> trees.chain(3).parents
    (-1, 0, 1, 2)
    """
    if gamma < 0:
        raise ValueError(f"gamma must be at least 0, got {gamma}")
    if gamma >= LARGEST_TREE:
        raise ValueError(f"gamma must be at most {LARGEST_TREE - 1}, got {gamma}")
    return Tree(tuple(range(-1, gamma)))


def check_size(nodes: int, made_by: str) -> None:
    """Raises ValueError for more than LARGEST_TREE nodes; `made_by` names the argument."""
    if nodes > LARGEST_TREE:
        raise ValueError(f"a tree has at most {LARGEST_TREE} nodes, including the root: {made_by} gives more")


def regular(branching: Sequence[int]) -> Tree:
    """A tree in which every node at depth d has branching[d] children, numbered level by level.

    Args:
      branching: children per node at depth 0, 1, ...; empty for the bare root.

    Raises:
      ValueError: a factor below 1, or more than LARGEST_TREE nodes.

    >>> from specjax import trees
    >>> trees.regular((2, 2)).parents
    (-1, 0, 0, 1, 1, 2, 2)
    """
    nodes = level = 1
    for factor in map(operator.index, branching):  # Python integers do not overflow
        if factor < 1:
            raise ValueError(f"branching factors must be at least 1, got {tuple(branching)}")
        level *= factor
        nodes += level
        check_size(nodes, "branching")
    parents, level = [ROOT], [0]
    for factor in branching:
        first = len(parents)
        parents += [node for node in level for _ in range(factor)]
        level = list(range(first, len(parents)))
    return Tree(tuple(parents))


def from_paths(paths: Iterable[Sequence[int]]) -> Tree:
    """The smallest tree that contains the given paths of child ranks: (0, 1) is the second child of the first child.

    Nodes are numbered level by level, and within a level by path. Missing older siblings are added, so that rank and
    position among the children agree.

    Raises:
      ValueError: a negative rank, an empty path (the root is implied), a repeated path, or more than LARGEST_TREE
        nodes.

    >>> from specjax import trees
    >>> trees.from_paths([(0, 0), (1,)]).parents
    (-1, 0, 0, 1)
    """
    nodes: set[tuple[int, ...]] = set()
    given: set[tuple[int, ...]] = set()
    for path in map(tuple, paths):
        if not path or any(r < 0 for r in path):
            raise ValueError(f"paths must hold at least one rank, and ranks must be at least 0, got {path}")
        if path in given:
            raise ValueError(f"paths contains {path} twice")
        check_size(1 + sum(path) + len(path), "paths")  # before building a huge set for one path
        given.add(path)
        for end in range(1, len(path) + 1):
            nodes |= {(*path[: end - 1], rank) for rank in range(path[end - 1] + 1)}
        check_size(1 + len(nodes), "paths")
    order = [(), *sorted(nodes, key=lambda p: (len(p), p))]
    index = {path: node for node, path in enumerate(order)}
    return Tree(tuple(ROOT if not path else index[path[:-1]] for path in order))


def _checked(parents: Sequence[int], attends: Iterable[tuple[int, Iterable[int]]]) -> tuple:
    """`attends` as tuples of integers; raises unless it covers the scratch nodes and names earlier nodes only."""
    kept = tuple((operator.index(node), tuple(map(operator.index, seen))) for node, seen in attends)
    scratch = [node for node, parent in enumerate(parents) if parent == SCRATCH]
    if [node for node, _ in kept] != scratch:
        raise ValueError(f"attends covers the nodes {[node for node, _ in kept]}, but the scratch nodes are {scratch}")
    for node, seen in kept:
        if not seen or not all(0 <= other < node for other in seen):
            raise ValueError(f"attends of scratch node {node} must name nodes in 0..{node - 1}, got {seen}")
    return kept


def _frozen(table: np.ndarray) -> np.ndarray:
    """Makes a cached table read-only: every user of an equal tree shares it."""
    table.flags.writeable = False
    return table


def _cycle(parents: Sequence[int], node: int) -> str:
    """For the error message: the cycle through `node`, if following parents leads back to it."""
    walked = [node]
    while 0 <= parents[walked[-1]] < len(parents) and len(walked) <= len(parents):
        walked.append(parents[walked[-1]])
        if walked[-1] == node:
            return f", a cycle ({' -> '.join(map(str, walked))})"
    return ""
