"""Preset files: Python that binds one name to a record. They are executed: read only files that you trust."""

import dataclasses
import re
import types
from pathlib import Path
from typing import Any, TypeVar

from specjax import checks

T = TypeVar("T")


def bound(file: Path | str, name: str, kind: type[T]) -> T:
    """What a preset file binds to `name`.

    Args:
      kind: the dataclass that it must be.

    Raises:
      FileNotFoundError: no such file. ValueError: it does not run, names an option that there is not, or does not bind
        the name; in one line.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such preset")
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise ValueError(f"preset {path}: {told(error, kind)}") from error
    found = getattr(module, name, None)
    if not isinstance(found, kind):
        raise ValueError(f"{path} is no preset of this kind: it defines no {name} = {kind.__name__}(...)")
    return found


def told(error: BaseException, kind: Any) -> str:
    """What went wrong in a preset, with the option that may have been meant."""
    unknown = re.search(rf"(?:^|{kind.__name__}\S* )got an unexpected keyword argument '(\w+)'", str(error))
    if unknown is None:
        text = " ".join(str(error).split())
        return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
    known = [field.name for field in dataclasses.fields(kind)]
    return f"no option is named {unknown[1]!r}{checks.hint(unknown[1], known)} (known: {', '.join(known)})"
