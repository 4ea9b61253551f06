"""Every preset builds and generates; a record that makes no sense is refused."""

from pathlib import Path

import pytest

import specjax as sj
from specjax import config

PRESETS = sorted(Path(__file__).parents[1].glob("configs/*.py"))


@pytest.mark.parametrize("file", PRESETS, ids=lambda file: file.stem)
def test_preset_builds_and_generates(file):
    run = config.read(file).build()
    out = sj.generate(run.target, run.prompts, **(run.options | {"max_new_tokens": 4}))
    assert [len(row) for row in out.tokens] == [4] * len(run.prompts)
    assert out.lossless


def test_there_are_presets():
    assert PRESETS


@pytest.mark.parametrize("wrong", [{"drafter": "oracle"}, {"drafter": "model"}, {"drafter": "ngram", "draft": "x"}])
def test_a_wrong_drafter_is_refused(wrong):
    with pytest.raises(ValueError, match="drafter"):
        config.RunConfig(target="t", prompts=("p",), **wrong)


def test_a_file_without_a_preset_is_named(tmp_path):
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=r"empty\.py"):
        config.read(tmp_path / "empty.py")
