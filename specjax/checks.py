"""Checks of what a caller asks for. Every error is one line: the name, what it may be, what was given."""

import inspect
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specjax.names import hint

LARGEST = 2**31 - 1  # of an int32
LONGEST_STOPS = 1024  # bytes of stop strings: each has a row of the vocabulary's width in the automaton


def is_whole(value: Any) -> bool:
    """Whether it is an integer of Python or numpy; True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a real number of Python or numpy; True and False are not."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def items(value: Any) -> list[Any] | None:
    """The elements of a sequence or an array; None for anything else, text among it."""
    if isinstance(value, np.ndarray | jax.Array):
        value = np.asarray(value)
        return None if value.ndim == 0 else list(value)
    return (
        list(value) if isinstance(value, Sequence | range) and not isinstance(value, str | bytes | bytearray) else None
    )


def whole(name: str, value: Any, *, least: int, most: int = LARGEST) -> int:
    """The integer.

    Raises:
      ValueError: it is none, or lies outside least..most.
    """
    if not is_whole(value):
        raise ValueError(f"{name} must be a whole number, got {reprlib.repr(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")
    return int(value)


def whole_rows(name: str, value: Any, rows: int, *, least: int, most: int = LARGEST) -> np.ndarray:
    """[rows] int64, from one integer for all rows or one for each.

    Raises:
      ValueError: something else, or outside least..most.
    """
    given = [value] * rows if is_whole(value) else items(value)
    if given is None or not all(map(is_whole, given)):
        raise ValueError(f"{name} must be a whole number, or one for each row; got {reprlib.repr(value)}")
    if len(given) != rows:
        raise ValueError(f"{name} has {len(given)} numbers for {rows} prompts: give one number, or one for each prompt")
    return np.array([whole(name, one, least=least, most=most) for one in given], np.int64)


def flag(name: str, value: Any) -> bool:
    """True or False.

    Raises:
      ValueError: it is neither.
    """
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {reprlib.repr(value)}")
    return bool(value)


def numbers(**named: Any) -> None:
    """Raises ValueError unless each is a number, or a sequence of numbers. Their ranges are `sampling`'s to check."""
    for name, value in named.items():
        if not is_number(value) and not all(map(is_number, items(value) or [None])):
            raise ValueError(f"{name} must be a number, or one for each row; got {reprlib.repr(value)}")
        try:
            np.asarray(value, np.float64)
        except OverflowError:
            raise ValueError(f"{name} holds more than a float does: got {reprlib.repr(value)}") from None


def biases(logit_bias: Any) -> None:
    """Raises ValueError where biases are neither numbers nor mappings from token ids to them."""
    if logit_bias is None:
        return
    given = [logit_bias] if isinstance(logit_bias, Mapping) else items(logit_bias)
    if given is None or not np.issubdtype(getattr(logit_bias, "dtype", np.number), np.number):
        raise ValueError(f"logit_bias maps token ids to numbers, such as {{5: -1.0}}, got {reprlib.repr(logit_bias)}")
    for one in given:
        if isinstance(one, Mapping):
            bad = [pair for pair in one.items() if not (is_whole(pair[0]) and is_number(pair[1]))]
            if bad:
                raise ValueError(f"logit_bias maps token ids to numbers, got {bad[0][0]!r}: {bad[0][1]!r}")
            numbers(logit_bias=list(one.values()) or 0)


def stop_strings(stop: Any) -> tuple[str, ...]:
    """The strings that end a row.

    Raises:
      ValueError: something else than strings, an empty one, one that is not Unicode, or more than LONGEST_STOPS bytes.
    """
    stops = [stop] if isinstance(stop, str) else items(stop)
    if stops is None or not all(isinstance(one, str) for one in stops):
        raise ValueError(f"stop must be a string or a list of strings, got {reprlib.repr(stop)}")
    if not all(stops):
        raise ValueError("a stop string must not be empty: it would stop every row at once")
    try:
        size = sum(len(one.encode()) for one in stops)
    except UnicodeEncodeError:
        raise ValueError("a stop string holds half of a surrogate pair: it is not valid Unicode") from None
    if any("\ufffd" in one for one in stops):
        raise ValueError(
            "a stop string holds U+FFFD, which stands for bytes that are no text: nothing is stopped by it"
        )
    if size > LONGEST_STOPS:
        raise ValueError(f"the stop strings have {size} bytes together, and may have {LONGEST_STOPS}: shorten them")
    return tuple(stops)


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """The integers of a sequence.

    Raises:
      ValueError: something else. Whether they are tokens is the vocabulary's to say.
    """
    given = items(value)
    if given is None or not all(map(is_whole, given)):
        raise ValueError(f"{name} must be a list of token ids, which are whole numbers; got {reprlib.repr(value)}")
    return tuple(int(one) for one in given)


def prompt_rows(prompts: Any) -> list[str | list[int]]:
    """Each prompt as text or as token ids.

    Raises:
      ValueError: no prompt, or one that is neither; it is named.
    """
    rows = [prompts] if isinstance(prompts, str) else items(prompts)
    if rows is None:
        raise ValueError(f"{_kind('prompts are', prompts)}: give a string, or a list of strings or of token ids")
    if not rows:
        raise ValueError("there is no prompt: give a string, or a list of strings or of token ids")
    return [_prompt(number, row) for number, row in enumerate(rows)]


def _prompt(number: int, prompt: Any) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if is_whole(prompt):
        raise ValueError(f"prompt {number} is the single token {prompt}: give a list of prompts, [[1, 2, 3]] for one")
    ids = items(prompt)
    if ids is None:
        raise ValueError(f"{_kind(f'prompt {number} is', prompt)}: give text, or a list of token ids")
    for token in ids:
        if not is_whole(token):
            raise ValueError(f"prompt {number} holds {reprlib.repr(token)}, no token id: those are whole numbers")
    return [int(token) for token in ids]


def _kind(what: str, value: Any) -> str:
    hint = ", which must be decoded to text first" if isinstance(value, bytes | bytearray) else ""
    return f"{what} {'None' if value is None else f'of type {type(value).__name__}'}{hint}"


def option_names(function: Callable, names: Iterable[str], *, caller: str) -> None:
    """Raises TypeError for a name that is no keyword of the function, with the nearest that is."""
    known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in names:
        if name not in known:
            raise TypeError(f"{caller} has no option {name!r}{hint(name, known)}")
