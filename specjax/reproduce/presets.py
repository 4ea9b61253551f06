"""Presets of `specjax reproduce`: a Python file that binds `REPRODUCE = Preset("table-2", count=64)`."""

import dataclasses
from pathlib import Path

from specjax import presets
from specjax.reproduce.setup import Setup


@dataclasses.dataclass(frozen=True)
class Preset(Setup):
    """A table or figure, and what it is measured with; see `Setup`."""

    name: str = ""

    @property
    def setup(self) -> Setup:
        return Setup(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Setup)})


def read(file: Path | str) -> Preset:
    """Raises FileNotFoundError or ValueError, in one line."""
    return presets.bound(file, "REPRODUCE", Preset)
