"""Checks of output files name the option."""

import os

import pytest

from specjax.cli import outputs


def test_unusable_files_are_refused(tmp_path, monkeypatch):
    file, absent = tmp_path / "a.svg", tmp_path / "absent" / "a.svg"
    file.write_text("")
    outputs.writable(json=file, markdown=None, output=tmp_path / "new")
    outputs.picture(picture=file)
    outputs.writable_folder(figures=tmp_path)
    outputs.writable_folder(figures=tmp_path / "new")
    for call, name in (
        (lambda: outputs.writable(json=tmp_path), "--json"),
        (lambda: outputs.writable(json=absent), "--json"),
        (lambda: outputs.picture(picture=tmp_path / "a.gif"), "--picture"),
        (lambda: outputs.picture(picture=absent), "--picture"),
        (lambda: outputs.writable_folder(figures=file), "--figures"),
        (lambda: outputs.writable_folder(figures=absent), "--figures"),
    ):
        with pytest.raises(ValueError, match=name):
            call()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match="--json"):
        outputs.writable(json=file)
