"""Rounds as lines of marked tokens: context, accepted, rejected, corrected. No plotting library."""

import enum
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from specjax.text import Text
from specjax.trace.rounds import RowRound, Trace

SYMBOLS = {"\n": "\u23ce", "\t": "\u21e5", "\x7f": "\u2421"}  # of characters without a glyph

NO_GLYPH = ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")  # Unicode categories


class Mark(enum.Enum):
    """The fate of a token; the value is the label in legends."""

    CONTEXT = "committed before"
    ACCEPTED = "drafted, accepted"
    REJECTED = "drafted, rejected"
    UNTESTED = "drafted after a rejection, not tested"
    CORRECTION = "correction by the target"
    BONUS = "bonus token of the target, nothing rejected"


class StripCell(NamedTuple):
    """A token in a line."""

    mark: Mark
    text: str

    @property
    def width(self) -> int:
        return columns(self.text)


class StripLine(NamedTuple):
    """A round of a row. `before` is the text of the row at the start of the round."""

    round: int
    before: str
    cells: tuple[StripCell, ...]
    accepted: int
    drafted: int


def speller(text: Text | None) -> Callable[[int], str]:
    """A function from tokens to text: incomplete characters as \\xe2, tokens without text as their number."""
    pieces = text.pieces() if text else []

    def spell(token: int) -> str:
        piece = pieces[token] if token < len(pieces) else b""
        return piece.decode(errors="backslashreplace") if piece else f"<{token}>"

    return spell


def visible(text: str) -> str:
    """The text with a symbol for every character that has no glyph."""
    shown = (SYMBOLS.get(c, chr(0x2400 + ord(c)) if ord(c) < 32 else c) for c in text)
    return "".join("\ufffd" if unicodedata.category(c) in NO_GLYPH else c for c in shown)


def columns(text: str) -> int:
    """Terminal columns of a text: two for East Asian wide characters, none for combining ones."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def cells(one: RowRound, spell: Callable[[int], str]) -> tuple[StripCell, ...]:
    """The tokens of a round: accepted, rejected, untested (chains only), then the token of the target.

    For a tree, the rejected tokens are the siblings below the end of the accepted path.
    """
    taken = min(one.accepted, len(one.tokens))
    found = [StripCell(Mark.ACCEPTED, spell(token)) for token in one.tokens[:taken]]
    rejected = [node for node in one.nodes if node.tested and not node.accepted]
    if taken == one.accepted:  # else the row stopped earlier
        found += [StripCell(Mark.REJECTED, spell(node.token)) for node in rejected]
        if rejected and is_chain(one):
            later = [node for node in one.nodes if node.valid and not node.tested]
            found += [StripCell(Mark.UNTESTED, spell(node.token)) for node in later]
    own = Mark.CORRECTION if rejected else Mark.BONUS
    found += [StripCell(own, spell(token)) for token in one.tokens[taken:]]
    return tuple(StripCell(cell.mark, visible(cell.text)) for cell in found)


def is_chain(one: RowRound) -> bool:
    """Whether every node is the child of the previous node."""
    return all(node.parent == node.node - 1 for node in one.nodes)


def lines(trace: Trace, row: int, text: Text | None, *, most: int | None = None) -> list[StripLine]:
    """The first `most` rounds of a row. The output of an encoder-decoder starts empty."""
    spell = speller(text)
    before = "" if trace.encoder_decoder else "".join(map(spell, trace.prompts[row]))
    found = []
    for one in trace.row(row)[:most]:
        proposed = sum(node.valid for node in one.nodes)
        found.append(StripLine(one.round, visible(before), cells(one, spell), one.accepted, proposed))
        before += "".join(map(spell, one.tokens))
    return found


def wrap(line: StripLine, width: int, *, context: int, pad: int = 1) -> list[list[StripCell]]:
    """The line in rows of at most `width` columns: the end of the context, then the cells.

    Args:
      context: least columns for the context, which takes all columns that the cells leave.
      pad: columns of a cell in addition to its text.
    """
    needed = sum(cell.width + pad for cell in line.cells)
    room = max(width - needed, context)
    first = [StripCell(Mark.CONTEXT, tail(line.before, room))] if line.before else []
    rows, taken = [first], sum(cell.width for cell in first)
    for cell in line.cells:
        for part in pieces(cell, width - pad):
            if taken + part.width + pad > width:
                rows.append([])
                taken = 0
            rows[-1].append(part)
            taken += part.width + pad
    return rows


def pieces(cell: StripCell, width: int) -> list[StripCell]:
    """The cell, split into parts of at most one row."""
    if cell.width <= width:
        return [cell]
    step = max(width // 2, 1)  # half, since a character may take two columns
    return [StripCell(cell.mark, cell.text[at : at + step]) for at in range(0, len(cell.text), step)]


def tail(text: str, width: int) -> str:
    """The end of a text in at most `width` columns, with an ellipsis if shortened."""
    if columns(text) <= width:
        return text
    kept = ""
    for char in reversed(text):
        if columns(char + kept) > width - 1:
            break
        kept = char + kept
    return "\u2026" + kept


def used(found: Sequence[StripLine]) -> list[Mark]:
    """The marks that occur, in legend order."""
    seen = {cell.mark for line in found for cell in line.cells}
    if any(line.before for line in found):
        seen.add(Mark.CONTEXT)
    return [mark for mark in Mark if mark in seen]
