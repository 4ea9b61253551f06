"""The program: overview, version, unknown commands, exit codes."""

import subprocess
import sys

import pytest

import specjax
from specjax.cli import COMMANDS, main


def test_overview_names_every_command(specjax_program):
    ran = specjax_program("--help")
    assert ran.code == 0 and all(name in ran.out for name in COMMANDS)
    assert specjax_program().code == 2


def test_version(specjax_program):
    assert specjax_program("--version").out == f"specjax {specjax.__version__}\n"


def test_unknown_command_suggests(specjax_program):
    ran = specjax_program("genrate", "x")
    assert ran.code == 2 and ran.out == "" and len(ran.err.splitlines()) == 1 and "'generate'" in ran.err


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["train"], "train lm"),
        (["tree", "shwo", "chain", "3"], "'tree show'"),
        (["train", "ml"], "'train lm'"),
    ],
)
def test_missing_or_unknown_second_word(args, name, specjax_program):
    ran = specjax_program(*args)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1) and name in ran.err


@pytest.mark.parametrize("args", [["tree"], ["tree", "--help"]])
def test_the_only_command_of_a_group_shows_its_help(args, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(args)
    assert "specjax tree show chain 5" in capsys.readouterr().out


def test_keyboard_interrupt_outside_decoding(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("specjax.cli.generate.main", interrupted)
    assert main(["generate", "x"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_help_of_generate_is_printed_by_the_installed_module():
    ran = subprocess.run([sys.executable, "-m", "specjax.cli", "generate", "--help"], capture_output=True, text=True)
    assert ran.returncode == 0 and "--show-draft" in ran.stdout and "Once upon a time" in ran.stdout


@pytest.mark.slow
def test_help_imports_no_large_library():
    """In a process of its own; the modules of one command are a part of those of all commands."""
    calls = [["--help"], ["--version"], *([*name.split(), "--help"] for name in COMMANDS)]
    code = (
        "import contextlib, io, sys, specjax.cli\n"
        f"for args in {calls}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
        "        specjax.cli.main(args)\n"
        "    assert out.getvalue(), args\n"
        "heavy = ('jax', 'flax', 'torch', 'orbax', 'matplotlib', 'tokenizers', 'transformers')\n"
        "print(sorted(m for m in heavy if m in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"tree show", "convert"}))
def test_help_mentions_the_compilation_cache(name, capsys):
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    assert "--no-compile-cache" in capsys.readouterr().out


@pytest.mark.parametrize("error", [RuntimeError("RESOURCE_EXHAUSTED:\n out of memory"), ImportError("no gguf")])
def test_failures_while_running_are_one_line(error, monkeypatch, capsys):
    def fails(*_):
        raise error

    monkeypatch.setattr("specjax.cli.generate.main", fails)
    assert main(["generate", "x"]) == 1
    error_line = capsys.readouterr().err
    assert error_line == f"specjax generate: failed: {type(error).__name__}: {' '.join(str(error).split())}\n"
    monkeypatch.setenv("SPECJAX_TRACEBACK", "1")
    with pytest.raises(type(error)):
        main(["generate", "x"])


def test_fixtures_that_forbid_work_fail_on_work(specjax_program, models, request):
    for fixture, reason in (("nothing_is_computed", "something was computed"), ("no_model_is_loaded", "was loaded")):
        request.getfixturevalue(fixture)
        with pytest.raises(AssertionError, match=reason):
            specjax_program("generate", "--target", models["target"], "--drafter", "plain", "x")
