"""Arguments: tyro parses them, and errors come out in one line."""

import contextlib
import dataclasses
import io
import itertools
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

T = TypeVar("T")
FRAME = re.compile(r"^[|│]|[|│]$|^[╭╰].*[╮╯]$")
RULE = re.compile(r"[-─+]{3,}")
UNREAD = re.compile(r"(--\S+): no type matching \{None\}\|(INT|FLOAT) could be instantiated from \[(.*?)\]")


def parse(options: type[T], args: Sequence[str], *, prog: str, default: T | None = None) -> T:
    """An instance of the dataclass `options` from the command line; what it leaves out comes from `default`.

    Raises:
      ValueError: arguments that do not parse, in one line.
      SystemExit: after printing the help, where `--help` asks for it.
    """
    import tyro

    _refuse_values_of_flags(options, args)
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            if default is None:
                return tyro.cli(options, args=list(args), prog=prog, config=config)
            return tyro.cli(options, args=list(args), prog=prog, config=config, default=default)
    except SystemExit as stopped:
        if stopped.code in (0, None):
            raise
        raise ValueError(f"{_first_part(errors.getvalue())}; see {prog} --help") from None


def _refuse_values_of_flags(options: type, args: Sequence[str]) -> None:
    """Raises ValueError for `--flag=value`, whose value would be read as the next word."""
    flags = set(_flags(options))
    for arg in itertools.takewhile(lambda arg: arg != "--", args):
        name, told, value = arg.partition("=")
        if told and name in flags:
            raise ValueError(f"{name} takes no value, got {value!r}: write {name}, or leave it out")


def _flags(options: type) -> Iterator[str]:
    """The options of a dataclass, and of those in it, that are there or not."""
    for name, kind in typing.get_type_hints(options).items():
        if dataclasses.is_dataclass(kind):
            yield from _flags(cast(type, kind))
        elif kind is bool:
            yield f"--{name.replace('_', '-')}"


def _first_part(printed: str) -> str:
    """What tyro's frame says, as one line: its first part, and the option that it suggests.

    The frame has the title in its border, or where stdout is not UTF-8 in a part of its own.
    """
    lines = [FRAME.sub("", line).strip() for line in printed.splitlines()]
    parts: list[list[str]] = [[]]
    for line in lines:
        if RULE.fullmatch(line):
            parts.append([])
        elif line:
            parts[-1].append(line)
    parts = [part for part in parts if part]
    at = 0 if "╭" in printed else 1
    message = " ".join(parts[at]).rstrip(".")
    if unread := UNREAD.search(message):
        wanted = {"INT": "a whole number", "FLOAT": "a number"}[unread[2]]
        message = f"{unread[1]} must be {wanted}, got {unread[3]}"
    meant = [part[1].split()[0] for part in parts[at + 1 :] if part[0] == "Perhaps you meant:" and len(part) > 1]
    return message + "".join(f"; perhaps you meant {name}" for name in meant)


def one_line(error: Any) -> str:
    """An error's message without line breaks; never empty."""
    return " ".join(str(error).split()) or type(error).__name__
