"""Suffix matching against its definition in plain Python, the corpus and its file, and the whole loop."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, trees
from specjax.drafters.corpus import END, LEAST, NOTHING, Corpus, corpus, load_corpus, matches, save_corpus
from specjax.drafters.ngram import History
from specjax.drafters.suffix import (
    Continuations,
    beginnings,
    continuations,
    most_frequent,
    suffix_drafter,
    suffix_tree_drafter,
)
from specjax.types import Draft
from specjax.verify.token import token_level
from tests import battery, distributions
from tests.battery import run
from tests.drafters import drafting
from tests.test_decoding import exact_joint, sampled_counts

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
RNG = np.random.default_rng(4)
DOCUMENTS = [RNG.integers(0, 4, n).tolist() for n in (40, 1, 0, 90, 7, 60)]


# --- the corpus --------------------------------------------------------------------------------------------------


def occurrences(documents, context: list[int], shortest: int, longest: int) -> tuple[int, list[list[int]]]:
    """The longest match of the end of a context, and what follows each of its occurrences."""
    for size in range(min(longest, len(context)), shortest - 1, -1):
        wanted = context[-size:]
        found = [d[i + size :] for d in documents for i in range(len(d) - size + 1) if d[i : i + size] == wanted]
        if found:
            return size, found
    return 0, []


def backwards(contexts: list[list[int]], longest: int) -> jnp.ndarray:
    return jnp.asarray([(c[::-1] + [NOTHING] * longest)[:longest] for c in contexts], jnp.int32)


def following(past: Corpus, place: int) -> list[int]:
    text = np.asarray(past.text)[place:]
    return text[: int(np.argmax(text == END))].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("longest", "shortest", "depth"), [(5, 1, 5), (3, 2, 8), (16, 3, 16), (1, 1, 1)])
def test_all_occurrences_of_the_longest_match_are_found(longest, shortest, depth):
    """Contexts that occur, that occur in part, and that do not; too many places to list them all: `count` is large."""
    past = corpus(DOCUMENTS, depth=depth)
    rng = np.random.default_rng(longest)
    contexts = [rng.integers(0, 5, rng.integers(1, 9)).tolist() for _ in range(150)]
    contexts += [d[:n] for d in DOCUMENTS for n in (1, 5, 30, len(d)) if len(d) >= n]
    find = jax.jit(lambda context: matches(past, context, shortest=shortest, count=256))
    place, there, length = jax.device_get(find(backwards(contexts, longest)))
    lengths = set()
    for row, context in enumerate(contexts):
        size, found = occurrences(DOCUMENTS, context, shortest, longest)
        assert length[row] == size
        assert sorted(following(past, p) for p in place[row][there[row]]) == sorted(found)
        lengths.add(size)
    assert len(lengths) > min(longest, 2)


def test_of_many_matches_an_even_sample_is_taken():
    past = corpus([[1, 0] * 50 + [1, 2] * 50], depth=4)
    find = jax.jit(matches, static_argnames=("shortest", "count"))
    place, there, length = find(past, backwards([[1]], 4), shortest=1, count=20)
    every, all_there, _ = find(past, backwards([[1]], 4), shortest=1, count=200)
    assert int(all_there.sum()) == 100 and there.all() and length.tolist() == [1]
    taken, ranked = np.asarray(place[0]).tolist(), np.asarray(every[0])[np.asarray(all_there[0])].tolist()
    assert taken == ranked[::5]
    assert 8 <= sum(following(past, p)[:1] == [2] for p in taken) <= 12


def test_a_corpus_may_grow_within_its_size():
    """Sizes are powers of two: another corpus is other arrays of one shape."""
    small, large = corpus([[1, 2]]), corpus([[1] * 200])
    assert small.text.shape == large.text.shape == (LEAST,)
    assert corpus([[1] * LEAST]).text.shape == (2 * LEAST,)
    assert np.sort(small.order).tolist() == list(range(LEAST))


def test_the_file_gives_the_corpus_back(tmp_path):
    path = tmp_path / "past.safetensors"
    past = corpus(DOCUMENTS, depth=6)
    save_corpus(past, path)
    back = load_corpus(path)
    for one, other in zip(past, back, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_files_without_a_corpus_raise(tmp_path):
    from safetensors.numpy import save_file

    with pytest.raises(ValueError, match=r"none\.safetensors"):
        load_corpus(tmp_path / "none.safetensors")
    (tmp_path / "text").write_text("a b c")
    with pytest.raises(ValueError, match="text"):
        load_corpus(tmp_path / "text")
    parts = {k: np.asarray(v) for k, v in corpus(DOCUMENTS)._asdict().items()}
    save_file(parts, tmp_path / "other")
    with pytest.raises(ValueError, match="other"):
        load_corpus(tmp_path / "other")
    save_file(parts | {"order": parts["order"] * 0}, tmp_path / "bad", {"format": "specjax corpus 1"})
    with pytest.raises(ValueError, match="bad"):
        load_corpus(tmp_path / "bad")


# --- the rule ----------------------------------------------------------------------------------------------------


def candidates(text: list[int], documents, longest: int, shortest: int) -> list[list[int]]:
    """What followed the longest matches: in the request the latest first, then in the corpus in any order."""
    own_size, own = 0, []
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        own = [text[end:] for end in range(len(text) - 1, size - 1, -1) if text[end - size : end] == text[-size:]]
        if own:
            own_size = size
            break
    size, past = occurrences(documents, text, shortest, longest) if documents else (0, [])
    best = max(own_size, size)
    return (own if own_size == best else []) + (past if size == best else []) if best else []


@pytest.mark.parametrize("documents", [None, DOCUMENTS[-2:]])
def test_continuations_are_those_of_the_longest_matches(documents):
    """Every text that has few enough of them, against the definition; the request's own from the latest on."""
    rng = np.random.default_rng(8)
    texts = [rng.integers(0, 5, rng.integers(1, 20)).tolist() for _ in range(200)]
    tokens = np.full((len(texts), 24), 1, np.int32)  # tokens past a row's length would match
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    state = History(jnp.asarray(tokens), jnp.asarray([len(t) for t in texts], jnp.int32))
    params = () if documents is None else corpus(documents, depth=4)
    found = jax.device_get(jax.jit(lambda s: continuations(params, s, 5, longest=4, shortest=1))(state))
    some = 0
    for row, text in enumerate(texts):
        expected = candidates(text, documents, 4, 1)
        ours = [t[: (t == END).argmax() if END in t else 5].tolist() for t in found.tokens[row][found.alive[row]]]
        if len(expected) <= 8:
            some += 1
            assert sorted(ours) == sorted(t[:5] for t in expected)
        else:
            assert 8 <= len(ours) <= 32
    assert some > 100


def made(rows: int = 60) -> Continuations:
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, 3, (rows, 12, 4)).astype(np.int32)
    over = rng.integers(0, 8, (rows, 12, 1))
    tokens = np.where(np.arange(4)[None, None] >= over, END, tokens)
    return Continuations(jnp.asarray(tokens), jnp.asarray(rng.random((rows, 12)) < rng.random((rows, 1))))


def alive(texts: Continuations, row: int) -> list[tuple[int, ...]]:
    tokens = np.asarray(texts.tokens[row])[np.asarray(texts.alive[row])]
    return [tuple(int(t) for t in line[: (line == END).argmax() if END in line else 4]) for line in tokens]


def counted(lines) -> collections.Counter:
    """How many of the texts begin so."""
    return collections.Counter(line[:n] for line in lines for n in range(1, len(line) + 1))


def test_the_chain_follows_the_most_frequent_branch():
    texts = made(200)
    tokens, counts = jax.device_get(jax.jit(most_frequent)(texts))
    lengths = set()
    for row in range(len(tokens)):
        table, path = counted(alive(texts, row)), ()
        for depth in range(4):
            below = [n for p, n in table.items() if p[:-1] == path and len(p) == depth + 1]
            assert counts[row, depth] == max(below, default=0)
            if not below:
                assert not counts[row, depth:].any()
                break
            path = (*path, int(tokens[row, depth]))
            assert table[path] == max(below)
        lengths.add(len(path))
    assert lengths == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("confidence", [0.0, 0.3])
def test_the_tree_is_of_the_most_frequent_beginnings(confidence):
    texts = made()
    pending = jnp.full((60,), 9, jnp.int32)
    draft = jax.device_get(jax.jit(lambda t: beginnings(t, pending, size=7, confidence=confidence))(texts))
    shapes = set()
    for row in range(60):
        lines = alive(texts, row)
        table = counted(lines)
        routes = [tuple(route) for route in drafting.routes(draft, None, row)]
        ours = [route for route, valid in zip(routes[1:], draft.valid[row, 1:], strict=True) if valid]
        assert len(set(ours)) == len(ours) and draft.valid[row, 0] and draft.tokens[row, 0] == 9
        enough = sorted((n for n in table.values() if n >= confidence * len(lines)), reverse=True)
        assert sorted((table[route] for route in ours), reverse=True) == enough[:6]
        assert all(route[:-1] in ours or len(route) == 1 for route in ours)
        parents = draft.parents[row]
        assert parents[0] == trees.ROOT and (parents[1:] < np.arange(1, 7)).all()
        shapes.add(tuple(parents))
    assert len(shapes) > 10


def test_proposals_by_hand():
    """The corpus has "2 3" followed by 4 5 twice and by 6 once; the request ends in "2 3", and has had a 3 before."""
    past = corpus([[1, 2, 3, 4, 5], [7, 2, 3, 6], [2, 3, 4, 5, 8]])
    chain, tree = suffix_drafter(3, 16, 1, 0.1), suffix_tree_drafter(5, 3, 16, 1, 0.1)
    prompt = jnp.asarray([[3, 9, 2, 3], [3, 9, 2, 3], [9, 3, 7, 7]], jnp.int32)
    length = jnp.asarray([4, 4, 2], jnp.int32)
    pending = jnp.asarray([3, 3, 3], jnp.int32)

    @functools.partial(jax.jit, static_argnames="drafter")
    def first(drafter, past):
        return drafter.propose(past, None, drafter.init(past, prompt, length, 8, None), pending, None)[0]

    draft = first(chain, past)
    assert draft.tokens[0].tolist() == [3, 4, 5, 8] and draft.valid[0].all()
    assert draft.log_q is None
    branching = first(tree, past)
    assert branching.parents is not None
    ours = dict(zip(map(tuple, drafting.routes(branching, None, 0)), branching.valid[0].tolist(), strict=True))
    assert ours == {(): True, (4,): True, (6,): True, (4, 5): True, (4, 5, 8): True}
    alone = first(chain, ())
    assert alone.tokens[0].tolist() == [3, 9, 2, 3] and alone.valid[2].tolist() == [True, False, False, False]


# --- the whole loop ----------------------------------------------------------------------------------------------


@functools.cache
def past_outputs(family: str) -> Corpus:
    """Halves of the greedy texts: some of their text will be generated again."""
    return corpus([row[:14] for row in battery.plain(family)] + [row[8:] for row in battery.plain(family)[:4]])


def suffix_of(family: str, kind: str) -> drafters.LoadedDrafter:
    past = past_outputs(family) if "corpus" in kind else None
    return drafters.suffix_tree(past, size=9, depth=5) if "tree" in kind else drafters.suffix(past, gamma=4)


KINDS = ("suffix", "suffix corpus", "tree", "tree corpus")
QUICK = [("opt", "suffix corpus", "token")]
EVERY = [(f, k, "deterministic") for f in battery.FAMILIES for k in KINDS]
EVERY += [("opt", "suffix corpus", name) for name in ("block", "multiround", "traversal")]


@pytest.mark.parametrize(("family", "kind", "name"), [*QUICK, *(slow(*case) for case in EVERY if case not in QUICK)])
def test_greedy_equals_plain(family, kind, name):
    totals = drafting.greedy_equals_plain(family, suffix_of(family, kind), name)
    assert 0 < totals.accepted.sum() < totals.tested.sum()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tree corpus", "suffix corpus"])
def test_a_corpus_helps(kind):
    """Against the same corpus with its tokens moved: what follows is then rubbish."""
    right = suffix_of("opt", kind)
    past = past_outputs("opt")
    moved = corpus([[(t + 5) % battery.VOCAB for t in row] for row in battery.plain("opt")])
    accepted = [
        drafting.greedy_equals_plain("opt", right._replace(params=p), "deterministic").accepted.sum()
        for p in (past, moved)
    ]
    assert accepted[0] > 1.3 * accepted[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tree corpus", "suffix corpus"])
def test_rows_are_independent(kind):
    drafting.rows_are_independent("opt", suffix_of("opt", kind), "deterministic")


@pytest.mark.parametrize("kind", [slow("tree corpus"), slow("suffix corpus")])
def test_a_full_cache_stops_at_the_same_token(kind):
    drafting.a_full_cache_stops_at_the_same_token("opt", suffix_of("opt", kind), "deterministic")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"), [("opt", "tree corpus"), slow("opt", "suffix corpus"), slow("t5", "tree corpus")]
)
def test_sampled_rows_follow_the_joint_distribution(family, kind):
    assert (
        min(drafting.follows_the_joint_distribution(family, suffix_of(family, kind), "deterministic").values())
        > distributions.ALPHA
    )


@pytest.mark.slow
def test_control_copies_reported_as_samples_break_the_distribution():
    right = suffix_of("opt", "suffix corpus")

    def draws(*args):
        draft, state = right.drafter.propose(*args)
        even = jnp.full((*draft.tokens.shape, battery.VOCAB), -np.log(battery.VOCAB), jnp.float32)
        return Draft(draft.tokens, draft.valid, even), state

    broken = right._replace(drafter=right.drafter._replace(propose=draws, vocab_size=battery.VOCAB))
    counts = sampled_counts(broken, "opt", verify=token_level)
    assert min(distributions.chi_square(h, exact_joint(t)) for t, h in counts.items()) < distributions.ALPHA


@pytest.mark.slow
def test_another_corpus_of_the_same_size_is_not_traced_again():
    from specjax import decoding as loop

    first = suffix_of("opt", "tree corpus")
    run("opt", first, verify=drafting.verifier(first, "deterministic"))
    before = loop.trace_count()
    other = first._replace(params=corpus([[1, 2, 3]]))
    assert battery.texts(run("opt", other, verify=drafting.verifier(first, "deterministic"))) == battery.plain("opt")
    assert loop.trace_count() == before


# --- what cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "name"),
    [
        (drafters.suffix, {"gamma": 0}, "gamma"),
        (drafters.suffix, {"longest": 2, "shortest": 3}, "shortest"),
        (drafters.suffix, {"confidence": 1.5}, "confidence"),
        (drafters.suffix_tree, {"size": 100, "depth": 2}, "size"),
        (drafters.suffix_tree, {"size": 3, "depth": 3}, "size"),
        (drafters.corpus, {"documents": [[], []]}, "documents"),
        (drafters.corpus, {"documents": [[1], [2, -4]]}, "document 1.*-4"),
        (drafters.corpus, {"documents": [[1]], "depth": 0}, "depth"),
    ],
)
def test_arguments_out_of_range_are_refused(make, options, name):
    with pytest.raises(ValueError, match=name):
        make(**options)


def test_a_corpus_that_does_not_fit_is_refused():
    past = corpus([[1, 99]], depth=4)
    with pytest.raises(ValueError, match="longest=4"):
        drafters.suffix(past)
    with pytest.raises(ValueError, match="token 99"):
        drafters.suffix(past, longest=4).check(battery.target("opt"))
