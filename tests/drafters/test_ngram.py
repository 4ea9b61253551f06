"""The rule of prompt lookup, against its definition in plain Python and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters
from specjax.drafters.ngram import lookup, ngram_drafter
from tests import battery

SLOTS = 12


def rule(row: list[int], longest: int, shortest: int) -> int | None:
    """Where the continuation of the longest, then latest, earlier match begins."""
    for size in range(min(longest, len(row) - 1), shortest - 1, -1):
        for end in range(len(row) - 1, size - 1, -1):
            if row[end - size : end] == row[-size:]:
                return end
    return None


def found(rows: list[list[int]], longest: int = 3, shortest: int = 1) -> list[int | None]:
    tokens = np.full((len(rows), SLOTS), 1, np.int32)  # tokens past a row's length would match
    for row, content in zip(tokens, rows, strict=True):
        row[: len(content)] = content
    length = jnp.asarray([len(row) for row in rows], jnp.int32)
    find = jax.jit(lookup, static_argnames=("longest", "shortest"))
    follow, has = jax.device_get(find(jnp.asarray(tokens), length, longest=longest, shortest=shortest))
    return [int(f) if h else None for f, h in zip(follow, has, strict=True)]


def test_lookup_by_hand():
    #        0  1  2  3  4  5  6  7
    rows = [
        [5, 6, 7, 8, 5, 6],  # "5 6" at 0: its continuation begins at 2
        [5, 6, 7, 5, 6, 8, 5, 6],  # twice: the latest
        [4, 5, 6, 7, 6, 9, 4, 5, 6],  # "4 5 6" at 0 beats the later "6"
        [5, 6, 7],  # nothing
        [5],  # a token does not match itself
        [5, 5],  # a match may touch what it matches
    ]
    assert found(rows) == [2, 5, 3, None, None, 1]
    assert found(rows, shortest=2) == [2, 5, 3, None, None, None]
    assert found(rows, longest=1) == [2, 5, 5, None, None, 1]


@pytest.mark.parametrize(("longest", "shortest"), [(3, 1), (2, 2), (4, 2), (1, 1)])
def test_lookup_on_random_rows(longest, shortest):
    rng = np.random.default_rng(longest)
    rows = [rng.integers(0, 3, rng.integers(1, SLOTS + 1)).tolist() for _ in range(200)]
    expected = [rule(row, longest, shortest) for row in rows]
    assert found(rows, longest, shortest) == expected
    assert None in expected
    assert len(set(expected)) > 5


def test_proposals_follow_the_match_up_to_the_end_of_the_text():
    drafter = battery.jitted(ngram_drafter(4, 3, 1))
    prompt = jnp.asarray([[5, 6, 7, 8, 5, 6], [5, 6, 7, 0, 0, 0], [2, 3, 2, 3, 0, 0]], jnp.int32)
    state = drafter.init((), prompt, jnp.asarray([6, 3, 4], jnp.int32), SLOTS, None)
    draft, state = drafter.propose((), None, state, jnp.asarray([6, 7, 3], jnp.int32), None)
    assert draft.log_q is None  # copied, not drawn
    assert draft.valid.tolist() == [[True] * 5, [True] + [False] * 4, [True, True, True, False, False]]
    assert draft.tokens[0].tolist() == [6, 7, 8, 5, 6]
    assert draft.tokens[2, :3].tolist() == [3, 2, 3]  # the text ends there: no more is known
    committed = battery.commit_of([[7, 9, 1, 1, 1], [1, 1, 1, 1, 1], [2, 1, 1, 1, 1]], [2, 0, 1])
    state = drafter.commit((), state, committed)
    assert state.length.tolist() == [8, 3, 5]
    assert [row[:n].tolist() for row, n in zip(state.tokens, state.length, strict=True)] == [
        [5, 6, 7, 8, 5, 6, 7, 9], [5, 6, 7], [2, 3, 2, 3, 2],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "name"),
    [({"gamma": 0}, "gamma"), ({"longest": 1, "shortest": 2}, "shortest"), ({"shortest": 0}, "shortest")],
)
def test_lengths_out_of_range_are_refused(options, name):
    with pytest.raises(ValueError, match=name):
        drafters.ngram(**options)


def test_the_control_rule_is_not_the_first_match():
    """The reference above distinguishes the latest match from the first: in some rows they differ."""
    row = [5, 6, 7, 5, 6, 8, 5, 6]
    assert rule(row, 3, 1) == 5 != 2
    assert jax.device_get(found([row])) == [5]
