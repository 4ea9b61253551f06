"""Verifiers: which path of a draft to accept, and what to append. Each says lossless or lossy in its first line."""

from typing import NamedTuple

from specjax.base import VerifyFn
from specjax.verify.token import token_level as token_level


class Verifier(NamedTuple):
    """A verifier under its name, with its guarantee."""

    name: str
    fn: VerifyFn
    lossless: bool


TABLE: dict[str, Verifier] = {"token": Verifier("token", token_level, lossless=True)}


def get(name: str) -> Verifier:
    """The verifier of that name.

    Raises:
      ValueError: there is none; the names that exist are listed.
    """
    if name not in TABLE:
        raise ValueError(f"no verifier is named {name!r}; there are: {', '.join(sorted(TABLE))}")
    return TABLE[name]
