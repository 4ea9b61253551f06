"""Rounds as lines of marked tokens: what stood before, what was accepted, refused, corrected. No picture library."""

import enum
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from specjax.text import Text
from specjax.trace.rounds import Block, Trace

PICTURES = {"\n": "\u23ce", "\t": "\u21e5", "\x7f": "\u2421"}  # how characters without a shape are shown

SHAPELESS = ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")  # categories of Unicode


class Mark(enum.Enum):
    """What became of a token; the value is its name in legends."""

    CONTEXT = "committed before"
    ACCEPTED = "drafted, accepted"
    REJECTED = "drafted, rejected"
    UNTESTED = "drafted after a rejection, not tested"
    CORRECTION = "the target's correction"
    BONUS = "the target's own, nothing rejected"


class Cell(NamedTuple):
    """A token on a line."""

    mark: Mark
    text: str

    @property
    def width(self) -> int:
        return columns(self.text)


class Line(NamedTuple):
    """A round of a row: `before` is all that the row held when it began."""

    round: int
    before: str
    cells: tuple[Cell, ...]
    accepted: int
    drafted: int


def speller(text: Text | None) -> Callable[[int], str]:
    """Tokens as text: bytes that are no whole character as \\xe2, tokens without text (and without a tokenizer) as
    their number."""
    pieces = text.pieces() if text else []

    def spell(token: int) -> str:
        piece = pieces[token] if token < len(pieces) else b""
        return piece.decode(errors="backslashreplace") if piece else f"<{token}>"

    return spell


def visible(text: str) -> str:
    """The text with a picture for every character that has no shape of its own."""
    shown = (PICTURES.get(c, chr(0x2400 + ord(c)) if ord(c) < 32 else c) for c in text)
    return "".join("\ufffd" if unicodedata.category(c) in SHAPELESS else c for c in shown)


def columns(text: str) -> int:
    """Cells of a terminal that a text fills: East Asian wide characters take two, combining ones none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def cells(block: Block, spell: Callable[[int], str]) -> tuple[Cell, ...]:
    """A round's tokens: accepted, rejected, untested (of chains), then the target's own.

    Of a tree, the siblings that were refused where the accepted path ends.
    """
    taken = min(block.accepted, len(block.tokens))
    found = [Cell(Mark.ACCEPTED, spell(token)) for token in block.tokens[:taken]]
    refused = [node for node in block.nodes if node.tested and not node.accepted]
    if taken == block.accepted:  # else the row stopped before
        found += [Cell(Mark.REJECTED, spell(node.token)) for node in refused]
        if refused and is_chain(block):
            later = [node for node in block.nodes if node.valid and not node.tested]
            found += [Cell(Mark.UNTESTED, spell(node.token)) for node in later]
    own = Mark.CORRECTION if refused else Mark.BONUS
    found += [Cell(own, spell(token)) for token in block.tokens[taken:]]
    return tuple(Cell(cell.mark, visible(cell.text)) for cell in found)


def is_chain(block: Block) -> bool:
    """Whether every node continues the one before it."""
    return all(node.parent == node.node - 1 for node in block.nodes)


def lines(trace: Trace, row: int, text: Text | None, *, most: int | None = None) -> list[Line]:
    """The rounds of a row, the first `most` of them. An encoder-decoder's text begins empty."""
    spell = speller(text)
    before = "" if trace.encoder_decoder else "".join(map(spell, trace.prompts[row]))
    found = []
    for block in trace.blocks(row)[:most]:
        proposed = sum(node.valid for node in block.nodes)
        found.append(Line(block.round, visible(before), cells(block, spell), block.accepted, proposed))
        before += "".join(map(spell, block.tokens))
    return found


def wrap(line: Line, width: int, *, context: int, pad: int = 1) -> list[list[Cell]]:
    """The line in rows of at most `width` columns: the end of what stood before, then the cells.

    Args:
      context: columns that what stood before may take, at least; it takes all that the cells leave.
      pad: columns that a cell takes beside its text.
    """
    needed = sum(cell.width + pad for cell in line.cells)
    room = max(width - needed, context)
    first = [Cell(Mark.CONTEXT, tail(line.before, room))] if line.before else []
    rows, taken = [first], sum(cell.width for cell in first)
    for cell in line.cells:
        for part in pieces(cell, width - pad):
            if taken + part.width + pad > width:
                rows.append([])
                taken = 0
            rows[-1].append(part)
            taken += part.width + pad
    return rows


def pieces(cell: Cell, width: int) -> list[Cell]:
    """The cell, or parts of it that fit into a row each."""
    if cell.width <= width:
        return [cell]
    step = max(width // 2, 1)  # half, since a character may take two columns
    return [Cell(cell.mark, cell.text[at : at + step]) for at in range(0, len(cell.text), step)]


def tail(text: str, width: int) -> str:
    """The end of a text in at most `width` columns, after an ellipsis where something is left out."""
    if columns(text) <= width:
        return text
    kept = ""
    for char in reversed(text):
        if columns(char + kept) > width - 1:
            break
        kept = char + kept
    return "\u2026" + kept


def used(found: Sequence[Line]) -> list[Mark]:
    """The marks that occur, in the order of the legend."""
    seen = {cell.mark for line in found for cell in line.cells}
    if any(line.before for line in found):
        seen.add(Mark.CONTEXT)
    return [mark for mark in Mark if mark in seen]
