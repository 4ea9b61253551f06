"""What goes into a file: tables are not cut to a terminal that is not there, and long work says what it does."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from specjax.cli.progress import FILE_COLUMNS, NARROWEST, QUIET, Progress, open_console, tables_and_errors


@pytest.mark.parametrize(
    ("columns", "width"), [(None, FILE_COLUMNS), ("0", FILE_COLUMNS), ("20", NARROWEST), ("50", 50)]
)
def test_a_file_has_room_for_tables(columns, width, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    console, errors = tables_and_errors()
    assert not console.is_terminal and console.width == width and errors.stderr


@pytest.mark.parametrize(("columns", "width"), [("0", NARROWEST), ("20", NARROWEST), ("40", 40), ("50", 50)])
def test_no_console_is_too_narrow_for_a_table(columns, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    for stderr in (False, True):
        console = open_console(stderr=stderr)
        assert console.width == width and console.stderr == stderr
    table = Table(show_header=False)  # as the closing table of `generate`
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("accepted / drafted", "0.75")
    open_console().print(table)
    assert "accepted / drafted" in (out := capsys.readouterr().out) and "0.75" in out


LONG = "a long line" + "!" * 200


@pytest.mark.parametrize(("show", "lines"), [(True, ["turn 2 of [3]", LONG]), (False, [])])
def test_into_a_file_progress_is_a_line_now_and_then(show, lines):
    now, file = 0.0, io.StringIO()
    with Progress(Console(file=file, width=40), show=show, clock=lambda: now) as progress:
        for half, text in enumerate(["loading", "turn 1 of [3]", "turn 2 of [3]", "turn 3 of [3]", LONG]):
            now = half * QUIET / 2
            progress.tell(text)
            progress.tell(text)
    assert file.getvalue().splitlines() == lines


def test_on_a_terminal_progress_is_one_line_that_goes_away():
    file = io.StringIO()
    with Progress(Console(file=file, force_terminal=True, width=40), show=True) as progress:
        progress.tell("loading")
    assert "loading" in file.getvalue() and file.getvalue().endswith("\x1b[2K")
