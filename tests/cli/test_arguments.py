"""Parsing: one line for each mistake, and a suggestion for a misspelt name."""

import os
import subprocess
import sys

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
