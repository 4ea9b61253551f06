"""One grammar for whatever has a name and settings: `NAME` or `NAME:key=value,key=value`.

    model                          tree:shape=3x2,siblings=with            layer-skip:layers=0-2+5
    cascade:gamma=6,inner=(model:gamma=3)          small-kv:cache=(snapkv:window=16,every=32),budget=256

A value that has settings of its own, or a comma in it, stands in parentheses. Nothing here imports jax.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from specjax.checks import hint, lookup

LARGEST = 2**31 - 1


class Spec(NamedTuple):
    """A name, and the settings that were given: what is left out has its default."""

    name: str
    settings: dict[str, Any]


class Key(NamedTuple):
    """A setting.

    Attributes:
      about: what it says, in a few words.
      read: its value of a text; raises ValueError with "must be ...".
      default: as help shows it; of constructors here and there, which a test compares.
      write: the text of a value: read(write(value)) == value.
      names_file: whether its value is the path of a file that has to be there.
    """

    about: str
    read: Callable[[str], Any]
    default: Any = None
    write: Callable[[Any], str] = str
    names_file: bool = False


class Kind(NamedTuple):
    """Something that can be named.

    Attributes:
      about: one line.
      make: what it makes of its settings, as keyword arguments.
      keys: its settings by name.
      bare: the key whose value may stand alone, as the path in `disco:PATH`; None: there is none.
      check: (settings) -> None; raises ValueError for settings that do not go together.
      models: draft models that it needs, of its settings.
      makes: what it drafts, in words; a key of `catalog.MAKES`.
    """

    about: str
    make: Callable[..., Any]
    keys: Mapping[str, Key] = {}
    bare: str | None = None
    check: Callable[[dict[str, Any]], None] | None = None
    models: Callable[[dict[str, Any]], int] = lambda settings: 0
    makes: str = ""


Table = Mapping[str, Kind]


def parse(text: str, table: Table, what: str) -> Spec:
    """What a text says.

    Args:
      what: what the table holds, for messages: "drafter".

    Raises:
      ValueError: a name or key that there is not (the nearest is suggested, all are listed), a bad value, settings that
        do not go together; in one line.
    """
    name, colon, rest = text.strip().partition(":")
    kind = lookup(name.strip(), table, what)
    where = f"{what} {name.strip()!r}"
    if colon and not rest.strip():
        raise ValueError(f"{where}: nothing stands after the colon")
    settings: dict[str, Any] = {}
    for number, part in enumerate(split(rest, where) if rest else ()):
        key, value = _pair(part, kind, number, where)
        if key in settings:
            raise ValueError(f"{where} is told {key} twice")
        try:
            settings[key] = kind.keys[key].read(value)
        except ValueError as error:
            said = f"{key} {error}" if str(error).startswith("must") else str(error)
            raise ValueError(f"{where}: {said}") from None
    settings = {key: settings[key] for key in kind.keys if key in settings}
    if kind.check is not None:
        kind.check(settings)
    return Spec(name.strip(), settings)


def label(spec: Spec, table: Table) -> str:
    """The canonical text: parse(label(s)) == s."""
    told = []
    for key, setting in table[spec.name].keys.items():
        if key in spec.settings:
            value = setting.write(spec.settings[key])
            told.append(f"{key}=({value})" if re.search(r"[,=()]", value) else f"{key}={value}")
    return spec.name + (":" + ",".join(told) if told else "")


def split(text: str, where: str) -> list[str]:
    """The parts between commas, those inside parentheses apart.

    Raises:
      ValueError: parentheses that do not match.
    """
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            break
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    if depth:
        raise ValueError(f"{where}: the parentheses of {text!r} do not match")
    return [part.strip() for part in parts]


def _pair(part: str, kind: Kind, number: int, where: str) -> tuple[str, str]:
    """Key and value of one part."""
    key, equals, value = (found.strip() for found in part.partition("="))
    if not kind.keys:
        raise ValueError(f"{where} takes no settings, got {part!r}")
    if kind.bare is not None and number == 0 and (not equals or not re.fullmatch(r"\w+", key)):
        key, value = kind.bare, part
    elif not equals:
        raise ValueError(f"{where}: {part!r} is not KEY=VALUE (keys: {', '.join(kind.keys)})")
    if key not in kind.keys:
        raise ValueError(f"{where} has no setting {key!r}{hint(key, kind.keys)} (known: {', '.join(kind.keys)})")
    if value.startswith("(") and value.endswith(")"):
        value = value[1:-1].strip()
    if not value:
        raise ValueError(f"{where}: {key} has no value")
    return key, value


# --- values ----------------------------------------------------------------------------------------------------------


def whole(least: int, most: int = LARGEST) -> Callable[[str], int]:
    """Reads a whole number in least..most."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"must be a whole number, got {text!r}") from None
        if not least <= value <= most:
            limit = f"at least {least}" if value < least else f"at most {most}"
            raise ValueError(f"must be {limit}, got {value}")
        return value

    return read


def real(least: float | int, most: float | int = float("inf")) -> Callable[[str], float]:
    """Reads a finite number in least..most."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"must be a number, got {text!r}") from None
        if not least <= value <= most or value == float("inf"):
            limit = f"at least {least:g}" if most == float("inf") else f"between {least:g} and {most:g}"
            raise ValueError(f"must be finite and {limit}, got {text}")
        return value

    return read


def reals(count: int | None = None) -> Callable[[str], tuple[float, ...]]:
    """Reads numbers of at least 0, such as 0.6/0.2/0.05; `count` of them, or any."""

    def read(text: str) -> tuple[float, ...]:
        found = tuple(map(real(0), text.split("/")))
        if count is not None and len(found) != count:
            raise ValueError(f"must be {count} numbers such as {'/'.join(['0.1'] * count)}, got {text!r}")
        return found

    return read


def write_reals(values: Sequence[float]) -> str:
    return "/".join(map(str, values))


def one_of(*names: str) -> Callable[[str], str]:
    """Reads one of some names."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}, got {text!r}{hint(text, names)}")
        return text

    return read


def read_layers(text: str) -> tuple[int, ...]:
    """Numbers and ranges joined by +, ascending: 0-2+5 is (0, 1, 2, 5)."""
    found: list[int] = []
    for part in text.split("+"):
        ends = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if ends is None:
            raise ValueError(f"must be numbers and ranges such as 0-2+5, got {text!r}")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first or (found and first <= found[-1]) or last - first > 10_000:
            raise ValueError(f"must be ascending, each layer once, such as 0-2+5, got {text!r}")
        found += range(first, last + 1)
    return tuple(found)


def write_layers(layers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def path(text: str) -> str:
    """Reads the path of a file; whether it is there is asked later."""
    return text
