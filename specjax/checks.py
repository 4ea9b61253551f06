"""Checks of arguments, made once where a request enters the library. Errors are one line: name, valid values, value."""

import difflib
import math
import re
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

from specjax import defaults

T = TypeVar("T")
LARGEST = 2**31 - 1  # int32
POSITIVE = math.nextafter(0.0, 1.0)  # the least number above 0
BELOW_ONE = math.nextafter(1.0, 0.0)  # the greatest number below 1
SUM_TOLERANCE = 1e-3  # of a distribution that was computed in float32 or bfloat16
RANGES = {
    "temperature": (0, defaults.LARGEST_TEMPERATURE), "max_new_tokens": (1, defaults.LARGEST_NEW),
    "seed": (0, defaults.LARGEST_SEED), "gamma": (1, defaults.LARGEST_TREE - 1),
}  # fmt: skip
LONGEST_STOPS = 1024  # bytes of stop strings: each has a row of the vocabulary's width in the automaton


# --- names -----------------------------------------------------------------------------------------------------------


def lookup(name: str, table: Mapping[str, T], what: str) -> T:
    """Table lookup whose error lists the valid names and suggests the closest one.

    Args:
      what: what the table holds, for the message: "drafter".

    Raises:
      ValueError: an unknown name.
    """
    check_name(name, table, what)
    return table[name]


def check_name(name: str, known: Collection[str], what: str) -> None:
    """Raises the ValueError of `lookup` for an unknown name."""
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}{hint(name, known)} (known: {', '.join(known)})")


def hint(name: str, known: Iterable[str]) -> str:
    """The closest of the known names as a question that ends a message; empty if none is close."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {near[0]!r}?" if near else ""


# --- numbers ---------------------------------------------------------------------------------------------------------


def is_integer(value: Any) -> bool:
    """Whether it is an integer of Python or numpy; bools are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a real number of Python or numpy; bools are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def integer(name: str, value: Any, *, least: int, most: int = LARGEST) -> int:
    """The integer, checked to be in [least, most].

    Raises:
      ValueError: not an integer, or out of range.
    """
    if not is_integer(value):
        raise ValueError(f"{name} must be an integer, got {reprlib.repr(value)}")
    if not least <= value <= most:
        limit = f"at least {least}" if value < least else f"at most {most}"
        raise ValueError(f"{name} must be {limit}, got {value}")
    return int(value)


def number(name: str, value: Any, *, least: float | int = -math.inf, most: float | int = math.inf) -> float:
    """The number, checked to be finite and in [least, most].

    Raises:
      ValueError: not a number, not finite, or out of range.
    """
    if not is_number(value):
        raise ValueError(f"{name} must be a number, got {reprlib.repr(value)}")
    if not least <= value <= most or not math.isfinite(value):
        low = "above 0" if least == POSITIVE else f"at least {least}"
        high = "below 1" if most == BELOW_ONE else f"at most {most}"
        limit = "finite" if not math.isfinite(value) else high if value > most else low
        raise ValueError(f"{name} must be {limit}, got {value}")
    return float(value)


def at_least(least: int, **named: Any) -> None:
    """Raises ValueError unless each is an integer of at least `least`, or a sequence of such integers."""
    for name, value in named.items():
        for one in value if isinstance(value, Sequence) else (value,):
            integer(name, one, least=least)


def distinct(*, least: int = 0, **named: Sequence[Any]) -> None:
    """Raises ValueError for a sequence with fewer than `least` values, or with a value twice."""
    for name, values in named.items():
        if len(values) < least:
            raise ValueError(f"{name} requires at least {least} value{'s' * (least > 1)}")
        twice = [value for value in values if list(values).count(value) > 1]
        if twice:
            raise ValueError(f"{name} contains {twice[0]} twice")


def decoding(**named: Any) -> None:
    """Raises ValueError unless decoding options are in range, before a model is loaded.

    Args:
      named: temperature, max_new_tokens, seed or gamma; one value, or several, also under the plural of the name.
    """
    for name, value in named.items():
        least, most = RANGES[name if name in RANGES else name.removesuffix("s")]
        check = integer if isinstance(most, int) else number
        for one in value if isinstance(value, Sequence) and not isinstance(value, str) else (value,):
            check(name, one, least=least, most=most)  # pyright: ignore[reportArgumentType]


def mesh_shape(text: str) -> tuple[int, ...]:
    """(data, model) of a text such as "2x4", or (data, model, wide) of one such as "1x8x2".

    Raises:
      ValueError: another text.
    """
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", text):
        raise ValueError(f"mesh {text!r} is not DATAxMODEL, such as 1x8 or 2x4, or DATAxMODELxWIDE")
    return tuple(map(int, text.split("x")))


def flag(name: str, value: Any) -> bool:
    """True or False; raises ValueError for anything else."""
    if type(value).__name__ not in ("bool", "bool_"):  # Python's and numpy's
        raise ValueError(f"{name} must be True or False, got {reprlib.repr(value)}")
    return bool(value)


# --- arrays of numbers -----------------------------------------------------------------------------------------------


def within(name: str, value: Any, least: float | int, most: float | int = math.inf) -> Any:
    """A number, or an array or nested lists of numbers, as an array in float64; `least=POSITIVE` means above 0.

    Raises:
      ValueError: not a number, not finite, or outside least..most.
    """
    import numpy as np

    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number or an array of numbers, got {reprlib.repr(value)}") from None
    bad = array[~((array >= least) & (array <= most) & np.isfinite(array))]
    if bad.size:
        low = "above 0" if least == POSITIVE else f"at least {least:g}"
        high = f" and at most {most:g}" if most < math.inf else "" if math.isfinite(bad.flat[0]) else " and finite"
        raise ValueError(f"{name} must be {low}{high}, got {bad.flat[0]:g}")
    return array


def probability(name: str, value: Any) -> Any:
    """Probabilities as an array in float64. Raises ValueError as `within`, and names the likely origin of a NaN."""
    import numpy as np

    if is_number(value) and np.isnan(value):
        raise ValueError(
            f"{name} must be a probability, got nan: `Stats.overlap` is undefined for drafters without probabilities, "
            "and every rate is if nothing was drafted; use `Stats.accepted_per_tested` of a run with a drafter"
        )
    return within(name, value, 0, 1)


def integers(name: str, value: Any, *, least: int = 0) -> Any:
    """An integer, or an array or nested lists of integers, as an array in int64.

    Raises:
      ValueError: not integers, or one below `least`.
    """
    import numpy as np

    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must be an integer or an array of integers, got {reprlib.repr(value)}")
    return within(name, array, least).astype(np.int64)


def distribution(name: str, value: Any) -> Any:
    """Probabilities [..., V] in float64, normalized: those of a float32 softmax sum to 1 only approximately.

    Raises:
      ValueError: no vocabulary axis, a negative or non-finite entry, or a sum further than SUM_TOLERANCE from 1.
    """
    array = within(name, value, 0)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(f"{name} must have a last axis of probabilities over the vocabulary, got shape {array.shape}")
    total = array.sum(-1, keepdims=True)
    off = total[~(abs(total - 1) <= SUM_TOLERANCE)]
    if off.size:
        raise ValueError(f"{name} must sum to 1 over its last axis, got a sum of {off.flat[0]:g}: apply softmax first")
    return array / total


# --- sequences and requests ------------------------------------------------------------------------------------------


def items(value: Any) -> list[Any] | None:
    """The elements of a sequence or an array of numpy or JAX; None for anything else, strings included."""
    if isinstance(value, Sequence | range):
        return None if isinstance(value, str | bytes | bytearray) else list(value)
    if not hasattr(value, "__array__"):
        return None
    import numpy as np

    value = np.asarray(value)
    return None if value.ndim == 0 else list(value)


def integer_rows(name: str, value: Any, rows: int, *, least: int, most: int = LARGEST) -> Any:
    """[rows] int64, from one integer for all rows or one for each.

    Raises:
      ValueError: something else, or out of range.
    """
    import numpy as np

    given = [value] * rows if is_integer(value) else items(value)
    if given is None or not all(map(is_integer, given)):
        raise ValueError(f"{name} must be an integer, or one for each row; got {reprlib.repr(value)}")
    if len(given) != rows:
        raise ValueError(f"{name} has {len(given)} entries for {rows} prompts: pass one number, or one for each prompt")
    return np.array([integer(name, one, least=least, most=most) for one in given], np.int64)


def numbers(**named: Any) -> None:
    """Raises ValueError unless each is a number, or a sequence of numbers. `sampling` checks their ranges."""
    for name, value in named.items():
        if not is_number(value) and not all(map(is_number, items(value) or [None])):
            raise ValueError(f"{name} must be a number, or one for each row; got {reprlib.repr(value)}")


def biases(logit_bias: Any) -> None:
    """Raises ValueError where biases are neither numbers nor mappings from token ids to them."""
    if logit_bias is None:
        return
    given = [logit_bias] if isinstance(logit_bias, Mapping) else items(logit_bias)
    if given is None or getattr(getattr(logit_bias, "dtype", None), "kind", "f") not in "fiuV":
        raise ValueError(f"logit_bias maps token ids to numbers, such as {{5: -1.0}}, got {reprlib.repr(logit_bias)}")
    for one in given:
        for token, bias in one.items() if isinstance(one, Mapping) else ():
            if not (is_integer(token) and is_number(bias)):
                raise ValueError(f"logit_bias maps token ids to numbers, got {token!r}: {bias!r}")


def stop_strings(stop: Any) -> tuple[str, ...]:
    """The strings that end a row.

    Raises:
      ValueError: not strings, an empty one, or more than LONGEST_STOPS bytes.
    """
    stops = [stop] if isinstance(stop, str) else items(stop)
    if stops is None or not all(isinstance(one, str) for one in stops):
        raise ValueError(f"stop must be a string or a list of strings, got {reprlib.repr(stop)}")
    if not all(stops):
        raise ValueError("stop must not contain an empty string: it would stop every row at once")
    size = sum(len(one.encode(errors="replace")) for one in stops)
    if size > LONGEST_STOPS:
        raise ValueError(f"stop has {size} bytes in total, at most {LONGEST_STOPS} are supported")
    return tuple(stops)


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """The integers of a sequence; raises ValueError for anything else."""
    given = items(value)
    if given is None or not all(map(is_integer, given)):
        raise ValueError(f"{name} must be a list of token ids (integers), got {reprlib.repr(value)}")
    return tuple(int(one) for one in given)


def prompt_rows(prompts: Any) -> list[str | list[int]]:
    """Each prompt as text or as token ids.

    Raises:
      ValueError: no prompt, or one that is neither; its number is in the message.
    """
    rows = [prompts] if isinstance(prompts, str) else items(prompts)
    if rows is None:
        raise ValueError(f"prompts must be a string, or a list of strings or of token ids, got {_kind(prompts)}")
    if not rows:
        raise ValueError("prompts is empty: pass a string, or a list of strings or of token ids")
    return [_prompt(number, row) for number, row in enumerate(rows)]


def _prompt(number: int, prompt: Any) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if is_integer(prompt):
        raise ValueError(f"prompt {number} is the single token {prompt}: pass a list of prompts, [[1, 2, 3]] for one")
    ids = items(prompt)
    if ids is None:
        raise ValueError(f"prompt {number} must be text or a list of token ids, got {_kind(prompt)}")
    for token in ids:
        if not is_integer(token):
            raise ValueError(f"prompt {number} contains {reprlib.repr(token)}, which is not a token id (an integer)")
    return [int(token) for token in ids]


def _kind(value: Any) -> str:
    more = ", which must be decoded to text first" if isinstance(value, bytes | bytearray) else ""
    return ("None" if value is None else type(value).__name__) + more
