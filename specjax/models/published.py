"""Entries of a published config.json, checked as they are read: a wrong one is named before any weight is read."""

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from specjax import checks


class Published:
    """The entries of a config.json, or of a part of it. One that is null counts as one that is not there.

    Args:
      entries: the parsed JSON.
      kind: what they describe, for the errors: "the configuration of an OPT model".

    Raises:
      ValueError: `entries` is no JSON object; and of every reader: an entry that is not what it must be.
    """

    def __init__(self, entries: Any, kind: str):
        if not isinstance(entries, Mapping):
            raise ValueError(f"{kind} must be a JSON object, got {reprlib.repr(entries)}")
        self.entries = {name: value for name, value in entries.items() if value is not None}
        self.kind = kind

    def require(self, *names: str) -> None:
        """Raises ValueError, naming all that are not there."""
        missing = [name for name in names if name not in self.entries]
        if missing:
            raise ValueError(f"{self.kind} lacks {', '.join(missing)}")

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`; without a default it must be there."""
        value = self._value(name, default)
        return checks.integer(f"{name} in {self.kind}", value, least=least)

    def wholes(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers, where it is there and not empty."""
        found = self.entries.get(name, [])
        if not isinstance(found, list) or not all(type(one) is int for one in found):
            raise ValueError(f"{name} in {self.kind} must be a list of whole numbers, got {reprlib.repr(found)}")
        return tuple(found) or None

    def real(self, name: str, default: float | None = None, *, above: float = 0.0) -> float:
        """A finite number above a bound; without a default it must be there."""
        value = self._value(name, default)
        if not checks.is_number(value) or not above < value < math.inf:
            raise ValueError(
                f"{name} in {self.kind} must be a finite number above {above:g}, got {reprlib.repr(value)}"
            )
        return float(value)

    def real_or_none(self, name: str) -> float | None:
        """A positive finite number, where it is there."""
        return self.real(name) if name in self.entries else None

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self.entries.get(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{name} in {self.kind} must be true or false, got {reprlib.repr(value)}")
        return value

    def word(self, name: str, default: str) -> str:
        """A text."""
        value = self.entries.get(name, default)
        if not isinstance(value, str):
            raise ValueError(f"{name} in {self.kind} must be a text, got {reprlib.repr(value)}")
        return value

    def part(self, name: str) -> "Published":
        """The object at an entry; an empty one where it is not there."""
        return Published(self.entries.get(name, {}), f"{name} of {self.kind}")

    def _value(self, name: str, default: Any) -> Any:
        if default is None:
            self.require(name)
        return self.entries.get(name, default)


def refuse_quantized(entries: Mapping[str, Any]) -> None:
    """Raises ValueError if a config.json declares packed weights."""
    found = entries.get("quantization_config")
    if found:
        method = found.get("quant_method") if isinstance(found, Mapping) else None
        by = f" by {method}" if isinstance(method, str) else ""
        raise ValueError(
            f"its weights are quantized{by} (quantization_config), which is not read: use the original checkpoint, "
            "or a GGUF file"
        )
