"""Rates and speeds of a row, as estimates from the sums by prompt and the single runs that the row keeps.

A row stays plain JSON: `counts` and `runs` are all that a later comparison needs, such as the difference of two rows
whose prompts are the same.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specjax import estimates
from specjax.bench.record import Row
from specjax.estimates import MISSING, Counts, Estimate

RATES = {
    "tokens_per_call": ("tokens", "rounds"), "accepted_per_tested": ("accepted", "tested"),
    "accepted_per_drafted": ("accepted", "drafted"), "overlap": ("overlap", "tested"),
}  # fmt: skip


PROGRAMS = {"": "drafted", "plain_": "plain"}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def sample_of(prompts: Sequence[Any]) -> str:
    """A name for these prompts, by which estimates are paired."""
    return f"prompts {_digest(list(prompts))}"


def rate_columns(counts: Mapping[str, Counts], prompts: Sequence[Any]) -> Row:
    """Columns of `RATES` with their errors, and the sums that they follow from.

    Args:
      counts: sums of each prompt by the names of `Stats.by_row`; no overlap if the drafter has no distribution.
    """
    row: Row = {"sample": sample_of(prompts), "counts": {name: list(values) for name, values in counts.items()}}
    row |= {name: int(sum(counts[name])) for name in ("tokens", "tested")}
    for name in RATES:
        row |= rate(row, name).columns(name)
    return row


def rate(row: Row | None, name: str) -> Estimate:
    """A rate of `RATES` with its error over prompts."""
    sums, weights = RATES[name]
    if row is None or sums not in row["counts"]:
        return MISSING
    return estimates.ratio(row["counts"][sums], row["counts"][weights], sample=row["sample"])


def at_position(row: Row | None, place: int) -> Estimate:
    """Accepted / tested at a position of a chain, counted from 0, with its error over prompts."""
    names = [f"reached {place + 1}", f"reached {place}"]
    if row is None or names[0] not in row["counts"]:
        return MISSING
    return estimates.ratio(*(row["counts"][name] for name in names), sample=row["sample"])


def alpha(row: Row | None) -> Estimate:
    """Acceptance probability: the mean overlap of p and q if the drafter has a q, else accepted / tested."""
    found = rate(row, "overlap")
    return found if found.measured else rate(row, "accepted_per_tested")


def run_columns(runs: Mapping[str, Row], prompts: Sequence[Any]) -> Row:
    """Single runs as columns of a row.

    Args:
      runs: program -> lists [turns, prompts] of seconds, and of the tokens or rounds that they took.
    """
    return {"timed_sample": sample_of(prompts), "turns": f"turns {_digest(runs)}", "runs": dict(runs)}


def speed_columns(row: Row) -> Row:
    """Tokens per second, and speed over plain decoding with and without reading the prompts."""
    rows = {f"{prefix}tokens_per_second": per_second(row, name) for prefix, name in PROGRAMS.items()}
    return rows | speed(row).columns("speedup") | decode_speed(row).columns("decode_speedup")


def per_second(row: Row, program: str, *, seconds: str = "seconds", unit: str = "tokens") -> float:
    """Tokens or rounds per second of single requests."""
    run = row["runs"][program]
    took, count = estimates.typical(run[seconds], run[unit])
    return float(count.sum() / took.sum())


def speed(
    row: Row | None, own: str = "drafted", base: str = "plain", *, seconds: str = "seconds", unit: str = "tokens"
) -> Estimate:
    """Tokens or rounds per second of one program over those of another, with errors over prompts and turns."""
    if row is None:
        return MISSING
    mine, other = row["runs"][own], row["runs"][base]
    columns = map(np.asarray, (mine[unit], mine[seconds], other[unit], other[seconds]))
    return estimates.speedup(*columns, sample=row["timed_sample"], turns=row["turns"])


def decode_speed(row: Row | None) -> Estimate:
    """`speed` without reading the prompts."""
    return speed(row, seconds="decode_seconds")


# --- costs of a round, from `rounds.round_costs` ---------------------------------------------------------------------


def cost(costs: Row, program: str) -> Estimate:
    """Seconds of a round over those of a step of plain decoding."""
    return speed(costs, "step", program, unit="rounds")


def draft_cost(costs: Row) -> Estimate:
    """c: a draft step over a step of the target.

    The draft model's own step if it has one. A draft made from the target has none: then the difference of two draft
    lengths, without their verifications.
    """
    if "draft" in costs["runs"]:
        return cost(costs, "draft")
    more = costs["longer"] - costs["gamma"]
    parts = [cost(costs, name) for name in ("long round", "long verify", "round", "verify")]
    return estimates.combine(lambda a, b, c, d: max((a - b - c + d) / more, 0.0), *parts)
