"""What a round did to a row's text, as segments: accepted, rejected, and the target's own correction or bonus.

Nothing here knows of colors or terminals.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax.streaming import drops_first_space, safe_length
from specjax.text import Streamer, Text, cut_at
from specjax.types import Info


class Fate(enum.Enum):
    """What became of a token."""

    ACCEPTED = "accepted"  # the draft guessed it and the target agreed
    REJECTED = "rejected"  # the draft guessed it and the target refused: no part of the text
    OWN = "own"  # the target's own: a correction, or the bonus after a draft that was right to the end


class Segment(NamedTuple):
    """A piece of text and its fate.

    Attributes:
      aside: the name of a token that has no text: shown, and no part of the text.
    """

    fate: Fate
    text: str
    aside: bool = False


def refused(info: Info, row: int) -> list[int]:
    """Draft tokens at the node where the accepted path ends: those that the target was asked about and refused."""
    if info.tested[row] <= info.accepted[row]:
        return []
    node = 0
    for token in info.committed[row, : info.accepted[row]]:
        node = next((k for k in _offered(info, row, node) if info.proposed[row, k] == token), node)
    return [int(info.proposed[row, k]) for k in _offered(info, row, node)]


def _offered(info: Info, row: int, node: int) -> list[int]:
    return [int(k) for k in np.flatnonzero((info.parents[row] == node) & info.valid[row])]


class RowText:
    """One row's text as it grows: whole characters only, and nothing that may turn out to begin a stop string.

    Args:
      text: the tokenizer; None shows token ids.
      stops: stop strings, which the text ends before.
      marks: keep rejected tokens, and show tokens without text (such as the end of text) as <id>.
    """

    def __init__(self, text: Text | None, *, stops: Sequence[str] = (), marks: bool = False):
        self._pieces = text.pieces() if text else None
        self._streamer = Streamer(text) if text else None
        self._stops, self._marks = [s for s in stops if s], marks
        self._held: list[Segment] = []
        self._drop = text is not None and drops_first_space(text)

    def add(self, info: Info, row: int) -> list[Segment]:
        """The segments that one round completes."""
        emitted, accepted = int(info.emitted[row]), int(info.accepted[row])
        tokens = np.asarray(info.committed[row, :emitted])
        for at, token in enumerate(tokens):
            if at == accepted:
                self._reject(info, row)
            fate = Fate.ACCEPTED if at < accepted else Fate.OWN
            self._hold(fate, self._spelled(int(token)))
            if self._marks and self._pieces is not None and not self._piece(int(token)):
                self._held.append(Segment(fate, self._named(int(token)), aside=True))
        return self._release(safe_length(self._plain(), self._stops))

    def end(self) -> list[Segment]:
        """What was held back: up to the stop string where one ended the row, else all."""
        if self._streamer:
            self._hold(Fate.OWN, self._streamer.end())
        segments = self._release(len(cut_at(self._plain(), self._stops)))
        self._held = []
        return segments

    def _hold(self, fate: Fate, text: str) -> None:
        if text:
            self._held.append(Segment(fate, text))

    def _reject(self, info: Info, row: int) -> None:
        if self._marks:
            self._hold(Fate.REJECTED, "|".join(self._named(token) for token in refused(info, row)))

    def _spelled(self, token: int) -> str:
        return f"{token} " if self._streamer is None else self._streamer.add([token])

    def _piece(self, token: int) -> bytes:
        return self._pieces[token] if self._pieces and token < len(self._pieces) else b""

    def _named(self, token: int) -> str:
        """A token by itself; bytes that are no whole character are written out."""
        if self._pieces is None:
            return f"{token} "
        piece = self._piece(token)
        return piece.decode(errors="backslashreplace") if piece else f"<{token}>"

    def _plain(self) -> str:
        return "".join(s.text for s in self._held if s.fate is not Fate.REJECTED and not s.aside)

    def _release(self, count: int) -> list[Segment]:
        """Takes `count` characters of text off the front, and the rejected segments among them."""
        out: list[Segment] = []
        while self._held:
            segment = self._held[0]
            if segment.fate is Fate.REJECTED or segment.aside:
                if count == 0 and self._plain():
                    break
                out.append(self._held.pop(0))
                continue
            if count == 0:
                break
            part = segment.text[:count]
            shown = part.removeprefix(" ") if self._drop else part
            self._drop = False
            if shown:
                out.append(Segment(segment.fate, shown))
            count -= len(part)
            if len(part) == len(segment.text):
                self._held.pop(0)
            else:
                self._held[0] = Segment(segment.fate, segment.text[len(part) :])
        return out
