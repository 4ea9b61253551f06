"""Times of a target pass and a draft step by a roofline: bytes, operations and collectives at peak, one efficiency.

    time = (max(bytes / bandwidth, operations / peak) + traffic / links) / eta

The default eta and its band come from published runs (see `docs/results/plan.md`): at 0.4 to 0.8 the band is a factor
of 2 wide. Williams et al. 2009, "Roofline".
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax import theory
from specjax.models.family import MODEL, WIDE
from specjax.models.format import INT8, Format
from specjax.models.shapes import cache_bytes, step_bytes
from specjax.planning.chips import Chip
from specjax.planning.request import PlanRequest, shape_named
from specjax.sharding import DATA
from specjax.theory import StepTime, StepTimes, fit_step_time

ETA, LOW, HIGH = 0.5, 0.4, 0.8
LATENCY = 1e-6  # seconds of a collective, whatever it moves
HOPS = 1e-3  # seconds of a transfer between slices, through the hosts
LONGEST = 16  # draft tokens that are considered
MOST_ROWS = 4096


class Band(NamedTuple):
    """A time in seconds: expected, and its bounds."""

    value: float
    least: float
    most: float

    def __add__(self, other: "Band") -> "Band":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Band(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, count: int) -> "Band":
        return Band(*(one * count for one in self))


class Cost(NamedTuple):
    """What one pass needs of a chip.

    Attributes:
      bytes: read from memory. operations: of matrix products. traffic: seconds of collectives at peak.
    """

    bytes: float
    operations: float
    traffic: float

    def band(self, chip: Chip, fmt: Format) -> Band:
        """Its time; int8 weights are multiplied in the format's dtype."""
        peak = chip.flops if fmt.dtype != "float32" else chip.flops / 6
        ideal = max(self.bytes / chip.bandwidth, self.operations / peak) + self.traffic
        return Band(ideal / ETA, ideal / HIGH, ideal / LOW)


def pass_cost(request: PlanRequest, *, rows: int, tokens: int, context: float, of_draft: bool = False) -> Cost:
    """One pass over `tokens` new positions in each of `rows` rows whose caches hold `context` tokens.

    Two all-reduces of the residual stream in each layer (three with cross-attention), one of the embedding, and one
    all-gather of the logits. A draft model is whole on every chip.
    """
    family, config = shape_named(request.draft if of_draft and request.draft else request.target)
    fmt = request.draft_fmt if of_draft else request.fmt
    parts = {DATA: request.axes[DATA], MODEL: 1, WIDE: 1} if of_draft else request.axes
    here, split = math.ceil(rows / parts[DATA]), parts[MODEL] * parts[WIDE]
    heads = next((n for n in (split, parts[MODEL]) if config.kv_heads % n == 0), 1)
    weights = step_bytes(family, config, fmt)
    slots = context + (request.prompt_tokens if family.model.encoder_decoder else 0)
    width = 1 + 2 / config.head_width if fmt.int8_cache else jnp.dtype(fmt.cache_dtype).itemsize
    caches = cache_bytes(family, config, fmt, 1) / jnp.dtype(fmt.cache_dtype).itemsize * width * here * slots / heads
    parameters = weights / (1 if fmt.weight_dtype == INT8 else jnp.dtype(fmt.dtype).itemsize)
    operations = 2 * parameters * here * tokens / split
    return Cost(
        weights / split + caches, operations, 0.0 if of_draft else _traffic(request, family, config, here, tokens)
    )


def _traffic(request: PlanRequest, family, config, rows: int, tokens: int) -> float:
    """Seconds of a pass's collectives: a ring sends 2 (n - 1) / n of an array for an all-reduce, half for a gather."""
    split = request.axes[MODEL] * request.axes[WIDE]
    if split == 1:
        return 0.0
    layers = getattr(config, family.stacks[-1][1])
    sums = (3 if family.model.encoder_decoder else 2) * layers + 1
    stream, logits = (4 * rows * tokens * width for width in (config.width, config.vocab_size))
    share = (split - 1) / split
    sent = sums * 2 * share * stream + share * logits
    return sent / request.place.chip.links + (sums + 1) * LATENCY


class Speed(NamedTuple):
    """Predicted times and speeds of a request.

    Attributes:
      plain: a target pass over one token. verify: over gamma + 1. draft: one step of the draft; None without one.
      tokens_per_second: of all rows, and its bounds. plain_per_second: without a draft.
      speedup: over plain decoding, at alpha.
      pays_from: least acceptance at which the draft pays; None: never.
      best_gamma: at alpha.
      none_above: rows above which drafting nothing is fastest at alpha; None: not up to the largest number considered.
    """

    plain: Band
    verify: Band
    draft: Band | None
    tokens_per_second: Band
    plain_per_second: Band
    speedup: float
    pays_from: float | None
    best_gamma: int
    none_above: int | None


def speed(request: PlanRequest, alpha: float) -> Speed:
    """Predicts times at the mean context of the request, and speed-ups by `specjax.theory`."""
    chip, context = request.place.chip, mean_context(request)
    target = lambda rows, tokens: pass_cost(request, rows=rows, tokens=tokens, context=context).band(chip, request.fmt)
    step = lambda rows: pass_cost(request, rows=rows, tokens=1, context=context, of_draft=True).band(
        chip, request.draft_fmt
    )
    rows, crossing = request.rows, HOPS if request.slices > 1 else 0.0
    across = Band(crossing, crossing, crossing)
    plain = target(rows, 1)
    per_second = lambda count, time: Band(count / time.value, count / time.most, count / time.least)
    plain_rate = per_second(rows, plain + across)
    if request.draft is None:
        return Speed(plain, plain, None, plain_rate, plain_rate, 1.0, None, 0, None)
    verify, draft = target(rows, request.block), step(rows)
    made = rows * theory.expected_tokens(alpha, request.gamma)
    rate = per_second(float(made), draft.times(request.gamma) + verify + across)
    gain = float(rate.value / plain_rate.value)

    def curve(rows: int) -> tuple[float, np.ndarray]:
        one = target(rows, 1).value
        return step(rows).value / one, np.asarray([target(rows, n + 1).value / one for n in range(LONGEST + 1)])

    def best(rows: int) -> int:
        c, costs = curve(rows)
        return int(theory.best_gamma(alpha, c, gamma_max=LONGEST, verify_cost=costs).gamma)

    c, costs = curve(rows)
    factor = lambda alpha: float(
        theory.walltime_factor(alpha, request.gamma, c, verify_cost=costs[request.gamma])
        if request.gamma <= LONGEST
        else theory.walltime_factor(alpha, request.gamma, c, verify_cost=verify.value / plain.value)
    )
    return Speed(plain, verify, draft, rate, plain_rate, gain, threshold(factor), best(rows), _none_above(best))


def step_times(request: PlanRequest) -> StepTimes:
    """Times of forward passes near the request, for `policies.goodput`: a fit to the roofline."""
    context, chip, rows = mean_context(request), request.place.chip, request.rows
    grid = [
        (count, tokens, cached)
        for count in sorted({request.axes[DATA], rows, 2 * rows})
        for tokens in (1, 1 + max(request.gamma, 1))
        for cached in (context / 2, context)
    ]

    def fitted(fmt: Format, *, of_draft: bool) -> StepTime:
        passes = [(count, 1 if of_draft else tokens, cached) for count, tokens, cached in grid]
        seconds = [
            pass_cost(request, rows=count, tokens=tokens, context=cached, of_draft=of_draft).band(chip, fmt).value
            for count, tokens, cached in passes
        ]
        held, fed = [count * cached for count, _, cached in passes], [count * tokens for count, tokens, _ in passes]
        return fit_step_time(held, fed, seconds)

    draft = fitted(request.draft_fmt, of_draft=True) if request.draft else None
    return StepTimes(fitted(request.fmt, of_draft=False), draft)


def mean_context(request: PlanRequest) -> float:
    """Tokens in a row's cache halfway through decoding."""
    family, _ = shape_named(request.target)
    return (0 if family.model.encoder_decoder else request.prompt_tokens) + request.max_new_tokens / 2


def threshold(factor: Callable[[float], float]) -> float | None:
    """The least alpha at which an increasing factor is 1; None if it never is."""
    if factor(1.0) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if factor(middle) < 1 else (low, middle)
    return high


def _none_above(best: Callable[[int], int]) -> int | None:
    """The largest number of rows, of powers of two, at which something is drafted, if more rows draft nothing."""
    rows = 1
    while rows <= MOST_ROWS:
        if best(rows) == 0:
            return rows // 2
        rows *= 2
    return None
