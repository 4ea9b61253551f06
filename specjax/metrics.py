"""Statistics of a run: acceptance rates, tokens per target pass, and seconds."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specjax import decoding, files, measuring


@dataclasses.dataclass(frozen=True)
class Stats:
    """Statistics of one run, summed over its rows.

    The literature has three "acceptance rates"; each has its own name here.

    Attributes:
      rounds: target forward passes in which a row was active, summed over rows.
      drafted, tested, accepted: draft tokens that were proposed, reached by the verifier, and accepted.
      tokens: generated tokens.
      accepted_per_tested: accepted / tested, the observed alpha of Leviathan et al. (2023).
      accepted_per_drafted: accepted / drafted; lower, because tokens after a rejection count as drafted.
      overlap: mean of sum_x min(p(x), q(x)) over tested nodes: alpha without sampling noise. NaN for drafters whose
        distribution is a point mass.
      tokens_per_call: tokens / rounds, the tokens per target pass (block efficiency), bonus or correction included.
      by_depth: accepted / tested at depths 1, 2, ...; NaN where no token was tested.
      by_row: rounds, drafted, tested, accepted, tokens, and the sum of the overlap, of each row.
      reached: of each row, rounds that accepted at least 0, 1, ... draft tokens.
      seconds: wall time of prefill, decode and compile; with `profile`, decode is also split into draft and verify.
      compiles: functions compiled by this run; 0 if all were compiled before.
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
    by_row: Mapping[str, tuple[int, ...] | tuple[float, ...]]
    reached: tuple[tuple[int, ...], ...]
    seconds: Mapping[str, float]
    compiles: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all rows per second of decoding, without prefill and compiling."""
        return self.tokens / self.seconds["decode"] if self.seconds.get("decode") else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain JSON values, with NaN as None.

        >>> import json
        >>> import specjax as sj
        >>> out = sj.generate(sj.load("bundled/opt-tiny"), [[5, 6, 7]], max_new_tokens=4, temperature=0)
        >>> json.loads(json.dumps(out.stats.to_dict()))["tokens"]
        4
        """
        return files.finite(dataclasses.asdict(self) | {"tokens_per_second": self.tokens_per_second})

    def to_row(self) -> dict[str, float | int | None]:
        """The numbers of the whole run by name, without those of single rows and depths: a row of a table.

        Seconds are named `prefill_seconds`, `decode_seconds`, and so on: `pandas.DataFrame([out.stats.to_row(), ...])`.
        """
        found = self.to_dict()
        seconds = {f"{name}_seconds": value for name, value in found.pop("seconds").items()}
        return {name: value for name, value in found.items() if not isinstance(value, list | dict)} | seconds


def stats(
    totals: Any,
    tokens: np.ndarray,
    seconds: Mapping[str, float],
    *,
    compiles: int,
    point_mass: bool = False,
) -> Stats:
    """Statistics from a run's totals.

    Args:
      totals: `totals.Totals` as numpy arrays.
      tokens: [B] number of new tokens of each row.
      seconds, compiles: see `Stats`.
      point_mass: whether the drafter proposes without a distribution, so that no overlap is defined.
    """
    ratio = lambda a, b: float(a) / float(b) if b else float("nan")
    by_row = {name: tuple(getattr(totals, name).tolist()) for name in ("rounds", "drafted", "tested", "accepted")}
    by_row["tokens"] = tuple(tokens.tolist())
    rounds, drafted, tested, accepted, count = map(sum, by_row.values())
    if not point_mass:
        by_row["overlap"] = tuple(totals.overlap.tolist())
    depth = zip(np.sum(totals.depth_accepted, 0)[:-1], np.sum(totals.depth_tested, 0)[:-1], strict=True)
    return Stats(
        rounds=rounds,
        drafted=drafted,
        tested=tested,
        accepted=accepted,
        tokens=count,
        accepted_per_tested=ratio(accepted, tested),
        accepted_per_drafted=ratio(accepted, drafted),
        overlap=float("nan") if point_mass else ratio(np.sum(totals.overlap), tested),
        tokens_per_call=ratio(count, rounds),
        by_depth=tuple(ratio(a, t) for a, t in depth),
        by_row=by_row,
        reached=reached(totals),
        seconds=dict(seconds),
        compiles=compiles,
    )


def reached(totals: Any) -> tuple[tuple[int, ...], ...]:
    """Of each row, rounds that accepted at least 0, 1, ... draft tokens."""
    return tuple(map(tuple, np.column_stack([totals.rounds, totals.depth_accepted[:, :-1]]).tolist()))


def steady(rounds: Sequence[float], *, compiled: bool) -> tuple[float, float]:
    """Splits the seconds of all rounds into seconds of decoding and of starting the program.

    The first run of a program takes longer than what jax reports as compiling. It counts as at most the median of the
    other rounds, and the rest is starting.
    """
    if not compiled or len(rounds) < 2:
        return sum(rounds, 0.0), 0.0
    first, *others = rounds
    usual = min(first, statistics.median(others))
    return usual + sum(others), first - usual


def timed_round(halves: tuple[Any, Any], params: decoding.DecodeParams, state: decoding.GenerationState) -> Any:
    """One round by `decoding.parts`, whose state is donated: the halves run as in the loop, with caches in place.

    Returns:
      State, info, seconds of drafting and seconds of verifying.
    """
    (state, drafted), draft, _ = measuring.timed(lambda: halves[0](params, state))
    (state, info), verify, _ = measuring.timed(lambda: halves[1](params, state, drafted))
    return state, info, draft, verify


def split_seconds(
    params: decoding.DecodeParams, state: decoding.GenerationState, decode: float, *, repeats: int = 5, **static: Any
) -> dict[str, float]:
    """Splits the seconds of decoding into draft and verify, by their measured shares of rounds that follow the state,
    which is donated."""
    halves, times = decoding.parts(**static), []
    for _ in range(repeats + 1):
        state, _, *seconds = timed_round(halves, params, state)
        times.append(seconds)
    draft, verify = map(statistics.median, zip(*times[1:], strict=True))  # the first run is slower
    return {"draft": decode * draft / (draft + verify), "verify": decode * verify / (draft + verify)}
