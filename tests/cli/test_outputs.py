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
    for call, said in (
        (lambda: outputs.writable(json=tmp_path), "--json .* folder"),
        (lambda: outputs.writable(json=absent), "--json .*absent"),
        (lambda: outputs.picture(picture=tmp_path / "a.gif"), r"--picture .*\.svg"),
        (lambda: outputs.picture(picture=absent), "--picture .*absent"),
        (lambda: outputs.writable_folder(figures=file), "--figures .* file"),
        (lambda: outputs.writable_folder(figures=absent), "--figures .*absent"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match="--json"):
        outputs.writable(json=file)
