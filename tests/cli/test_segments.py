"""Segments: whole characters, stop strings held back, and which draft tokens were rejected."""

import numpy as np
import pytest

from specjax import text, trees
from specjax.cli.live import Fate, RowText, Segment, rejected
from specjax.types import Info
from tests.cli import toys

TEXT = text.from_tokenizer(toys.tokenizer())
EOS = 0


def round_(proposed, committed, accepted, *, valid=None, tested=None, tree=None) -> Info:
    """One row's round; tokens as lists, the root apart."""
    width = len(proposed) + 1
    block = np.zeros((1, width), np.int32)
    block[0, : len(committed)] = committed
    zeros = np.zeros((1, width), np.int32)
    tested = accepted + (len(committed) > accepted and accepted < len(proposed)) if tested is None else tested
    return Info(
        active=np.array([True]), drafted=np.array([len(proposed)]), tested=np.array([int(tested)]),
        accepted=np.array([accepted]), emitted=np.array([len(committed)]), overlap=np.zeros((1,), np.float32),
        depth_tested=zeros, depth_accepted=zeros, proposed=np.array([[0, *proposed]], np.int32),
        parents=np.array([(tree or trees.chain(len(proposed))).parents], np.int32),
        valid=np.array([[True, *(valid or [True] * len(proposed))]]), committed=block,
    )  # fmt: skip


def ids(words: str) -> list[int]:
    return TEXT.encode(words)


def test_fates_of_a_chain():
    row = RowText(TEXT, marks=True)
    segments = row.add(round_(ids("abc"), ids("abX"), 2), 0)
    assert segments == [
        Segment(Fate.ACCEPTED, "a"), Segment(Fate.ACCEPTED, "b"), Segment(Fate.REJECTED, "c"), Segment(Fate.OWN, "X"),
    ]  # fmt: skip
    bonus = row.add(round_(ids("abc"), ids("abcd"), 3), 0)
    assert [s.fate for s in bonus] == [Fate.ACCEPTED] * 3 + [Fate.OWN]


def test_without_marks_rejected_tokens_leave_no_trace():
    row = RowText(TEXT)
    assert "".join(s.text for s in row.add(round_(ids("abc"), ids("abX"), 2), 0)) == "abX"


def test_a_character_split_over_rounds_is_shown_whole():
    euro = ids("\u20ac")
    assert len(euro) == 3
    row = RowText(TEXT, marks=True)
    first = row.add(round_(euro[:2], euro[:2], 2, tested=2), 0)
    second = row.add(round_(ids("zz"), euro[2:], 0), 0)
    assert first == []
    assert second == [Segment(Fate.REJECTED, "z"), Segment(Fate.OWN, "\u20ac")]


def test_bytes_that_never_become_a_character_end_as_one_replacement():
    row = RowText(TEXT)
    shown = row.add(round_([], ids("\u20ac")[:1], 0), 0)
    assert shown == [] and row.end() == [Segment(Fate.OWN, "\ufffd")]


def test_a_rejected_part_of_a_character_is_written_as_its_byte():
    row = RowText(TEXT, marks=True)
    assert row.add(round_(ids("\u20ac")[:1], ids("a"), 0), 0)[0] == Segment(Fate.REJECTED, "\\xe2")


def test_tokens_without_text_are_named_only_with_marks():
    info = round_([EOS], [EOS], 1, tested=1)
    assert RowText(TEXT).add(info, 0) == []
    assert RowText(TEXT, marks=True).add(info, 0) == [Segment(Fate.ACCEPTED, f"<{EOS}>", aside=True)]


def test_stop_strings_are_found_across_token_names():
    """a, a token without text, b: the stop string "ab" cuts there, and the token's name is no part of it."""
    row = RowText(TEXT, stops=["ab"], marks=True)
    shown = [*row.add(round_(ids("xa"), [*ids("xa"), EOS], 2), 0), *row.add(round_([], ids("b"), 0), 0), *row.end()]
    assert "".join(segment.text for segment in shown) == "x"
    row = RowText(TEXT, stops=["ab"], marks=True)
    shown = [*row.add(round_([*ids("xa"), EOS], [*ids("xa"), EOS, EOS], 3), 0), *row.end()]
    assert "".join(segment.text for segment in shown) == "xa<0><0>"


@pytest.mark.parametrize("cuts", [[1] * 9, [4, 5], [9], [2, 3, 4]])
def test_stop_strings_are_never_shown(cuts):
    """The text "say STOP!" with the stop strings "STOP" and "OR": nothing of STOP appears, however rounds cut it."""
    tokens, row, shown = ids("say STOP!"), RowText(TEXT, stops=["STOP", "OR"]), ""
    for size in cuts:
        part, tokens = tokens[:size], tokens[size:]
        shown += "".join(s.text for s in row.add(round_([0] * size, part, 0, tested=0), 0))
        assert "say ".startswith(shown)
    assert shown + "".join(s.text for s in row.end()) == "say "


def test_incomplete_stop_string_is_shown():
    row = RowText(TEXT, stops=["STOP"])
    shown = "".join(s.text for s in row.add(round_([0] * 5, ids("a STO"), 0, tested=0), 0))
    assert shown == "a "
    assert "".join(s.text for s in row.add(round_([0] * 2, ids("RY"), 0, tested=0), 0)) == "STORY"
    row.add(round_([0] * 3, ids("ST"), 0, tested=0), 0)
    assert row.end()[-1].text in ("T", "ST")


def test_rejected_children_of_a_tree():
    """Root with children a, b; a with children c, d. After a was accepted, c and the unproposed d: only c rejected."""
    tree = trees.regular((2, 2))
    a, b, c, d, e, f = ids("abcdef")
    info = round_(
        [a, b, c, d, e, f], [a, ids("z")[0]], 1, valid=[True, True, True, False, True, True], tested=2, tree=tree
    )
    assert rejected(info, 0) == [c]
    everything = info._replace(valid=np.ones((1, 7), bool))
    assert rejected(everything, 0) == [c, d]
    assert rejected(info._replace(tested=np.array([1])), 0) == []


def test_without_a_tokenizer_ids_are_shown():
    row = RowText(None, marks=True)
    assert "".join(s.text for s in row.add(round_([7], [8], 0), 0)) == "7 8 "
