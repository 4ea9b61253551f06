"""Argument checks of `theory`. Each error names the argument, its valid range and the value received."""

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

POSITIVE = float(np.nextafter(0, 1))  # the least number above 0
SUM_TOLERANCE = 1e-3  # of a distribution that was computed in float32 or bfloat16
Numbers = float | int | np.number | np.ndarray | Sequence[Any]  # broadcasts: one number, an array, or nested lists
Values = np.ndarray | np.float64


def within(name: str, value: Numbers, least: float | int, most: float | int = np.inf) -> np.ndarray:
    """The argument in float64; `least=POSITIVE` means above 0.

    Raises:
      ValueError: not a number, not finite, or outside least..most.
    """
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number or an array of numbers, got {reprlib.repr(value)}") from None
    bad = array[~((array >= least) & (array <= most) & np.isfinite(array))]
    if bad.size:
        low = "above 0" if least == POSITIVE else f"at least {least:g}"
        high = f" and at most {most:g}" if most < np.inf else "" if np.isfinite(bad.flat[0]) else " and finite"
        raise ValueError(f"{name} must be {low}{high}, got {bad.flat[0]:g}")
    return array


def probability(name: str, value: Numbers) -> np.ndarray:
    """A probability, in float64. Raises ValueError as `within`."""
    return within(name, value, 0, 1)


def integers(name: str, value: Numbers, *, least: int = 0) -> np.ndarray:
    """Integers, as int64.

    Raises:
      ValueError: not integers, or one below `least`.
    """
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must be an integer or an array of integers, got {reprlib.repr(value)}")
    return within(name, array, least).astype(np.int64)


def distribution(name: str, value: Numbers) -> np.ndarray:
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


def distributions(p: Numbers, q: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft probabilities over one vocabulary, broadcast against each other.

    Raises:
      ValueError: as `distribution`, or shapes that do not broadcast.
    """
    target, draft = distribution("p", p), distribution("q", q)
    if target.shape[-1] != draft.shape[-1]:
        raise ValueError(f"p and q must have one vocabulary, got {target.shape[-1]} and {draft.shape[-1]} tokens")
    try:
        target, draft = np.broadcast_arrays(target, draft)
    except ValueError:
        raise ValueError(f"p of shape {target.shape} does not broadcast against q of shape {draft.shape}") from None
    return target, draft
