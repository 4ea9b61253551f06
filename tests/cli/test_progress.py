"""Consoles: tables that go into a file are not cut to a terminal that is not there."""

import pytest

from specjax.cli.progress import FILE_COLUMNS, tables_and_errors


@pytest.mark.parametrize(("columns", "width"), [(None, FILE_COLUMNS), ("50", 50)])
def test_a_file_has_room_for_tables(columns, width, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    console, errors = tables_and_errors()
    assert not console.is_terminal and console.width == width and errors.stderr
