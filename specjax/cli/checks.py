"""What several commands refuse, before any work. Each function raises ValueError, which names the option."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specjax import defaults, files, plotting


def at_least(least: int, **options: float | int | Sequence[float | int]) -> None:
    """Refuses numbers below `least`, and those that are not finite; of options by name, of one value or of several."""
    for name, value in options.items():
        for number in value if isinstance(value, Sequence) else (value,):
            if not least <= number < float("inf"):
                raise ValueError(f"--{_told(name)} must be at least {least}, got {number}")


def at_most(most: float | int, **options: float | int | Sequence[float | int]) -> None:
    """Refuses numbers above `most`; of options by name, of one value or of several."""
    for name, value in options.items():
        for number in value if isinstance(value, Sequence) else (value,):
            if number > most:
                raise ValueError(f"--{_told(name)} must be at most {most}, got {number}")


def request(
    *, temperature: float | Sequence[float], max_new_tokens: int, seed: int = 0, gamma: Sequence[int] = ()
) -> None:
    """Refuses what nobody may ask of a decoder, which would say so when models have been read."""
    at_least(0, temperature=temperature, seed=seed)
    at_least(1, max_new_tokens=max_new_tokens, gamma=gamma)
    at_most(defaults.LARGEST_TEMPERATURE, temperature=temperature)
    at_most(defaults.LARGEST_NEW, max_new_tokens=max_new_tokens)
    at_most(defaults.LARGEST_SEED, seed=seed)
    at_most(defaults.LARGEST_TREE - 1, gamma=gamma)


def once(**options: Sequence[Any]) -> None:
    """Refuses an option that names a value twice."""
    for name, values in options.items():
        twice = [value for value in values if list(values).count(value) > 1]
        if twice:
            raise ValueError(f"--{_told(name)} names {twice[0]} twice")


def some(**options: Sequence[Any]) -> None:
    """Refuses an option that names no value, of those that need one."""
    for name, values in options.items():
        if not values:
            raise ValueError(f"--{_told(name)} needs at least one value")


def writable(**options: Path | None) -> None:
    """Refuses files that could not be written."""
    for name, file in options.items():
        if file is None:
            continue
        if file.is_dir():
            raise ValueError(f"--{_told(name)} {file} is a folder: name a file")
        if files.is_special(file):
            raise ValueError(f"--{_told(name)} {file} is a device or a pipe: name a file")
        _inside(name, file, Path(os.path.realpath(file)).parent if file.is_symlink() else file.parent)


def writable_folder(name: str, folder: Path) -> None:
    """Refuses a folder that could not be made, or written into."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--{_told(name)} {folder} is a file: name a folder")
    _inside(name, folder, folder if folder.is_dir() else folder.parent)


def picture(**options: Path | None) -> None:
    """Refuses pictures of another kind than are drawn, and those that could not be drawn or written."""
    for name, file in options.items():
        if file is None:
            continue
        if file.suffix[1:] not in plotting.FORMATS:
            raise ValueError(f"--{_told(name)} {file}: a picture's name ends in .svg or .png")
        writable(**{name: file})
        plotting.require()


def formats(given: Sequence[str]) -> None:
    """Refuses --format without a format, or with one twice."""
    if not given or len(set(given)) < len(given):
        raise ValueError(f"--format takes svg, png or both, got {' '.join(given) or 'none'}")


def _inside(name: str, path: Path, folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"--{_told(name)} {path}: cannot write into the folder {folder}")


def _told(name: str) -> str:
    return name.replace("_", "-")
