"""Command-line arguments: parsed by tyro, with one-line errors."""

import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

T = TypeVar("T")
FRAME = re.compile(r"^[|│]|[|│]$|^[╭╰].*[╮╯]$")
RULE = re.compile(r"[-─+]{3,}")
CACHE_HELP = "Compiled programs are kept for later runs; --no-compile-cache turns this off."
UNREAD = re.compile(r"(--\S+): no type matching \{None\}\|(INT|FLOAT) could be instantiated from \[(.*?)\]")


def parse(options: type[T], args: Sequence[str], *, prog: str, default: T | None = None, compiles: bool = True) -> T:
    """An instance of the dataclass `options` from the command line; missing options have the values of `default`.

    Args:
      compiles: whether the command compiles programs: its help mentions the compilation cache.

    Raises:
      ValueError: arguments that do not parse, in one line.
      SystemExit: after printing the help for `--help`.
    """
    import tyro

    _refuse_values_of_flags(options, args)
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
    description = "\n\n".join([inspect.getdoc(options) or "", *([CACHE_HELP] if compiles else [])])
    given: dict[str, Any] = {} if default is None else {"default": default}
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(options, args=list(args), prog=prog, description=description, config=config, **given)
    except SystemExit as stopped:
        if stopped.code in (0, None):
            raise
        raise ValueError(f"{_first_part(errors.getvalue())}; see {prog} --help") from None


def _refuse_values_of_flags(options: type, args: Sequence[str]) -> None:
    """Raises ValueError for `--flag=value`, whose value would be read as the next word."""
    flags = set(_flags(options))
    for arg in itertools.takewhile(lambda arg: arg != "--", args):
        name, equals, value = arg.partition("=")
        if equals and name in flags:
            raise ValueError(f"{name} takes no value, got {value!r}: write {name}, or leave it out")


def _flags(options: type) -> Iterator[str]:
    """The boolean options of a dataclass and of the dataclasses nested in it."""
    for name, kind in typing.get_type_hints(options).items():
        if dataclasses.is_dataclass(kind):
            yield from _flags(cast(type, kind))
        elif kind is bool:
            yield f"--{name.replace('_', '-')}"


def _first_part(printed: str) -> str:
    """The first part of tyro's framed error message as one line, with the option that it suggests.

    The frame has the title in its border; if stdout is not UTF-8, the title is a separate part.
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
