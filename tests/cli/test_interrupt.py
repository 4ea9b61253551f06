"""Ctrl-C while text is being written: what was generated is on stdout, and the exit code is 130."""

import json
import os
import signal
import subprocess
import sys

import pytest

ARGS = ["--drafter", "plain", "--ignore-eos", "--max-new-tokens", "480", "--logit-bias", "0=-inf"]


def test_ctrl_c_loses_nothing(models, tmp_path):
    """SIGINT once the first new text has come: the text shown is the text told, and it is cut short."""
    file = tmp_path / "out.json"
    command = [sys.executable, "-m", "specjax.cli", "generate", "--target", models["target"], "Once", *ARGS]
    run = subprocess.Popen(
        [*command, "--output", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert run.stdout is not None
    first = b""
    while len(first) <= len("Once"):
        first += run.stdout.read(1)
    run.send_signal(signal.SIGINT)
    rest, errors = run.communicate(timeout=120)
    out = (first + rest).decode()
    assert run.returncode == 130 and b"Traceback" not in errors
    told = json.loads(file.read_text())
    assert told["stop_reasons"] == ["interrupted"] and 0 < len(told["tokens"][0]) < 480
    shown = "".join("?" if c in "\ufffd" or 0x2400 <= ord(c) <= 0x2421 else c for c in out.split("\n\nwhat it took")[0])
    wanted = "".join("?" if c == "\ufffd" or (ord(c) < 32 and c not in "\n\t") else c for c in told["texts"][0])
    assert shown == "Once" + wanted
    assert "interrupted" in out and "tokens per call" in out


def test_the_second_ctrl_c_is_not_swallowed():
    from specjax.cli.progress import deferred_interrupt

    with deferred_interrupt() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_reader_that_goes_away_is_no_error(models):
    command = [sys.executable, "-m", "specjax.cli", "generate", "--target", models["target"], "Once", *ARGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.read(1)
        run.stdout.close()
        assert run.stderr.read() == b"" and run.wait(timeout=120) == 1
