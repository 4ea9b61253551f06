"""Stop rules: the automaton against text search and a dense table, truncation inside a block, invalid arguments."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from specjax import stopping
from specjax.stopping import Stop, StopRules

PIECES = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"c", b"xyz", b"xaby", b"xxa", b"bxx"]
patterns = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)
texts = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


def automaton(patterns, pieces=PIECES, vocab_size=None):
    return stopping.automaton([p.encode() for p in patterns], pieces, vocab_size or len(pieces))


@hypothesis.given(patterns, texts)
def test_the_automaton_matches_at_the_token_that_completes_a_pattern(patterns, tokens):
    classes, table = automaton(patterns)
    state, done = 0, len(table) - 1
    seen = b""
    for token in tokens:
        state = int(table[state, classes[token]])
        seen += PIECES[token]
        assert (state == done) == any(p.encode() in seen for p in patterns)


def dense(patterns, pieces, vocab_size) -> np.ndarray:
    """The uncompressed table [Q, V], one byte at a time."""
    step = stopping._byte_steps(patterns)
    table = np.tile(np.arange(len(step))[:, None], (1, vocab_size))
    for token, piece in enumerate(pieces):
        for byte in piece:
            table[:, token] = step[table[:, token], byte]
    return table


def expanded(found, states: int) -> np.ndarray:
    """The table [Q, V] of an automaton, without padding."""
    table = found.table.astype(np.int64)[:, found.classes]
    used = np.vstack([table[: states - 1], table[-1:]])
    return np.where(used == len(table) - 1, states - 1, used)


@hypothesis.given(patterns, st.lists(st.binary(max_size=6), max_size=40))
def test_the_compact_table_equals_the_dense_one(patterns, extra):
    pieces, patterns = PIECES + extra, [p.encode() for p in patterns]
    expected = dense(patterns, pieces, len(pieces) + 3)
    found = stopping.automaton(patterns, pieces, len(pieces) + 3)
    np.testing.assert_array_equal(expanded(found, len(expected)), expected)


@pytest.mark.parametrize("alphabet", [b"ab", bytes(range(256))])
def test_the_compact_table_of_long_patterns_equals_the_dense_one(alphabet, monkeypatch):
    """Hundreds of states, computed in several chunks; with all 256 bytes no byte is interchangeable."""
    monkeypatch.setattr(stopping, "CHUNK", 2**12)
    rng = np.random.default_rng(0)
    text = lambda n: bytes(rng.choice(list(alphabet), n).tolist())
    patterns = [text(n) for n in (300, 200)]
    pieces = [text(n) for n in rng.integers(0, 9, 200)] + [patterns[0][i : i + 4] for i in range(0, 40, 3)]
    expected = dense(patterns, pieces, len(pieces))
    found = stopping.automaton(patterns, pieces, len(pieces))
    np.testing.assert_array_equal(expanded(found, len(expected)), expected)


def test_large_vocabularies_need_little_memory():
    """1,024 states and 152,066 tokens: a dense int64 table would have 1.2 GB."""
    pieces = [f"token {i}".encode() for i in range(152_064)]
    classes, table = stopping.automaton([b"!?" * 511], [*pieces, b"!", b"?"], len(pieces) + 2)
    assert classes.nbytes + table.nbytes < 1_000_000 and table.dtype == np.int16
    assert len(np.unique(classes)) == 3


def test_common_stop_strings_share_the_shape_of_none():
    shapes = {automaton(patterns).table.shape for patterns in ([], ["a"], ["abab", "ba"], ["abcabcabc"])}
    assert shapes == {(stopping.STATES, stopping.CLASSES)}
    assert automaton(["ab" * 32]).table.shape == (2 * stopping.STATES, stopping.CLASSES)


def cut(tokens, length, room, *, codes=(), patterns=(), state=0, active=True):
    table = np.zeros((len(PIECES),), np.int32)
    for token, code in codes:
        table[token] = code
    one = lambda value: jnp.asarray([value], jnp.int32)
    rules = jax.tree.map(jnp.asarray, StopRules(table, automaton(patterns)))
    found = stopping.cut(
        rules, jnp.asarray([tokens], jnp.int32), one(length), one(room), one(int(Stop.MAX_TOKENS)), one(state),
        jnp.asarray([active]),
    )  # fmt: skip
    return int(found.length[0]), int(found.stop[0]), int(found.automaton[0])


@pytest.mark.slow
def test_the_first_reason_in_the_block_counts():
    codes = [(3, int(Stop.STOP_TOKEN)), (5, int(Stop.EOS))]
    assert cut([1, 5, 3, 2], 4, 9, codes=codes)[:2] == (2, Stop.EOS)
    assert cut([1, 2, 3, 5], 4, 9, codes=codes)[:2] == (3, Stop.STOP_TOKEN)
    assert cut([1, 2, 5, 5], 2, 9, codes=codes)[:2] == (2, Stop.RUNNING)  # past the length
    assert cut([1, 5, 1, 1], 4, 1, codes=codes)[:2] == (1, Stop.MAX_TOKENS)
    assert cut([1, 5, 1, 1], 4, 2, codes=codes)[:2] == (2, Stop.EOS)  # takes precedence over MAX_TOKENS
    assert cut([5, 5, 5, 5], 4, 9, codes=codes, active=False)[:2] == (0, Stop.RUNNING)


def test_a_stop_string_may_span_two_rounds():
    length, stop, state = cut([6, 1], 2, 9, patterns=["ab"])  # "c" "a"
    assert (length, stop) == (2, Stop.RUNNING)
    assert cut([2, 6], 2, 9, patterns=["ab"], state=state)[:2] == (1, Stop.STOP_STRING)  # "b" completes it
    assert cut([2, 6], 2, 9, patterns=["ab"], state=0)[:2] == (2, Stop.RUNNING)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"eos": [7]}, "stop token 7"),
        ({"stop_tokens": [-1]}, "stop token -1"),
        ({"stop_strings": [""], "pieces": PIECES}, "stop_strings"),
        ({"stop_strings": ["a"]}, "stop_strings"),
    ],
)
def test_invalid_rules_raise(options, match):
    with pytest.raises(ValueError, match=match):
        stopping.rules(7, **options)


def test_an_eos_token_that_is_also_a_stop_token_counts_as_eos():
    codes = stopping.rules(7, eos=[2], stop_tokens=[2, 3]).codes
    assert codes.tolist() == [0, 0, Stop.EOS, Stop.STOP_TOKEN, 0, 0, 0]
