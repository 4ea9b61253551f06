"""Streamed text: whole characters only, and nothing that a stop string may cut."""

import functools
from collections.abc import Sequence

from specjax.text import Streamer, Text, cut_at


def safe_length(text: str, stops: Sequence[str]) -> int:
    """Number of characters of a growing text that cannot be part of a stop string, whatever follows."""
    cut = len(cut_at(text, stops))
    if cut < len(text):
        return cut
    return len(text) - max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


@functools.lru_cache(maxsize=16)
def drops_first_space(text: Text) -> bool:
    """Whether the tokenizer's `decode` removes the space at the start of a text, as SentencePiece's does."""
    spaced = (token for token, piece in enumerate(text.pieces()) if piece[:1] == b" " and piece.strip())
    token = next(spaced, None)
    return token is not None and not text.decode([token]).startswith(" ")


class Writer:
    """Text of one row as its tokens arrive: whole characters, and nothing that a stop string may still cut.

    The strings returned by `add` and `end`, joined, are the text of all tokens, however they were split over calls.
    """

    def __init__(self, text: Text, stops: Sequence[str] = ()):
        self._streamer = Streamer(text)
        self._stops = stops
        self._held = ""
        self._drop = drops_first_space(text)

    def copy(self) -> "Writer":
        """A writer at the same place; adding to either leaves the other as it is."""
        made = object.__new__(Writer)
        made._streamer, made._stops = self._streamer.copy(), self._stops
        made._held, made._drop = self._held, self._drop
        return made

    def add(self, tokens: Sequence[int]) -> str:
        """Adds tokens, and returns the text that they complete."""
        self._held += self._streamer.add(tokens)
        return self._release(safe_length(self._held, self._stops))

    def end(self) -> str:
        """The text held back, up to a stop string if there is one; bytes of an incomplete character become U+FFFD."""
        self._held += self._streamer.end()
        text = self._release(len(cut_at(self._held, self._stops)))
        self._held = ""
        return text

    def _release(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        if text and self._drop:
            self._drop = False
            return text.removeprefix(" ")
        return text


def spelled(text: Text, tokens: Sequence[int], stops: Sequence[str] = ()) -> str:
    """Text of a whole row before its first stop string: the joined text of a `Writer`."""
    writer = Writer(text, stops)
    return writer.add(tokens) + writer.end()
