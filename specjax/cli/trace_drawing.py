"""A trace in the terminal: strip of tokens, walltime lanes, acceptance by depth. Brackets replace missing colors."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text as Words

from specjax.cli.live import colored
from specjax.trace import lanes as timing
from specjax.trace.lanes import Activity, Lane
from specjax.trace.rounds import DepthCount
from specjax.trace.strip import Mark, StripLine, tail, used

STYLES = {
    Mark.CONTEXT: "dim", Mark.ACCEPTED: "green", Mark.REJECTED: "red strike", Mark.UNTESTED: "dim italic",
    Mark.CORRECTION: "bold white on blue", Mark.BONUS: "bold blue",
}  # fmt: skip
MARKS = {
    Mark.CONTEXT: ("", ""), Mark.ACCEPTED: ("", ""), Mark.REJECTED: ("[-", "-]"), Mark.UNTESTED: ("[~", "~]"),
    Mark.CORRECTION: ("{+", "+}"), Mark.BONUS: ("{*", "*}"),
}  # fmt: skip
BARS = {
    Activity.TARGET_PROMPT: ("▓", "yellow"), Activity.DRAFT_PROMPT: ("▒", "dark_orange"), Activity.DRAFT: ("░", "cyan"),
    Activity.TARGET: ("█", "magenta"),
}  # fmt: skip
CONTEXT = 24  # columns
BAR = 24


def strip(console: Console, lines: Sequence[StripLine], *, title: str) -> None:
    """One line per round: the end of the context, then the tokens of the round, marked by color or brackets."""
    colors = colored(console)
    console.print(Words(title, style="bold"))
    for line in lines:
        words = Words(f"{line.round:>4}  ", style="dim")
        words.append(tail(line.before, CONTEXT), style=STYLES[Mark.CONTEXT])
        for cell in line.cells:
            opening, closing = ("", "") if colors else MARKS[cell.mark]
            words.append(f"{opening}{cell.text}{closing}", style=STYLES[cell.mark] if colors else "")
        words.append(f"   {line.accepted}/{line.drafted}", style="dim")
        console.print(words, soft_wrap=True, highlight=False)
    legend = Words("      ")
    for mark in used(lines):
        opening, closing = ("", "") if colors else MARKS[mark]
        if colors or opening:
            legend.append(f"{opening}{mark.value}{closing}", style=STYLES[mark] if colors else "")
            legend.append("   ")
    legend.append("accepted/drafted", style="dim")
    console.print(legend, soft_wrap=True, highlight=False)


def walltime(console: Console, lanes: Sequence[Lane], *, title: str) -> None:
    """One bar per request on a common time axis."""
    width = max(min(console.width, 160) - 16, 20)
    whole = timing.longest(lanes)
    console.print()
    console.print(Words(title, style="bold"))
    for one in lanes:
        words = Words(f"{one.name:>12}  ")
        for kind in timing.columns(one, seconds=whole, width=width):
            words.append(BARS[kind][0] if kind else " ", style=BARS[kind][1] if kind else "")
        console.print(words, soft_wrap=True, highlight=False)
        console.print(Words(" " * 14 + timing.summary(one), style="dim"), soft_wrap=True, highlight=False)
    end = f"{1e3 * whole:.4g} ms"
    console.print(Words(" " * 14 + "0" + end.rjust(width - 1), style="dim"), soft_wrap=True)
    legend = Words(" " * 14)
    for kind in Activity:
        if any(span.kind is kind for one in lanes for span in one.spans):
            legend.append(BARS[kind][0] * 2, style=BARS[kind][1])
            legend.append(f" {kind.value}   ")
    console.print(legend, soft_wrap=True, highlight=False)


def depths(console: Console, found: Sequence[DepthCount], *, title: str) -> None:
    """One line per depth: rate, counts, a bar, and the share of all rounds that accepted as many."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE)
    for name in ("depth", "accepted / tested", "", "of all rounds"):
        table.add_column(name, justify="left" if not name else "right")
    for one in found:
        if not one.tested:
            table.add_row(str(one.depth), "\u2013", "", f"{one.reached:.2f}")
            continue
        filled = round(BAR * one.rate)
        table.add_row(
            str(one.depth), f"{one.rate:.2f}  ({one.accepted} of {one.tested})",
            Words("█" * filled + "·" * (BAR - filled), style="cyan"), f"{one.reached:.2f}",
        )  # fmt: skip
    console.print()
    console.print(table, highlight=False)
