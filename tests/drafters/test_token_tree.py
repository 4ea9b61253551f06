"""A draft model's trees: distributions, children, the cache that follows the verdict, and the whole loop."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from specjax import drafters, sampling, trees
from specjax.base import Prefilled
from specjax.drafters.token_tree import plan
from specjax.trees import NO_CHILD, Tree
from specjax.types import Draft, Siblings
from specjax.verify import TABLE
from tests import battery, distributions
from tests.drafters import drafting

pytestmark = pytest.mark.slow  # heavy to compile; tests/cli/test_drafters.py runs one of each kind by default

WITH, WITHOUT, POINTS = Siblings.WITH_REPLACEMENT, Siblings.WITHOUT_REPLACEMENT, Siblings.POINTS
UNEVEN = Tree((-1, 0, 1, 2, 0, 4, 0, 1))  # not level by level, and nodes without children beside nodes with them
FAMILIES = tuple(battery.FAMILIES)
LOSSLESS = {
    WITH: ("multiround", "multiround-without", "kseq", "traversal", "traversal-without", "non-iterative", "coupled"),
    WITHOUT: ("multiround-without", "traversal-without", "coupled"),
    POINTS: ("deterministic", "multiround", "multiround-without", "traversal", "traversal-without", "coupled"),
}


def tree_of(family: str, kind: Siblings | None, shape: Tree = UNEVEN, model=None) -> drafters.LoadedDrafter:
    """A static tree, or with None for its siblings a dynamic one."""
    model = model or battery.draft(family)
    if kind is None:
        return drafters.dynamic_tree(model, size=9, depth=3, width=3)
    return drafters.tree(model, shape, siblings=kind)


# --- one round at a time: what is fed, what is kept --------------------------------------------------------------

ROWS, ENDED = 4, 3


def warp(logits, ancestors=None):
    del ancestors
    return sampling.warp(sampling.sampling_params(ROWS, battery.VOCAB, temperature=1.0), logits)


def after(pending) -> Prefilled:
    """The target after prompts that end in `pending`; trees of a draft model read no more of it."""
    return Prefilled(None, jnp.asarray(pending, jnp.int32), None)


def committed(rng, draft: Draft, parents, kind: str) -> list[list[int]]:
    """A node of each row and one token more; `kind` selects the node: any, the deepest, or the root."""
    blocks = []
    for row in range(ROWS):
        routes = [
            r for r, v in zip(drafting.routes(draft, parents, row), np.asarray(draft.valid[row]), strict=True) if v
        ]
        route = {"any": routes[rng.integers(len(routes))], "deep": max(routes, key=len), "none": []}[kind]
        blocks.append([*route, int(rng.integers(battery.VOCAB))])
    return blocks


def rounds(family: str, loaded: drafters.LoadedDrafter):
    """(text of each row below its prompt, draft) round by round, under verdicts of every kind; row 3 ends after two."""
    drafter, model = loaded.drafter, loaded.params
    propose = jax.jit(lambda params, key, state, pending: drafter.propose(params, key, state, pending, warp))
    commit = jax.jit(drafter.commit)
    start = battery.FAMILIES["t5"][1].start_token
    rng = np.random.default_rng(3)
    last = [start if family == "t5" else battery.prompts()[i, battery.LENGTHS[i] - 1] for i in range(ROWS)]
    state = jax.jit(drafter.init, static_argnums=3)(
        model, jnp.asarray(battery.prompts()[:ROWS]), jnp.asarray(battery.LENGTHS[:ROWS]), 40, after(last)
    )
    written: list[list[int]] = [[] for _ in range(ROWS)]
    for number, kind in enumerate(["any", "deep", "any", "none", "any"]):
        pending = jnp.asarray(
            [text[-1] if text else first for text, first in zip(written, last, strict=True)], jnp.int32
        )
        draft, state = propose(model, jax.random.split(jax.random.key(number), ROWS), state, pending)
        yield [list(text) for text in written], jax.device_get(draft)
        blocks = committed(rng, draft, drafter.tree.parents, kind)
        tokens = rng.integers(0, battery.VOCAB, (ROWS, drafter.tree.width)).astype(np.int32)
        length = np.zeros((ROWS,), np.int32)
        for row, block in enumerate(blocks):
            if row != ENDED or number < 2:
                tokens[row, : len(block)], length[row] = block, len(block)
                written[row] += block
        before = np.asarray(state.memory.cache.length)
        state = commit(model, state, battery.commit_of(tokens, length))
        held = np.asarray(state.memory.cache.length + state.memory.lag)
        read = 0 if family == "t5" else battery.LENGTHS[:ROWS] - 1
        assert held.tolist() == (read + np.array([len(text) for text in written])).tolist()
        assert set(np.asarray(state.memory.lag)) <= {0, 1} and (before > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_distribution_is_that_of_the_plain_text(family):
    """After ragged, rolled-back, branching and lagging rounds, for every node that has children."""
    shape = np.flatnonzero((UNEVEN.children != NO_CHILD).any(1))
    model = battery.target(family)
    for written, draft in rounds(family, tree_of(family, WITHOUT, model=model)):
        cases = [
            (row, written[row] + drafting.routes(draft, UNEVEN.parents, row)[node])
            for row, node in itertools.product(range(ROWS), shape)
        ]
        expected = scipy.special.log_softmax(drafting.logits_after(family, cases), -1)
        ours = draft.log_q[:, shape].reshape(len(cases), -1)
        np.testing.assert_allclose(ours, expected, atol=3e-5 * np.abs(expected).max())


def most_probable_paths(probs, *, size: int, depth: int, width: int) -> set[tuple[int, ...]]:
    """EAGLE-2's tree by its definition: distribution(paths) -> log-probabilities [paths, V]."""
    known, frontier = {(): 0.0}, [()]
    for _ in range(depth):
        born = {}
        for path, line in zip(frontier, probs(frontier), strict=True):
            for token in np.argsort(-line, kind="stable")[:width]:
                born[(*path, int(token))] = known[path] + line[token]
        known |= born
        frontier = sorted(born, key=lambda path: -born[path])[:width]
    return set(sorted(known, key=lambda path: -known[path])[:size])


@pytest.mark.parametrize(
    "family", ["t5", pytest.param("opt", marks=pytest.mark.slow), pytest.param("llama", marks=pytest.mark.slow)]
)
def test_a_dynamic_tree_holds_the_most_probable_paths_of_the_plain_text(family):
    shapes = set()
    for written, draft in rounds(family, tree_of(family, None, model=battery.target(family))):
        assert draft.valid.all() and draft.log_q is None
        for row in range(ROWS):

            def probs(paths, row=row, written=written):
                logits = drafting.logits_after(family, [(row, written[row] + list(path)) for path in paths])
                return scipy.special.log_softmax(logits, -1)

            ours = {tuple(route) for route in drafting.routes(draft, None, row)}
            assert ours == most_probable_paths(probs, size=9, depth=3, width=3)
            shapes.add(tuple(draft.parents[row]))
    assert len(shapes) > 5  # trees of many shapes


@pytest.mark.slow
@pytest.mark.parametrize("kind", [WITHOUT, None])
def test_control_a_token_missing_from_the_cache_is_detected(kind):
    """The lag forgotten, and a sibling's keys kept in place of the accepted node's."""
    loaded = tree_of("opt", kind, model=battery.target("opt"))
    drafter = loaded.drafter
    lengths = jnp.asarray(battery.LENGTHS[:ROWS])

    @jax.jit
    def propose(state, pending):
        return drafter.propose(loaded.params, jax.random.split(jax.random.key(0), ROWS), state, pending, warp)

    first = jnp.asarray([battery.prompts()[i, n - 1] for i, n in enumerate(battery.LENGTHS[:ROWS])])
    prompts = jnp.asarray(battery.prompts()[:ROWS])
    draft, state = propose(drafter.init(loaded.params, prompts, lengths, 40, after(first)), first)
    deep = committed(np.random.default_rng(0), draft, drafter.tree.parents, "deep")
    length = jnp.asarray([len(block) for block in deep], jnp.int32)
    accepted = battery.commit_of([block + [0] * (4 - len(block)) for block in deep], length)
    pending = jnp.asarray([block[-1] for block in deep], jnp.int32)
    right = drafter.commit(loaded.params, state, accepted)
    held = right.memory
    assert (np.asarray(held.lag) == 1).all() and (np.asarray(held.cache.length) > np.asarray(lengths)).all()
    forgets = right._replace(memory=held._replace(lag=jnp.zeros_like(held.lag)))
    unmoved = held.cache._replace(layers=state.memory.cache.layers)
    swapped = right._replace(memory=held._replace(cache=unmoved))
    expected = propose(right, pending)[0]
    same = lambda state: jax.tree.all(jax.tree.map(np.array_equal, propose(state, pending)[0], expected))
    assert same(right) and not same(forgets) and not same(swapped)


# --- children ----------------------------------------------------------------------------------------------------


@functools.cache
def children(kind: Siblings, temperature: float, count: int = 8192) -> tuple[Draft, np.ndarray]:
    """Drafts of three children after one prompt, and the distribution after the root."""
    loaded = tree_of("opt", kind, trees.regular((3, 1)))
    params = sampling.sampling_params(count, battery.VOCAB, temperature=temperature, top_k=6)
    tokens = np.tile(battery.prompts()[4], (count, 1))
    drafter = loaded.drafter

    @jax.jit
    def draw(weights, keys):
        warp = lambda logits, ancestors=None: sampling.warp(params, logits)
        state = drafter.init(weights, jnp.asarray(tokens), jnp.full((count,), 9, jnp.int32), 24, after(tokens[:, 8]))
        return drafter.propose(weights, keys, state, jnp.asarray(tokens[:, 8]), warp)[0]

    draft = jax.device_get(draw(loaded.params, jax.random.split(jax.random.key(2), count)))
    logits = drafting.logits_after("opt", [(4, [])], loaded.params)
    return draft, battery.plain_distribution(logits[0], (), temperature, top_k=6)


def joint_without(probs: np.ndarray) -> np.ndarray:
    """[V, V, V]: three draws without replacement."""
    joint = np.zeros((len(probs),) * 3)
    for a, b, c in itertools.permutations(np.flatnonzero(probs), 3):
        joint[a, b, c] = probs[a] * probs[b] / (1 - probs[a]) * probs[c] / (1 - probs[a] - probs[b])
    return joint


@pytest.mark.slow
def test_children_follow_the_reported_distribution():
    """The joint distribution of three siblings, each way; and each way is no other."""
    for kind in (WITH, WITHOUT):
        draft, probs = children(kind, 1.0)
        np.testing.assert_allclose(np.exp(draft.log_q[:, 0]), np.tile(probs, (8192, 1)), atol=2e-5)
        counts = distributions.histogram(draft.tokens[:, 1:4], battery.VOCAB)
        independent = probs[:, None, None] * probs[None, :, None] * probs[None, None]
        expected = {WITH: independent, WITHOUT: joint_without(probs)}
        for other, joint in expected.items():
            assert (distributions.chi_square(counts, joint) > distributions.ALPHA) == (other is kind)
        assert draft.valid.all()


def test_points_are_the_most_probable_tokens_and_a_greedy_row_has_alternatives():
    for temperature in (1.0, 0.0):
        draft, probs = children(POINTS, temperature)
        _, sampled = children(POINTS, 1.0)
        assert draft.log_q is None and draft.valid.all()
        assert draft.tokens[0, 1:4].tolist() == np.argsort(-sampled)[:3].tolist()
        assert draft.tokens[0, 1] == probs.argmax()
        assert (draft.tokens == draft.tokens[0]).all()  # nothing was drawn


def test_a_greedy_row_draws_the_most_probable_tokens_without_replacement_and_one_with():
    greedy, probs = children(WITHOUT, 0.0)
    points, _ = children(POINTS, 0.0)
    np.testing.assert_array_equal(greedy.tokens, points.tokens)
    assert greedy.valid.all() and (np.exp(greedy.log_q[:, 0]) == probs).all()
    draft, probs = children(WITH, 0.0)
    assert draft.valid.all() and (draft.tokens[:, 1:4] == probs.argmax()).all()


# --- the whole loop ----------------------------------------------------------------------------------------------

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
QUICK = [
    ("opt", WITH, "multiround"), ("llama", WITHOUT, "multiround-without"), ("t5", POINTS, "traversal"),
    ("opt", None, "deterministic"), ("t5", None, "deterministic"),
]  # fmt: skip
EVERY = [(family, kind, name) for family in FAMILIES for kind, names in LOSSLESS.items() for name in names]
EVERY += [("llama", None, "deterministic")]
GREEDY = [*QUICK, *(slow(*case) for case in EVERY if case not in QUICK)]


@pytest.mark.parametrize(("family", "kind", "name"), GREEDY)
def test_greedy_equals_plain(family, kind, name):
    totals = drafting.greedy_equals_plain(family, tree_of(family, kind), name)
    assert 0 < totals.accepted.sum() < totals.tested.sum()  # both outcomes were met


@pytest.mark.parametrize("name", LOSSLESS[WITHOUT])
def test_greedy_trees_without_replacement_accept_what_point_masses_do(name):
    drawn = drafting.greedy_equals_plain("opt", tree_of("opt", WITHOUT), name)
    points = drafting.greedy_equals_plain("opt", tree_of("opt", POINTS), "deterministic")
    assert drawn.accepted.tolist() == points.accepted.tolist()
    assert drawn.rounds.tolist() == points.rounds.tolist()


def test_the_table_of_verifiers_is_whole():
    for kind, names in LOSSLESS.items():
        assert {n for n, v in TABLE.items() if v.lossless and v.supports(UNEVEN, kind)} == set(names)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["opt", slow("llama"), slow("t5")])
@pytest.mark.parametrize("kind", [POINTS, slow(WITHOUT), slow(WITH), None])
def test_a_perfect_draft_is_accepted_whole(family, kind):
    name = {None: "deterministic", POINTS: "deterministic", WITHOUT: "traversal-without", WITH: "traversal"}[kind]
    loaded = tree_of(family, kind, model=battery.target(family))
    totals = drafting.greedy_equals_plain(family, loaded, name)
    if kind is None:  # its deepest path need not be the greedy one
        assert totals.rounds.max() < 24 // 2
    else:
        assert totals.rounds.tolist() == [24 // UNEVEN.width] * battery.ROWS


@pytest.mark.slow
@pytest.mark.parametrize("kind", [WITHOUT, slow(WITH), slow(POINTS), None])
def test_rows_are_independent(kind):
    drafting.rows_are_independent("opt", tree_of("opt", kind), "deterministic" if kind is None else LOSSLESS[kind][0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [slow(WITHOUT), None])
@pytest.mark.parametrize("family", ["opt", slow("t5")])
def test_a_full_cache_stops_at_the_same_token(family, kind):
    name = "deterministic" if kind is None else LOSSLESS[kind][0]
    drafting.a_full_cache_stops_at_the_same_token(family, tree_of(family, kind), name)


DISTRIBUTION_CASES = [("opt", WITHOUT, "multiround-without"), ("opt", None, "deterministic")]
MORE = [("opt", kind, name) for kind, names in LOSSLESS.items() for name in names]
MORE += [(family, kind, name) for family in ("llama", "t5") for kind, name in ((WITH, "kseq"), (None, "deterministic"))]


@pytest.mark.parametrize(
    ("family", "kind", "name"), [*DISTRIBUTION_CASES, *(slow(*case) for case in MORE if case not in DISTRIBUTION_CASES)]
)
def test_sampled_rows_follow_the_joint_distribution(family, kind, name):
    loaded = tree_of(family, kind, trees.regular((3, 2)))
    assert min(drafting.follows_the_joint_distribution(family, loaded, name).values()) > distributions.ALPHA


@pytest.mark.slow
def test_control_samples_without_replacement_reported_as_independent_break_the_distribution():
    """The second of three siblings is not drawn from the reported distribution."""
    loaded = tree_of("opt", WITHOUT, trees.regular((3, 2)))
    reported = loaded._replace(drafter=loaded.drafter._replace(siblings=WITH, vocab_size=None))
    assert min(drafting.follows_the_joint_distribution("opt", reported, "multiround").values()) < distributions.ALPHA


@pytest.mark.slow
def test_samples_reported_as_points_keep_the_distribution():
    """Proposals that do not depend on the target's draws may be reported as point masses; fewer are accepted."""
    loaded = tree_of("opt", WITHOUT, trees.regular((3, 2)))

    def points(*args):
        draft, state = loaded.drafter.propose(*args)
        return draft._replace(log_q=None), state

    reported = loaded.drafter._replace(propose=points, siblings=POINTS, vocab_size=None)
    assert (
        min(drafting.follows_the_joint_distribution("opt", loaded._replace(drafter=reported), "multiround").values())
        > distributions.ALPHA
    )


@pytest.mark.slow
def test_penalties_reach_every_node():
    options = {"repetition_penalty": 1.4, "logit_bias": {3: -4.0, 5: 1.5}}
    expected = battery.texts(battery.run("opt", drafters.plain(), **options))
    for kind, name in ((WITHOUT, "multiround-without"), (None, "deterministic")):
        loaded = tree_of("opt", kind)
        assert battery.texts(battery.run("opt", loaded, verify=TABLE[name].fn, **options)) == expected
    assert expected != battery.plain("opt")


# --- what cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"shape": trees.chain(0)}, "a node below its root"),
        ({"shape": Tree((-1, 0, -2), ((2, (0,)),))}, r"nodes \[2\] are scratch"),
        ({"shape": trees.regular((14,))}, "14 children, and only 13 tokens"),
        ({"size": 9, "depth": 0, "width": 3}, "depth must be at least 1, got 0"),
        ({"size": 9, "depth": 3, "width": 14}, "width"),
        ({"size": 3, "depth": 3, "width": 3}, "size"),
        ({"size": 23, "depth": 3, "width": 3}, "size"),
    ],
)
def test_invalid_trees_raise(choice, name):
    make = drafters.tree if "shape" in choice else drafters.dynamic_tree
    with pytest.raises(ValueError, match=name):
        make(battery.draft("opt"), **choice)


def test_the_plan_reads_inner_nodes_level_by_level():
    levels, slots = plan(UNEVEN)
    assert [level.nodes.tolist() for level in levels] == [[0], [1, 4], [2]]
    assert [level.offset for level in levels] == [0, 0, 2]
    assert slots.tolist() == [-1, 0, 2, -1, 1, -1, -1, -1]
    assert levels[2].mask.tolist() == [[True, False, True]]
    assert [[c.tolist() for _, c in level.ranks] for level in levels] == [[[1], [4], [6]], [[2, 5], [7]], [[3]]]
