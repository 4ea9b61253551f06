"""Names that stand in a table: who asks for one that does not is told the nearest, and all that do."""

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def lookup(name: str, table: Mapping[str, T], what: str) -> T:
    """table[name].

    Args:
      what: what the table holds, for the message: "drafter".

    Raises:
      ValueError: no such name; says what was looked for, the nearest name, and all that there are.
    """
    check_name(name, table, what)
    return table[name]


def check_name(name: str, known: Collection[str], what: str) -> None:
    """Raises the ValueError of `lookup` where a name is none of those that are known."""
    if name not in known:
        raise ValueError(f"no {what} is named {name!r}{hint(name, known)} (known: {', '.join(known)})")


def hint(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names as a question that ends a message; empty where none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {near[0]!r}?" if near else ""
