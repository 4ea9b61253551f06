"""Lookahead decoding: the window by its definition, the pool against plain Python, and the whole loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decoding as loop
from specjax import drafters, trees
from specjax.drafters.lookahead import EMPTY, Pool, layout, lookahead_drafter, remember
from specjax.types import Draft, Siblings
from specjax.verify import TABLE
from specjax.verify.deterministic import deterministic
from tests import battery, distributions
from tests.battery import prepare
from tests.drafters import drafting
from tests.test_decoding import exact_joint, sampled_counts

FAMILIES = tuple(battery.FAMILIES)
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
W, N, G = 4, 4, 3


def lookahead_of(w=W, n=N, g=G) -> drafters.LoadedDrafter:
    """A bucket for every token of the small vocabulary: with the default, 12,288 rows would be half a gigabyte."""
    return drafters.LoadedDrafter("lookahead", lookahead_drafter(w, n, g, buckets=battery.VOCAB))


# --- the window --------------------------------------------------------------------------------------------------


def test_the_tree_by_hand():
    """W = 3, N = 3, G = 2: the root, two branches of two, then a and b of row 0 and c d e of row 1."""
    tree, last_row = layout(3, 3, 2)
    S = trees.SCRATCH
    assert tree.parents == (trees.ROOT, 0, 1, 0, 3, S, S, S, S, S)
    assert tree.attends == ((5, (0,)), (6, (0, 5)), (7, (0,)), (8, (0, 5)), (9, (0, 5, 6)))
    assert tree.depth.tolist() == [0, 1, 2, 1, 2, 1, 2, 1, 2, 3]
    assert (tree.width, last_row.tolist()) == (3, [7, 8, 9])
    bigrams, row = layout(3, 2, 1)
    assert bigrams.parents == (trees.ROOT, 0, S, S) and row.tolist() == [0, 2, 3]
    for w, n, g in ((1, 2, 1), (5, 4, 3), (7, 5, 7)):
        assert layout(w, n, g)[0].size == (g + w) * (n - 1)


def rounds(family: str, temperature):
    """(text below the prompt of each row, pending, window, argmax at the last row, window and pool after) by rounds."""
    loaded = lookahead_of()
    _, last_row = layout(W, N, G)
    decode, state, static = prepare(family, loaded, temperature)
    drafter = loaded.drafter
    keep = []

    def commit(params, state, committed):
        after = drafter.commit(params, state, committed)
        return after._replace(
            window=jnp.concatenate([after.window, state.window, committed.argmax[:, None, last_row]], 1)
        )

    def init(*args):
        first = drafter.init(*args)
        wide = jnp.concatenate([first.window, first.window, first.window[:, :1]], 1)
        return first._replace(window=wide)

    def propose(params, key, state, pending, warp):
        return drafter.propose(params, key, state._replace(window=state.window[:, : N - 1]), pending, warp)

    spy = drafter._replace(init=init, propose=propose, commit=commit)
    static["drafter"] = spy
    state = state._replace(draft=state.draft._replace(window=jnp.tile(state.draft.window, (1, 3, 1))[:, : 2 * N - 1]))
    texts = [[] for _ in range(battery.ROWS)]
    for after, _ in loop.stream(decode, state, verify=deterministic, **static):
        window = np.array(after.draft.window)  # a copy: the next round takes the state
        before, fresh, moved = window[:, N - 1 : 2 * N - 2], window[:, 2 * N - 2], window[:, : N - 1]
        new = battery.texts(after)
        keep.append((texts, before, fresh, moved, [len(b) - len(a) for a, b in zip(texts, new, strict=True)]))
        texts = new
    return keep


@pytest.mark.parametrize("family", battery.others_slow(FAMILIES, ["llama"]))
def test_every_window_node_reads_one_text_and_columns_are_its_ngrams(family):
    """Greedy and warm rows alike: the new row is the target's argmax after the plain text
    [prompt, committed, row 0 up to the column, the column below it], in rows of every length."""
    temperature = [0.0, 0.7, 1.3, 1.0, 0.0, 0.9, 1.1, 0.8]
    run = rounds(family, temperature)
    for texts, before, fresh, moved, gained in run[:5]:
        cases = []
        for row, text in enumerate(texts):
            for column in range(W):
                column_text = [*before[row, 0, 1 : column + 1], *before[row, 1:, column]]
                cases.append((row, [*text, *map(int, column_text)]))
        expected = drafting.logits_after(family, cases).argmax(-1).reshape(-1, W)
        np.testing.assert_array_equal(fresh, expected)
        for row, n in enumerate(gained):
            rows = np.concatenate([before[row, 1:], fresh[row, None]])
            assert n > 0 and moved[row].tolist() == np.roll(rows, 1 - n, axis=1).tolist()
    for row, (texts, before, *_) in enumerate(run[1 : battery.ROWS]):
        assert before[row, 0, 0] == texts[row][-1]  # column 0 begins with the pending token
    assert len({n for *_, gained in run for n in gained}) > 2  # blocks of several lengths


def test_a_row_that_has_stopped_keeps_its_window_and_its_pool():
    drafter = battery.jitted(lookahead_of(3, 3, 2).drafter)
    prompt = jnp.asarray(battery.prompts()[:2])
    state = drafter.init((), prompt, jnp.asarray([9, 9]), 24, None)
    _, state = drafter.propose((), None, state, prompt[:, 8], None)
    argmax = jnp.asarray(np.random.default_rng(0).integers(0, 13, (2, drafter.tree.size)).astype(np.int32))
    after = drafter.commit((), state, battery.commit_of(np.zeros((2, 3)), [0, 1], argmax))
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old[0], new[0])
        assert not np.array_equal(old[1], new[1])


# --- the pool ----------------------------------------------------------------------------------------------------


def kept(pieces: list[tuple[int, ...]], places: int, buckets: int) -> dict[int, list[tuple[int, ...]]]:
    """The pool by its definition: buckets of the freshest n-grams."""
    table: dict[int, list[tuple[int, ...]]] = {}
    for piece in pieces:
        line = table.setdefault(piece[0] % buckets, [])
        if piece in line:
            line.remove(piece)
        line.insert(0, piece)
        del line[places:]
    return table


def contents(pool: Pool, row: int) -> dict[int, list[tuple[int, ...]]]:
    first, rest = np.asarray(pool.first[row]), np.asarray(pool.rest[row])
    found = {}
    for bucket in range(first.shape[0]):
        line = [(int(f), *map(int, r)) for f, r in zip(first[bucket], rest[bucket], strict=True) if f != EMPTY]
        if line:
            found[bucket] = line
    return found


@pytest.mark.parametrize("buckets", [5, 64])
def test_the_pool_keeps_the_freshest_of_each_bucket(buckets):
    """Random n-grams, many of them twice, some while the row sleeps; five buckets for eight first tokens."""
    rng, rows, places = np.random.default_rng(1), 3, 4
    shape = (rows, buckets, places)
    pool = Pool(jnp.full(shape, EMPTY, jnp.int32), jnp.zeros((*shape, 2), jnp.int32))
    step = jax.jit(remember)
    remembered = [[] for _ in range(rows)]
    for _ in range(120):
        pieces = np.stack([rng.integers(0, 8, rows), rng.integers(0, 3, rows), rng.integers(0, 2, rows)], 1)
        active = rng.random(rows) < 0.8
        pieces = pieces.astype(np.int32)
        pool = step(pool, jnp.asarray(pieces[:, 0]), jnp.asarray(pieces[:, 1:]), jnp.asarray(active))
        for row in np.flatnonzero(active):
            remembered[row].append(tuple(map(int, pieces[row])))
    for row in range(rows):
        assert contents(pool, row) == kept(remembered[row], places, buckets)


def test_the_prompt_seeds_the_pool_and_only_the_prompt():
    drafter = lookahead_of().drafter
    state = jax.jit(drafter.init, static_argnums=3)(
        (), jnp.asarray(battery.prompts()), jnp.asarray(battery.LENGTHS), 8, None
    )
    for row, n in enumerate(battery.LENGTHS):
        text = battery.prompts()[row, :n].tolist()
        pieces = [tuple(text[i : i + N]) for i in range(len(text) - N + 1)]
        assert contents(state.pool, row) == kept(pieces, G, battery.VOCAB)
        assert set(np.asarray(state.window[row]).ravel()) <= set(text)


def test_guesses_are_the_ngrams_of_the_pending_token_alone():
    """A bucket shared with another token is no guess."""
    drafter = battery.jitted(lookahead_drafter(2, 3, 2, buckets=4))
    prompt = jnp.asarray([[1, 7, 8, 5, 9, 2, 1, 3, 4, 1]], jnp.int32)  # 1 and 5 and 9 share a bucket of two places
    state = drafter.init((), prompt, jnp.asarray([10]), 8, None)
    draft, _ = drafter.propose((), None, state, jnp.asarray([1]), None)
    assert draft.log_q is None
    assert draft.valid[0].tolist() == [True, True, True, False, False, False, False, False]
    assert draft.tokens[0, :3].tolist() == [1, 3, 4]


# --- the whole loop ----------------------------------------------------------------------------------------------


def test_branches_that_share_a_beginning_are_one():
    """a b, a c below the root: the walk that draws a and then c takes the second branch."""
    tree = trees.Tree((-1, 0, 1, 0, 3))
    probs = lambda token: np.log(np.eye(5)[token] + 1e-30).astype(np.float32)
    log_p = jnp.asarray([[probs(2), probs(4), probs(0), probs(4), probs(1)]])
    draft = Draft(jnp.asarray([[0, 2, 3, 2, 4]]), jnp.ones((1, 5), bool), None)
    verdict = deterministic(jax.random.split(jax.random.key(0), 1), tree, draft, log_p)
    assert (verdict.path.tolist(), verdict.accepted.tolist(), verdict.token.tolist()) == ([[0, 3, 4]], [2], [1])


@pytest.mark.parametrize("name", ["deterministic", slow("multiround"), slow("traversal"), slow("multiround-without")])
@pytest.mark.parametrize("family", battery.others_slow(FAMILIES, ["t5"]))
def test_greedy_equals_plain(family, name):
    totals = drafting.greedy_equals_plain(family, lookahead_of(), name)
    assert 0 < totals.accepted.sum() < totals.tested.sum()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 2, 1), (7, 2, 3), (1, 5, 1), (7, 5, 7), (15, 5, 15)])
def test_greedy_equals_plain_for_every_shape(shape):
    drafting.greedy_equals_plain("llama", lookahead_of(*shape), "deterministic")


@pytest.mark.slow
def test_more_is_accepted_than_the_prompt_alone_gives():
    """The window finds n-grams: with a window of rubbish that never changes, fewer tokens pass."""
    right = lookahead_of(6, 4, 6)
    frozen = lambda params, state, committed: state
    still = right._replace(drafter=right.drafter._replace(commit=frozen))
    accepted = [drafting.greedy_equals_plain("opt", g, "deterministic").accepted.sum() for g in (right, still)]
    assert accepted[0] > 1.2 * accepted[1]


@pytest.mark.slow
def test_rows_are_independent():
    drafting.rows_are_independent("opt", lookahead_of(), "deterministic")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["opt", slow("llama"), slow("t5")])
def test_a_full_cache_stops_at_the_same_token(family):
    drafting.a_full_cache_stops_at_the_same_token(family, lookahead_of(), "deterministic")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["opt", slow("llama"), slow("t5")])
def test_sampled_rows_follow_the_joint_distribution(family):
    assert (
        min(drafting.follows_the_joint_distribution(family, lookahead_of(), "deterministic").values())
        > distributions.ALPHA
    )


@pytest.mark.slow
def test_control_a_window_that_is_accepted_breaks_the_distribution():
    """A verifier that follows any branch whose token the target does not exclude."""

    def takes_a_branch(key, tree, draft, log_p):
        verdict = deterministic(key, tree, draft, log_p)
        guess = jnp.where(draft.valid[:, 1], draft.tokens[:, 1], verdict.token)
        first = verdict.accepted == 0
        return verdict._replace(token=jnp.where(first, guess, verdict.token))

    counts = sampled_counts(lookahead_of(), "opt", verify=takes_a_branch)
    assert min(distributions.chi_square(h, exact_joint(t)) for t, h in counts.items()) < distributions.ALPHA


@pytest.mark.slow
def test_penalties_reach_every_branch():
    options = {"repetition_penalty": 1.4, "logit_bias": {3: -4.0, 5: 1.5}}
    expected = battery.texts(battery.run("opt", drafters.plain(), **options))
    assert battery.texts(battery.run("opt", lookahead_of(), verify=deterministic, **options)) == expected


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"window": 0}, "window"),
        ({"ngram": 1}, "ngram"),
        ({"guesses": 0}, "guesses"),
    ],
)
def test_invalid_arguments_raise(choice, name):
    with pytest.raises(ValueError, match=name):
        drafters.lookahead(**choice)


def test_supporting_verifiers():
    tree = lookahead_of().drafter.tree
    for name, found in TABLE.items():
        assert found.supports(tree, Siblings.POINTS) == (name not in ("token", "block", "kseq", "non-iterative",
                                                                          "lossy-lenient"))  # fmt: skip
