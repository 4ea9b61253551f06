"""Widths of consoles, and progress lines on terminals and in files."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from specjax.cli.progress import FILE_COLUMNS, NARROWEST, QUIET, Progress, open_console, tables_and_errors


@pytest.mark.parametrize(
    ("columns", "width"), [(None, FILE_COLUMNS), ("0", FILE_COLUMNS), ("20", NARROWEST), ("50", 50)]
)
def test_files_have_columns_for_tables(columns, width, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    console, errors = tables_and_errors()
    assert not console.is_terminal and console.width == width and errors.stderr


@pytest.mark.parametrize(("columns", "width"), [("0", NARROWEST), ("20", NARROWEST), ("40", 40), ("50", 50)])
def test_consoles_have_a_smallest_width(columns, width, monkeypatch, capsys):
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
def test_progress_in_a_file_is_occasional_lines(show, lines):
    now, file = 0.0, io.StringIO()
    with Progress(Console(file=file, width=40), show=show, clock=lambda: now) as progress:
        for half, text in enumerate(["loading", "turn 1 of [3]", "turn 2 of [3]", "turn 3 of [3]", LONG]):
            now = half * QUIET / 2
            progress.update(text)
            progress.update(text)
    assert file.getvalue().splitlines() == lines


def test_progress_on_a_terminal_is_one_line_that_is_removed():
    file = io.StringIO()
    with Progress(Console(file=file, force_terminal=True, width=40), show=True) as progress:
        progress.update("loading")
    assert "loading" in file.getvalue() and file.getvalue().endswith("\x1b[2K")
