"""Text files, read by lines: every error names file and line. Files that appear whole or not at all. JSON."""

import contextlib
import gzip
import json
import lzma
import math
import os
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

PACKED = {".gz": ("gzip", gzip.open), ".xz": ("xz", lzma.open)}
DAMAGED = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)  # errors of unpacking bytes that are not an archive


def lines(file: Path | str, what: str = "text") -> Iterator[tuple[int, str]]:
    """The lines of a text file, each with its number and its end, read one by one.

    Files are unpacked where their name ends in .gz or .xz; line ends are those of `decoded`.

    Args:
      what: what the file should contain, for the error message.

    Raises:
      ValueError: the file cannot be read, is not the archive that its name promises, or is not UTF-8.
    """
    ending = Path(file).suffix
    packer, opened = PACKED.get(ending, ("", open))
    try:
        with opened(file, "rb") as stream:
            yield from decoded(stream, str(file))
    except DAMAGED as error:
        raise ValueError(f"{file} is no whole {packer} file, though its name ends in {ending}: {error}") from None
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"cannot read the {what} of {file}: {why}: name a text file that can be read") from None


def decoded(stream: Iterable[bytes], name: str) -> Iterator[tuple[int, str]]:
    """The lines of a stream of bytes with their numbers; they end in a line feed whatever system wrote them.

    Args:
      stream: lines as bytes, such as a file opened for bytes. name: what errors call it.

    Raises:
      ValueError: a line that is not UTF-8.
    """
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{name} line {number} is not UTF-8: save the file as UTF-8") from None
        if number == 1:
            text = text.removeprefix("\ufeff")  # some editors mark UTF-8 with it
        yield number, text.replace("\r\n", "\n")


def filled(numbered: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers, without their ends."""
    return [(number, line.rstrip("\r\n")) for number, line in numbered if line.strip()]


def read_lines(file: Path | str) -> list[str]:
    """The lines of a text file that are not blank.

    Raises:
      ValueError: the file cannot be read, or is blank.
    """
    found = [line for _, line in filled(lines(file))]
    if not found:
        raise ValueError(f"{file} contains no text")
    return found


def read_text(file: Path | str, what: str = "text") -> str:
    """The whole text of a file, as `lines` reads it."""
    return "".join(line for _, line in lines(file, what))


@contextlib.contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A temporary file beside `file`, of the same ending, to write to: it takes the name when the block has ended, and
    is removed where the block fails. Of a link it is the file behind it that is written.

    Raises:
      ValueError: the name is that of a device or a pipe, which a file must not take.
    """
    file = Path(os.path.realpath(file))
    if is_special(file):
        raise ValueError(f"{file} is a device or a pipe: name a file")
    aside = file.with_name(f".{file.stem}.{secrets.token_hex(4)}{file.suffix}")
    aside.touch(exist_ok=False)  # with the rights of any file of the user's, which a temporary file would not have
    try:
        yield aside
        os.replace(aside, file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def is_special(file: Path) -> bool:
    """Whether there is something of that name that is neither a file nor a folder."""
    return file.exists() and not file.is_file() and not file.is_dir()


def write_text(file: Path, text: str) -> None:
    """Writes a text file, which appears whole or not at all."""
    with whole(file) as aside:
        aside.write_text(text, encoding="utf-8")


def finite(value: Any) -> Any:
    """A copy as plain JSON values: nan and infinities are None, names of mappings and paths are strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def to_json(value: Mapping[str, Any]) -> str:
    """Strict JSON, in which nan and infinities are null."""
    return json.dumps(finite(value), ensure_ascii=False, allow_nan=False, indent=2)
