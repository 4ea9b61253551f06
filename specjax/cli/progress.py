"""Consoles, progress on stderr, and Ctrl-C that waits for the round under way."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.status import Status

FILE_COLUMNS = 160
NARROWEST = 40  # columns: with fewer a table shows its labels alone, and with none rich prints nothing at all
QUIET = 60.0  # seconds between lines of progress where stderr is a file


def open_console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr of `NARROWEST` columns or more, whatever COLUMNS or the terminal says."""
    console = Console(stderr=stderr, highlight=False)
    if console.width < NARROWEST:  # else the width stays the terminal's, which may change
        console.width = NARROWEST
    return console


def tables_and_errors() -> tuple[Console, Console]:
    """Consoles on stdout, for tables, and on stderr. What goes into a file or a pipe has `FILE_COLUMNS` columns where
    COLUMNS does not say otherwise (0 says nothing): no column is cut to a terminal that is not there."""
    console = open_console()
    if not console.is_terminal and os.environ.get("COLUMNS", "0") == "0":
        console.width = FILE_COLUMNS
    return console, open_console(stderr=True)


class Progress:
    """One line on stderr that says what is going on; nothing where `show` is False.

    Where stderr is a file or a pipe, what is going on is written as a line of its own, no more often than every `QUIET`
    seconds, the first so long after the start: work that is short says nothing.
    """

    def __init__(self, console: Console, *, show: bool, clock: Callable[[], float] = time.monotonic):
        self._console, self._show, self._clock = console, show, clock
        self._status: Status | None = None
        self._told = clock()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception) -> None:
        self.clear()

    def tell(self, text: str) -> None:
        """Shows the line, or changes it."""
        if not self._show:
            return
        if not self._console.is_terminal:
            if self._clock() >= self._told + QUIET:
                self._told = self._clock()
                self._console.print(text, markup=False, soft_wrap=True)
        elif self._status is None:
            self._status = self._console.status(text, refresh_per_second=4)  # it may stand beside a timed run
            self._status.start()
        else:
            self._status.update(text)

    def clear(self) -> None:
        """Takes the line away, so that stdout may use the same screen."""
        if self._status is not None:
            self._status.stop()
            self._status = None


@contextlib.contextmanager
def deferred_interrupt(once: Callable[[], bool] = lambda: True) -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C only makes the yielded function return True; a second one raises as usual.

    Until `once()` is true there is nothing to lose, and every Ctrl-C raises as usual; where a callback swallows what is
    raised, as those of the garbage collector do, the function returns True from then on.
    """
    asked = False

    def on_interrupt(*_) -> None:
        nonlocal asked
        at_once = asked or not once()
        asked = True
        if at_once:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield lambda: asked
        return
    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
