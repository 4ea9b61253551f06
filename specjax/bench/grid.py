"""Drafters x verifiers x temperatures x draft lengths on one task's prompts: what is accepted, and how fast it is.

Acceptance is counted over all prompts, in batches. Speed is that of single requests, prompt included, all ways of
decoding them in turns: drafted, plain, and where asked for transformers on the same weights.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from specjax import api
from specjax.bench.assisted import Decode, Peer
from specjax.bench.decode import Row, interleave
from specjax.drafters import LoadedDrafter
from specjax.metrics import Stats
from specjax.model import Model
from specjax.verify import Verifier

SUITS = "suits"  # in the place of a verifier's name: the one that suits the drafter
COPYING = ("ngram", "suffix")  # what transformers' prompt lookup is the like of


class Cell(NamedTuple):
    """One way of decoding.

    Attributes:
      drafter: its name and settings, gamma apart.
      gamma: draft tokens a round as asked for; None where the drafter has no such choice.
      verifier: a name, or `SUITS`: the lossless one that suits the drafter.
    """

    drafter: str
    gamma: int | None
    verifier: str
    temperature: float


def cells(
    drafters: Sequence[str],
    gammas: Sequence[int],
    verifiers: Sequence[str],
    temperatures: Sequence[float],
    *,
    without_gamma: Sequence[str] = ("plain",),
) -> list[Cell]:
    """Every combination, temperatures outermost; plain decoding needs no second verifier.

    Args:
      without_gamma: drafters that have no such choice, or bring their own.
    """
    found = []
    for temperature in temperatures:
        for drafter in drafters:
            for gamma in (None,) if drafter in without_gamma else gammas:
                for verifier in verifiers[:1] if drafter == "plain" else verifiers:
                    found.append(Cell(drafter, gamma, verifier, temperature))
    return found


class Work(NamedTuple):
    """What every cell decodes.

    Attributes:
      prompts: text, or lists of token ids.
      settings: keyword arguments of `specjax.generate`, temperature, drafter and verifier apart.
      timed: prompts that are timed, alone. repeats: turns; medians count.
      peer: the models in transformers; None: no comparison.
    """

    target: Model
    prompts: Sequence[Any]
    settings: dict[str, Any]
    batch: int
    timed: int
    repeats: int
    peer: Peer | None = None


def measure(work: Work, cell: Cell, guide: LoadedDrafter, verifier: Verifier) -> Row:
    """One row. At temperature 0 `equal_to_plain` is the share of timed requests with the tokens of plain decoding."""
    settings = work.settings | {"temperature": cell.temperature}
    drafted = settings | {"drafter": guide, "verifier": verifier}
    row: Row = {
        "bench": "tasks", **cell._asdict(), "verifier": verifier.name, "lossless": verifier.lossless,
        "guide": guide.name, "prompts": len(work.prompts),
    }  # fmt: skip
    return row | acceptance(work, drafted) | speed(work, cell, drafted, settings)


def acceptance(work: Work, settings: dict[str, Any]) -> Row:
    """Rates over all prompts, decoded in batches."""
    every: list[Stats] = []
    for start in range(0, len(work.prompts), work.batch):
        part = work.prompts[start : start + work.batch]
        every.append(api.generate(work.target, part, rows=range(start, start + len(part)), **settings).stats)
    total = lambda name: sum(getattr(stats, name) for stats in every)
    ratio = lambda a, b: a / b if b else None
    tested = total("tested")
    overlap = sum(stats.overlap * stats.tested for stats in every if stats.tested)
    return {
        "tokens": total("tokens"), "tokens_per_call": total("tokens") / total("rounds"), "tested": tested,
        "accepted_per_tested": ratio(total("accepted"), tested),
        "accepted_per_drafted": ratio(total("accepted"), total("drafted")),
        "overlap": None if math.isnan(overlap) else ratio(overlap, tested),  # drafters without laws have none
    }  # fmt: skip


def speed(work: Work, cell: Cell, drafted: dict[str, Any], plain: dict[str, Any]) -> Row:
    """Tokens a second of single requests in turns, and their ratios."""
    prompts = work.prompts[: work.timed]
    said: dict[str, list[list[int]]] = {}

    def ours(name: str, settings: dict[str, Any]) -> Callable[[], None]:
        def run() -> None:
            said[name] = [
                api.generate(work.target, [prompt], rows=[row], **settings).tokens[0]
                for row, prompt in enumerate(prompts)
            ]

        return run

    programs = {"drafted": ours("drafted", drafted), "plain": ours("plain", plain)}
    for name, decode in theirs(work, cell):
        programs[name] = _peer_run(name, decode, _given(work.target, prompts), said)
    times, load = interleave(programs, work.repeats)
    rate = {name: sum(map(len, said[name])) / times[name].median for name in programs}
    row: Row = {
        "tokens_per_second": rate["drafted"], "plain_tokens_per_second": rate["plain"],
        "speedup": rate["drafted"] / rate["plain"],
        "seconds": [min(times["drafted"].seconds), times["drafted"].median, max(times["drafted"].seconds)],
    }  # fmt: skip
    if cell.temperature == 0:
        row["equal_to_plain"] = equal(said["drafted"], said["plain"])
    row |= peer_columns(rate, said, greedy=cell.temperature == 0)
    return row | {"load": load}


def theirs(work: Work, cell: Cell) -> Iterator[tuple[str, Decode]]:
    """How transformers decodes the same: a draft model against assisted generation, what copies against prompt lookup,
    both with this gamma; and plainly."""
    if work.peer is None:
        return
    common = {"new": work.settings["max_new_tokens"], "temperature": cell.temperature}
    if cell.gamma is not None and cell.drafter == "model" and work.peer.draft is not None:
        yield "transformers assisted", work.peer.assisted(gamma=cell.gamma, **common)
    elif cell.gamma is not None and cell.drafter.partition(":")[0] in COPYING:
        yield "transformers lookup", work.peer.lookup(gamma=cell.gamma, **common)
    yield "transformers plain", work.peer.plain(**common)


def _given(target: Model, prompts: Sequence[Any]) -> list[list[int]]:
    tokens, length = api.tokenize(target, prompts)
    return [tokens[row, :count].tolist() for row, count in enumerate(length)]


def _peer_run(name: str, decode: Decode, prompts: list[list[int]], said: dict[str, list[list[int]]]):
    def run() -> None:
        said[name] = [decode(prompt) for prompt in prompts]

    return run


def peer_columns(rate: dict[str, float], said: dict[str, list[list[int]]], *, greedy: bool) -> Row:
    """Tokens a second of transformers, ours over theirs, and whether greedy texts are the same."""
    row: Row = {}
    for name, theirs in rate.items():
        if not name.startswith("transformers"):
            continue
        short = name.removeprefix("transformers ")
        own = "plain" if short == "plain" else "drafted"
        row[f"transformers_{short}_tokens_per_second"] = theirs
        row[f"ratio_to_{short}"] = rate[own] / theirs
        if greedy:
            row[f"equal_to_transformers_{short}"] = equal(said[own], said[name])
    return row


def equal(ours: list[list[int]], others: list[list[int]]) -> float:
    """Share of texts that are the same, token for token."""
    return sum(one == other for one, other in zip(ours, others, strict=True)) / len(ours)


# --- for people ------------------------------------------------------------------------------------------------------


def brief(row: Row) -> Row:
    """The columns of a table: short names, what was not measured left empty."""
    ratio = lambda name: row.get(f"ratio_to_{name}", "")
    verifier = row["verifier"] if row["lossless"] else f"{row['verifier']} (LOSSY)"
    return {
        "task": row["task"], "T": row["temperature"], "drafter": row["drafter"],
        "\u03b3": "" if row["gamma"] is None else row["gamma"], "verifier": verifier,
        "tokens/call": row["tokens_per_call"], "accepted/tested": _or_empty(row["accepted_per_tested"]),
        "tokens/s": row["tokens_per_second"], "\u00d7 plain": row["speedup"],
        "\u00d7 assisted": ratio("assisted"), "\u00d7 lookup": ratio("lookup"), "plain \u00d7 plain": ratio("plain"),
        "load": max(row["load"].values()),
    }  # fmt: skip


def _or_empty(value: Any) -> Any:
    return "" if value is None else value
