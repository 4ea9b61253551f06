"""Best trees against all trees of a size, the model against simulation, the tree size against enumeration."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax import trees

LARGEST = 7
probability = st.floats(0, 1, allow_subnormal=False)


@functools.cache
def shapes(size: int) -> tuple[tuple, ...]:
    """Every ordered rooted tree of `size` nodes as the tuple of its children; a Catalan number of them."""
    return tuple(forest for forest in forests(size - 1))


@functools.cache
def forests(nodes: int) -> tuple[tuple, ...]:
    if nodes == 0:
        return ((),)
    return tuple(
        (first, *rest) for share in range(1, nodes + 1) for first in shapes(share) for rest in forests(nodes - share)
    )


def fits(shape: tuple, table: np.ndarray, depth: int = 0) -> bool:
    return not shape or (
        depth < len(table) and len(shape) <= table.shape[1] and all(fits(child, table, depth + 1) for child in shape)
    )


def value(shape: tuple, table: np.ndarray, depth: int = 0) -> float:
    """Expected length, by recursion over the shape."""
    return 1.0 + sum(table[depth, rank] * value(child, table, depth + 1) for rank, child in enumerate(shape))


def best_value(table: np.ndarray, size: int) -> float:
    return max((value(shape, table) for shape in shapes(size) if fits(shape, table)), default=-np.inf)


tables = st.tuples(st.integers(1, 4), st.integers(1, 4)).flatmap(
    lambda s: st.lists(st.lists(probability, min_size=s[1], max_size=s[1]), min_size=s[0], max_size=s[0])
)


def test_the_enumeration_of_trees_is_complete():
    assert [len(shapes(n)) for n in range(1, LARGEST + 1)] == [1, 1, 2, 5, 14, 42, 132]


@given(tables, st.integers(1, LARGEST))
def test_sequoia_finds_the_best_of_all_trees(rows, size):
    table = np.array(rows)
    best = best_value(table, size)
    if not np.isfinite(best):
        with pytest.raises(ValueError, match="size"):
            trees.sequoia(rows, size)
        return
    tree = trees.sequoia(rows, size)
    assert tree.size == size
    np.testing.assert_allclose(trees.expected_length(tree, rows), best, rtol=1e-12)


@given(st.lists(probability, min_size=1, max_size=4), st.integers(1, LARGEST), st.integers(0, 6))
def test_sequoia_respects_its_depth(ranks, size, depth):
    table = np.tile(ranks, (depth, 1)).reshape(depth, len(ranks))
    best = best_value(table, size)
    if not np.isfinite(best):
        with pytest.raises(ValueError, match="size"):
            trees.sequoia(ranks, size, depth=depth)
        return
    tree = trees.sequoia(ranks, size, depth=depth)
    assert (tree.size, tree.width <= depth + 1) == (size, True)
    np.testing.assert_allclose(trees.expected_length(tree, ranks), best, rtol=1e-12)
    if depth >= size - 1:
        assert tree == trees.sequoia(ranks, size)  # no limit


@given(tables, st.integers(1, LARGEST))
def test_greedy_search_is_optimal_for_decreasing_ranks(rows, size):
    table = -np.sort(-np.array(rows), axis=1)
    best = best_value(table, size)
    if not np.isfinite(best):
        with pytest.raises(ValueError, match="size"):
            trees.best_tree(table, size)
        return
    tree = trees.best_tree(table, size)
    assert tree.size == size
    np.testing.assert_allclose(trees.expected_length(tree, table), best, rtol=1e-12)


@given(tables, st.integers(1, LARGEST))
def test_best_tree_is_optimal_for_noisy_tables(rows, size):
    best = best_value(np.array(rows), size)
    if np.isfinite(best):
        np.testing.assert_allclose(trees.expected_length(trees.best_tree(rows, size), rows), best, rtol=1e-12)


def test_an_increasing_rank_pays_for_its_older_siblings():
    table = [[0.5, 0.1, 0.9], [0.4, 0.1, 0.0]]
    # Greedy search takes 0.5, then 0.5 * 0.4 = 0.2 rather than 0.1, and never reaches the 0.9 behind it.
    assert trees.best_tree(table, 4) == trees.regular((3,))
    assert trees.expected_length(trees.regular((3,)), table) == pytest.approx(2.5)


def test_medusa_by_hand():
    # 1 -> 0.6, 2 -> 0.6 * 0.5 = 0.3, 3 -> 0.25, 4 -> 0.6 * 0.3 = 0.18; next would be 0.25 * 0.5 = 0.125
    table = [[0.6, 0.25, 0.1], [0.5, 0.3, 0.1]]
    tree = trees.best_tree(table, 5)
    assert tree.parents == (-1, 0, 0, 1, 1)
    np.testing.assert_allclose(trees.node_values(tree, table), [1, 0.6, 0.25, 0.3, 0.18])
    assert trees.expected_length(tree, table) == pytest.approx(2.33)
    assert trees.best_tree(table, 1) == trees.chain(0)


def test_both_searches_agree_on_large_trees():
    """At sizes beyond enumeration, both searches reach the same expected length."""
    rng = np.random.default_rng(0)
    table = -np.sort(-rng.dirichlet(np.full(11, 0.4), 5)[:, :10], axis=1)
    for size in (16, 64):
        greedy, program = trees.best_tree(table, size), trees.sequoia(table, size)
        lengths = [trees.expected_length(tree, table) for tree in (greedy, program)]
        np.testing.assert_allclose(*lengths, rtol=1e-12)
        assert lengths[0] > trees.expected_length(trees.chain(5), table)


def test_expected_length_is_the_mean_of_simulated_rounds():
    """40,000 simulated rounds: the accepted child is sampled among ranks. 5 sigma of the mean."""
    acceptance = np.array([0.5, 0.2, 0.1])
    tree = trees.sequoia(acceptance, 9)
    rng = np.random.default_rng(1)
    rank = rng.choice(4, p=[*acceptance, 0.2], size=(40_000, tree.width))  # 3: no child is accepted
    node, length = np.zeros(40_000, int), np.ones(40_000)
    going = np.ones(40_000, bool)
    kids = np.concatenate([tree.children, np.full((tree.size, 4 - tree.children.shape[1]), -1)], 1)
    for depth in range(tree.width):
        following = kids[node, rank[:, depth]]
        going &= following >= 0
        node = np.where(going, following, node)
        length += going
    error = length.std() / 200
    assert abs(length.mean() - trees.expected_length(tree, acceptance)) < 5 * error < 0.05
    assert (
        abs(length.mean() - trees.expected_length(trees.chain(8), acceptance)) > 5 * error
    )  # another tree's length is rejected


def test_fastest_is_the_best_of_every_size_and_depth():
    acceptance = [0.6, 0.2, 0.05]
    sizes, seconds = [1, 4, 8, 16, 24], [10.0, 10.5, 11.0, 15.0, 24.0]
    found = trees.fastest(acceptance, sizes, seconds, draft_seconds=0.5)
    rates = {
        (size, depth): trees.expected_length(trees.sequoia(acceptance, size, depth=depth), acceptance)
        / (np.interp(size, sizes, seconds) + 0.5 * depth) * 10.0
        for size, depth in itertools.product(range(2, 25), range(1, 24))
        if size <= sum(3**d for d in range(depth + 1))
    }  # fmt: skip
    assert found.speedup == pytest.approx(max(rates.values()))
    assert found.expected == pytest.approx(trees.expected_length(found.tree, acceptance))
    assert found.seconds == pytest.approx(np.interp(found.tree.size, sizes, seconds) + 0.5 * (found.tree.width - 1))
    assert found.speedup == pytest.approx(found.expected / found.seconds * 10.0)


def test_fastest_follows_the_cost_curve():
    acceptance = [0.6, 0.2, 0.05]
    sizes = [1, 8, 64]
    flat = trees.fastest(acceptance, sizes, [1.0, 1.0, 1.0], draft_seconds=0.02)
    knee = trees.fastest(acceptance, sizes, [1.0, 1.0, 8.0], draft_seconds=0.02)
    steep = trees.fastest(acceptance, sizes, [1.0, 8.0, 64.0], draft_seconds=0.02)
    assert flat.tree.size > knee.tree.size > 1 and knee.tree.size <= 8
    assert steep == trees.TreeChoice(trees.chain(0), 1.0, 1.0, 1.0)  # no tree is faster
    slow_draft = trees.fastest(acceptance, sizes, [1.0, 1.0, 1.0], draft_seconds=0.3)
    assert slow_draft.tree.width < flat.tree.width
    assert trees.fastest(acceptance, [1], [1.0]).tree == trees.chain(0)
    heads = trees.fastest([[0.7, 0.2], [0.5, 0.2]], sizes, [1.0, 1.0, 1.0])
    assert heads.tree == trees.regular((2, 2)) and heads.speedup == pytest.approx(1 + 0.9 * 1.7)


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (lambda: trees.best_tree([0.5, 0.2], 3), "accuracies"),
        (lambda: trees.best_tree([[[0.5]]], 3), "acceptance"),
        (lambda: trees.best_tree([[0.5, 0.2], [0.1]], 3), "acceptance"),
        (lambda: trees.best_tree([[]], 1), "acceptance"),
        (lambda: trees.best_tree([[0.5, 1.2]], 2), "acceptance"),
        (lambda: trees.best_tree([[0.5], [-0.1]], 2), "acceptance"),
        (lambda: trees.best_tree([[float("nan")]], 2), "acceptance"),
        (lambda: trees.best_tree([[0.5, 0.2]], 0), "size"),
        (lambda: trees.best_tree([["0.5", "0.2"]], 2), "acceptance"),
        (lambda: trees.sequoia([True, False], 2), "acceptance"),
        (lambda: trees.sequoia([10**400, 0], 2), "acceptance"),
        (lambda: trees.best_tree([[0.5, 0.2]], 4), "size"),
        (lambda: trees.sequoia([0.5, 1.5], 3), "acceptance"),
        (lambda: trees.sequoia("half", 3), "acceptance"),
        (lambda: trees.sequoia([0.5], 3, depth=-1), "depth"),
        (lambda: trees.sequoia([0.5], 3, depth=1), "size"),
        (lambda: trees.sequoia([0.5], 0), "size"),
        (lambda: trees.sequoia([0.6, 0.2], 1025), "size"),
        (lambda: trees.sequoia([0.6, 0.2], 10**9, depth=2), "size"),
        (lambda: trees.best_tree([[0.6, 0.2]] * 20, 10**9), "size"),
        (lambda: trees.fastest([0.6, 0.2], [1, 1025], [1.0, 1.1]), "sizes"),
        (lambda: trees.fastest([0.6, 0.2], [1, 10**18], [1.0, 1.1]), "sizes"),
        (lambda: trees.expected_length(trees.chain(3), [[0.5], [0.5]]), "acceptance"),
        (lambda: trees.expected_length(trees.regular((3,)), [0.5, 0.1]), "acceptance"),
        (lambda: trees.fastest([0.5], [2, 4], [1.0, 1.0]), "sizes"),
        (lambda: trees.fastest([0.5], [1, 4, 4], [1.0, 1.0, 1.0]), "sizes"),
        (lambda: trees.fastest([0.5], [1, 4], [1.0]), "sizes"),
        (lambda: trees.fastest([0.5], [1, 4], [1.0, 0.0]), "seconds"),
        (lambda: trees.fastest([0.5], [1], [1.0], draft_seconds=-1.0), "draft_seconds"),
    ],
)
def test_invalid_arguments_raise(build, argument):
    with pytest.raises(ValueError, match=argument):
        build()
