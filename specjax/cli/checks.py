"""Checks shared by several commands, before any work. Each raises ValueError whose message names the option."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specjax import checks, defaults, files, plotting


def numbers(least: float | int, most: float | int | None = None, **options: Any) -> None:
    """Options by name: each value, or each of several, must be a finite number in [least, most]."""
    limit = {} if most is None else {"most": most}
    for name, value in options.items():
        for number in value if isinstance(value, Sequence) else (value,):
            checks.number(_option(name), number, least=least, **limit)


def at_least(least: int, **options: Any) -> None:
    """Options by name: each value must be finite and at least `least`."""
    numbers(least, None, **options)


def request(
    *, temperature: float | Sequence[float], max_new_tokens: int, seed: int = 0, gamma: Sequence[int] = ()
) -> None:
    """The ranges of decoding options, which the library would check only after the models have been read."""
    numbers(0, defaults.LARGEST_TEMPERATURE, temperature=temperature)
    numbers(1, defaults.LARGEST_NEW, max_new_tokens=max_new_tokens)
    numbers(0, defaults.LARGEST_SEED, seed=seed)
    numbers(1, defaults.LARGEST_TREE - 1, gamma=gamma)


def once(**options: Sequence[Any]) -> None:
    """No option may contain a value twice."""
    for name, values in options.items():
        twice = [value for value in values if list(values).count(value) > 1]
        if twice:
            raise ValueError(f"{_option(name)} contains {twice[0]} twice")


def some(**options: Sequence[Any]) -> None:
    """Every option needs at least one value."""
    for name, values in options.items():
        if not values:
            raise ValueError(f"{_option(name)} requires at least one value")


def writable(**options: Path | None) -> None:
    """Every option must be a file that can be written, or None."""
    for name, file in options.items():
        if file is None:
            continue
        if file.is_dir():
            raise ValueError(f"{_option(name)} {file} is a folder: pass a file")
        if files.is_special(file):
            raise ValueError(f"{_option(name)} {file} is a device or a pipe: pass a file")
        _inside(name, file, Path(os.path.realpath(file)).parent if file.is_symlink() else file.parent)


def writable_folder(name: str, folder: Path) -> None:
    """The folder must be one that can be made and written to."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{_option(name)} {folder} is a file: pass a folder")
    _inside(name, folder, folder if folder.is_dir() else folder.parent)


def picture(**options: Path | None) -> None:
    """Every option must be a writable .svg or .png file, or None; matplotlib must be installed."""
    for name, file in options.items():
        if file is None:
            continue
        if file.suffix[1:] not in plotting.FORMATS:
            raise ValueError(f"{_option(name)} {file} must end in .svg or .png")
        writable(**{name: file})
        plotting.require()


def formats(given: Sequence[str]) -> None:
    """--format needs at least one format, and none twice."""
    some(format=given)
    once(format=given)


def _inside(name: str, path: Path, folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{_option(name)} {path}: cannot write to the folder {folder}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
