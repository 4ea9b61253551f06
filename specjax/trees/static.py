"""Static trees of draft nodes: which node continues which, as numpy known at trace time.

A tree closes over jit and is never traced: a round compiles once a tree. Node 0 is the root, the pending token;
parents precede children.

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
SCRATCH = -2  # the parent of a node that is fed to the target and never accepted
NO_CHILD = -1  # padding of `children`


@dataclasses.dataclass(frozen=True)
class Tree:
    """A rooted tree of N nodes in topological order; hashable, so a static argument.

    Args:
      parents: parents[i] < i is the node that node i continues; parents[0] == ROOT. SCRATCH: the node is fed to the
        target, whose argmax after it the drafter is told, and is never accepted (a lookahead window). Any sequence of
        integers, of LARGEST_TREE at the most.
      attends: (node, nodes that it sees beside itself) of every scratch node, in the order of the nodes; a scratch
        node stands one position after the last of those. Scratch nodes see nodes before them, and are seen by
        scratch nodes alone.

    Raises:
      ValueError: no node or more than LARGEST_TREE, a parent that is no integer, a first parent that is not ROOT, a
        cycle, a parent that does not precede its child or is scratch, or `attends` of other nodes than the scratch
        ones.
    """

    parents: tuple[int, ...]
    attends: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def __post_init__(self) -> None:
        try:
            read = tuple(map(operator.index, itertools.islice(self.parents, LARGEST_TREE + 1)))
        except TypeError:
            raise ValueError(f"the parents of a tree are integers, got {self.parents!r}") from None
        check_size(len(read), "parents")
        object.__setattr__(self, "parents", read)
        if not self.parents or self.parents[0] != ROOT:
            raise ValueError(f"a tree starts with its root: parents[0] must be {ROOT}, got {self.parents[:1]}")
        for node, parent in enumerate(self.parents[1:], start=1):
            if not 0 <= parent < node and parent != SCRATCH:
                raise ValueError(
                    f"node {node} has parent {parent}{_cycle(self.parents, node)}: "
                    f"parents must precede their children (0..{node - 1})"
                )
            if parent != SCRATCH and self.parents[parent] == SCRATCH:
                raise ValueError(f"node {node} continues node {parent}, which is scratch and never accepted")
        object.__setattr__(self, "attends", _checked(self.parents, self.attends))

    @property
    def size(self) -> int:
        """N, the root included."""
        return len(self.parents)

    @functools.cached_property
    def depth(self) -> np.ndarray:
        """[N] int32: edges from the root; of a scratch node its position, one after the last that it sees."""
        depth = np.zeros(self.size, np.int32)
        seen = dict(self.attends)
        for node, parent in enumerate(self.parents[1:], start=1):
            depth[node] = 1 + (depth[parent] if parent != SCRATCH else max(depth[list(seen[node])]))
        return depth

    @functools.cached_property
    def scratch(self) -> np.ndarray:
        """[N] bool: nodes that are never accepted."""
        return np.array(self.parents) == SCRATCH

    @property
    def width(self) -> int:
        """W = deepest level that can be accepted + 1: the most tokens that one round can commit."""
        return int(self.depth[~self.scratch].max()) + 1

    @functools.cached_property
    def mask(self) -> np.ndarray:
        """[N, N] bool: node i sees node j, itself and its ancestors; a scratch node what it attends to."""
        mask = np.eye(self.size, dtype=bool)
        for node, parent in enumerate(self.parents[1:], start=1):
            if parent != SCRATCH:
                mask[node] |= mask[parent]
        for node, seen in self.attends:
            mask[node, list(seen)] = True
        return mask

    @functools.cached_property
    def children(self) -> np.ndarray:
        """[N, C] int32: children of each node, oldest first, padded with NO_CHILD."""
        lists: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            if parent != SCRATCH:
                lists[parent].append(node)
        table = np.full((self.size, max(1, max(map(len, lists)))), NO_CHILD, np.int32)
        for node, kids in enumerate(lists):
            table[node, : len(kids)] = kids
        return table

    @functools.cached_property
    def paths(self) -> np.ndarray:
        """[N, W] int32: the nodes from the root to node i, the rest repeating node i (all, if it is scratch)."""
        table = np.tile(np.arange(self.size, dtype=np.int32)[:, None], (1, self.width))
        for node in range(self.size):
            chain = [node]
            while self.parents[chain[0]] >= 0:
                chain.insert(0, self.parents[chain[0]])
            table[node, : len(chain)] = chain
        return table

    @property
    def is_chain(self) -> bool:
        """Whether each node continues the one before it: then keeping a path moves no data."""
        return self.parents == tuple(range(-1, self.size - 1))


def chain(gamma: int) -> Tree:
    """The path of `gamma` draft nodes below the root; gamma 0 is the bare root, plain decoding."""
    if gamma < 0:
        raise ValueError(f"gamma must be at least 0, got {gamma}")
    if gamma >= LARGEST_TREE:
        raise ValueError(f"gamma must be at most {LARGEST_TREE - 1}, got {gamma}")
    return Tree(tuple(range(-1, gamma)))


def check_size(nodes: int, made_by: str) -> None:
    """Raises ValueError for more nodes than a round may check; `made_by` says what has so many."""
    if nodes > LARGEST_TREE:
        raise ValueError(f"a tree has at most {LARGEST_TREE} nodes, the root included, and these {made_by} make more")


def regular(branching: Sequence[int]) -> Tree:
    """Every node at depth d has branching[d] children, level by level.

    Raises:
      ValueError: a factor below 1, or more than LARGEST_TREE nodes.
    """
    nodes = level = 1
    for factor in map(operator.index, branching):  # Python's integers: numpy's would overflow
        if factor < 1:
            raise ValueError(f"every branching factor must be at least 1, got {tuple(branching)}")
        level *= factor
        nodes += level
        check_size(nodes, "branching factors")
    parents, level = [ROOT], [0]
    for factor in branching:
        first = len(parents)
        parents += [node for node in level for _ in range(factor)]
        level = list(range(first, len(parents)))
    return Tree(tuple(parents))


def from_paths(paths: Iterable[Sequence[int]]) -> Tree:
    """The smallest tree that holds the given paths of child ranks: (0, 1) is the second child of the first child.

    Nodes are numbered level by level, and within a level by path. A path whose rank r > 0 has no sibling r - 1 in the
    set is given the missing siblings, so that rank and position among the children agree.

    Raises:
      ValueError: a rank below 0, an empty path (the root is there anyway), a path that is given twice, or more than
        LARGEST_TREE nodes.
    """
    nodes: set[tuple[int, ...]] = set()
    given: set[tuple[int, ...]] = set()
    for path in map(tuple, paths):
        if not path or any(r < 0 for r in path):
            raise ValueError(f"a path holds one rank or more, ranks in a path must be at least 0, got {path}")
        if path in given:
            raise ValueError(f"the path {path} is given twice: a node has one child of each rank")
        check_size(1 + sum(path) + len(path), "paths")  # those of this path alone
        given.add(path)
        for end in range(1, len(path) + 1):
            nodes |= {(*path[: end - 1], rank) for rank in range(path[end - 1] + 1)}
        check_size(1 + len(nodes), "paths")
    order = [(), *sorted(nodes, key=lambda p: (len(p), p))]
    index = {path: node for node, path in enumerate(order)}
    return Tree(tuple(ROOT if not path else index[path[:-1]] for path in order))


def _checked(parents: Sequence[int], attends: Iterable[tuple[int, Iterable[int]]]) -> tuple:
    """`attends` as tuples of integers, if it is of the scratch nodes and each sees nodes that come before it."""
    kept = tuple((operator.index(node), tuple(map(operator.index, seen))) for node, seen in attends)
    scratch = [node for node, parent in enumerate(parents) if parent == SCRATCH]
    if [node for node, _ in kept] != scratch:
        raise ValueError(f"attends is of the nodes {[node for node, _ in kept]}, and the scratch nodes are {scratch}")
    for node, seen in kept:
        if not seen or not all(0 <= other < node for other in seen):
            raise ValueError(f"scratch node {node} attends to {seen}: name one node or more, each in 0..{node - 1}")
    return kept


def _cycle(parents: Sequence[int], node: int) -> str:
    """Says so where following the parents from `node` leads back to it."""
    walked = [node]
    while 0 <= parents[walked[-1]] < len(parents) and len(walked) <= len(parents):
        walked.append(parents[walked[-1]])
        if walked[-1] == node:
            return f", a cycle ({' -> '.join(map(str, walked))})"
    return ""
