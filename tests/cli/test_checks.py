"""Checks shared by several commands name the option."""

import os

import pytest

from specjax.cli import checks


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda: checks.at_least(1, count=2, max_new_tokens=0), "--max-new-tokens"),
        (lambda: checks.numbers(1, 9, gamma=(3, 10)), "--gamma"),
        (lambda: checks.at_least(0, temperature=float("nan")), "--temperature"),
        (lambda: checks.at_least(0, temperature=float("inf")), "--temperature"),
        (lambda: checks.request(temperature=(0.0, 1.0), max_new_tokens=1, gamma=(1024,)), "--gamma"),
        (lambda: checks.request(temperature=0.0, max_new_tokens=1, seed=2**32), "--seed"),
        (lambda: checks.once(drafters=("a", "b"), prompt_files=("x", "y", "x")), "--prompt-files"),
        (lambda: checks.some(rows=(1,), draft_models=()), "--draft-models"),
        (lambda: checks.formats(()), "--format"),
        (lambda: checks.formats(("svg", "svg")), "--format"),
    ],
)
def test_bad_values_name_the_option(call, option):
    with pytest.raises(ValueError, match=option):
        call()


def test_valid_values_pass():
    checks.at_least(1, count=1, gamma=(), rows=(1, 5))
    checks.once(drafters=(), gamma=(1, 2))
    checks.formats(("svg", "png"))
    checks.request(temperature=(0.0, 2.0), max_new_tokens=1, seed=2**32 - 1, gamma=(1023,))


def test_places_are_refused(tmp_path, monkeypatch):
    file, absent = tmp_path / "a.svg", tmp_path / "absent" / "a.svg"
    file.write_text("")
    checks.writable(json=file, markdown=None, output=tmp_path / "new")
    checks.picture(picture=file)
    checks.writable_folder("figures", tmp_path)
    checks.writable_folder("figures", tmp_path / "new")
    for call, said in (
        (lambda: checks.writable(json_rows=tmp_path), "--json-rows .* folder"),
        (lambda: checks.writable(json=absent), "--json .*absent"),
        (lambda: checks.picture(picture=tmp_path / "a.gif"), r"--picture .*\.svg"),
        (lambda: checks.picture(picture=absent), "--picture .*absent"),
        (lambda: checks.writable_folder("figures", file), "--figures .* file"),
        (lambda: checks.writable_folder("figures", absent), "--figures .*absent"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match="--json"):
        checks.writable(json=file)
