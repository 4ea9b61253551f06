"""Ctrl-C while text is being written: what was generated is on stdout, and the exit code is 130."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import warnings

import pytest

import specjax
from specjax import decoding
from specjax.cli.process import deferred_interrupt, interrupts_wait

ARGS = ["--drafter", "plain", "--ignore-eos", "--max-new-tokens", "480", "--logit-bias", "0=-inf"]


def test_ctrl_c_keeps_the_generated_text(models, tmp_path):
    """SIGINT once the first new text has come: the text shown is the text in the record, and it is cut short."""
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
    found = json.loads(file.read_text())
    assert found["stop_reasons"] == ["interrupted"] and 0 < len(found["tokens"][0]) < 480
    shown = "".join("?" if c in "\ufffd" or 0x2400 <= ord(c) <= 0x2421 else c for c in out.split("\n\nsummary")[0])
    wanted = "".join("?" if c == "\ufffd" or (ord(c) < 32 and c not in "\n\t") else c for c in found["texts"][0])
    assert shown == "Once" + wanted
    assert "interrupted" in out and "tokens per target pass" in out


@pytest.mark.parametrize("json_too", [False, True])
def test_ctrl_c_after_decoding_waits_for_the_results(json_too, models, tmp_path, monkeypatch, capsys):
    from specjax import cli
    from specjax.cli import report

    def late(*args, **options):
        signal.raise_signal(signal.SIGINT)
        return real(*args, **options)

    real = report.record
    monkeypatch.setattr(report, "record", late)
    file = tmp_path / "out.json"
    args = ["generate", "--target", str(models["target"]), "Once", "--drafter", "plain", "--max-new-tokens", "5"]
    assert cli.main([*args, "--output", str(file), *(["--json"] if json_too else [])]) == 130
    found = json.loads(file.read_text())
    out = capsys.readouterr().out
    assert json.loads(out) == found if json_too else "tokens per target pass" in out


def test_interrupted_program_exits_immediately(monkeypatch, capsys):
    """A command that returns 130 may leave jax computing: taken down by the ordinary exit, the process can crash."""
    from specjax import cli

    class Ended(BaseException):
        pass

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(sys, "argv", ["specjax", "generate", "x"])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr("specjax.cli.generate.main", lambda args: cli.INTERRUPTED)
    with pytest.raises(Ended, match="130"):
        cli.main()
    assert cli.main(["generate", "x"]) == cli.INTERRUPTED  # called from Python: the caller goes on


def test_second_ctrl_c_raises():
    with deferred_interrupt() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_raises_before_the_first_round():
    begun = []
    with deferred_interrupt(once=lambda: bool(begun)) as stopped, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with deferred_interrupt(once=lambda: bool(begun)) as stopped:
        begun.append(1)
        signal.raise_signal(signal.SIGINT)
        assert stopped()


def test_swallowed_ctrl_c_is_recorded():
    """What is raised in a callback of the garbage collector goes no further; compiling the first round has many."""
    with deferred_interrupt(once=lambda: False) as stopped:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stopped()


def test_interrupt_is_deferred_while_busy():
    before, reached = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), interrupts_wait(lambda: True):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        reached.append("the end")
    assert reached == ["the end"] and signal.getsignal(signal.SIGINT) is before


def test_interrupt_acts_at_once_otherwise():
    before, reached = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), interrupts_wait(lambda: False):
        signal.raise_signal(signal.SIGINT)
        reached.append("the end")
    assert not reached and signal.getsignal(signal.SIGINT) is before


def test_swallowed_interrupt_is_raised_again():
    before, reached = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), interrupts_wait(lambda: False):
        with contextlib.suppress(KeyboardInterrupt):  # as the garbage collector does with its callbacks
            signal.raise_signal(signal.SIGINT)
        reached.append("the end")
    assert reached == ["the end"] and signal.getsignal(signal.SIGINT) is before
    calls = []
    signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    try:
        with interrupts_wait(lambda: False):
            signal.raise_signal(signal.SIGINT)
        assert calls == [1]
    finally:
        signal.signal(signal.SIGINT, before)


def test_previous_handler_is_called_once_and_restored():
    calls = []
    handler = lambda *_: calls.append(1)
    before = signal.signal(signal.SIGINT, handler)
    try:
        with interrupts_wait(lambda: True):
            signal.raise_signal(signal.SIGINT)
            assert not calls
        assert calls == [1] and signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_ignored_signals_and_other_threads_are_left_alone():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_wait(lambda: True):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    seen = []

    def elsewhere():
        with interrupts_wait(lambda: True):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize(("module", "name"), [(specjax, "load"), (decoding, "prefill"), (decoding, "count_trace")])
def test_ctrl_c_while_loading_or_compiling_is_one_line(module, name, specjax_program, models, monkeypatch):
    """`count_trace` is called while what reads the prompt is being traced."""

    def interrupted(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(module, name, interrupted)
    handler = signal.getsignal(signal.SIGINT)
    args = ["Then", "Now", "--drafter", "plain"]  # a program that no other test compiles
    ran = specjax_program("generate", "--target", models["target"], "Once", *args)
    assert (ran.code, ran.out, ran.err) == (130, "", "specjax generate: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
def test_ctrl_c_at_any_time_before_the_text_is_one_line(models):
    """While jax is imported, which crashes when it is cut short, and while programs compile, in threads that go on."""
    command = [sys.executable, "-m", "specjax.cli", "generate", "--target", models["target"], "Once", *ARGS]
    interrupted = 0
    for seconds in (0.7, 1.1, 1.5):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
            try:
                run.wait(seconds)
                break  # a fast machine: it has written all its text by itself
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGINT)
            out, errors = run.communicate(timeout=120)
            interrupted += run.returncode == 130
            assert run.returncode == 130, (seconds, errors)
            assert out or errors == b"specjax generate: interrupted\n"
    assert interrupted


def test_ctrl_c_in_the_first_round_shows_the_round(specjax_program, models, monkeypatch):
    """It comes when the state is given away: the round is finished and printed, and it is the last."""
    one_round, calls = decoding.one_round, []

    def interrupted(*args, **options):
        calls.append(1)
        out = one_round(*args, **options)
        signal.raise_signal(signal.SIGINT)
        return out

    monkeypatch.setattr(decoding, "one_round", interrupted)
    args = ["--drafter", "plain", "--max-new-tokens", "12", "--json"]
    ran = specjax_program("generate", "--target", models["target"], "Once", *args)
    assert ran.code == 130, ran.err
    found = json.loads(ran.out)
    assert ran.code == 130 and len(calls) == 1 and ran.err == ""
    assert found["stop_reasons"] == ["interrupted"] and len(found["tokens"][0]) == 1


@pytest.mark.slow
def test_a_closed_pipe_keeps_the_output_file(models, tmp_path):
    file = tmp_path / "out.json"
    command = [sys.executable, "-m", "specjax.cli", "generate", "--target", models["target"], "Once", *ARGS]
    command += ["--output", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.read(1)
        run.stdout.close()
        assert run.stderr.read() == b"" and run.wait(timeout=120) == 1
    assert json.loads(file.read_text())["tokens"][0]
