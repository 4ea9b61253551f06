"""The toy checkpoints, and the program run in this process."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from specjax import convert, decoding
from specjax.cli import main, progress
from tests.cli import toys


class Ran(NamedTuple):
    """Exit code and output of a run of the program."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, str]:
    """Folders of toy models by name: target, draft (often right), other (another vocabulary), broken (NaN)."""
    root: Path = tmp_path_factory.mktemp("models")
    made = {
        "target": toys.write_model(root / "target"),
        "draft": toys.write_model(root / "draft", noise=0.03),
        "other": toys.write_model(root / "other", vocab=300),
        "broken": toys.write_model(root / "broken", broken=True),
    }
    return {name: str(folder) for name, folder in made.items()}


@pytest.fixture
def specjax_program(capsys, monkeypatch):
    """Runs the program in this process, so that compiled functions are shared between tests."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(progress, "QUIET", float("inf"))  # however slow the machine: stderr holds warnings and errors

    def run(*args: str) -> Ran:
        code = main(args)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def refused(specjax_program):
    """Runs the program with invalid input: asserts exit code 2 and one line on stderr that contains `name`.

    Names of options may be spelled as on the command line or as in Python: --max-new-tokens or max_new_tokens.
    """

    def run(*args: str, name: str = "") -> Ran:
        ran = specjax_program(*args)
        command, colon, message = ran.err.partition(": error: ")
        assert ran.code == 2 and ran.out == "" and len(ran.err.splitlines()) == 1
        spelled = lambda text: text.replace("--", "").replace("-", "_")
        assert colon and " ".join(["specjax", *args]).startswith(command) and spelled(name) in spelled(message)
        return ran

    return run


@pytest.fixture
def no_model_is_loaded(monkeypatch):
    """The test fails if the program loads a model."""
    _forbid(monkeypatch, convert, "locate", "a model was loaded")


@pytest.fixture
def nothing_is_computed(monkeypatch):
    """The test fails if the program starts to decode."""
    _forbid(monkeypatch, decoding, "prefill", "something was computed")


def _forbid(monkeypatch, module: Any, name: str, reason: str) -> None:
    def done(*args: Any, **options: Any) -> None:
        raise AssertionError(reason)

    monkeypatch.setattr(module, name, done)
