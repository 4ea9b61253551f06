"""Figures as files: atomic writes, invalid names, missing matplotlib."""

import sys

import pytest

from specjax import plotting


def test_files_are_written_atomically(tmp_path, monkeypatch):
    def broken(figure):
        raise RuntimeError("no ink")

    with pytest.raises(RuntimeError, match="no ink"):
        plotting.save(tmp_path / "a.svg", broken)
    with pytest.raises(ValueError, match=r"a\.gif"):
        plotting.save(tmp_path / "a.gif", broken)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match="specjax\\[plot\\]"):
        plotting.save(tmp_path / "a.svg", broken)
    assert not list(tmp_path.iterdir())


def test_lines_look_different():
    found = plotting.looks(map(str, range(36)))
    assert len({tuple(look.values()) for look in found.values()}) == 36
