"""Checks of output files, before any work. Each raises ValueError that names the option."""

import os
from pathlib import Path

from specjax import files, plotting


def writable(**options: Path | None) -> None:
    """Every option must be a file that can be written, or None."""
    for name, file in options.items():
        if file is None:
            continue
        if file.is_dir():
            raise ValueError(f"--{name} {file} is a folder: pass a file")
        if files.is_special(file):
            raise ValueError(f"--{name} {file} is a device or a pipe: pass a file")
        _inside(name, file, Path(os.path.realpath(file)).parent if file.is_symlink() else file.parent)


def writable_folder(**options: Path | None) -> None:
    """Every option must be a folder for pictures that can be made and written to, or None; requires matplotlib."""
    for name, folder in options.items():
        if folder is None:
            continue
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"--{name} {folder} is a file: pass a folder")
        _inside(name, folder, folder if folder.is_dir() else folder.parent)
        plotting.require()


def picture(**options: Path | None) -> None:
    """Every option must be a writable .svg or .png file, or None; requires matplotlib."""
    for name, file in options.items():
        if file is None:
            continue
        if file.suffix[1:] not in plotting.FORMATS:
            raise ValueError(f"--{name} {file} must end in .svg or .png")
        writable(**{name: file})
        plotting.require()


def _inside(name: str, path: Path, folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"--{name} {path}: cannot write to the folder {folder}")
