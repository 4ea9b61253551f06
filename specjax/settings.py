"""Values of settings as text: `read` after `--drafter`, in presets and sweeps; `write` in labels and commands.

gamma=4     confidence=0.1     layers=0-2+5     accept=0.6/0.2     shape=3x2     shape=0-0-1     siblings=with
"""

import enum
import math
import re
import typing
from collections.abc import Callable
from typing import Any

from specjax.checks import lookup

SIBLINGS = {"without": "WITHOUT_REPLACEMENT", "with": "WITH_REPLACEMENT", "points": "POINTS"}
MIDDLE = ("draft", "target")  # which model a cascade drafts with: a draft model, or the target with a bounded cache
FILES = ("file", "text", "corpus")


def read(name: str, annotation: Any, text: str, *, least: int) -> Any:
    """The value of a setting of this name, passed to a parameter with this annotation.

    Args:
      least: of integers.

    Raises:
      ValueError: text that is not a value of the setting's type.
    """
    if name in READERS:
        return READERS[name](text)
    return _number(text) if float in (annotation, *typing.get_args(annotation)) else _integer(text, least)


def write(value: Any) -> str:
    """The text of a value, which `read` turns into the same value."""
    from specjax.theory import StepTime
    from specjax.trees import Tree

    if isinstance(value, Tree):
        levels = regular_levels(value)
        return "x".join(map(str, levels)) if levels else "-".join(map(str, value.parents[1:]))
    if isinstance(value, enum.Enum):
        return next(text for text, name in SIBLINGS.items() if name == value.name)
    if isinstance(value, StepTime) or (isinstance(value, tuple) and any(isinstance(one, float) for one in value)):
        return "/".join(map(str, value))
    if not isinstance(value, tuple):
        return str(value)
    runs: list[list[int]] = []
    for one in value:
        if runs and runs[-1][1] == one - 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return "+".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def python(value: Any) -> str:
    """The value as a Python expression, with `sj` for specjax."""
    from specjax.theory import StepTime
    from specjax.trees import Tree

    if isinstance(value, Tree):
        levels = regular_levels(value)
        return f"sj.trees.regular({levels})" if levels else f"sj.trees.Tree({tuple(value.parents)})"
    if isinstance(value, enum.Enum):
        return f"sj.drafters.{value}"
    return f"sj.theory.StepTime{tuple(value)}" if isinstance(value, StepTime) else repr(value)


def regular_levels(tree: Any) -> tuple[int, ...] | None:
    """Children per level where all nodes of a level have equally many, such as (3, 2); None for other trees."""
    counts = [tree.parents.count(node) for node in range(tree.size)]
    levels = [{counts[node] for node in range(tree.size) if tree.depth[node] == depth} for depth in range(tree.width)]
    if tree.size == 1 or any(len(found) > 1 for found in levels):
        return None
    return tuple(found.pop() for found in levels[:-1])


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"must be an integer, got {text!r}") from None
    if not least <= value < 2**31:
        raise ValueError(f"must be in {least}..{2**31 - 1}, got {value}")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"must be a number, got {text!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"must be finite, got {text}")
    return value


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(_number, text.split("/")))


def _integers(text: str) -> tuple[int, ...]:
    """Ascending integers and ranges joined by +: 0-2+5 is (0, 1, 2, 5)."""
    found: list[int] = []
    for part in text.split("+"):
        ends = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part)
        if ends is None:
            raise ValueError(f"must be integers and ranges such as 0-2+5, got {text!r}")
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
        if int(ends[2] or ends[1]) < int(ends[1]) or found != sorted(set(found)):
            raise ValueError(f"must be ascending without repetition, such as 0-2+5, got {text!r}")
    return tuple(found)


def _shape(text: str) -> Any:
    from specjax import trees

    plain = text.replace(" ", "")
    if re.fullmatch(r"\d{1,5}(x\d{1,5})*", plain):
        return trees.regular(tuple(map(int, plain.split("x"))))
    if re.fullmatch(r"\d{1,5}(-\d{1,5})+", plain):
        return trees.Tree((trees.ROOT, *map(int, plain.split("-"))))
    raise ValueError(
        "must be children per level such as 3x2x1, parents of the nodes such as 0-0-1, or the name of a shape such as "
        f"chain:4; got {text!r}"
    )


def _siblings(text: str) -> enum.Enum:
    from specjax.types import Siblings

    return Siblings[lookup(text, SIBLINGS, "siblings")]


def _verifier(text: str) -> str:
    from specjax import verify

    verify.get(text).require_lossless()
    return text


def _step_time(text: str) -> Any:
    from specjax.theory import StepTime

    values = _numbers(text)
    if len(values) != 3:
        raise ValueError(f"must be three numbers such as 0/2e-4/0.03, got {text!r}")
    return StepTime(*values)


READERS: dict[str, Callable[[str], Any]] = {  # by the name of the setting; all others are integers or floats
    **dict.fromkeys(("shape", "tree"), _shape),
    "siblings": _siblings,
    "verifier": _verifier,
    "middle": lambda text: lookup(text, dict.fromkeys(MIDDLE, text), "middle model"),
    **dict.fromkeys(("layers", "buckets"), _integers),
    **dict.fromkeys(("accept", "verify_cost"), _numbers),
    **dict.fromkeys(("target", "draft"), _step_time),  # of the policy "goodput"
    **dict.fromkeys((*FILES, "folder"), str),
}
