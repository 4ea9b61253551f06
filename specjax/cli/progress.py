"""Consoles and progress lines."""

import os
import time
from collections.abc import Callable

from rich.console import Console
from rich.status import Status

FILE_COLUMNS = 160
NARROWEST = 40  # columns: with fewer, a table shows its labels alone, and with none rich prints nothing at all
QUIET = 60.0  # seconds between progress lines if stderr is a file


def open_console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr of at least `NARROWEST` columns."""
    console = Console(stderr=stderr, highlight=False)
    if console.width < NARROWEST:  # else the width follows the terminal, which may change
        console.width = NARROWEST
    return console


def tables_and_errors() -> tuple[Console, Console]:
    """Consoles on stdout, for tables, and on stderr. Files and pipes have `FILE_COLUMNS` columns unless COLUMNS is set
    (0 counts as unset), so that no column is cut to a terminal that does not exist."""
    console = open_console()
    if not console.is_terminal and os.environ.get("COLUMNS", "0") == "0":
        console.width = FILE_COLUMNS
    return console, open_console(stderr=True)


class Progress:
    """One line on stderr that shows what is going on; nothing if `show` is False.

    If stderr is a file or a pipe, progress is written as separate lines, at most one every `QUIET` seconds, the first
    after that time: short work prints nothing.
    """

    def __init__(self, console: Console, *, show: bool, clock: Callable[[], float] = time.monotonic):
        self._console, self._show, self._clock = console, show, clock
        self._status: Status | None = None
        self._written = clock()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception) -> None:
        self.clear()

    def update(self, text: str) -> None:
        """Shows the line, or changes it."""
        if not self._show:
            return
        if not self._console.is_terminal:
            if self._clock() >= self._written + QUIET:
                self._written = self._clock()
                self._console.print(text, markup=False, soft_wrap=True)
        elif self._status is None:
            self._status = self._console.status(text, refresh_per_second=4)  # it may be shown during a timed run
            self._status.start()
        else:
            self._status.update(text)

    def clear(self) -> None:
        """Removes the line, so that stdout may use the same screen."""
        if self._status is not None:
            self._status.stop()
            self._status = None
