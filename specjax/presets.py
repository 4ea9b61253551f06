"""Preset files: Python that binds one name to a record. They are executed: read only files that you trust."""

import dataclasses
import re
import types
from pathlib import Path
from typing import Any, TypeVar

from specjax import checks

T = TypeVar("T")


def bound(file: Path | str, name: str, kind: type[T]) -> T:
    """Executes a preset file and returns the object that it binds to `name`.

    Args:
      kind: dataclass of the object.

    Raises:
      FileNotFoundError: no such file.
      ValueError: the file does not run, uses an unknown option, or does not bind the name.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such preset")
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise ValueError(f"preset {path}: {describe(error, kind)}") from error
    found = getattr(module, name, None)
    if not isinstance(found, kind):
        raise ValueError(f"{path} defines no {name} = {kind.__name__}(...)")
    return found


def describe(error: BaseException, kind: Any) -> str:
    """The error of a preset on one line; for an unknown option, with the closest valid one."""
    unknown = re.search(rf"(?:^|{kind.__name__}\S* )got an unexpected keyword argument '(\w+)'", str(error))
    if unknown is None:
        text = " ".join(str(error).split())
        return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
    known = [field.name for field in dataclasses.fields(kind)]
    return f"unknown option {unknown[1]!r}{checks.hint(unknown[1], known)} (known: {', '.join(known)})"
