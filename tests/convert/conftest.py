import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.convert.writers import GOLDEN, WRITERS, tensors_of


@pytest.fixture
def rewrite(tmp_path: Path) -> Callable[[str, str], Path]:
    """(golden name, writer) -> a folder with the same model in that format."""

    def make(name: str, writer: str) -> Path:
        folder = tmp_path / f"{name}-{writer}"
        folder.mkdir()
        shutil.copy(GOLDEN / name / "config.json", folder)
        WRITERS[writer](folder, tensors_of(name))
        return folder

    return make
