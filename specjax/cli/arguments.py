"""Arguments: tyro parses them, errors come out in one line, misspelt names are answered with the nearest ones."""

import contextlib
import difflib
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
BOX = re.compile(r"[╭╮╰╯│]")
RULE = re.compile(r"^[─━]{3,}$")


def parse(options: type[T], args: Sequence[str], *, prog: str) -> T:
    """An instance of the dataclass `options` from the command line.

    Raises:
      ValueError: arguments that do not parse, in one line.
      SystemExit: after printing the help, where `--help` asks for it.
    """
    import tyro

    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(options, args=list(args), prog=prog, config=config)
    except SystemExit as stopped:
        if stopped.code in (0, None):
            raise
        raise ValueError(f"{_first_part(errors.getvalue())}; see {prog} --help") from None


def _first_part(printed: str) -> str:
    """What tyro's framed message says, as one line: the text above its first rule, and the option it suggests."""
    lines = [BOX.sub("", line).strip() for line in printed.splitlines()]
    lines = [line for line in lines if line and not line.startswith("─ ")]
    at = next((i for i, line in enumerate(lines) if RULE.match(line)), len(lines))
    message = " ".join(lines[:at]).rstrip(".")
    meant = [line.split()[0] for line in lines[at:] if line.startswith("--")]
    if "Perhaps you meant:" in lines and meant:
        message += f"; perhaps you meant {meant[0]}"
    return message


def lookup(name: str, table: Mapping[str, T], what: str) -> T:
    """table[name].

    Raises:
      ValueError: no such name; says what was looked for, the nearest name, and all that there are.
    """
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1, cutoff=0.5)
    hint = f", did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"no {what} is named {name!r}{hint} (known: {', '.join(table)})")


def one_line(error: Any) -> str:
    """An error's message without line breaks; never empty."""
    return " ".join(str(error).split()) or type(error).__name__
