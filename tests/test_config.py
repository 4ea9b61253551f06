"""Presets: every file in configs/ builds and generates; bad files are one-line errors."""

from pathlib import Path

import pytest

from specjax import config
from specjax.config import RunConfig

PRESETS = sorted((Path(__file__).resolve().parents[1] / "configs").glob("*.py"))


def test_there_are_presets():
    assert PRESETS


@pytest.mark.parametrize("file", PRESETS, ids=lambda file: file.stem)
def test_every_preset_builds_and_generates(file):
    run = config.build(config.read(file))
    out = run.generate(["Once upon a time", "The"], max_new_tokens=8)
    assert [len(row) for row in out.tokens] == [8, 8] or "eos" in out.stop_reasons
    assert out.lossless


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafter": "modle"}, "drafter 'modle'"),
        ({"target": "x", "drafter": "model"}, "requires draft"),
        ({"drafter": "plain", "draft": "x"}, "draft x"),
        ({"drafter": "cascade", "draft": "x"}, "requires draft 2"),
        ({"drafter": "tree:shape=3by2", "draft": "x"}, "shape"),
        ({"drafter": "tree", "draft": "x", "gamma": 3}, "gamma"),
        ({"drafter": "plain", "verifier": "blok"}, "verifier 'blok'"),
        ({"drafter": "plain", "verifier": "lossy-typical", "lossless": True}, "lossy-typical"),
        ({"mesh": "two"}, "mesh"),
        ({"logit_bias": ("5",)}, "logit_bias"),
        ({"stop_token": (-1,)}, "stop_token"),
    ],
)
def test_bad_presets(changes, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**changes)


def test_presets_support_every_drafter():
    names = ("bundled/opt-draft", "bundled/opt-tiny")
    cascade = RunConfig(draft=names, drafter="cascade:inner=(model:gamma=2)", gamma=4)
    assert cascade.drafts == names and cascade.strategy.gamma == 4
    assert RunConfig("t", draft="d", drafter="model:policy=heuristic", lossless=True).drafts == ("d",)


def test_other_files_are_not_presets(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"x\.py"):
        config.read(tmp_path / "x.py")
    (tmp_path / "y.py").write_text("A = 1\n")
    with pytest.raises(ValueError, match="CONFIG"):
        config.read(tmp_path / "y.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "CONFIG = RunConfig('m', drafter='plain', tempreature=0)",
            "'tempreature'.*'temperature'",
        ),
        ("CONFIG = RunConfig('m', drafter='plain', zzz=0)", r"'zzz'"),
        ("CONFIG = RunConfig('m', drafter='plain', dtype='float8')", "dtype"),
        ("CONFIG = RunConfig('m', drafter='plain', temperature=-1.0)", r"p\.py: temperature"),
        ("CONFIG = RunConfig('m', drafter='plain', stop=('',))", r"p\.py: stop"),
        ("import sys; sys.exit(0)", r"p\.py: SystemExit"),
        ("CONFIG = RunConfig(", "SyntaxError"),
        ("import absent_package", "'absent_package'"),
    ],
)
def test_a_preset_that_does_not_run_is_a_one_line_error(text, message, tmp_path):
    file = tmp_path / "p.py"
    file.write_text(f"from specjax.config import RunConfig\n{text}\n")
    with pytest.raises(ValueError, match=message) as raised:
        config.read(file)
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)
