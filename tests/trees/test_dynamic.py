"""Dynamic trees against a numpy reference with dictionaries and sorts, on tiny vocabularies."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax import trees
from specjax.trees import ROOT, dynamic

ROWS, VOCAB, WIDTH, DEPTH = 3, 5, 3, 3
PENDING = np.array([4, 0, 2], np.int32)


def log_q_after(table: np.ndarray, prefix: tuple[int, ...]) -> np.ndarray:
    """Log-probabilities after a prefix: a row of the table selected by a hash."""
    return table[sum(token * 31**i for i, token in enumerate(prefix)) % len(table)]


def reference(table: np.ndarray, pending: int, size: int) -> tuple[dict, list]:
    """All candidates {path: score} in the order of proposal, and the selected ones in the same order."""
    proposed = {(): np.float32(0.0)}
    frontier = [()]
    for _ in range(DEPTH):
        level = []
        for path in frontier:
            after = log_q_after(table, (pending, *path))
            for token in sorted(range(VOCAB), key=lambda t: -after[t])[:WIDTH]:  # stable, like top_k
                level.append((*path, token))
                proposed[level[-1]] = np.float32(proposed[path] + after[token])
        frontier = sorted(level, key=lambda path: -proposed[path])[:WIDTH]
    chosen = set(sorted(proposed, key=lambda path: -proposed[path])[:size])
    return proposed, [path for path in proposed if path in chosen]


@functools.partial(jax.jit, static_argnames=("size", "width"))
def step_and_rerank(growth, log_q, *, size, width=WIDTH):
    growth = dynamic.expand(growth, log_q, width=width)
    return growth, dynamic.rerank(growth, size=min(size, growth.tokens.shape[1]))


def paths_of(tokens, parents) -> list[tuple[int, ...]]:
    """The path of tokens below the root of every node of one row."""
    paths = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        assert 0 <= parent < len(paths)  # parents precede children
        paths.append((*paths[parent], int(token)))
    return paths


def grow(tables: np.ndarray, size: int):
    """Grows one tree per row; the "model" reads each frontier node's prefix through `sees`, as a cache would."""
    growth, nodes = dynamic.start(jnp.asarray(PENDING)), None
    fed = [[] for _ in range(ROWS)]  # tokens in the block, below the root
    for level in range(DEPTH):
        tokens, sees = np.asarray(growth.frontier_tokens), np.asarray(growth.sees)
        log_q = np.zeros((ROWS, tokens.shape[1], VOCAB), np.float32)
        for row in range(ROWS):
            if level:
                fed[row] += tokens[row].tolist()
            for i in range(tokens.shape[1]):
                prefix = [fed[row][slot] for slot in np.flatnonzero(sees[row, i])]
                assert len(prefix) == level
                log_q[row, i] = log_q_after(tables[row], (int(PENDING[row]), *prefix))
        growth, nodes = step_and_rerank(growth, jnp.asarray(log_q), size=size)
    return growth, nodes, fed


def some_tables(seed: int, *, zeros: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mass = rng.dirichlet(np.full(VOCAB, 0.5), (ROWS, 7)).astype(np.float32)
    if zeros:
        mass = np.where(mass < np.sort(mass, -1)[..., -2:-1], 0, mass)  # two tokens remain
    with np.errstate(divide="ignore"):
        return np.log(mass / mass.sum(-1, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("zeros", [False, True])
def test_growth_and_reranking_match_the_reference(seed, zeros):
    size, tables = 16 if zeros else 9, some_tables(seed, zeros=zeros)  # two tokens per node: at most 13 nodes
    growth, nodes, fed = grow(tables, size)
    assert growth.tokens.shape[1] == dynamic.candidates(WIDTH, DEPTH) == 22
    for row in range(ROWS):
        proposed, chosen = reference(tables[row], int(PENDING[row]), size)
        mine = paths_of(np.asarray(growth.tokens)[row], np.asarray(growth.parent)[row])
        assert mine == list(proposed)
        np.testing.assert_array_equal(np.asarray(growth.score)[row], np.array(list(proposed.values())))
        tokens, parents = np.asarray(nodes.tokens)[row], np.asarray(nodes.parents)[row]
        assert tokens[0] == PENDING[row] and parents[0] == ROOT
        assert paths_of(tokens, parents) == chosen
        scores = np.array([proposed[path] for path in chosen])
        np.testing.assert_array_equal(np.asarray(nodes.score)[row], scores)
        np.testing.assert_array_equal(np.asarray(nodes.valid)[row], np.isfinite(scores))
        for path, slot in zip(chosen, np.asarray(nodes.slot)[row], strict=True):
            if slot != dynamic.NOT_FED:
                assert fed[row][slot] == path[-1]
            elif path:  # nodes that were not fed have no children
                assert not any(other[:-1] == path for other in proposed)
    if zeros:
        assert not np.asarray(nodes.valid).all()


def test_rows_grow_different_trees():
    nodes = grow(some_tables(3), 9)[1]
    assert len({tuple(row) for row in np.asarray(nodes.parents)}) > 1


@pytest.mark.slow
def test_distributions_without_context_give_the_best_static_tree():
    """With one distribution per level, path probability is Medusa's product: the trees are equal node by node."""
    table = -np.sort(-np.random.default_rng(5).dirichlet(np.full(4, 0.7), 3), axis=1)
    static = trees.best_tree(table, 8)
    width = 4
    growth = dynamic.start(jnp.asarray(PENDING))
    for row in table:
        log_q = jnp.broadcast_to(jnp.log(jnp.asarray(row, jnp.float32)), (ROWS, growth.frontier.shape[1], 4))
        growth = dynamic.expand(growth, log_q, width=width)
    nodes = dynamic.rerank(growth, size=8)
    ranks = [()]
    for node, parent in enumerate(static.parents[1:], start=1):
        ranks.append((*ranks[parent], static.children[parent].tolist().index(node)))
    for row in range(ROWS):
        assert set(paths_of(np.asarray(nodes.tokens)[row], np.asarray(nodes.parents)[row])) == set(ranks)
    expected = np.exp(np.asarray(nodes.score)).sum(1)
    np.testing.assert_allclose(expected, trees.expected_length(static, table), rtol=1e-5)


def test_nan_and_certain_tokens_give_a_valid_tree():
    """NaN proposes nothing; certain tokens tie with their parents; positive log-probabilities count as 0."""
    sure = np.full((VOCAB,), -np.inf, np.float32)
    sure[1] = 1e-7
    log_probs = np.stack([np.full(VOCAB, np.nan, np.float32), sure, np.log(np.full(VOCAB, 0.2, np.float32))])
    growth = dynamic.start(jnp.asarray(PENDING))
    for _ in range(DEPTH):
        log_q = jnp.broadcast_to(jnp.asarray(log_probs)[:, None], (ROWS, growth.frontier.shape[1], VOCAB))
        growth, nodes = step_and_rerank(growth, log_q, size=6)
    valid = np.asarray(nodes.valid)
    assert valid.sum(1).tolist() == [1, 1 + DEPTH, 6]
    assert (np.asarray(nodes.score)[1][valid[1]] == 0).all()
    for row in range(ROWS):
        paths = paths_of(np.asarray(nodes.tokens)[row], np.asarray(nodes.parents)[row])
        assert len(set(paths)) == 6  # a node's children differ, valid or not
    assert {(1,), (1, 1), (1, 1, 1)} <= set(paths_of(np.asarray(nodes.tokens)[1], np.asarray(nodes.parents)[1]))


layout = jax.jit(dynamic.layout, static_argnames="width")


@given(st.lists(st.tuples(*(st.integers(0, i) for i in range(7))), min_size=3, max_size=3))
def test_layout_equals_the_tables_of_static_trees(below):
    """A width larger than needed only adds padding to the paths."""
    parents = [(ROOT, *row) for row in below]
    tables = jax.tree.map(np.asarray, layout(jnp.asarray(parents, jnp.int32), width=8))
    for row, line in enumerate(parents):
        tree = trees.Tree(line)
        np.testing.assert_array_equal(tables.mask[row], tree.mask)
        np.testing.assert_array_equal(tables.depth[row], tree.depth)
        np.testing.assert_array_equal(tables.paths[row][:, : tree.width], tree.paths)
        assert (tables.paths[row][:, tree.width :] == np.arange(8)[:, None]).all()


def test_an_envelope_has_the_size_and_depth():
    tree = dynamic.envelope(9, 3)
    assert (tree.size, tree.width, tree.is_chain) == (9, 4, False)
    assert dynamic.candidates(10, 6) == 511 and dynamic.candidates(10, 0) == 1
    with pytest.raises(ValueError, match="depth"):
        dynamic.envelope(4, 4)
    with pytest.raises(ValueError, match="size"):
        dynamic.envelope(10**12, 4)


def test_growing_a_tree_traces_once():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def whole(pending, log_q):
        growth = dynamic.start(pending)
        for _ in range(DEPTH):
            growth = dynamic.expand(growth, log_q[:, : growth.frontier.shape[1]], width=WIDTH)
        nodes = dynamic.rerank(growth, size=7)
        return nodes, dynamic.layout(nodes.parents, width=DEPTH + 1)

    for seed in range(3):
        nodes, tables = whole(jnp.asarray(PENDING), jnp.asarray(some_tables(seed)[:, :WIDTH]))
        assert tables.mask.shape == (ROWS, 7, 7) and tables.paths.shape == (ROWS, 7, DEPTH + 1)
        assert np.asarray(tables.depth).max() <= DEPTH and nodes.tokens.dtype == jnp.int32


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (lambda g: dynamic.expand(g, jnp.zeros((ROWS, 1, VOCAB)), width=6), "width"),
        (lambda g: dynamic.expand(g, jnp.zeros((ROWS, 1, VOCAB)), width=0), "width"),
        (lambda g: dynamic.expand(g, jnp.zeros((ROWS, 2, VOCAB)), width=2), "log_q"),
        (
            lambda g: dynamic.expand(
                dynamic.expand(g, jnp.zeros((ROWS, 1, VOCAB)), width=2), jnp.zeros((ROWS, 2, VOCAB)), width=3
            ),
            "width",
        ),
        (lambda g: dynamic.rerank(g, size=2), "size"),
        (lambda g: dynamic.rerank(g, size=0), "size"),
    ],
)
def test_invalid_arguments_raise(build, argument):
    with pytest.raises(ValueError, match=argument):
        build(dynamic.start(jnp.asarray(PENDING)))
