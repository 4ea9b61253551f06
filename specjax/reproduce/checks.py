"""Verdicts on published claims: pure functions from measured numbers to a verdict and its explanation.

Two measured numbers differ if zero is outside the 95 % interval of their difference; otherwise the comparison is open.
Errors are clustered by prompt, and numbers of the same prompts are paired. Published numbers are taken as printed.
"""

import enum
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from specjax.estimates import Estimate, combine


class ClaimVerdict(enum.Enum):
    """Verdict on a published claim; the value is its text."""

    REPRODUCED = "reproduced"
    PARTLY = "partly"
    OPEN = "open"
    NOT = "not reproduced"
    UNMEASURED = "not measured"


class ClaimCheck(NamedTuple):
    """A published claim, its verdict, and the numbers behind it."""

    claim: str
    verdict: ClaimVerdict
    why: str


ONE = Estimate(1.0)


class Pair(NamedTuple):
    """Two numbers, the first of which should be greater."""

    name: str
    greater: Estimate
    less: Estimate


# --- claims ----------------------------------------------------------------------------------------------------------


def differs(greater: Estimate, less: Estimate) -> ClaimVerdict:
    """Whether one number is significantly greater than another: beyond the 95 % interval of their difference."""
    gap = combine(lambda a, b: a - b, greater, less)
    if not gap.measured:
        return ClaimVerdict.UNMEASURED
    if abs(gap.value) <= gap.margin:
        return ClaimVerdict.OPEN
    return ClaimVerdict.REPRODUCED if gap.value > 0 else ClaimVerdict.NOT


def within(here: Estimate, other: Estimate, factor: float) -> ClaimVerdict:
    """Whether two numbers are equal within a factor: two one-sided tests at 5 %.

    The 90 % interval of their ratio is inside the factor, outside it, or neither: a large error proves nothing.
    """
    if not (here.measured and other.measured):
        return ClaimVerdict.UNMEASURED
    if here.value <= 0 or other.value <= 0:
        return ClaimVerdict.REPRODUCED if here.value == other.value else ClaimVerdict.NOT
    apart = combine(lambda a, b: math.log(a / b), here, other)
    half, limit = apart.quantile(0.95), math.log(factor)
    if abs(apart.value) + half <= limit:
        return ClaimVerdict.REPRODUCED
    return ClaimVerdict.NOT if abs(apart.value) - half > limit else ClaimVerdict.OPEN


def each_greater(claim: str, pairs: Sequence[Pair], *, show: Callable[[float], str] = "{:.2f}".format) -> ClaimCheck:
    """Checks that the first number of each pair is greater."""
    found = [differs(pair.greater, pair.less) for pair in pairs]
    texts = [f"{pair.name} {pair.greater.shown(show)} against {pair.less.shown(show)}" for pair in pairs]
    return concluded(claim, found, grouped(found, texts))


def same_order(claim: str, named: Sequence[tuple[str, float, Estimate]], *, show: Callable[[float], str]) -> ClaimCheck:
    """Checks that measured numbers have the order of the published ones.

    Args:
      named: (name, published, measured here).
    """
    ranked = sorted(named, key=lambda one: -one[1])
    found = [differs(a[2], b[2]) for a, b in itertools.combinations(ranked, 2) if a[1] != b[1]]
    here = sorted(named, key=lambda one: -one[2].value if one[2].measured else math.inf)
    published = " > ".join(f"{name} {show(there)}" for name, there, _ in ranked)
    measured = ", ".join(f"{name} {value.shown(show)}" for name, _, value in here)
    return concluded(claim, found, f"published {published}; here {measured}")


def all_within(claim: str, named: Sequence[tuple[str, float, float]], *, digits: int) -> ClaimCheck:
    """Checks that numbers agree with the published ones in all printed digits."""
    off = [(name, there, here) for name, there, here in named if round(here, digits) != round(there, digits)]
    text = "; ".join(f"{name}: {here:.{digits}f} against {there:.{digits}f}" for name, there, here in off)
    found = [ClaimVerdict.REPRODUCED] * (len(named) - len(off)) + [ClaimVerdict.NOT] * len(off)
    return ClaimCheck(claim, total(found), text or f"all {len(named)} numbers agree to {digits} decimals")


def near(
    claim: str,
    named: Sequence[tuple[str, Estimate, Estimate]],
    *,
    factor: float,
    because: str = "",
    there: str = "published",
) -> ClaimCheck:
    """Checks that measured numbers are equal to others within a factor.

    Args:
      named: (name, other number, measured number).
      because: explanation if they are not.
      there: source of the other numbers.
    """
    show = "{:.3g}".format
    found = [within(here, other, factor) for _, other, here in named]
    texts = [f"{name} {here.shown(show)} here, {other.shown(show)} {there}" for name, other, here in named]
    reason = f" ({because})" if because and ClaimVerdict.NOT in found else ""
    return concluded(claim, found, grouped(found, texts) + reason)


def holds(claim: str, true: bool, why: str) -> ClaimCheck:
    """The check of a claim without error bars."""
    return ClaimCheck(claim, ClaimVerdict.REPRODUCED if true else ClaimVerdict.NOT, why)


def concluded(claim: str, found: Sequence[ClaimVerdict], why: str) -> ClaimCheck:
    """Combines comparisons into one check."""
    verdict = total(found)
    return ClaimCheck(claim, verdict, "no number of ours to compare" if verdict is ClaimVerdict.UNMEASURED else why)


def total(found: Sequence[ClaimVerdict]) -> ClaimVerdict:
    """The verdict on several comparisons: all hold, some, none, or open."""
    known = [one for one in found if one is not ClaimVerdict.UNMEASURED]
    if not known:
        return ClaimVerdict.UNMEASURED
    if all(one is ClaimVerdict.REPRODUCED for one in known):
        return ClaimVerdict.REPRODUCED if len(known) == len(found) else ClaimVerdict.PARTLY
    if ClaimVerdict.NOT not in known:
        return ClaimVerdict.OPEN if ClaimVerdict.OPEN in known else ClaimVerdict.PARTLY
    return ClaimVerdict.PARTLY if ClaimVerdict.REPRODUCED in known else ClaimVerdict.NOT


GROUPS = {
    ClaimVerdict.REPRODUCED: "hold", ClaimVerdict.NOT: "do not", ClaimVerdict.OPEN: "within the error",
    ClaimVerdict.UNMEASURED: "not measured",
}  # fmt: skip


def grouped(found: Sequence[ClaimVerdict], texts: Sequence[str]) -> str:
    """The comparisons, grouped by verdict if they differ."""
    groups = {kind: [text for one, text in zip(found, texts, strict=True) if one is kind] for kind in GROUPS}
    there = {kind: some for kind, some in groups.items() if some}
    if len(there) < 2:
        return "; ".join(texts)
    return ". ".join(f"{len(some)} of {len(texts)} {GROUPS[kind]}: {'; '.join(some)}" for kind, some in there.items())
