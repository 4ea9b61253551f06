"""The toy checkpoints, and the program run in this process."""

from pathlib import Path
from typing import NamedTuple

import pytest

from specjax.cli import main
from tests.cli import toys


class Ran(NamedTuple):
    """What a run of the program left behind."""

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

    def run(*args: str) -> Ran:
        code = main(args)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
