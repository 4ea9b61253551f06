"""Lines of marked tokens, by hand."""

import numpy as np
import pytest

from specjax import text, trees
from specjax.trace import strip
from specjax.trace.rounds import TraceRound
from specjax.trace.strip import Mark, StripCell, StripLine
from tests.cli import toys
from tests.cli.test_segments import ids, round_
from tests.trace import made
from tests.trace.test_rounds import row_round

TEXT = text.from_tokenizer(toys.tokenizer())
SPELL = strip.speller(TEXT)


def cells(*args, **options):
    return [(cell.mark, cell.text) for cell in strip.cells(row_round(round_(*args, **options)), SPELL)]


def test_rejection_and_correction():
    assert cells(ids("abcd"), ids("aX"), 1) == [
        (Mark.ACCEPTED, "a"), (Mark.REJECTED, "b"), (Mark.UNTESTED, "c"), (Mark.UNTESTED, "d"), (Mark.CORRECTION, "X"),
    ]  # fmt: skip


def test_fully_accepted_draft_and_bonus():
    assert cells(ids("ab"), ids("abc"), 2) == [(Mark.ACCEPTED, "a"), (Mark.ACCEPTED, "b"), (Mark.BONUS, "c")]
    assert cells([], ids("c"), 0) == [(Mark.BONUS, "c")]
    assert cells(ids("ab"), ids("c"), 0, valid=[False, False], tested=0) == [(Mark.BONUS, "c")]


def test_row_that_stops_within_a_round():
    info = round_(ids("abc"), ids("abcX"), 3, tested=3)._replace(emitted=np.array([1]))
    assert [(cell.mark, cell.text) for cell in strip.cells(row_round(info), SPELL)] == [(Mark.ACCEPTED, "a")]


def test_rejected_siblings_of_a_tree():
    """a was accepted, its children c and d rejected; the other branch is left out."""
    found = cells(ids("abcdef"), ids("aX"), 1, tree=trees.regular((2, 2)), tested=2)
    assert found == [(Mark.ACCEPTED, "a"), (Mark.REJECTED, "c"), (Mark.REJECTED, "d"), (Mark.CORRECTION, "X")]


def test_tokens_without_glyphs_are_visible():
    assert [SPELL(token) for token in (0, *ids("a\u20ac")[:2])] == ["<0>", "a", "\\xe2"]
    assert strip.speller(None)(7) == "<7>"
    assert strip.visible("a\n\t\x1b[\x7f\x9b\u20ac") == "a\u23ce\u21e5\u241b[\u2421\ufffd\u20ac"


def test_columns_and_tails():
    assert (strip.columns("ab"), strip.columns("漢字"), strip.columns("e\u0301")) == (2, 4, 1)
    assert strip.tail("abcdef", 6) == "abcdef" and strip.tail("abcdef", 4) == "\u2026def"
    assert strip.tail("漢字漢", 4) == "\u2026漢"


@pytest.mark.parametrize("width", [8, 12, 40])
def test_wrapped_lines_fit_and_are_complete(width):
    parts = tuple(StripCell(Mark.ACCEPTED, word) for word in ("one", "twotwo", "x" * 50, "漢字", "y"))
    rows = strip.wrap(StripLine(1, "before that", parts, 5, 5), width, context=4)
    assert all(sum(c.width + (c.mark is not Mark.CONTEXT) for c in row) <= width for row in rows)
    assert (
        "".join(c.text for row in rows for c in row if c.mark is not Mark.CONTEXT) == "onetwotwo" + "x" * 50 + "漢字y"
    )
    assert rows[0][0] == StripCell(Mark.CONTEXT, "\u2026hat")  # the least context, four columns


def test_context_fills_the_remaining_columns():
    (row,) = strip.wrap(StripLine(1, "abcdefghij", (StripCell(Mark.BONUS, "xy"),), 0, 0), 10, context=2)
    assert [cell.text for cell in row] == ["\u2026efghij", "xy"]


def test_context_starts_with_the_prompt_of_a_decoder_only_model():
    blocks = [row_round(round_(ids("ab"), ids("aX"), 1)), row_round(round_(ids("cd"), ids("cde"), 2))]
    rounds = [TraceRound(n, (one,), 0.5, 0.5) for n, one in enumerate(blocks, start=1)]
    trace = made.trace(rounds, prompts=[ids("So")])
    assert [line.before for line in strip.lines(trace, 0, TEXT)] == ["So", "SoaX"]
    assert [(line.accepted, line.drafted) for line in strip.lines(trace, 0, TEXT)] == [(1, 2), (2, 2)]
    trace = trace._replace(encoder_decoder=True)
    assert [line.before for line in strip.lines(trace, 0, TEXT, most=1)] == [""]
    assert strip.used(strip.lines(trace, 0, TEXT)) == [
        Mark.CONTEXT, Mark.ACCEPTED, Mark.REJECTED, Mark.CORRECTION, Mark.BONUS,
    ]  # fmt: skip
