"""Lines of marked tokens, by hand."""

import numpy as np
import pytest

from specjax import text, trees
from specjax.trace import strip
from specjax.trace.rounds import Round, Times
from specjax.trace.strip import Cell, Line, Mark
from tests.cli import toys
from tests.cli.test_segments import ids, round_
from tests.trace import made
from tests.trace.test_rounds import block

TEXT = text.from_tokenizer(toys.tokenizer())
SPELL = strip.speller(TEXT)


def cells(*args, **options):
    return [(cell.mark, cell.text) for cell in strip.cells(block(round_(*args, **options)), SPELL)]


def test_a_rejection_leaves_the_rest_untested_and_brings_a_correction():
    assert cells(ids("abcd"), ids("aX"), 1) == [
        (Mark.ACCEPTED, "a"), (Mark.REJECTED, "b"), (Mark.UNTESTED, "c"), (Mark.UNTESTED, "d"), (Mark.CORRECTION, "X"),
    ]  # fmt: skip


def test_a_draft_that_was_right_to_the_end_brings_a_bonus():
    assert cells(ids("ab"), ids("abc"), 2) == [(Mark.ACCEPTED, "a"), (Mark.ACCEPTED, "b"), (Mark.BONUS, "c")]
    assert cells([], ids("c"), 0) == [(Mark.BONUS, "c")]
    assert cells(ids("ab"), ids("c"), 0, valid=[False, False], tested=0) == [(Mark.BONUS, "c")]


def test_a_row_that_stops_inside_shows_no_more_than_it_has():
    info = round_(ids("abc"), ids("abcX"), 3, tested=3)._replace(emitted=np.array([1]))
    assert [(cell.mark, cell.text) for cell in strip.cells(block(info), SPELL)] == [(Mark.ACCEPTED, "a")]


def test_refused_siblings_of_a_tree():
    """a was accepted, its children c and d refused; the other branch is left out."""
    found = cells(ids("abcdef"), ids("aX"), 1, tree=trees.regular((2, 2)), tested=2)
    assert found == [(Mark.ACCEPTED, "a"), (Mark.REJECTED, "c"), (Mark.REJECTED, "d"), (Mark.CORRECTION, "X")]


def test_tokens_are_spelled_so_that_they_can_be_seen():
    assert [SPELL(token) for token in (0, *ids("a\u20ac")[:2])] == ["<0>", "a", "\\xe2"]
    assert strip.speller(None)(7) == "<7>"
    assert strip.visible("a\n\t\x1b[\x7f\x9b\u20ac") == "a\u23ce\u21e5\u241b[\u2421\ufffd\u20ac"


def test_columns_and_tails():
    assert (strip.columns("ab"), strip.columns("漢字"), strip.columns("e\u0301")) == (2, 4, 1)
    assert strip.tail("abcdef", 6) == "abcdef" and strip.tail("abcdef", 4) == "\u2026def"
    assert strip.tail("漢字漢", 4) == "\u2026漢"


@pytest.mark.parametrize("width", [8, 12, 40])
def test_wrapped_lines_fit_and_lose_nothing(width):
    parts = tuple(Cell(Mark.ACCEPTED, word) for word in ("one", "twotwo", "x" * 50, "漢字", "y"))
    rows = strip.wrap(Line(1, "before that", parts, 5, 5), width, context=4)
    assert all(sum(c.width + (c.mark is not Mark.CONTEXT) for c in row) <= width for row in rows)
    assert (
        "".join(c.text for row in rows for c in row if c.mark is not Mark.CONTEXT) == "onetwotwo" + "x" * 50 + "漢字y"
    )
    assert rows[0][0] == Cell(Mark.CONTEXT, "\u2026hat")  # four columns: the cells would take them all


def test_what_stood_before_takes_what_the_cells_leave():
    (row,) = strip.wrap(Line(1, "abcdefghij", (Cell(Mark.BONUS, "xy"),), 0, 0), 10, context=2)
    assert [cell.text for cell in row] == ["\u2026efghij", "xy"]


def test_lines_go_on_from_the_prompt_or_from_nothing():
    blocks = [block(round_(ids("ab"), ids("aX"), 1)), block(round_(ids("cd"), ids("cde"), 2))]
    rounds = [Round(n, (one,), Times(1.0, 0.5, 0.5)) for n, one in enumerate(blocks, start=1)]
    trace = made.trace(rounds, prompts=[ids("So")])
    assert [line.before for line in strip.lines(trace, 0, TEXT)] == ["So", "SoaX"]
    assert [(line.accepted, line.drafted) for line in strip.lines(trace, 0, TEXT)] == [(1, 2), (2, 2)]
    trace = trace._replace(encoder_decoder=True)
    assert [line.before for line in strip.lines(trace, 0, TEXT, most=1)] == [""]
    assert strip.used(strip.lines(trace, 0, TEXT)) == [
        Mark.CONTEXT, Mark.ACCEPTED, Mark.REJECTED, Mark.CORRECTION, Mark.BONUS,
    ]  # fmt: skip
