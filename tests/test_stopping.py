"""Stop rules: the automaton of stop strings against a search in the text, cuts inside a block, bad input."""

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from specjax import stopping
from specjax.stopping import Stop, StopRules

PIECES = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"c"]
patterns = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)
texts = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


@hypothesis.given(patterns, texts)
def test_the_automaton_matches_at_the_token_that_completes_a_pattern(patterns, tokens):
    table = stopping.automaton([p.encode() for p in patterns], PIECES, len(PIECES))
    state, done = 0, len(table) - 1
    seen = b""
    for token in tokens:
        state = table[state, token]
        seen += PIECES[token]
        assert (state == done) == any(p.encode() in seen for p in patterns)


def cut(tokens, length, room, *, codes=(), transitions=None, state=0, active=True):
    table = np.zeros((7,), np.int32)
    for token, code in codes:
        table[token] = code
    one = lambda value: jnp.asarray([value], jnp.int32)
    rules = StopRules(jnp.asarray(table), None if transitions is None else jnp.asarray(transitions))
    found = stopping.cut(
        rules, jnp.asarray([tokens], jnp.int32), one(length), one(room), one(int(Stop.MAX_TOKENS)), one(state),
        jnp.asarray([active]),
    )  # fmt: skip
    return int(found.length[0]), int(found.stop[0]), int(found.automaton[0])


def test_the_first_reason_in_the_block_counts():
    codes = [(3, int(Stop.STOP_TOKEN)), (5, int(Stop.EOS))]
    assert cut([1, 5, 3, 2], 4, 9, codes=codes)[:2] == (2, Stop.EOS)
    assert cut([1, 2, 3, 5], 4, 9, codes=codes)[:2] == (3, Stop.STOP_TOKEN)
    assert cut([1, 2, 5, 5], 2, 9, codes=codes)[:2] == (2, Stop.RUNNING)  # past the length
    assert cut([1, 5, 1, 1], 4, 1, codes=codes)[:2] == (1, Stop.MAX_TOKENS)
    assert cut([1, 5, 1, 1], 4, 2, codes=codes)[:2] == (2, Stop.EOS)  # a stop on the last token has its own name
    assert cut([5, 5, 5, 5], 4, 9, codes=codes, active=False)[:2] == (0, Stop.RUNNING)


def test_a_stop_string_may_span_two_rounds():
    table = stopping.automaton([b"ab"], PIECES, len(PIECES))
    length, stop, state = cut([6, 1], 2, 9, transitions=table)  # "c" "a"
    assert (length, stop) == (2, Stop.RUNNING)
    assert cut([2, 6], 2, 9, transitions=table, state=state)[:2] == (1, Stop.STOP_STRING)  # "b" completes it
    assert cut([2, 6], 2, 9, transitions=table, state=0)[:2] == (2, Stop.RUNNING)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eos": [7]}, "stop token 7 lies outside the vocabulary of 7 tokens"),
        ({"stop_tokens": [-1]}, "stop token -1 lies outside"),
        ({"stop_strings": [""], "pieces": PIECES}, "must not be empty"),
        ({"stop_strings": ["a"]}, "without a tokenizer"),
    ],
)
def test_bad_rules(options, message):
    with pytest.raises(ValueError, match=message):
        stopping.rules(7, **options)


def test_an_end_token_that_is_also_a_stop_token_counts_as_the_end():
    codes = stopping.rules(7, eos=[2], stop_tokens=[2, 3]).codes
    assert codes.tolist() == [0, 0, Stop.EOS, Stop.STOP_TOKEN, 0, 0, 0]
