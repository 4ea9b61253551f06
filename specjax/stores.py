"""Files of a local folder or of an object store: read, written whole, and appended to without loss.

A name with `://`, such as `gs://bucket/folder` or `memory://folder`, refers to an fsspec store; all others are local.
`gs://` requires the extra `gcs`.
"""

import atexit
import fnmatch
import gzip
import lzma
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specjax import files

MARK = "://"
SEPARATOR = ".rows."  # between the name of a file and the number of an appended object


def is_remote(name: str | os.PathLike[str]) -> bool:
    """Whether the name is that of an object store."""
    return MARK in os.fspath(name)


def opened(name: str) -> tuple[Any, str]:
    """The fsspec file system of a remote name, and the path in it.

    Raises:
      ValueError: a store of an unknown kind, or one whose package is not installed.
    """
    import fsspec

    try:
        return fsspec.core.url_to_fs(name)
    except (ImportError, ValueError) as error:
        extra = ": pip install 'specjax[gcs]'" if name.startswith(("gs:", "gcs:")) else ""
        raise ValueError(f"cannot open {name}: {' '.join(str(error).split())}{extra}") from None


def read(name: str | os.PathLike[str], what: str = "file") -> bytes:
    """The content of a local or a remote file, unpacked where its name ends in .gz or .xz.

    Raises:
      ValueError: it cannot be read, or its content is not an archive of the kind that its suffix names.
    """
    text = os.fspath(name)
    try:
        if is_remote(text):
            system, path = opened(text)
            content = system.cat_file(path)
        else:
            content = Path(text).read_bytes()
        unpack = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(Path(text).suffix, bytes)
        return unpack(content)
    except files.DAMAGED as error:
        raise ValueError(f"{text} is not a complete {Path(text).suffix} archive: {error}") from None
    except OSError as error:
        raise ValueError(f"cannot read the {what} {text}: {error.strerror or error}") from None


def copied(name: str, patterns: Sequence[str] = ("*",)) -> Path:
    """A local folder with the files of a remote one whose names match, for the rest of the process.

    Raises:
      FileNotFoundError: the folder does not exist.
    """
    system, root = opened(name.rstrip("/"))
    local = Path(tempfile.mkdtemp(prefix="specjax-"))
    atexit.register(shutil.rmtree, local, ignore_errors=True)
    try:
        entries = system.ls(root, detail=True)
    except OSError as error:
        raise FileNotFoundError(f"{name} is not a folder: {error}") from None
    for entry in entries:
        short = str(entry["name"]).rsplit("/", 1)[-1]
        if entry["type"] == "file" and any(fnmatch.fnmatch(short, pattern) for pattern in patterns):
            (local / short).write_bytes(system.cat_file(entry["name"]))
    return local


class Folder:
    """A local folder of files that a process may be killed at any moment of writing.

    `write` shows a file whole or not at all; what `append` returned from is on the disk.
    """

    def __init__(self, name: str | os.PathLike[str]):
        self.name, self._path = os.fspath(name), Path(name)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{name} cannot be made a folder: {error.strerror}") from None

    def names(self) -> set[str]:
        """Names of the files, without what an interrupted `write` left."""
        return {file.name for file in self._path.iterdir() if not file.name.startswith(".")}

    def read(self, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError if it does not exist."""
        return (self._path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Writes or replaces a file, through a temporary one."""
        file = self._path / name
        for left in self._path.glob(f".{file.stem}.*{file.suffix}"):  # by a process that was killed
            left.unlink(missing_ok=True)
        with files.whole(file) as aside, aside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        self._sync()

    def append(self, name: str, content: bytes) -> None:
        """Adds whole lines at the end of a file; the end of a line that a crash cut off is completed by a line feed."""
        file = self._path / name
        is_new = not file.exists()
        with file.open("ab+") as stream:
            size = stream.seek(0, os.SEEK_END)
            if size:
                stream.seek(size - 1)
                content = content if stream.read(1) == b"\n" else b"\n" + content
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if is_new:
            self._sync()

    def appended(self, name: str) -> bytes:
        """All that was appended; the last line may be cut off by a crash."""
        file = self._path / name
        return file.read_bytes() if file.exists() else b""

    def discard(self, name: str) -> None:
        """Removes what was appended under this name."""
        (self._path / name).unlink(missing_ok=True)

    def _sync(self) -> None:
        """Makes new names durable."""
        handle = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class RemoteFolder(Folder):
    """The same in an object store, whose objects appear whole and cannot grow: each `append` makes one of its own."""

    def __init__(self, name: str):
        self.name = name.rstrip("/")
        self._system, self._root = opened(self.name)
        self._system.makedirs(self._root, exist_ok=True)

    def _objects(self) -> dict[str, str]:
        self._system.invalidate_cache()  # other processes write, too
        try:
            return {str(path).rsplit("/", 1)[-1]: path for path in self._system.ls(self._root, detail=False)}
        except FileNotFoundError:  # a folder is the common name of its objects, and there are none yet
            return {}

    def _parts(self, name: str) -> list[str]:
        return sorted(path for short, path in self._objects().items() if short.startswith(name + SEPARATOR))

    def names(self) -> set[str]:
        return set(self._objects())

    def read(self, name: str) -> bytes:
        return self._system.cat_file(f"{self._root}/{name}")

    def write(self, name: str, content: bytes) -> None:
        self._system.pipe_file(f"{self._root}/{name}", content)

    def append(self, name: str, content: bytes) -> None:
        parts = self._parts(name)
        number = 1 + (int(parts[-1].rsplit(".", 1)[-1]) if parts else 0)
        self.write(f"{name}{SEPARATOR}{number:06d}", content)

    def appended(self, name: str) -> bytes:
        return b"".join(self._system.cat_file(path) for path in self._parts(name))

    def discard(self, name: str) -> None:
        for path in self._parts(name):
            self._system.rm_file(path)


def folder(name: str | os.PathLike[str]) -> Folder:
    """The folder of a local path, or of an object store; made if absent.

    Raises:
      ValueError: it cannot be made.
    """
    return RemoteFolder(os.fspath(name)) if is_remote(name) else Folder(name)
