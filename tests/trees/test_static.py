"""Static trees: tables by hand, invariants, and invalid arguments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax import trees
from specjax.trees import NO_CHILD, ROOT, Tree


def test_a_chain():
    tree = trees.chain(3)
    assert tree.parents == (ROOT, 0, 1, 2)
    assert (tree.size, tree.width, tree.is_chain) == (4, 4, True)
    np.testing.assert_array_equal(tree.depth, [0, 1, 2, 3])
    np.testing.assert_array_equal(tree.mask, np.tril(np.ones((4, 4), bool)))
    np.testing.assert_array_equal(tree.children, [[1], [2], [3], [NO_CHILD]])
    np.testing.assert_array_equal(tree.paths, [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]])


def test_the_bare_root_is_plain_decoding():
    tree = trees.chain(0)
    assert (tree.parents, tree.size, tree.width, tree.is_chain) == ((ROOT,), 1, 1, True)
    np.testing.assert_array_equal(tree.children, [[NO_CHILD]])
    np.testing.assert_array_equal(tree.paths, [[0]])
    assert trees.regular(()) == trees.from_paths([]) == tree


def test_a_regular_tree_level_by_level():
    tree = trees.regular((2, 3))
    assert tree.parents == (ROOT, 0, 0, 1, 1, 1, 2, 2, 2)
    assert (tree.width, tree.is_chain) == (3, False)
    np.testing.assert_array_equal(tree.depth, [0, 1, 1] + [2] * 6)
    np.testing.assert_array_equal(tree.children[:3], [[1, 2, NO_CHILD], [3, 4, 5], [6, 7, 8]])
    assert (tree.children[3:] == NO_CHILD).all()
    np.testing.assert_array_equal(np.flatnonzero(tree.mask[7]), [0, 2, 7])
    np.testing.assert_array_equal(tree.paths[7], [0, 2, 7])
    np.testing.assert_array_equal(tree.paths[2], [0, 2, 2])


def test_from_paths_adds_missing_siblings():
    tree = trees.from_paths([(0, 2), (1,)])
    #            0
    #          1   2        (0,) (1,)
    #        3 4 5          (0, 0) (0, 1) (0, 2): the first two are added
    assert tree.parents == (ROOT, 0, 0, 1, 1, 1)
    assert trees.from_paths([(1,), (0, 2), (0, 0)]) == tree  # in any order
    assert trees.from_paths([(0, 0, 0)]) == trees.chain(3)
    assert trees.from_paths([(i, j) for i in range(2) for j in range(3)]) == trees.regular((2, 3))


@pytest.mark.parametrize("tree", [trees.chain(4), trees.regular((3, 1, 2)), trees.from_paths([(2, 1), (0, 0, 1)])])
def test_the_tables_of_a_tree_agree(tree):
    for node, parent in enumerate(tree.parents):
        seen = np.flatnonzero(tree.mask[node])
        np.testing.assert_array_equal(np.unique(tree.paths[node]), seen)  # parents precede children
        assert len(seen) == tree.depth[node] + 1
        if parent != ROOT:
            assert node in tree.children[parent]
            np.testing.assert_array_equal(tree.mask[node] ^ tree.mask[parent], np.arange(tree.size) == node)
    assert (tree.children != NO_CHILD).sum() == tree.size - 1
    assert tree.width == tree.depth.max() + 1


def test_equal_trees_are_equal_static_arguments():
    assert hash(trees.chain(2)) == hash(trees.regular((1, 1)))
    assert trees.chain(2) == trees.regular((1, 1)) != trees.chain(3)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: Tree(()), "parents"),
        (lambda: Tree((0, 0)), "parents"),
        (lambda: Tree((ROOT, 1)), "parent 1"),
        (lambda: Tree((ROOT, 1)), "1 -> 1"),
        (lambda: Tree((ROOT, 2, 3, 1)), "1 -> 2 -> 3 -> 1"),
        (lambda: Tree((ROOT, 2, 0)), "parent 2"),
        (lambda: Tree((ROOT, 9)), "parent 9"),
        (lambda: Tree((ROOT, 0, ROOT)), "parent -1"),
        (lambda: trees.chain(-1), "gamma"),
        (lambda: trees.regular((2, 0)), "branching"),
        (lambda: trees.from_paths([(0, -1)]), "paths"),
        (lambda: trees.from_paths([()]), "paths"),
        (lambda: trees.from_paths([(0,), (1,), (0,)]), "paths"),
    ],
)
def test_invalid_trees_raise(build, match):
    with pytest.raises(ValueError, match=match):
        build()


def test_cached_tables_are_read_only():
    """Equal trees share their tables through compiled programs: a write would corrupt every later trace."""
    tree = Tree((ROOT, 0, 0, 1))
    for name in ("depth", "scratch", "mask", "children", "paths"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(tree, name)[0] = 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: Tree(tuple(range(-1, 1024))),
        lambda: unchecked(range(-1, 10**12)),
        lambda: trees.regular((1,) * 1024),
        lambda: trees.regular((1000, 1000)),
        lambda: trees.regular((10**30,)),
        lambda: trees.regular((1,) * 10**6),
        lambda: trees.from_paths([(1023,)]),
        lambda: trees.from_paths([(10**12, 0)]),
        lambda: trees.from_paths([(0,) * 1024]),
        lambda: trees.from_paths((a, b) for a in range(10**6) for b in range(100)),
    ],
)
def test_more_nodes_than_the_limit_raise_at_once(build):
    with pytest.raises(ValueError, match="1024"):
        build()


def test_the_largest_trees():
    for tree in (trees.regular((1023,)), trees.from_paths([(1022,)]), Tree(tuple(range(-1, 1023)))):
        assert tree.size == 1024


@pytest.mark.parametrize("parents", [[-1, 0, 0], np.array([-1, 0, 0]), (-1, 0, 0)])
def test_parents_of_any_integer_type_give_a_hashable_tree(parents):
    assert hash(unchecked(parents)) == hash(trees.regular((2,))) and unchecked(parents) == trees.regular((2,))


@pytest.mark.parametrize("parents", [(-1, 0.5), 3, (-1, "0")])
def test_parents_that_are_not_integers_raise(parents):
    with pytest.raises(ValueError, match="parents"):
        unchecked(parents)


def unchecked(parents) -> Tree:
    """Without the run-time type checks of the tests."""
    tree = object.__new__(Tree)
    object.__setattr__(tree, "parents", parents)
    tree.__post_init__()
    return tree


# The parents of nodes 1, 2, ...; each test builds the tree.
any_parents = st.integers(0, 12).flatmap(lambda n: st.tuples(*(st.integers(0, i) for i in range(n))))


@given(any_parents)
def test_invariants_of_any_tree(below):
    """Mask, depth, children and paths against the definition: the ancestors of a node."""
    tree = Tree((ROOT, *below))
    for node in range(tree.size):
        ancestors = [node]
        while tree.parents[ancestors[-1]] != ROOT:
            ancestors.append(tree.parents[ancestors[-1]])
        assert ancestors == sorted(ancestors, reverse=True) and ancestors[-1] == 0  # topological, rooted
        assert set(np.flatnonzero(tree.mask[node])) == set(ancestors)
        assert tree.depth[node] == len(ancestors) - 1
        repeated = [node] * (tree.width - len(ancestors))
        assert tree.paths[node].tolist() == ancestors[::-1] + repeated
        kids = tree.children[node]
        expected = [child for child in range(tree.size) if tree.parents[child] == node]
        assert kids.tolist() == expected + [NO_CHILD] * (len(kids) - len(expected))
    assert tree.is_chain == (tree.width == tree.size)


@given(any_parents)
def test_from_paths_restores_the_tree(below):
    tree = Tree((ROOT, *below))
    ranks = [()]
    for node, parent in enumerate(tree.parents[1:], start=1):
        ranks.append((*ranks[parent], int(np.flatnonzero(tree.children[parent] == node)[0])))
    back = trees.from_paths(ranks[1:])
    assert back.size == tree.size and sorted(back.depth) == sorted(tree.depth)
    assert trees.from_paths(ranks[:0:-1]) == back


def test_scratch_nodes_have_positions_and_no_paths():
    """A chain of two and a window of two rows of two; the second row attends to the first, as in lookahead decoding."""
    S = trees.SCRATCH
    tree = trees.Tree((trees.ROOT, 0, 1, S, S, S, S), ((3, (0,)), (4, (0, 3)), (5, (0, 3)), (6, (0, 3, 4, 5))))
    assert tree.width == 3 and tree.depth.tolist() == [0, 1, 2, 1, 2, 2, 3]
    assert tree.scratch.tolist() == [False] * 3 + [True] * 4 and not tree.is_chain
    assert tree.children.tolist() == [[1], [2], *[[trees.NO_CHILD]] * 5]
    sees = [[int(j) for j in np.flatnonzero(line)] for line in tree.mask]
    assert sees == [[0], [0, 1], [0, 1, 2], [0, 3], [0, 3, 4], [0, 3, 5], [0, 3, 4, 5, 6]]
    assert tree.paths.tolist()[:3] == [[0, 0, 0], [0, 1, 1], [0, 1, 2]] and tree.paths.tolist()[6] == [6, 6, 6]
    assert hash(tree) == hash(trees.Tree(tree.parents, tree.attends))


@pytest.mark.parametrize(
    ("parents", "attends", "match"),
    [
        ((-1, 0, -2), (), "attends"),
        ((-1, 0), ((1, (0,)),), "attends"),
        ((-1, -2), ((1, ()),), "attends"),
        ((-1, -2), ((1, (1,)),), "attends"),
        ((-1, -2, 1), ((1, (0,)),), "parent 1"),
    ],
)
def test_invalid_scratch_nodes_raise(parents, attends, match):
    with pytest.raises(ValueError, match=match):
        trees.Tree(parents, attends)
