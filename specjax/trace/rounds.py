"""Record of a request round by round: draft tokens, verdicts, committed tokens and times."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax import api, measuring
from specjax import decoding as loop
from specjax.drafters import LoadedDrafter
from specjax.metrics import timed_round
from specjax.model import Model
from specjax.request import Job, prepare
from specjax.stopping import Stop
from specjax.trees import SCRATCH
from specjax.types import Info

PREFILLS = 3  # timed prefills; the median counts


class DraftNode(NamedTuple):
    """A draft token and its verdict.

    Attributes:
      node, parent: positions in the tree of the round; the root, node 0, is the last token committed before.
      valid: the drafter proposed it.
      tested: the verifier accepted or rejected it; tokens after a rejection are not tested.
    """

    node: int
    parent: int
    depth: int
    token: int
    valid: bool
    tested: bool
    accepted: bool


class RowRound(NamedTuple):
    """One round of one row.

    Attributes:
      nodes: all nodes of the tree except the root and scratch nodes.
      accepted: accepted levels of the tree.
      tested: accepted levels, and one more if the next level was rejected.
      tokens: committed tokens: the accepted ones and one of the target; fewer if the row stopped within the round.
      ended: stop reason if the row ended in this round, else None.
    """

    round: int
    row: int
    nodes: tuple[DraftNode, ...]
    accepted: int
    tested: int
    overlap: float
    tokens: tuple[int, ...]
    ended: str | None


class TraceRound(NamedTuple):
    """One round of all active rows.

    Attributes:
      draft: seconds of drafting; 0 in plain decoding.
      verify: seconds of the target forward pass, verification and commit.
    """

    number: int
    rows: tuple[RowRound, ...]
    draft: float
    verify: float

    @property
    def seconds(self) -> float:
        return self.draft + self.verify


class PromptTimes(NamedTuple):
    """Prefill seconds of the target (for T5 the encoder) and of the drafter."""

    target: float
    draft: float


class Trace(NamedTuple):
    """A request, round by round.

    Attributes:
      draft_steps: forward passes of the draft model per round; 1 for drafters without a model, 0 in plain decoding.
      prompts: prompt tokens of each row.
      encoder_decoder: whether the prompt is the input of an encoder, so that the output starts empty.
    """

    drafter: LoadedDrafter
    draft_steps: int
    prompts: list[list[int]]
    encoder_decoder: bool
    prefill: PromptTimes
    rounds: tuple[TraceRound, ...]
    out: api.Generation

    def row(self, number: int) -> list[RowRound]:
        """The rounds of one row, in order."""
        return [found for one in self.rounds for found in one.rows if found.row == number]


def record(
    target: Model,
    prompts: api.Prompts,
    drafter: LoadedDrafter,
    options: dict[str, Any],
    *,
    repeats: int = 1,
    stop: Callable[[], bool] = lambda: False,
) -> Trace:
    """Decodes as `specjax.generate` does and records every round. Programs are compiled before anything is timed.

    The draft and verify halves of a round are separate programs, which together compute what a round of `generate`
    computes. Each row has a token budget, so that memory for the records is bounded.

    Args:
      target: model from `specjax.load`.
      prompts: as for `specjax.generate`.
      drafter: drafter from `specjax.drafters`.
      options: other keyword arguments of `specjax.generate`.
      repeats: identical runs; the median time of each round counts.
      stop: polled after each round; True stops there, and the remaining rows end as "interrupted".

    Returns:
      A `Trace` with the output of the first run.

    Raises:
      ValueError: as `specjax.generate`.
    """
    begin = lambda: prepare(target, prompts, drafter=drafter, **options).begin()
    _run(begin(), lambda: True)
    _run(begin(), lambda: True)  # the first run of a program takes longer than compiling it
    job = begin()
    prefill = _prefill_times(job)
    given = [row[:count].tolist() for row, count in zip(*jax.device_get(job.prompt[:2]), strict=True)]
    rounds, ended = _run(job, stop)
    runs = [rounds]
    while len(runs) < repeats and not np.any(ended.stop == Stop.RUNNING):
        again, _ = _run(begin(), stop)
        if [one.rows for one in again] != [one.rows for one in rounds]:
            break  # stopped, or the device is not deterministic
        runs.append(again)
    median = lambda name, same: statistics.median(getattr(one, name) for one in same)
    rounds = [
        same[0]._replace(draft=median("draft", same), verify=median("verify", same)) for same in zip(*runs, strict=True)
    ]
    out = api.finish(job, ended, job.seconds | {"decode": sum(one.seconds for one in rounds)})
    return Trace(drafter, draft_steps(drafter), given, target.encoder_decoder, prefill, tuple(rounds), out)


def _run(job: Job, stop: Callable[[], bool]) -> tuple[list[TraceRound], api.Progress]:
    """All rounds of a job; its state is donated."""
    halves = loop.parts(**job.static)
    plain = job.static["drafter"].tree.size == 1
    rounds: list[TraceRound] = []
    state, code, totals = job.state, *jax.device_get((job.state.stop, job.state.totals))
    written: list[list[int]] = [[] for _ in code]
    while np.any(code == Stop.RUNNING) and not (rounds and stop()):
        state, info, draft, verify = timed_round(halves, job.params, state)
        info, after, totals = jax.device_get((info, state.stop, state.totals))
        number = len(rounds) + 1
        rows = row_rounds(info, number, before=code, after=after)
        rounds.append(TraceRound(number, rows, 0.0 if plain else draft, verify))
        for one in rows:
            written[one.row] += one.tokens
        code = after
    return rounds, api.Progress(written, code, totals)


def _prefill_times(job: Job) -> PromptTimes:
    """Median seconds of warm prefills of the target and of the drafter, each compiled as a program of its own."""
    drafter = job.static["drafter"]
    given = (job.prompt.tokens, job.prompt.length)
    slots = job.cache_len + drafter.tree.size
    prefill = jax.jit(job.static["model"].prefill, static_argnums=3)
    init = jax.jit(drafter.init, static_argnums=3)

    def median(call: Callable[[], Any]) -> float:
        call()
        return statistics.median(measuring.timed(call).run for _ in range(PREFILLS))

    target = median(lambda: prefill(job.params.target, *given, slots))
    if drafter.tree.size == 1:
        return PromptTimes(target, 0.0)
    prefilled = prefill(job.params.target, *given, slots)
    return PromptTimes(target, median(lambda: init(job.params.draft, *given, slots, prefilled)))


def draft_steps(drafter: LoadedDrafter) -> int:
    """Forward passes of the draft model per round, one per level; 1 without a model, 0 without a draft."""
    levels = drafter.drafter.tree.width - 1
    return levels if drafter.source is not None else min(levels, 1)


# --- one round -------------------------------------------------------------------------------------------------------


def row_rounds(info: Info, number: int, *, before: np.ndarray, after: np.ndarray) -> tuple[RowRound, ...]:
    """What a round did in each active row.

    Args:
      info: diagnostics of the round, on the host.
      before, after: [B] stop codes.
    """
    found = []
    for row in np.flatnonzero(info.active).tolist():
        ended = Stop(int(after[row])).name.lower() if before[row] == Stop.RUNNING != after[row] else None
        accepted, tested = int(info.accepted[row]), int(info.tested[row])
        tokens = tuple(info.committed[row, : info.emitted[row]].tolist())
        nodes = _nodes(info, row, accepted, tested)
        found.append(RowRound(number, row, nodes, accepted, tested, float(info.overlap[row]), tokens, ended))
    return tuple(found)


def _nodes(info: Info, row: int, accepted: int, tested: int) -> tuple[DraftNode, ...]:
    parents, tokens, valid = (x[row].tolist() for x in (info.parents, info.proposed, info.valid))
    paths: list[list[int]] = []  # from below the root to each node
    for node, parent in enumerate(parents):
        paths.append([*paths[parent], node] if parent >= 0 else [])
    path = accepted_path(paths, tokens, valid, info.committed[row, :accepted].tolist())
    last, kept = path[-1] if path else 0, set(path)
    rejected = lambda node: tested > accepted and parents[node] == last and valid[node]
    return tuple(
        DraftNode(
            node, parent, len(paths[node]), tokens[node], valid[node], node in kept or rejected(node), node in kept
        )
        for node, parent in enumerate(parents)
        if parent >= 0 and parent != SCRATCH
    )


def accepted_path(
    paths: Sequence[Sequence[int]], tokens: Sequence[int], valid: Sequence[bool], wanted: Sequence[int]
) -> list[int]:
    """The proposed nodes below the root with the tokens `wanted`; the first ones if siblings have equal tokens."""
    for path in paths:
        if [tokens[node] for node in path] == list(wanted) and all(valid[node] for node in path):
            return list(path)
    raise AssertionError(f"the accepted tokens {list(wanted)} are not a path of the draft")


# --- acceptance by depth ---------------------------------------------------------------------------------------------


class DepthCount(NamedTuple):
    """Row rounds that tested a token at one depth of the draft, and that accepted one, out of all row rounds."""

    depth: int
    tested: int
    accepted: int
    rounds: int

    @property
    def rate(self) -> float:
        """accepted / tested; nan if nothing was tested."""
        return self.accepted / self.tested if self.tested else float("nan")

    @property
    def reached(self) -> float:
        """Share of rounds that accepted at least this many tokens."""
        return self.accepted / self.rounds if self.rounds else float("nan")


def by_depth(trace: Trace) -> list[DepthCount]:
    """Counts from depth 1 to the deepest level of the draft."""
    every = [found for one in trace.rounds for found in one.rows]
    count = lambda name, depth: sum(getattr(one, name) >= depth for one in every)
    depths = range(1, trace.drafter.drafter.tree.width)
    return [DepthCount(depth, count("tested", depth), count("accepted", depth), len(every)) for depth in depths]


# --- JSON ------------------------------------------------------------------------------------------------------------


def records(trace: Trace, spell: Callable[[int], str]) -> Iterator[dict[str, Any]]:
    """One JSON object per round and row, in chronological order.

    Args:
      spell: text of a token.
    """
    for one in trace.rounds:
        seconds = {"round": one.seconds, "draft": one.draft, "verify": one.verify}
        for row in one.rows:
            yield {
                "kind": "round", "round": row.round, "row": row.row,
                "drafted": [{**node._asdict(), "text": spell(node.token)} for node in row.nodes],
                "tested": row.tested, "accepted": row.accepted, "overlap": row.overlap,
                "committed": list(row.tokens), "committed_text": [spell(token) for token in row.tokens],
                "ended": row.ended, "seconds": seconds,
            }  # fmt: skip
