"""What a run cost and gained: three acceptance rates under their own names, by depth, tokens a call, walltime."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Stats:
    """Numbers of one run, summed over its rows.

    The field uses three "acceptance rates"; all are here under distinct names:

    Attributes:
      rounds: target calls in which a row was active, summed over rows.
      drafted, tested, accepted: draft tokens proposed, reached by the verifier, accepted.
      tokens: tokens generated.
      accepted_per_tested: accepted / tested, the alpha of Leviathan et al. as it is observed.
      accepted_per_drafted: accepted / drafted; lower, since tokens after a rejection count as drafted.
      overlap: mean of sum_x min(p, q) over tested nodes, alpha without sampling noise; nan for point-mass drafters.
      tokens_per_call: tokens / rounds, the bonus or correction included (block efficiency).
      by_depth: accepted / tested at depth 1, 2, ...; nan where nothing was tested.
      rounds_by_row, tokens_by_row: the same for each row.
      seconds: walltime of prefill, decode and compile, apart; with `profile`, decode split into draft and verify.
      compiles: functions compiled by this run; 0 when it was warm.
    """

    rounds: int
    drafted: int
    tested: int
    accepted: int
    tokens: int
    accepted_per_tested: float
    accepted_per_drafted: float
    overlap: float
    tokens_per_call: float
    by_depth: tuple[float, ...]
    rounds_by_row: tuple[int, ...]
    tokens_by_row: tuple[int, ...]
    seconds: Mapping[str, float]
    compiles: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all rows over the time to decode them, prefill and compiling apart."""
        return self.tokens / self.seconds["decode"] if self.seconds.get("decode") else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """For JSON: plain numbers, nan as None."""
        clean = lambda x: None if isinstance(x, float) and not np.isfinite(x) else x
        record = dataclasses.asdict(self) | {"tokens_per_second": self.tokens_per_second}
        record["seconds"] = dict(self.seconds)
        record["by_depth"] = [clean(x) for x in self.by_depth]
        return {name: clean(value) for name, value in record.items()}


def stats(
    totals: Any, tokens: np.ndarray, seconds: Mapping[str, float], *, compiles: int, drafted_laws: bool = True
) -> Stats:
    """From a run's `Totals` on the host and its new tokens a row [B]; `drafted_laws`: the drafter drew from laws."""
    ratio = lambda a, b: float(a) / float(b) if b else float("nan")
    rounds, drafted, tested, accepted = (
        int(np.sum(x)) for x in (totals.rounds, totals.drafted, totals.tested, totals.accepted)
    )
    shared = float(np.sum(totals.overlap))
    depth = zip(np.sum(totals.depth_accepted, 0)[:-1], np.sum(totals.depth_tested, 0)[:-1], strict=True)
    return Stats(
        rounds=rounds,
        drafted=drafted,
        tested=tested,
        accepted=accepted,
        tokens=int(np.sum(tokens)),
        accepted_per_tested=ratio(accepted, tested),
        accepted_per_drafted=ratio(accepted, drafted),
        overlap=ratio(shared, tested) if drafted_laws else float("nan"),
        tokens_per_call=ratio(np.sum(tokens), rounds),
        by_depth=tuple(ratio(a, t) for a, t in depth),
        rounds_by_row=tuple(int(x) for x in totals.rounds),
        tokens_by_row=tuple(int(x) for x in tokens),
        seconds=dict(seconds),
        compiles=compiles,
    )
