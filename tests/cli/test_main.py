"""The program: overview, version, unknown commands, exit codes."""

import subprocess
import sys

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


def test_keyboard_interrupt_outside_decoding(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("specjax.cli.generate.main", interrupted)
    assert main(["generate", "x"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_help_of_generate_is_printed_by_the_installed_module():
    ran = subprocess.run([sys.executable, "-m", "specjax.cli", "generate", "--help"], capture_output=True, text=True)
    assert ran.returncode == 0 and "--show-draft" in ran.stdout and "Once upon a time" in ran.stdout


def test_help_loads_no_model_library():
    code = (
        "import sys, specjax.cli\n"
        "try: specjax.cli.main(['generate', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in ('torch', 'orbax.checkpoint', 'matplotlib', 'tokenizers') if m in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1] == "[]"
