"""A run taken apart: what was drafted, tested, accepted and committed in each round of each row, and its walltime."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import api, measuring
from specjax import decoding as loop
from specjax.drafters import LoadedDrafter
from specjax.model import Model
from specjax.stopping import Stop
from specjax.trees import SCRATCH
from specjax.types import Info

READS = 3  # timed runs of reading the prompts; the median counts


class Node(NamedTuple):
    """A drafted token and its fate.

    Attributes:
      node, parent: places in the round's tree; the root, node 0, is the last token committed before.
      valid: it was proposed. tested: the target accepted or refused it; what lies past a refusal is neither.
    """

    node: int
    parent: int
    depth: int
    token: int
    valid: bool
    tested: bool
    accepted: bool


class Block(NamedTuple):
    """What one round did to one row.

    Attributes:
      nodes: all of the tree but its root and its scratch nodes.
      accepted, tested: levels of the tree; tested is accepted, and one more where the target refused what came next.
      tokens: committed: accepted ones, then the target's own; fewer where the row stopped inside.
      ended: the stop reason of a row that ended here, else None.
    """

    round: int
    row: int
    nodes: tuple[Node, ...]
    accepted: int
    tested: int
    overlap: float
    tokens: tuple[int, ...]
    ended: str | None


class Times(NamedTuple):
    """Seconds of a round: of all of it, run as one program, and of its two halves, run apart on the same state."""

    whole: float
    draft: float
    verify: float

    @property
    def shares(self) -> tuple[float, float]:
        """Seconds of drafting and of the target that add up to the whole: the halves, scaled."""
        both = self.draft + self.verify
        return self.whole * self.draft / both, self.whole * self.verify / both


class Round(NamedTuple):
    """One round of all rows that ran."""

    number: int
    blocks: tuple[Block, ...]
    times: Times


class Reading(NamedTuple):
    """Seconds to read the prompts before the first round: the target's (T5: its encoder) and the drafter's."""

    target: float
    draft: float


class Trace(NamedTuple):
    """A run, round by round.

    Attributes:
      calls: calls of the draft model in a round; 1 for drafters that run none, 0 for plain decoding.
      prompts: tokens of the prompts. encoder_decoder: an encoder reads them, and the text begins empty.
    """

    guide: LoadedDrafter
    calls: int
    prompts: list[list[int]]
    encoder_decoder: bool
    reading: Reading
    rounds: tuple[Round, ...]
    out: api.Generation

    @property
    def rows(self) -> int:
        return len(self.prompts)

    def blocks(self, row: int) -> list[Block]:
        """The rounds of one row, in their order."""
        return [block for one in self.rounds for block in one.blocks if block.row == row]


def record(
    target: Model,
    prompts: api.Prompts,
    guide: LoadedDrafter,
    options: dict[str, Any],
    *,
    repeats: int = 1,
    stop: Callable[[], bool] = lambda: False,
) -> Trace:
    """Decodes the prompts as `specjax.stream` does, and takes every round apart. All times are warm.

    Args:
      options: the keyword arguments of `specjax.generate` but for the drafter.
      repeats: runs, which are all alike but for their times; of these the median counts, round by round.
      stop: asked after each round; True ends everything there, and rows that still ran are "interrupted".
    """
    _warm(api.prepare(target, prompts, drafter=guide, **options))
    job = api.prepare(target, prompts, drafter=guide, **options)
    reading = _reading(job)
    rounds, ended = _run(job, stop)
    times = [[one.times for one in rounds]]
    while len(times) < repeats and not np.any(ended.stop == Stop.RUNNING):
        again, _ = _run(api.prepare(target, prompts, drafter=guide, **options), stop)
        if [one.blocks for one in again] != [one.blocks for one in rounds]:
            break  # it was stopped, or this device does not compute the same twice
        times.append([one.times for one in again])
    middle = [Times(*map(statistics.median, zip(*each, strict=True))) for each in zip(*times, strict=True)]
    rounds = [one._replace(times=found) for one, found in zip(rounds, middle, strict=True)]
    seconds = job.seconds | {"decode": sum(found.whole for found in middle)}
    given = [row[:count].tolist() for row, count in zip(*jax.device_get(job.prompt[:2]), strict=True)]
    out = api.finish(job, ended, seconds)
    return Trace(guide, draft_calls(guide), given, target.encoder_decoder, reading, tuple(rounds), out)


def _run(job: api.Job, stop: Callable[[], bool]) -> tuple[list[Round], api.Progress]:
    """Every round of a job, which is used up by it."""
    halves = loop.parts(**job.static)
    rounds: list[Round] = []
    state, code, totals = job.state, *jax.device_get((job.state.stop, job.state.totals))
    written: list[list[int]] = [[] for _ in code]
    while np.any(code == Stop.RUNNING) and not (rounds and stop()):
        draft, verify = _halves(job, state, *halves)
        (state, info), run, _ = measuring.timed(lambda state=state: loop.one_round(job.params, state, **job.static))
        info, after, totals = jax.device_get((info, state.stop, state.totals))
        number = len(rounds) + 1
        rounds.append(Round(number, blocks(info, number, before=code, after=after), Times(run, draft, verify)))
        for block in rounds[-1].blocks:
            written[block.row] += block.tokens
        code = after
    return rounds, api.Progress(written, code, totals)


def blocks(info: Info, number: int, *, before: np.ndarray, after: np.ndarray) -> tuple[Block, ...]:
    """What a round did to each row that was active in it.

    Args:
      info: of the round, on the host.
      before, after: [B] stop codes.
    """
    found = []
    for row in np.flatnonzero(info.active).tolist():
        ended = Stop(int(after[row])).name.lower() if before[row] == Stop.RUNNING != after[row] else None
        accepted, tested = int(info.accepted[row]), int(info.tested[row])
        tokens = tuple(info.committed[row, : info.emitted[row]].tolist())
        found.append(
            Block(
                number, row, _nodes(info, row, accepted, tested), accepted, tested, float(info.overlap[row]), tokens,
                ended,
            )
        )  # fmt: skip
    return tuple(found)


def _nodes(info: Info, row: int, accepted: int, tested: int) -> tuple[Node, ...]:
    parents, tokens, valid = (x[row].tolist() for x in (info.parents, info.proposed, info.valid))
    paths: list[list[int]] = []  # from below the root to each node
    for node, parent in enumerate(parents):
        paths.append([*paths[parent], node] if parent >= 0 else [])
    path = walked(paths, tokens, valid, info.committed[row, :accepted].tolist())
    last = path[-1] if path else 0
    kept, refused = set(path), tested > accepted
    return tuple(
        Node(
            node, parent, len(paths[node]), tokens[node], valid[node],
            node in kept or (refused and parent == last and valid[node]), node in kept,
        )
        for node, parent in enumerate(parents)
        if parent >= 0 and parent != SCRATCH
    )  # fmt: skip


def walked(
    paths: Sequence[Sequence[int]], tokens: Sequence[int], valid: Sequence[bool], wanted: Sequence[int]
) -> list[int]:
    """The proposed nodes, root apart, that spell the tokens `wanted`; the oldest where siblings have one token."""
    for path in paths:
        if [tokens[node] for node in path] == list(wanted) and all(valid[node] for node in path):
            return list(path)
    raise AssertionError(f"the accepted tokens {list(wanted)} are no path of the draft")


def draft_calls(guide: LoadedDrafter) -> int:
    """Calls of the draft model in a round: one a level; 1 for a drafter that runs no model, 0 without a draft."""
    levels = guide.drafter.tree.width - 1
    return levels if guide.source is not None else min(levels, 1)


# --- times -----------------------------------------------------------------------------------------------------------


def _clocked(call: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    value = jax.block_until_ready(call())
    return value, time.perf_counter() - started


def _halves(job: api.Job, state: loop.GenerationState, draft: Callable, check: Callable) -> tuple[float, float]:
    """Seconds of both halves of the next round, run on a copy of the state."""
    with jax.debug_key_reuse(False):  # the round draws the same numbers again, and its results are those that count
        copy = jax.block_until_ready(jax.tree.map(jnp.copy, state))
        (copy, drafted), first = _clocked(lambda: draft(job.params, copy))
        _, second = _clocked(lambda: check(job.params, copy, drafted))
    return (first if job.guide.drafter.tree.size > 1 else 0.0), second


def _warm(job: api.Job) -> None:
    """Compiles and starts everything that a round calls."""
    halves = loop.parts(**job.static)
    for _ in range(2):  # a program's first run pays for more than compiling
        _halves(job, job.state, *halves)
    state = job.state
    for _ in range(2):
        state = jax.block_until_ready(loop.one_round(job.params, state, **job.static))[0]


def _reading(job: api.Job) -> Reading:
    """Seconds of the target's prefill and of the drafter's, each compiled apart, median of warm runs."""
    guide = job.guide
    slots = job.prompt.cache_len + guide.drafter.tree.size
    given = job.prompt[:2]
    read = jax.jit(job.static["model"].prefill, static_argnums=3)
    begin = jax.jit(guide.drafter.init, static_argnums=3)
    prefilled = read(job.params.target, *given, slots)

    def median(call: Callable[[], Any]) -> float:
        jax.block_until_ready(call())
        return statistics.median(_clocked(call)[1] for _ in range(READS))

    first = median(lambda: read(job.params.target, *given, slots))
    if guide.drafter.tree.size == 1:
        return Reading(first, 0.0)
    return Reading(first, median(lambda: begin(job.params.draft, *given, slots, prefilled)))


# --- acceptance by depth ---------------------------------------------------------------------------------------------


class Depth(NamedTuple):
    """At one depth of the draft: rounds that tested a token there, and that accepted one, of all rounds of all rows."""

    depth: int
    tested: int
    accepted: int
    rounds: int

    @property
    def rate(self) -> float:
        """accepted / tested; nan where nothing was tested."""
        return self.accepted / self.tested if self.tested else float("nan")

    @property
    def reached(self) -> float:
        """Share of rounds that accepted at least this many tokens."""
        return self.accepted / self.rounds if self.rounds else float("nan")


def by_depth(trace: Trace) -> list[Depth]:
    """From depth 1 to the draft's deepest level."""
    found = [block for one in trace.rounds for block in one.blocks]
    return [
        Depth(
            depth, sum(block.tested >= depth for block in found), sum(block.accepted >= depth for block in found),
            len(found),
        )
        for depth in range(1, trace.guide.drafter.tree.width)
    ]  # fmt: skip


# --- JSON ------------------------------------------------------------------------------------------------------------


def records(trace: Trace, spell: Callable[[int], str]) -> Iterator[dict[str, Any]]:
    """One object a round and row, in the order in which they happened.

    Args:
      spell: a token as text.
    """
    for one in trace.rounds:
        seconds = {"round": one.times.whole, "draft": one.times.draft, "verify": one.times.verify}
        for block in one.blocks:
            yield {
                "kind": "round", "round": block.round, "row": block.row,
                "drafted": [{**node._asdict(), "text": spell(node.token)} for node in block.nodes],
                "tested": block.tested, "accepted": block.accepted, "overlap": block.overlap,
                "committed": list(block.tokens), "committed_text": [spell(token) for token in block.tokens],
                "ended": block.ended, "seconds": seconds,
            }  # fmt: skip
