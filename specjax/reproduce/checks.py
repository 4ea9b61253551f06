"""Which part of a published shape shows here: pure functions from numbers to a verdict and its reason.

A comparison of two measured numbers counts where they differ by more than twice the error of their difference; else it
is open, and more prompts would tell. Published numbers are taken as printed.
"""

import enum
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

SIGMAS = 2.0


class Verdict(enum.Enum):
    """What became of a published claim; the value is how it is told."""

    REPRODUCED = "reproduced"
    PARTLY = "partly"
    OPEN = "open"
    NOT = "not reproduced"
    UNMEASURED = "not measured"


class Check(NamedTuple):
    """A claim of the publication, what became of it here, and the numbers that say so."""

    claim: str
    verdict: Verdict
    why: str


class Measured(NamedTuple):
    """A number with its standard error; value None: not measured."""

    value: float | None
    error: float = 0.0


NOTHING = Measured(None)


class Pair(NamedTuple):
    """Something that ought to be greater than something else, both named."""

    name: str
    greater: Measured
    less: Measured


def share(value: float | None, of: int) -> Measured:
    """A share of `of` things, with its standard error (that of (k + 1) / (n + 2), never 0)."""
    if value is None:
        return NOTHING
    smooth = (value * of + 1) / (of + 2)
    return Measured(value, math.sqrt(smooth * (1 - smooth) / (of + 2)))


def differs(greater: Measured, less: Measured) -> Verdict:
    """Whether one number is greater than another, beyond their errors."""
    if greater.value is None or less.value is None:
        return Verdict.UNMEASURED
    gap, error = greater.value - less.value, math.hypot(greater.error, less.error)
    if abs(gap) <= SIGMAS * error:
        return Verdict.OPEN
    return Verdict.REPRODUCED if gap > 0 else Verdict.NOT


def each_greater(claim: str, pairs: Sequence[Pair], *, show: Callable[[float], str] = "{:.2f}".format) -> Check:
    """Each pair's first number is greater than its second."""
    found = [differs(pair.greater, pair.less) for pair in pairs]
    said = [f"{pair.name} {told(pair.greater, show)} against {told(pair.less, show)}" for pair in pairs]
    return concluded(claim, found, grouped(found, said))


def same_order(claim: str, named: Sequence[tuple[str, float, Measured]], *, show: Callable[[float], str]) -> Check:
    """The numbers measured here have the order of the published ones.

    Args:
      named: (name, published, measured here).
    """
    ranked = sorted(named, key=lambda one: -one[1])
    pairs = [(a, b) for a, b in itertools.combinations(ranked, 2) if a[1] != b[1]]
    found = [differs(a[2], b[2]) for a, b in pairs]
    line = lambda which: " > ".join(f"{one[0]} {which(one)}" for one in ranked)
    here = sorted(named, key=lambda one: -(one[2].value if one[2].value is not None else -math.inf))
    said = f"published {line(lambda one: show(one[1]))}; here " + ", ".join(f"{n} {told(x, show)}" for n, _, x in here)
    return concluded(claim, found, said)


def all_within(claim: str, named: Sequence[tuple[str, float, float]], *, digits: int) -> Check:
    """Numbers that agree with the published ones in all printed digits."""
    off = [(name, there, here) for name, there, here in named if round(here, digits) != round(there, digits)]
    said = "; ".join(f"{name}: {here:.{digits}f} against {there:.{digits}f}" for name, there, here in off)
    found = [Verdict.REPRODUCED] * (len(named) - len(off)) + [Verdict.NOT] * len(off)
    return Check(claim, total(found), said or f"all {len(named)} numbers agree to {digits} decimals")


def near(
    claim: str,
    named: Sequence[tuple[str, float, Measured]],
    *,
    factor: float,
    because: str = "",
    there: str = "published",
) -> Check:
    """Numbers within a factor of others: same size, not same digits.

    Args:
      named: (name, the other number, measured here).
      because: the reason, where they are not. there: what the others are.
    """
    found, lines = [], []
    for name, other, here in named:
        inside = here.value is not None and other / factor <= here.value <= other * factor
        found.append(Verdict.UNMEASURED if here.value is None else Verdict.REPRODUCED if inside else Verdict.NOT)
        lines.append(f"{name} {told(here, '{:.3g}'.format)} here, {other:.3g} {there}")
    reason = f" ({because})" if because and Verdict.NOT in found else ""
    return concluded(claim, found, grouped(found, lines) + reason)


def holds(claim: str, true: bool, why: str) -> Check:
    """A claim that is decided elsewhere, without errors."""
    return Check(claim, Verdict.REPRODUCED if true else Verdict.NOT, why)


# --- putting them together -------------------------------------------------------------------------------------------


def concluded(claim: str, found: Sequence[Verdict], why: str) -> Check:
    """The check of these comparisons; without any of ours there is nothing to say."""
    verdict = total(found)
    return Check(claim, verdict, "no number of ours to compare" if verdict is Verdict.UNMEASURED else why)


def total(found: Sequence[Verdict]) -> Verdict:
    """Of several comparisons: all, none, some of them, or not to be told."""
    known = [one for one in found if one is not Verdict.UNMEASURED]
    if not known:
        return Verdict.UNMEASURED
    if all(one is Verdict.REPRODUCED for one in known):
        return Verdict.REPRODUCED if len(known) == len(found) else Verdict.PARTLY
    if all(one is Verdict.NOT for one in known):
        return Verdict.NOT
    return Verdict.OPEN if Verdict.NOT not in known and Verdict.OPEN in known else Verdict.PARTLY


GROUPS = {
    Verdict.REPRODUCED: "hold", Verdict.NOT: "do not", Verdict.OPEN: "within the error",
    Verdict.UNMEASURED: "not measured",
}  # fmt: skip


def grouped(found: Sequence[Verdict], said: Sequence[str]) -> str:
    """The comparisons; by how they went, with their numbers, where they did not all go one way."""
    groups = {kind: [text for one, text in zip(found, said, strict=True) if one is kind] for kind in GROUPS}
    there = {kind: texts for kind, texts in groups.items() if texts}
    if len(there) < 2:
        return "; ".join(said)
    return ". ".join(f"{len(texts)} of {len(said)} {GROUPS[kind]}: {'; '.join(texts)}" for kind, texts in there.items())


def told(value: Measured, show: Callable[[float], str]) -> str:
    """A number for people, with its error where it has one."""
    if value.value is None:
        return "–"
    return show(value.value) + (f" ± {show(value.error)}" if value.error else "")
