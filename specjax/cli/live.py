"""Text on the screen while it is written: one row streams, several stand in panels; color, or marks without color."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text as Line

from specjax.cli.segments import Fate, Segment

STYLES = {Fate.ACCEPTED: "green", Fate.REJECTED: "red strike", Fate.OWN: "bold blue"}
MARKS = {Fate.ACCEPTED: ("", ""), Fate.REJECTED: ("[-", "-]"), Fate.OWN: ("{+", "+}")}


@runtime_checkable
class Sink(Protocol):
    """Where rows' text goes. `add` may be called for any row at any time; `end` once a row; `close` at the end."""

    def add(self, row: int, segments: Sequence[Segment]) -> None: ...

    def end(self, row: int) -> None: ...

    def close(self) -> None: ...


def colored(console: Console) -> bool:
    """Whether colors reach the reader: on a terminal, unless NO_COLOR or the terminal says otherwise."""
    return console.is_terminal and not console.no_color and console.color_system is not None


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters but for line breaks and tabs become visible pictures."""
    return "".join(chr(0x2400 + ord(c)) if ord(c) < 32 and c not in "\n\t" else c for c in text).translate(
        {0x7F: "␡", 0x9B: "␛"}
    )


def render(segments: Sequence[Segment], *, colors: bool, marks: bool) -> Line:
    """Segments as one text: plain without `marks`, else colored, or between [- -] and {+ +} where there is no color.

    Line breaks in a rejected token are shown as ⏎: they are no part of the text.
    """
    line = Line(end="")
    for segment in segments:
        text = printable(segment.text)
        if segment.fate is Fate.REJECTED:
            text = text.replace("\n", "⏎")
        if not marks:
            line.append(text)
        elif colors:
            line.append(text, style=STYLES[segment.fate])
        else:
            opening, closing = MARKS[segment.fate]
            line.append(f"{opening}{text}{closing}")
    return line


class Silent:
    """Shows nothing: --json."""

    def add(self, row: int, segments: Sequence[Segment]) -> None:
        del row, segments

    def end(self, row: int) -> None:
        del row

    def close(self) -> None:
        pass


class InOrder:
    """Rows one after the other: the first that runs streams, the others wait their turn. Files and pipes get this.

    Args:
      console: of stdout.
      heads: what stands before each row's text; empty strings for none.
      marks: show what was drafted.
    """

    def __init__(self, console: Console, heads: Sequence[str], *, marks: bool):
        self._console, self._heads, self._marks = console, heads, marks
        self._waiting: list[list[Segment]] = [[] for _ in heads]
        self._ended = [False] * len(heads)
        self._at = 0
        self._open()

    def _open(self) -> None:
        head = self._heads[self._at]
        if len(self._heads) > 1 and head:
            self._console.rule(f"{self._at + 1} of {len(self._heads)}", style="dim")
        self._write(Line(printable(head), style="bold" if colored(self._console) else "", end=""))

    def _write(self, line: Line) -> None:
        self._console.print(line, end="", soft_wrap=True, markup=False, highlight=False)
        self._console.file.flush()

    def add(self, row: int, segments: Sequence[Segment]) -> None:
        self._waiting[row] += segments
        if row == self._at:
            self._flush()

    def _flush(self) -> None:
        segments, self._waiting[self._at] = self._waiting[self._at], []
        if segments:
            self._write(render(segments, colors=colored(self._console), marks=self._marks))

    def end(self, row: int) -> None:
        self._ended[row] = True
        while self._at < len(self._heads) and self._ended[self._at]:
            self._flush()
            self._write(Line("\n", end=""))
            self._at += 1
            if self._at < len(self._heads):
                self._open()
                self._flush()

    def close(self) -> None:
        for row in range(self._at, len(self._heads)):
            self.end(row)


class Panels:
    """All rows at once, each in a panel that grows; at the end the whole panels stay on the screen. For terminals."""

    def __init__(self, console: Console, heads: Sequence[str], *, marks: bool):
        self._console, self._marks, self._colors = console, marks, colored(console)
        self._lines = [Line(printable(head), style="") for head in heads]
        for line in self._lines:
            line.stylize("bold")
        self._live = Live(console=console, refresh_per_second=12, transient=True, get_renderable=self._tails)
        self._live.start()

    def _panels(self, lines: Sequence[Line]) -> Group:
        titles = (f"{number} of {len(lines)}" for number in range(1, len(lines) + 1))
        return Group(*(Panel(line, title=title, border_style="dim") for line, title in zip(lines, titles, strict=True)))

    def _tails(self) -> Group:
        """What fits on the screen: the last lines of each row."""
        room = max(1, self._console.height // len(self._lines) - 3)
        width = max(10, self._console.width - 4)
        tails = []
        for line in self._lines:
            wrapped = line.wrap(self._console, width)
            tails.append(Line("\n").join(wrapped[-room:]))
        return self._panels(tails)

    def add(self, row: int, segments: Sequence[Segment]) -> None:
        self._lines[row].append_text(render(segments, colors=self._colors, marks=self._marks))

    def end(self, row: int) -> None:
        del row

    def close(self) -> None:
        self._live.stop()
        self._console.print(self._panels(self._lines))
