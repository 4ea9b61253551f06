"""Published tables at the size of the published models: random weights and simulated acceptance (`bench/shapes.py`)."""

from specjax.bench.record import Row
from specjax.reproduce.opt import HIERARCHY, PAIRS
from specjax.reproduce.paper import TABLE_2


def published(row: Row) -> str | None:
    """The published speed-up of a row of `bench shapes`, with its target and alpha; None without a counterpart."""
    size = row["draft"].rpartition("-")[2]
    for one in TABLE_2:
        same = (f"T5-{size}", f"model:gamma={one.gamma}", f"{one.alpha:g}")
        if row["draft"].startswith(("t5", "flan-t5")) and (one.draft, row["drafter"], row["alpha"]) == same:
            return f"{one.speed} (T5-XXL, {one.task}, T={one.temperature:g})"
    for rate in (*PAIRS, *HIERARCHY):
        if rate.drafts and rate.name == f"{row['target']} > {row['draft']}":
            plain = next(one.tokens_per_second for one in PAIRS if one.target == rate.target and not one.drafts)
            accepted = ", ".join(f"{share:.0%}" for share in rate.accepted)
            return f"{rate.tokens_per_second / plain:.2f} ({accepted} accepted, γ not given)"
    return None
