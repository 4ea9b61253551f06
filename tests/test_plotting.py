"""Pictures as files: whole or not at all, and told beforehand where they cannot be made."""

import sys

import pytest

from specjax import plotting


def test_the_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    def broken(figure):
        raise RuntimeError("no ink")

    with pytest.raises(RuntimeError, match="no ink"):
        plotting.save(tmp_path / "a.svg", broken)
    with pytest.raises(ValueError, match=r"ends in \.svg or \.png, got 'a\.gif'"):
        plotting.save(tmp_path / "a.gif", broken)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match="specjax\\[plot\\]"):
        plotting.save(tmp_path / "a.svg", broken)
    assert not list(tmp_path.iterdir())
