"""Every notebook runs from top to bottom on the bundled models."""

from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the packages that start the kernel
@pytest.mark.slow
@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem) for file in NOTEBOOKS])
def test_a_notebook_runs(file, tmp_path, monkeypatch):
    monkeypatch.setenv("CI", "true")  # notebooks that train do so at small size
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the kernel imports this tree, installed or not
    notebook = nbformat.read(file, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    printed = "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", []))
    assert "lossless: True" in printed
