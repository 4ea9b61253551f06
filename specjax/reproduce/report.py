"""Reports of the experiments: in the terminal, as Markdown and as figures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specjax import files
from specjax.bench.record import Row, markdown_table, terminal_table, to_text
from specjax.estimates import Estimate
from specjax.plotting import COLORS, INK, finish
from specjax.reproduce.checks import ClaimCheck, ClaimVerdict

BUSY = 0.1  # share of the processors
VERDICT_COLORS = {
    ClaimVerdict.REPRODUCED: "green", ClaimVerdict.PARTLY: "yellow", ClaimVerdict.OPEN: "yellow",
    ClaimVerdict.NOT: "red", ClaimVerdict.UNMEASURED: "dim",
}  # fmt: skip
LEGEND = (
    "Columns named here hold measured numbers, their counterparts the published ones. Partly: some of the comparisons "
    "hold; open: the errors are too large for a verdict. ±: one standard error, over prompts, and over runs for times"
)


class Report(NamedTuple):
    """Result of an experiment.

    Attributes:
      table: rows with published and measured numbers.
      checks: verdicts on the published claims.
      notes: conditions of the measurement, and reasons for differences.
      draw: matplotlib's Figure class -> figure; None without a figure.
    """

    table: list[Row]
    checks: list[ClaimCheck]
    notes: list[str]
    draw: Callable[[Any], Any] | None = None


def find(rows: Sequence[Row], **wanted: Any) -> Row | None:
    """The first row with these values, or None."""
    return next((row for row in rows if all(row.get(name) == value for name, value in wanted.items())), None)


def shown(number: Estimate) -> str | None:
    """A measured number with its standard error for a table; None if not measured."""
    return number.shown("{:.3g}".format) if number.measured else None


def conditions(rows: Sequence[Row]) -> list[str]:
    """Notes on what raised acceptance or disturbed times: greedy texts that repeat themselves, and other programs."""
    notes = []
    greedy = [row["repetition"] for row in rows if row.get("temperature") == 0 and row.get("repetition") is not None]
    if greedy:
        notes.append(
            f"{min(greedy):.0%} to {max(greedy):.0%} of the tokens of greedy texts repeat what came before, which "
            "raises acceptance"
        )
    loads = [load for row in rows for part in (row, row.get("costs", {})) for load in part.get("load", {}).values()]
    worst = max(loads, default=0.0)
    if worst > BUSY:
        notes.append(
            f"other programs used up to {worst:.0%} of the processors: speeds and c are less reliable than acceptance"
        )
    return notes


# --- text ------------------------------------------------------------------------------------------------------------


def cell(value: Any) -> str:
    """A value as text; a dash if not measured."""
    if isinstance(value, float) and abs(value) >= 1000:
        return f"{value:.0f}"
    return "–" if value is None else to_text(value)


def summary(checks: Sequence[ClaimCheck]) -> str:
    """Number of checks by verdict."""
    counts = {kind: sum(check.verdict is kind for check in checks) for kind in ClaimVerdict}
    return ", ".join(f"{count} {kind.value}" for kind, count in counts.items() if count)


def in_terminal(console: Any, title: str, source: str, report: Report) -> None:
    """Prints title, source, table, checks and notes."""
    from rich.text import Text

    def line(*parts: tuple[str, str]) -> None:
        console.print(Text.assemble(*parts), soft_wrap=True)

    console.print()
    line((title, "bold"))
    line((f"published: {source}", "dim"))
    if report.table:
        console.print(terminal_table(report.table, cell))
    for check in report.checks:
        line((f"  {check.verdict.value}: ", VERDICT_COLORS[check.verdict]), (check.claim, ""))
        line((f"    {check.why}", "dim"))
    if report.checks:
        line((f"  in all: {summary(report.checks)}", "bold"))
    for note in report.notes:
        line((f"  note: {note}", "dim"))


def as_markdown(title: str, source: str, report: Report, picture: str | None = None) -> str:
    """The report as Markdown, with a picture if given."""
    claims = [{"claim": c.claim, "here": c.verdict.value, "numbers": c.why} for c in report.checks]
    lines = [f"## {title}", "", f"Published: {source}.", ""]
    lines += [f"![{title}]({picture})", ""] if picture else []
    for table in filter(None, (report.table, claims)):
        lines += [*markdown_table(table, cell), ""]
    return "\n".join([*lines, *(f"- {note}" for note in report.notes)]) + "\n"


def write_markdown(file: Path, parts: Sequence[str], about: Mapping[str, str]) -> None:
    """Writes all reports into one file, atomically."""
    ran = ", ".join(f"{name} {version}" for name, version in about.items() if version)
    text = "\n".join(["# Published tables and figures, measured again", "", f"{ran}. {LEGEND}.", "", *parts])
    files.write_text(file, text)


# --- figures ---------------------------------------------------------------------------------------------------------


def draw_best_gamma(new_figure: Any, rows: Sequence[Row]) -> Any:
    """The best gamma by alpha, one line per c."""
    figure = new_figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for row, color in zip(rows, COLORS, strict=False):
        axes.step(row["alpha"], row["gamma"], where="mid", color=color, lw=1.8)
        axes.annotate(
            f"c = {row['c']}", (row["alpha"][-1], row["gamma"][-1]), xytext=(5, 0), textcoords="offset points",
            color=color, fontsize=9, va="center",
        )  # fmt: skip
    axes.set_xlim(right=1.01)
    axes.set_ylim(bottom=0)
    finish(axes, "α", "best γ", "The best draft length")
    return figure


def draw_factors(new_figure: Any, rows: Sequence[Row], points: Sequence[Any]) -> Any:
    """Speed and operations by alpha, one line per gamma, with crosses for the published table."""
    figure = new_figure(figsize=(9.6, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, name, title in zip(panels, ("speed", "operations"), ("Speed", "Operations"), strict=True):
        for row, color in zip(rows, COLORS, strict=False):
            axes.plot(row["alpha"], row[name], color=color, lw=1.8, label=f"γ = {row['gamma']}")
        printed = [(one.alpha, getattr(one, name)) for one in points]
        axes.scatter(*zip(*printed, strict=True), marker="x", color=INK, zorder=4, label="table 1, printed")
        finish(axes, "α", "factor over plain decoding", f"{title}, c = 0")
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def draw_lanes(new_figure: Any, rows: Sequence[Row]) -> Any:
    """The walltime diagram of `specjax trace`."""
    from specjax.trace import lanes, pictures

    spans = lambda row: tuple(lanes.Span(lanes.Activity[kind], start, spent) for kind, start, spent in row["calls"])
    made = [lanes.Lane(row["lane"], spans(row), row["tokens"]) for row in rows]
    return pictures.walltime(new_figure, made, title="One translation: speculative and standard decoding")
