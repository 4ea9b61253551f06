"""Checks of arguments that `theory` shares; each error names the argument, what it may be, and what was given."""

from collections.abc import Sequence
from typing import Any

import numpy as np

POSITIVE = float(np.nextafter(0, 1))  # the least number above 0
OFF_ONE = 1e-3  # how far the sum of a float32 or bfloat16 law may lie from 1
Numbers = float | int | np.number | np.ndarray | Sequence[Any]  # what broadcasts: one, an array, or nested lists
Values = np.ndarray | np.float64


def within(name: str, value: Numbers, least: float | int, most: float | int = np.inf) -> np.ndarray:
    """The argument in float64; with `least` POSITIVE, all that is above 0.

    Raises:
      ValueError: an entry is not finite or lies outside least..most.
    """
    array = np.asarray(value, np.float64)
    bad = array[~((array >= least) & (array <= most) & np.isfinite(array))]
    if bad.size:
        low = "above 0" if least == POSITIVE else f"at least {least:g}"
        high = f" and at most {most:g}" if most < np.inf else "" if np.isfinite(bad.flat[0]) else " and finite"
        raise ValueError(f"{name} must be {low}{high}, got {bad.flat[0]:g}")
    return array


def chance(name: str, value: Numbers) -> np.ndarray:
    """`within` 0 and 1."""
    return within(name, value, 0, 1)


def whole(name: str, value: Numbers, *, least: int = 0) -> np.ndarray:
    """Integers, as int64.

    Raises:
      ValueError: something else than whole numbers, or one below `least`.
    """
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must be whole numbers, got {array.dtype} {array.tolist()}")
    return within(name, array, least).astype(np.int64)


def law(name: str, value: Numbers) -> np.ndarray:
    """[..., V] in float64, normalized there: laws that were computed in float32 sum to 1 only nearly.

    Raises:
      ValueError: no vocabulary axis, a negative or non-finite entry, or a sum further than OFF_ONE from 1.
    """
    array = within(name, value, 0)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(f"{name} must have a last axis of probabilities over the vocabulary, got shape {array.shape}")
    total = array.sum(-1, keepdims=True)
    off = total[~(abs(total - 1) <= OFF_ONE)]
    if off.size:
        raise ValueError(f"{name} must sum to 1 over its last axis, got a sum of {off.flat[0]:g}: apply softmax first")
    return array / total


def laws(p: Numbers, q: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft law over one vocabulary, broadcast against each other.

    Raises:
      ValueError: see `law`, or two shapes that do not go together.
    """
    target, draft = law("p", p), law("q", q)
    if target.shape[-1] != draft.shape[-1]:
        raise ValueError(f"p has {target.shape[-1]} tokens and q has {draft.shape[-1]}: give laws over one vocabulary")
    try:
        target, draft = np.broadcast_arrays(target, draft)
    except ValueError:
        raise ValueError(f"p of shape {target.shape} does not broadcast against q of shape {draft.shape}") from None
    return target, draft
