"""Reports in the terminal and as Markdown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specjax import files
from specjax.bench.record import Row, show
from specjax.reproduce.checks import ClaimCheck, ClaimVerdict
from specjax.reproduce.setup import Report

VERDICT_COLORS = {
    ClaimVerdict.REPRODUCED: "green", ClaimVerdict.PARTLY: "yellow", ClaimVerdict.OPEN: "yellow",
    ClaimVerdict.NOT: "red", ClaimVerdict.UNMEASURED: "dim",
}  # fmt: skip
LEGEND = (
    "Columns named here hold measured numbers, their counterparts the published ones. Partly: some of the comparisons "
    "hold; open: the difference is within two standard errors"
)


def cell(value: Any) -> str:
    """A value as text; a dash if not measured."""
    if isinstance(value, float) and abs(value) >= 1000:
        return f"{value:.0f}"
    return "–" if value is None else show(value)


def summary(checks: Sequence[ClaimCheck]) -> str:
    """Number of checks by verdict."""
    counts = {kind: sum(check.verdict is kind for check in checks) for kind in ClaimVerdict}
    return ", ".join(f"{count} {kind.value}" for kind, count in counts.items() if count)


def in_terminal(console: Any, report: Report) -> None:
    """Prints title, source, table, checks and notes."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console.print()
    console.print(Text(report.title, style="bold"))
    console.print(Text(f"published: {report.source.text}", style="dim"), soft_wrap=True)
    if report.table:
        made = Table(box=box.SIMPLE)
        for name in report.table[0]:
            words = all(isinstance(row[name], str | None) for row in report.table)
            made.add_column(name, justify="left" if words else "right")
        for row in report.table:
            made.add_row(*(cell(value) for value in row.values()))
        console.print(made)
    for check in report.checks:
        line = Text("  ")
        line.append(f"{check.verdict.value}: ", style=VERDICT_COLORS[check.verdict])
        line.append(check.claim)
        console.print(line, soft_wrap=True)
        console.print(Text(f"    {check.why}", style="dim"), soft_wrap=True)
    if report.checks:
        console.print(Text(f"  in all: {summary(report.checks)}", style="bold"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"  note: {note}", style="dim"), soft_wrap=True)


def as_markdown(report: Report, picture: str | None = None) -> str:
    """The report as Markdown, with a picture if given."""
    lines = [f"## {report.title}", "", f"Published: {report.source.text}.", ""]
    if picture:
        lines += [f"![{report.title}]({picture})", ""]
    if report.table:
        lines += [*rows(report.table), ""]
    if report.checks:
        told = [{"of the published shape": c.claim, "here": c.verdict.value, "numbers": c.why} for c in report.checks]
        lines += [*rows(told), ""]
    lines += [f"- {note}" for note in report.notes]
    return "\n".join(lines) + "\n"


def rows(table: Sequence[Row]) -> list[str]:
    """A Markdown table of rows with the same columns."""
    line = lambda values: "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"
    head = list(table[0])
    return [line(head), "|" + "---|" * len(head), *(line([cell(row[name]) for name in head]) for row in table)]


def write_markdown(file: Path, parts: Sequence[str], about: Mapping[str, str]) -> None:
    """Writes all reports into one file, atomically."""
    ran = ", ".join(f"{name} {version}" for name, version in about.items() if version)
    text = "\n".join(["# Published tables and figures, measured again", "", f"{ran}. {LEGEND}.", "", *parts])
    files.write_text(file, text)
