"""Text on the screen while it is generated: a row's rounds as segments with their fate, and where they are shown.

One row streams; several rows are shown in panels on a terminal, else one after another. Draft tokens are marked by
color, or by brackets without color.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text as Line

from specjax.streaming import drops_first_space, safe_length
from specjax.text import Streamer, Text, cut_at
from specjax.types import Info

# --- segments --------------------------------------------------------------------------------------------------------


class Fate(enum.Enum):
    """Whether a token was drafted, and whether it was accepted."""

    ACCEPTED = "accepted"  # a draft token that the verifier accepted
    REJECTED = "rejected"  # a draft token that the verifier rejected: not part of the text
    OWN = "own"  # sampled from the target: a correction, or the bonus token after a draft that was accepted whole


class Segment(NamedTuple):
    """A piece of text and its fate.

    Attributes:
      aside: the name of a token without text: shown, but not part of the text.
    """

    fate: Fate
    text: str
    aside: bool = False


def rejected(info: Info, row: int) -> list[int]:
    """Rejected draft tokens: the children of the node where the accepted path ends."""
    if info.tested[row] <= info.accepted[row]:
        return []
    node = 0
    for token in info.committed[row, : info.accepted[row]]:
        node = next((k for k in _offered(info, row, node) if info.proposed[row, k] == token), node)
    return [int(info.proposed[row, k]) for k in _offered(info, row, node)]


def _offered(info: Info, row: int, node: int) -> list[int]:
    return [int(k) for k in np.flatnonzero((info.parents[row] == node) & info.valid[row])]


class RowText:
    """One row's text as it grows: only whole characters, and nothing that may be the beginning of a stop string.

    Args:
      text: tokenizer; None shows token ids.
      stops: stop strings; the text ends before the first one.
      marks: keep rejected tokens, and show tokens without text (such as end of text) as <id>.
    """

    def __init__(self, text: Text | None, *, stops: Sequence[str] = (), marks: bool = False):
        self._pieces = text.pieces() if text else None
        self._streamer = Streamer(text) if text else None
        self._stops, self._marks = [s for s in stops if s], marks
        self._held: list[Segment] = []
        self._drop = text is not None and drops_first_space(text)

    def add(self, info: Info, row: int) -> list[Segment]:
        """Segments that a round completes."""
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
        """Segments that were held back, up to the stop string if there is one."""
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
            self._hold(Fate.REJECTED, "|".join(self._named(token) for token in rejected(info, row)))

    def _spelled(self, token: int) -> str:
        return f"{token} " if self._streamer is None else self._streamer.add([token])

    def _piece(self, token: int) -> bytes:
        return self._pieces[token] if self._pieces and token < len(self._pieces) else b""

    def _named(self, token: int) -> str:
        """Text of a single token; bytes that are not a whole character are escaped."""
        if self._pieces is None:
            return f"{token} "
        piece = self._piece(token)
        return piece.decode(errors="backslashreplace") if piece else f"<{token}>"

    def _plain(self) -> str:
        return "".join(s.text for s in self._held if s.fate is not Fate.REJECTED and not s.aside)

    def _release(self, count: int) -> list[Segment]:
        """Removes `count` characters of text from the front, and the rejected segments between them."""
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


# --- the screen ------------------------------------------------------------------------------------------------------

STYLES = {Fate.ACCEPTED: "green", Fate.REJECTED: "red strike", Fate.OWN: "bold blue"}
MARKS = {Fate.ACCEPTED: ("", ""), Fate.REJECTED: ("[-", "-]"), Fate.OWN: ("{+", "+}")}


@runtime_checkable
class Sink(Protocol):
    """Output of the rows' text. `add` may be called for any row at any time, `end` once per row, `close` at the end."""

    def add(self, row: int, segments: Sequence[Segment]) -> None: ...

    def end(self, row: int) -> None: ...

    def close(self) -> None: ...


def colored(console: Console) -> bool:
    """Whether the console shows colors: a terminal with colors, and NO_COLOR is not set."""
    return console.is_terminal and not console.no_color and console.color_system is not None


def printable(text: str) -> str:
    """Text without control characters, which could steer a terminal; line breaks and tabs are kept."""
    return "".join(chr(0x2400 + ord(c)) if ord(c) < 32 and c not in "\n\t" else c for c in text).translate(
        {0x7F: "␡", 0x9B: "␛"}
    )


def render(segments: Sequence[Segment], *, colors: bool, marks: bool) -> Line:
    """Segments as one text: plain without `marks`, else colored, or between [- -] and {+ +} without colors.

    Line breaks in a rejected token are shown as ⏎.
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
    """Shows nothing (--json)."""

    def add(self, row: int, segments: Sequence[Segment]) -> None:
        del row, segments

    def end(self, row: int) -> None:
        del row

    def close(self) -> None:
        pass


class InOrder:
    """Rows one after another: the first unfinished row streams, later ones are held back. Used for files and pipes.

    Args:
      console: console on stdout.
      heads: text before each row, such as its prompt; empty strings for none.
      marks: show draft tokens.
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
    """All rows at once, each in a panel that grows; in the end the panels stay on the screen. Used on terminals."""

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
        """The last lines of each row, as many as fit on the screen."""
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
