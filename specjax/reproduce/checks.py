"""Verdicts on published claims: pure functions from measured numbers to a verdict and its explanation.

Two measured numbers differ if their difference exceeds twice its standard error; otherwise the comparison is open.
Published numbers are taken as printed.
"""

import enum
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from specjax.bench.record import Row

SIGMAS = 2.0


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


class Estimate(NamedTuple):
    """A number with its standard error; None if not measured."""

    value: float | None
    error: float = 0.0

    def shown(self, show: Callable[[float], str]) -> str:
        """The number as text, with its error if it has one."""
        if self.value is None:
            return "–"
        return show(self.value) + (f" ± {show(self.error)}" if self.error else "")


NOTHING, ONE = Estimate(None), Estimate(1.0)


class Pair(NamedTuple):
    """Two numbers, the first of which should be greater."""

    name: str
    greater: Estimate
    less: Estimate


# --- numbers of rows -------------------------------------------------------------------------------------------------


def share(value: float | None, of: int) -> Estimate:
    """A share of `of` items with its standard error, that of (k + 1) / (n + 2), which is never 0."""
    if value is None:
        return NOTHING
    smooth = (value * of + 1) / (of + 2)
    return Estimate(value, math.sqrt(smooth * (1 - smooth) / (of + 2)))


def alpha(row: Row | None) -> Estimate:
    """Acceptance probability: the mean overlap of p and q if the drafter has a q, else accepted / tested."""
    if row is None:
        return NOTHING
    return share(row["accepted_per_tested"] if row["overlap"] is None else row["overlap"], row["tested"])


def speed(row: Row | None) -> Estimate:
    """Speed-up with an error from the spread of its runs; a quarter of the value for a single run."""
    if row is None:
        return NOTHING
    low, middle, high = row["seconds"]
    spread = (high - low) / 2 / middle / row["repeats"] ** 0.5 if row["repeats"] > 1 else 0.25
    return Estimate(row["speedup"], row["speedup"] * spread)


# --- claims ----------------------------------------------------------------------------------------------------------


def differs(greater: Estimate, less: Estimate) -> ClaimVerdict:
    """Whether one number is significantly greater than another."""
    if greater.value is None or less.value is None:
        return ClaimVerdict.UNMEASURED
    gap, error = greater.value - less.value, math.hypot(greater.error, less.error)
    if abs(gap) <= SIGMAS * error:
        return ClaimVerdict.OPEN
    return ClaimVerdict.REPRODUCED if gap > 0 else ClaimVerdict.NOT


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
    here = sorted(named, key=lambda one: -(one[2].value if one[2].value is not None else -math.inf))
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
    named: Sequence[tuple[str, float, Estimate]],
    *,
    factor: float,
    because: str = "",
    there: str = "published",
) -> ClaimCheck:
    """Checks that measured numbers are within a factor of others.

    Args:
      named: (name, other number, measured number).
      because: explanation if they are not.
      there: source of the other numbers.
    """
    found, texts = [], []
    for name, other, here in named:
        inside = here.value is not None and other / factor <= here.value <= other * factor
        verdict = ClaimVerdict.REPRODUCED if inside else ClaimVerdict.NOT
        found.append(ClaimVerdict.UNMEASURED if here.value is None else verdict)
        texts.append(f"{name} {here.shown('{:.3g}'.format)} here, {other:.3g} {there}")
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
    """The verdict on several comparisons: all hold, none, some, or open."""
    known = [one for one in found if one is not ClaimVerdict.UNMEASURED]
    if not known:
        return ClaimVerdict.UNMEASURED
    if all(one is ClaimVerdict.REPRODUCED for one in known):
        return ClaimVerdict.REPRODUCED if len(known) == len(found) else ClaimVerdict.PARTLY
    if all(one is ClaimVerdict.NOT for one in known):
        return ClaimVerdict.NOT
    return ClaimVerdict.OPEN if ClaimVerdict.NOT not in known and ClaimVerdict.OPEN in known else ClaimVerdict.PARTLY


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
