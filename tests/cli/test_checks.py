"""What several commands refuse, in one line that names the option."""

import os

import numpy as np
import pytest

from specjax import defaults
from specjax.cli import checks


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: checks.at_least(1, count=2, max_new_tokens=0), "--max-new-tokens must be at least 1, got 0"),
        (lambda: checks.at_least(1, gamma=(3, 0)), "--gamma must be at least 1, got 0"),
        (lambda: checks.at_least(0, temperature=float("nan")), "--temperature must be at least 0, got nan"),
        (lambda: checks.at_least(0, temperature=float("inf")), "--temperature must be at least 0, got inf"),
        (lambda: checks.once(drafters=("a", "b"), prompt_files=("x", "y", "x")), "--prompt-files names x twice"),
        (lambda: checks.some(rows=(1,), draft_models=()), "--draft-models needs at least one value"),
        (lambda: checks.formats(()), "--format takes svg, png or both, got none"),
        (lambda: checks.formats(("svg", "svg")), "--format takes svg, png or both, got svg svg"),
    ],
)
def test_values_are_refused(call, said):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == said


def test_the_hottest_request_is_the_library_s():
    assert float(np.finfo(np.float32).max) == defaults.LARGEST_TEMPERATURE
    checks.request(
        temperature=(0.0, defaults.LARGEST_TEMPERATURE), max_new_tokens=1, seed=defaults.LARGEST_SEED, gamma=(1023,)
    )


def test_values_that_can_be_pass():
    checks.at_least(1, count=1, gamma=(), rows=(1, 5))
    checks.once(drafters=(), gamma=(1, 2))
    checks.formats(("svg", "png"))


def test_places_are_refused(tmp_path, monkeypatch):
    file, absent = tmp_path / "a.svg", tmp_path / "absent" / "a.svg"
    file.write_text("")
    checks.writable(json=file, markdown=None, output=tmp_path / "new")
    checks.picture(picture=file)
    checks.writable_folder("figures", tmp_path)
    checks.writable_folder("figures", tmp_path / "new")
    for call, said in (
        (lambda: checks.writable(json_rows=tmp_path), "--json-rows .* is a folder: name a file"),
        (lambda: checks.writable(json=absent), "--json .*: cannot write into the folder .*absent"),
        (lambda: checks.picture(picture=tmp_path / "a.gif"), r"a picture's name ends in \.svg or \.png"),
        (lambda: checks.picture(picture=absent), "--picture .*: cannot write into the folder .*absent"),
        (lambda: checks.writable_folder("figures", file), "--figures .* is a file: name a folder"),
        (lambda: checks.writable_folder("figures", absent), "--figures .*: cannot write into the folder .*absent"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match="cannot write into"):
        checks.writable(json=file)
