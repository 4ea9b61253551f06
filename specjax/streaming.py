"""What a stream needs beside its rounds: text that may be shown already, and Ctrl-C that waits for a state on loan."""

import contextlib
import copy
import functools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

from specjax.text import Streamer, Text, cut_at


def safe_length(text: str, stops: Sequence[str]) -> int:
    """How many characters of a growing text can be no part of a stop string, whatever follows."""
    cut = len(cut_at(text, stops))
    if cut < len(text):
        return cut
    return len(text) - max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


@functools.lru_cache(maxsize=16)
def drops_first_space(text: Text) -> bool:
    """Whether the tokenizer's own `decode` leaves out the space that a text's first token begins with, as
    SentencePiece's do."""
    spaced = (token for token, piece in enumerate(text.pieces()) if piece[:1] == b" " and piece.strip())
    token = next(spaced, None)
    return token is not None and not text.decode([token]).startswith(" ")


class Writer:
    """One row's text as its tokens arrive: whole characters, and nothing that a stop string may yet cut.

    All that `add` and `end` return together is the text of all tokens, however they were dealt out.
    """

    def __init__(self, text: Text, stops: Sequence[str] = ()):
        self._streamer = Streamer(text)
        self._stops = stops
        self._held = ""
        self._drop = drops_first_space(text)

    def copy(self) -> "Writer":
        """A writer at the same place; adding to either leaves the other as it is."""
        made = copy.copy(self)
        made._streamer = self._streamer.copy()
        return made

    def add(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""
        self._held += self._streamer.add(tokens)
        return self._release(safe_length(self._held, self._stops))

    def end(self) -> str:
        """What was held back: up to the stop string where there is one; bytes of no whole character come as U+FFFD."""
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
    """The text of a whole row, before its first stop string: what a stream of it shows in the end."""
    writer = Writer(text, stops)
    return writer.add(tokens) + writer.end()


@contextlib.contextmanager
def interrupts_wait(on_loan: Callable[[], bool]) -> Iterator[None]:
    """Within it a Ctrl-C that comes while `on_loan()` is true waits for the end of the block; others act at once.

    What is raised at once may come up in a callback that swallows it, as those of the garbage collector do: then it is
    raised again at the end. Whatever handled the signal before handles it, and is restored. Outside the main thread
    nothing is to be done: signals go to the main thread alone.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting = raised = swallowed = False

    def on_interrupt(number, frame) -> None:
        nonlocal waiting, raised
        if on_loan():
            waiting = True
            return
        raised = True
        before(number, frame)
        raised = False  # it has only taken note

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
        swallowed = raised
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting or swallowed:
            before(signal.SIGINT, None)
