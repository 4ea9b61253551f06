"""Estimates of repeated measurements: ratios of totals with errors clustered by prompt, and numbers derived from them.

Rounds of one prompt, and runs of one turn, are correlated: a standard error is that of independent units, the prompts
or the turns. Every error of benchmarks, sweeps, advice and reports is computed here.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

Counts = Sequence[int] | Sequence[float] | np.ndarray

CONFIDENCE = 0.95
STEP = 1e-5  # of numerical derivatives
ROUNDING = 1e-9  # relative size of an effect that is rounding alone
MEDIAN = 1.25  # standard error of a median over that of a mean


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number, with the effect of each independent unit of its samples on it.

    Two estimates with a sample in common, such as two drafters on the same prompts, are paired: `combine` adds the
    effects of each unit before they are squared.

    Attributes:
      value: the number; nan if not measured.
      effects: sample -> effect of each of its units, to first order. Samples are independent of each other. Without a
        sample the number is exact.
    """

    value: float
    effects: Mapping[Hashable, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def measured(self) -> bool:
        return not math.isnan(self.value)

    @property
    def error(self) -> float:
        """Standard error; infinite if a sample has a single unit."""
        return math.sqrt(sum(_variance(effects) for effects in self.effects.values()))

    @property
    def margin(self) -> float:
        """Half of the 95 % confidence interval, by Student's t with the degrees of freedom of the samples."""
        return self.quantile(1 - (1 - CONFIDENCE) / 2)

    def quantile(self, probability: float) -> float:
        """The error times a quantile of Student's t."""
        if not 0 < self.error < math.inf:
            return self.error
        parts = [(_variance(effects), len(effects) - 1) for effects in self.effects.values()]
        degrees = sum(v for v, _ in parts) ** 2 / sum(v**2 / n for v, n in parts)  # Welch and Satterthwaite
        return self.error * float(special.stdtrit(degrees, probability))

    def fixed_singles(self) -> "Estimate":
        """The same for single units as they are: a sample of one unit, whose spread is unknown, adds no error."""
        return Estimate(self.value, {name: effects for name, effects in self.effects.items() if len(effects) > 1})

    def columns(self, name: str) -> dict[str, float | None]:
        """The number and its standard error, None where unknown, as two entries of a row."""
        error = self.error if self.measured and self.error < math.inf else None
        return {name: self.value if self.measured else None, f"{name}_error": error}

    def shown(self, show: Callable[[float], str]) -> str:
        """The number as text with its standard error, if it has one."""
        if not self.measured:
            return "–"
        return show(self.value) + (f" ± {show(self.error)}" if 0 < self.error < math.inf else "")


def _variance(effects: np.ndarray) -> float:
    count = len(effects)
    return count / (count - 1) * float(np.sum(np.square(effects))) if count > 1 else math.inf


MISSING = Estimate(math.nan)


def of_totals(f: Callable[..., Any], *columns: Counts, sample: Hashable = "prompts") -> Estimate:
    """A function of totals over independent units, which does not change if all totals are multiplied by one number.

    The effect of a unit is the derivative of `f` in the direction of the unit's own counts; for a ratio of sums that is
    the usual linearization, (y_i - R x_i) / sum(x).

    >>> found = of_totals(lambda y, x: y / x, [3.0, 1.0, 2.0], [4.0, 4.0, 4.0])
    >>> print(f"{found.value:.2f} ± {found.error:.2f}")
    0.50 ± 0.14

    Args:
      f: receives one total for each column.
      columns: [units, ...] counts, seconds or other sums of each unit.
      sample: name of the units; estimates of equally named samples are paired.
    """
    counts = [np.asarray(column, float) for column in columns]
    totals = [column.sum(0) for column in counts]
    shift = STEP * len(counts[0])
    moved = lambda unit, by: float(f(*(t + by * c[unit] for t, c in zip(totals, counts, strict=True))))
    slopes = np.array([(moved(unit, shift) - moved(unit, -shift)) / (2 * shift) for unit in range(len(counts[0]))])
    value = float(f(*totals))
    slopes[np.abs(slopes) < ROUNDING * abs(value)] = 0.0
    return Estimate(value, {sample: slopes})


def ratio(sums: Counts, weights: Counts, *, sample: Hashable = "prompts") -> Estimate:
    """sum(sums) / sum(weights) over independent units; not measured where the weights are zero."""
    return of_totals(np.divide, sums, weights, sample=sample) if np.sum(weights) else MISSING


def median(values: Counts, *, sample: Hashable) -> Estimate:
    """Median of measurements that repeat one number, such as the seconds of a program in each turn."""
    every = np.asarray(values, float)
    return Estimate(float(np.median(every)), {sample: MEDIAN * (every - every.mean()) / len(every)})


def combine(f: Callable[..., Any], *given: Estimate) -> Estimate:
    """A function of estimates, paired where they have a sample in common; not measured if one of them is not."""
    values = [one.value for one in given]
    if not all(one.measured for one in given):
        return MISSING
    effects: dict[Hashable, np.ndarray] = {}
    for place, one in enumerate(given):
        if not one.effects:
            continue
        step = STEP * max(abs(values[place]), 1e-3)
        moved = lambda by, place=place: float(f(*(v + by * (n == place) for n, v in enumerate(values))))
        slope = (moved(step) - moved(-step)) / (2 * step)
        for sample, own in one.effects.items():
            effects[sample] = effects.get(sample, 0.0) + slope * own
    return Estimate(float(f(*values)), effects)


def typical(seconds: Any, tokens: Any) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and tokens of each prompt: mean tokens at the median seconds per token over the turns.

    Args:
      seconds, tokens: [turns, prompts].
    """
    took, count = np.asarray(seconds, float), np.asarray(tokens, float)
    some = np.maximum(count, 1.0)  # a text may end with its prompt
    return np.median(took / some, axis=0) * some.mean(0), count.mean(0)


def speedup(
    own_tokens: np.ndarray,
    own_seconds: np.ndarray,
    tokens: np.ndarray,
    seconds: np.ndarray,
    *,
    sample: Hashable,
    turns: Hashable,
) -> Estimate:
    """Tokens per second over those of another program on the same prompts in the same turns.

    The variances over prompts and over turns are added, which counts the noise of single runs twice: the error is
    rather too large than too small. With a single turn, it is that over prompts.

    Args:
      own_tokens, tokens: [turns, prompts].
      own_seconds, seconds: [turns, prompts] of runs next to each other.
      sample, turns: names of the prompts and of the turns; speeds of the same turns are paired.
    """
    rate = lambda took, n, base_took, base_n: (n / took) / (base_n / base_took)
    columns = [*typical(own_seconds, own_tokens), *typical(seconds, tokens)]
    over_prompts = of_totals(rate, *columns, sample=sample)
    if len(seconds) == 1:
        return over_prompts
    by_turn = [np.sum(column, axis=1) for column in (own_seconds, own_tokens, seconds, tokens)]
    over_turns = of_totals(rate, *by_turn, sample=turns)
    return Estimate(over_prompts.value, {**over_prompts.effects, turns: MEDIAN * over_turns.effects[turns]})


def repetition(texts: Sequence[Sequence[int]], *, n: int = 4) -> Estimate:
    """Share of the n-grams of texts that occur earlier in the same text. Greedy decoding often runs into loops, which
    are easy to draft.

    >>> repetition([[1, 2, 3, 4, 1, 2, 3, 4]]).value
    0.2
    """
    grams = [[tuple(text[i : i + n]) for i in range(len(text) - n + 1)] for text in texts]
    return ratio([len(own) - len(set(own)) for own in grams], [len(own) for own in grams])
