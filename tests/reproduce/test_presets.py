"""Presets of published experiments."""

from pathlib import Path

from specjax.cli import reproduce
from specjax.reproduce.setup import read_preset

FILES = sorted((Path(__file__).resolve().parents[2] / "configs" / "reproduce").glob("*.py"))


def test_there_is_a_preset_for_every_table_and_figure():
    found = {read_preset(file).name: file for file in FILES}
    assert set(found) == set(reproduce.experiments())
    for name, file in found.items():
        assert file.stem == name.replace("-", "_") and f"configs/reproduce/{file.name}" in file.read_text()
