"""Parsing: one line for each mistake, and a suggestion for a misspelt name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specjax.cli.arguments import one_line, parse
from specjax.cli.options import Options


def test_options_are_read_and_may_be_repeated():
    args = ["a", "b", "--stop", "x", "--stop", "y", "--temperature", "0.5", "--json", "--logit-bias", "3=-inf"]
    options = parse(Options, args, prog="specjax generate")
    assert options.prompt == ("a", "b") and options.stopping.stop == ("x", "y")
    assert options.sampling.temperature == 0.5 and options.printing.json and options.sampling.logit_bias == ("3=-inf",)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--temperature", "warm"], "--temperature"),
        (["--temprature", "1"], "perhaps you meant --temperature"),
        (["--dtype", "float8"], "float32"),
        (["--gamma"], "--gamma"),
    ],
)
def test_bad_arguments_give_one_line(args, said, capsys):
    with pytest.raises(ValueError, match="see specjax generate --help") as caught:
        parse(Options, args, prog="specjax generate")
    assert said in str(caught.value) and "\n" not in str(caught.value)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == ""  # no frame of several lines beside it


def test_one_line_is_never_empty():
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(ValueError()) == "ValueError"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_both_kinds_of_frame_are_read(encoding):
    """tyro frames its messages in another way where stdout is not UTF-8."""
    ran = subprocess.run(
        [sys.executable, "-m", "specjax.cli", "generate", "--temprature", "1"],
        capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "50"},
    )  # fmt: skip
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr == (
        "specjax generate: error: Unrecognized options: --temprature, 1; perhaps you meant --temperature; "
        "see specjax generate --help\n"
    )


@pytest.mark.parametrize("args", [["--json=yes", "Hi"], ["Hi", "--compare=false"]])
def test_a_flag_takes_no_value(args):
    with pytest.raises(ValueError, match="takes no value, got"):
        parse(Options, args, prog="specjax generate")
    assert parse(Options, ["--", *args], prog="specjax generate").prompt == tuple(args)


def test_what_is_no_number_is_said_in_plain_words():
    with pytest.raises(ValueError, match=r"^--gamma must be a whole number, got '2\.5'; see specjax generate --help$"):
        parse(Options, ["--gamma", "2.5", "Hi"], prog="specjax generate")


def program(command: str, cwd) -> subprocess.CompletedProcess:
    """A shell command in which $S is the program."""
    whole = command.replace("$S", f"{sys.executable} -m specjax.cli")
    root = str(Path(__file__).parents[2])
    return subprocess.run(["bash", "-c", whole], capture_output=True, text=True, cwd=cwd,
                          env={**os.environ, "PYTHONPATH": root})  # fmt: skip


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("$S generate --prompts - <&-", 2, "stdin is closed: name a file of prompts"),
        ("$S generate --gamma 0 hi 2>&-", 2, ""),
        ("$S generate --gamma 0 hi 2>/dev/full", 2, ""),
        ("$S generate --gamma 100000 hi", 2, "1024"),
    ],
)
def test_streams_may_be_closed_or_full(command, code, said, tmp_path):
    ran = program(command, tmp_path)
    assert (ran.returncode, ran.stdout) == (code, "") and said in ran.stderr and len(ran.stderr.splitlines()) <= 1


@pytest.mark.parametrize("where", [">/dev/full", "| head -c 5; exit ${PIPESTATUS[0]}"])
def test_what_could_not_be_shown_is_in_the_file(where, tmp_path):
    ran = program(f'$S generate "Once upon a time" --max-new-tokens 40 --output out.json {where}', tmp_path)
    assert ran.returncode == 1
    assert json.loads((tmp_path / "out.json").read_text())["tokens"][0]
    if "full" in where:
        assert ran.stderr.splitlines()[-1].endswith("write elsewhere")
