"""Parsing: one line per error, and a suggestion for a misspelled name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specjax.cli.arguments import one_line, parse
from specjax.cli.options import Options


def test_options_are_parsed_and_may_be_repeated():
    args = ["a", "b", "--stop", "x", "--stop", "y", "--temperature", "0.5", "--json", "--logit-bias", "3=-inf"]
    options = parse(Options, args, prog="specjax generate")
    assert options.prompt == ("a", "b") and options.stopping.stop == ("x", "y")
    assert options.sampling.temperature == 0.5 and options.printing.json and options.sampling.logit_bias == ("3=-inf",)


@pytest.mark.parametrize(
    ("args", "option"),
    [
        (["--temperature", "warm"], "--temperature"),
        (["--temprature", "1"], "--temperature"),
        (["--dtype", "float8"], "float32"),
        (["--gamma"], "--gamma"),
    ],
)
def test_invalid_arguments_give_one_line(args, option, capsys):
    with pytest.raises(ValueError, match="specjax generate --help") as caught:
        parse(Options, args, prog="specjax generate")
    assert option in str(caught.value) and "\n" not in str(caught.value)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == ""  # no frame


def test_one_line_is_never_empty():
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(ValueError()) == "ValueError"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_both_kinds_of_frames_are_parsed(encoding):
    """tyro frames its messages differently if stdout is not UTF-8."""
    ran = subprocess.run(
        [sys.executable, "-m", "specjax.cli", "generate", "--temprature", "1"],
        capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "50"},
    )  # fmt: skip
    assert ran.returncode == 2 and ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    assert line.startswith("specjax generate: error: ") and all(
        name in line for name in ("--temprature", "--temperature")
    )


@pytest.mark.parametrize("args", [["--json=yes", "Hi"], ["Hi", "--compare=false"]])
def test_flags_take_no_value(args):
    with pytest.raises(ValueError, match=r"--(json|compare)"):
        parse(Options, args, prog="specjax generate")
    assert parse(Options, ["--", *args], prog="specjax generate").prompt == tuple(args)


def test_invalid_numbers_name_the_option():
    with pytest.raises(ValueError, match=r"^--gamma .*'2\.5'"):
        parse(Options, ["--gamma", "2.5", "Hi"], prog="specjax generate")


def program(command: str, cwd) -> subprocess.CompletedProcess:
    """A shell command in which $S is the program."""
    whole = command.replace("$S", f"{sys.executable} -m specjax.cli")
    root = str(Path(__file__).parents[2])
    return subprocess.run(["bash", "-c", whole], capture_output=True, text=True, cwd=cwd,
                          env={**os.environ, "PYTHONPATH": root})  # fmt: skip


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("$S generate --prompts - <&-", "--prompts"),
        ("$S generate --gamma x hi 2>&-", ""),
        ("$S generate --gamma x hi 2>/dev/full", ""),
    ],
)
def test_streams_may_be_closed_or_full(command, option, tmp_path):
    ran = program(command, tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "") and option in ran.stderr and len(ran.stderr.splitlines()) <= 1


@pytest.mark.usefixtures("no_model_is_loaded")
@pytest.mark.parametrize(
    ("args", "option"),
    [
        (["--gamma", "100000"], "--gamma"),
        (["--drafter", "dynamic-tree:size=1"], "size"),
        (["--drafter", "dynamic-tree:width=2,depth=2,size=8"], "size"),
        (["--drafter", "small-kv:budget=6"], "budget"),
        (["--drafter", "model:budget=8,cache=(snapkv:window=12)"], "budget"),
        (["--drafter", "cascade:inner=(dynamic-tree:depth=4,size=4)"], "size"),
        (["--drafter", "suffix:shortest=4,longest=2"], "shortest"),
    ],
)
def test_settings_are_checked_before_a_model_is_loaded(args, option, refused):
    refused("generate", "hi", *args, name=option)


@pytest.mark.slow
def test_a_full_disk_keeps_the_output_file(models, tmp_path):
    options = f"--target {models['target']} --drafter plain --max-new-tokens 20 --output out.json"
    ran = program(f'$S generate "Once upon a time" {options} >/dev/full', tmp_path)
    assert ran.returncode == 1 and len(ran.stderr.splitlines()) == 1
    assert json.loads((tmp_path / "out.json").read_text())["tokens"][0]
