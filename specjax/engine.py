"""Continuous batching: many requests through a fixed number of slots, which are refilled as rows finish.

    slot 0   row 0 ......... | row 3 ....... | row 5 ....     a chunk is one while_loop on the device, until a row has
    slot 1   row 1 ... | row 2 .............. | row 4 ...     ended; its slot is refilled by the prefill of another row

Shapes are static: one program decodes, and one for each bucket of prompts reads them. A row's tokens depend on its
seed, number and prompt, not on its slot or on when it entered, so they are those of `generate(..., rows=...)`. Prompts
are read in groups of neighbors, the same whatever else is under way, so that even roundings are those of any other run.

All processes of a mesh that spans several run the same loop: what it decides follows from what `hosts.fetch` returns.
"""

import functools
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import checks, defaults, hosts, placement, programs, stopping
from specjax import decoding as loop
from specjax.api import Generation, Progress, finish
from specjax.base import Known
from specjax.drafters import LoadedDrafter
from specjax.model import Model
from specjax.prompts import Prefix, Prompts, prompt_width
from specjax.request import UNREAD, Job, PerRow, draft_rules, prepare, stop_rules
from specjax.sampling import LogitBias
from specjax.sharding import data_size
from specjax.stopping import Stop
from specjax.streaming import spelled
from specjax.totals import Totals
from specjax.verify import Verifier

SLOTS = 8
MOST_ROUNDS = 1024  # of a dispatch: bounds the time until Ctrl-C
FREE = -1  # owner of a slot without a row
SHARED = -1  # axis of rows of what rows share


class Served(NamedTuple):
    """A finished row.

    Attributes:
      text: new text, cut before the first stop string; None without a tokenizer.
      tokens: new tokens, including the token that stopped it.
      stop_reason: name of a `Stop` code in lower case.
      totals: `totals.Totals` of this row, numpy.
    """

    text: str | None
    tokens: list[int]
    stop_reason: str
    totals: Totals


def serve_batch(
    target: Model,
    prompts: Prompts,
    *,
    slots: int = SLOTS,
    prefix: Prefix | None = None,
    drafter: LoadedDrafter | None = None,
    verifier: str | Verifier | None = None,
    lossless: bool = False,
    max_new_tokens: int | Sequence[int] = defaults.MAX_NEW_TOKENS,
    temperature: PerRow = defaults.TEMPERATURE,
    top_k: int | Sequence[int] = 0,
    top_p: PerRow = 1.0,
    min_p: PerRow = 0.0,
    repetition_penalty: PerRow = 1.0,
    logit_bias: LogitBias | None = None,
    seed: int = defaults.SEED,
    rows: Sequence[int] | None = None,
    stop: Sequence[str] | Sequence[Sequence[str]] | str = (),
    stop_tokens: Sequence[int] | Sequence[Sequence[int]] = (),
    ignore_eos: bool = False,
    cache_len: int | None = None,
) -> "Serving":
    """Continues any number of prompts through a fixed number of slots: continuous batching.

    A slot whose row has ended is refilled, so that a batch does not wait for its longest row.

    Args:
      slots: rows that are decoded at the same time; on a mesh, a multiple of its data axis.
      stop: strings that end a row: for all rows, or a list of strings for each.
      stop_tokens: token ids that end a row: for all rows, or a list for each.
      cache_len: largest number of tokens of a row; None: as many as the longest row needs.

    All other arguments are those of `generate`.

    Returns:
      An iterable of (index of the prompt, `Served`), in the order in which rows finish; its `result()` decodes all that
      is left and returns the rows in the order of the prompts, with the tokens of `generate`.

    Raises:
      ValueError: an invalid argument, before the target runs.

    >>> import specjax as sj
    >>> target = sj.load("bundled/opt-tiny")
    >>> serving = sj.serve_batch(target, [[5, 6], [7], [8, 9]], slots=2, max_new_tokens=[9, 2, 3], temperature=0)
    >>> [(row, len(served.tokens)) for row, served in serving]
    [(1, 2), (2, 3), (0, 9)]
    >>> [len(row) for row in serving.result().tokens]
    [9, 2, 3]
    """
    checks.integer("slots", slots, least=1)
    several = _several(stop, str), _several(stop_tokens, int)
    job = prepare(
        target, prompts, prefix=prefix, drafter=drafter, verifier=verifier, lossless=lossless,
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, logit_bias=logit_bias, seed=seed, rows=rows,
        stop=(), stop_tokens=(), ignore_eos=ignore_eos,
        cache_len=cache_len,
    )  # fmt: skip
    count = len(job.prompt.length)
    stops = _by_row("stop", stop, count, several[0])
    ends = _by_row("stop_tokens", stop_tokens, count, several[1])
    stops = [checks.stop_strings(one) for one in stops]
    ends = [checks.token_ids("stop_tokens", one) for one in ends]
    kinds = list(dict.fromkeys(zip(stops, ends, strict=True)))
    sets = [stop_rules(target, *kind, ignore_eos=ignore_eos) for kind in kinds]
    chosen = np.array([kinds.index(kind) for kind in zip(stops, ends, strict=True)], np.int32)
    return Serving(job, slots, stops, stopping.choice_of(sets, chosen))


class Serving:
    """Rows under way: iterate for (index of the prompt, `Served`); `result()` is the `Generation` of all rows.

    Attributes:
      rounds: target forward passes so far, each over all slots.
      slots: rows of a pass.
      seconds: wall time of the loop, and processor time that its thread spent between a result and the next dispatch.
    """

    def __init__(self, job: Job, slots: int, stops: Sequence[tuple[str, ...]], rules: stopping.StopRules):
        data = data_size(job.target.mesh)
        checks.integer("slots", slots, least=data)
        if slots % data:
            raise ValueError(f"slots={slots} do not divide over a data axis of {data}: use {slots + -slots % data}")
        self.slots, self.rounds, self.seconds = slots, 0, {"loop": 0.0, "host": 0.0}
        self._job, self._stops, self._data = job, stops, data
        self._rules = rules
        self._sampling = jax.device_get(job.params.sampling)
        self._done: dict[int, tuple[Served, int]] = {}
        self._group = group_of(slots, data)
        if job.target.mesh is not None:
            self._weights = placement.place_params(self._params(np.zeros(slots, np.int32)), job.target.mesh)
        else:
            self._weights = job.params._replace(stop=jax.device_put(rules))
        self._chunks = self._run()
        self._rows = itertools.chain.from_iterable(self._chunks)

    # --- programs ---

    def _params(self, owner: np.ndarray) -> loop.DecodeParams:
        """What a round reads, with sampling parameters and stop rules of the slots' rows."""
        of_rows = jax.tree.map(lambda leaf: leaf[owner] if np.ndim(leaf) else leaf, self._sampling)
        rules = self._rules._replace(chosen=np.asarray(self._rules.chosen)[owner])
        return self._job.params._replace(sampling=of_rows, stop=rules)

    def _placed(self, owner: np.ndarray) -> loop.DecodeParams:
        """The same on the device; weights and tables are there already."""
        params = self._params(np.maximum(owner, 0))
        sampling, chosen = self._put((params.sampling, params.stop.chosen))
        return self._weights._replace(sampling=sampling, stop=self._weights.stop._replace(chosen=chosen))

    def _put(self, arrays: Any) -> Any:
        """Arrays [rows, ...] and numbers on the device."""
        mesh = self._job.target.mesh
        return jax.device_put(arrays) if mesh is None else placement.place_rows(arrays, mesh)

    def _width(self, rows: Sequence[int]) -> int:
        """Width of the array of some prompts: a bucket."""
        job = self._job
        longest = int(job.prompt.length[list(rows)].max())
        encoder = job.target.encoder_decoder
        return programs.prompt_bucket(longest) if encoder else prompt_width(longest, job.cache_len)

    def _static(self) -> dict[str, Any]:
        static = {name: value for name, value in self._job.static.items() if name != "verify"}
        return {**static, "cache_len": self._job.cache_len}

    def _known(self) -> Known | None:
        job = self._job
        if job.prefix is None or job.prompt.shared is None:
            return None
        return Known(job.prefix.read(job.drafter.drafter.capture), self._put(job.prompt.shared))

    def _shapes(self, rows: int, width: int) -> Any:
        """Shapes of the state of so many rows."""
        like = lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype)
        numbers = like((rows,), np.int32)
        given = like((), np.uint32), like((rows,), np.uint32), like((rows, width), np.int32), numbers, numbers
        weights = self._job.params._replace(sampling=UNREAD, stop=UNREAD)
        return _reading.eval_shape(weights, *given, like((), np.int32), self._known(), **self._static())

    def _empty(self) -> tuple[loop.GenerationState, tuple[int, ...]]:
        """A state whose slots are all free, and the axis of rows of each of its leaves.

        The axis is the one that differs between the shapes of one row and of two: nothing is known of a drafter's state
        but that it has rows. Leaves without one are shared by all rows, or numbers of a round.
        """
        width = self._width(range(len(self._job.prompt.length)))
        differ = lambda a, b: next((i for i, (n, m) in enumerate(zip(a.shape, b.shape, strict=True)) if n != m), SHARED)
        axes = jax.tree.map(differ, self._shapes(self._data, width), self._shapes(2 * self._data, width))
        shapes = self._shapes(self.slots, width)
        zero = lambda leaf: (
            None if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.zeros(leaf.shape, leaf.dtype)
        )
        state = jax.tree.map(zero, shapes)._replace(
            key=loop.row_keys(0, jnp.zeros((self.slots,), jnp.uint32)),
            stop=np.full((self.slots,), int(Stop.INTERRUPTED), np.int32),
        )
        return self._on_mesh(state), tuple(jax.tree.leaves(axes))

    def _on_mesh(self, state: loop.GenerationState) -> loop.GenerationState:
        target = self._job.target
        if target.mesh is None or target.rules is None:
            return jax.device_put(state)
        draft = draft_rules(self._job.drafter)
        return hosts.lay(state, placement.state_shardings(state, target.mesh, target.rules, draft=draft))

    def _admit(self, state: loop.GenerationState, rows: Sequence[int], at: Sequence[int], axes: tuple[int, ...]):
        """The state with the prompts of some rows read into free slots."""
        prompt, width = self._job.prompt, self._width(rows)
        rows = [*rows, *[rows[-1]] * (self._group - len(rows))]  # a repeated row is written twice to the same slot
        at = [*at, *[at[-1]] * (self._group - len(at))]
        tokens = prompt.tokens[rows]
        tokens = np.pad(tokens, ((0, 0), (0, max(0, width - tokens.shape[1]))))[:, :width]
        given = prompt.key[rows], tokens, prompt.length[rows], prompt.budget[rows]
        slots = tuple(np.int32(one) for one in at)
        seed, limit, given, slots = self._put((prompt.seed, prompt.limit, given, slots))
        weights = self._weights._replace(sampling=UNREAD, stop=UNREAD)
        state = admit(weights, state, seed, *given, limit, slots, self._known(), axes=axes, **self._static())
        return self._on_mesh(state)

    # --- the loop ---

    def __iter__(self) -> Iterator[tuple[int, Served]]:
        return self._rows  # one run: what was yielded is not decoded again

    def chunks(self) -> Iterator[list[tuple[int, Served]]]:
        """The same rows in lists: those that have ended whenever the device was asked."""
        return self._chunks

    def _run(self) -> Iterator[list[tuple[int, Served]]]:
        job = self._job
        state, axes = self._empty()
        rows = len(job.prompt.length)
        queue = deque(range(at, min(at + self._group, rows)) for at in range(0, rows, self._group))
        owner = np.full((self.slots,), FREE)
        ended: list[tuple[int, Served]] = []
        began, working_since = time.perf_counter(), time.thread_time()
        params = self._weights
        while True:
            changed = False
            while queue and (owner == FREE).sum() >= self._group:
                group = queue.popleft()
                at = np.flatnonzero(owner == FREE)[: len(group)]
                state = self._admit(state, group, at.tolist(), axes)
                owner[at] = group
                changed = True
            under_way = (owner != FREE).any()
            if under_way:
                params = self._placed(owner) if changed else params
                wanted = self._group - int((owner == FREE).sum()) if queue else 1
                most = self._put((np.int32(wanted), np.int32(MOST_ROUNDS)))
                state, rounds = chunk(params, state, *most, **job.static)
                self.seconds["host"] += time.thread_time() - working_since
            if ended:
                yield ended  # while the device runs
            ended = []
            if not under_way:
                break
            stop, length, tokens, totals, rounds = hosts.fetch(
                (state.stop, state.length, state.tokens, state.totals, rounds)
            )
            working_since = time.thread_time()
            self.seconds["loop"] = time.perf_counter() - began
            self.rounds += int(rounds)
            for slot in np.flatnonzero((owner != FREE) & (stop != Stop.RUNNING)):
                row = int(owner[slot])
                new = tokens[slot, : length[slot]].tolist()
                own = jax.tree.map(lambda leaf, slot=slot: leaf[slot].copy(), totals)
                text = None if job.target.text is None else spelled(job.target.text, new, self._stops[row])
                served = Served(text, new, Stop(int(stop[slot])).name.lower(), own)
                self._done[row] = served, int(stop[slot])
                ended.append((row, served))
                owner[slot] = FREE

    def result(self) -> Generation:
        """All rows in the order of the prompts; decodes those that are left."""
        for _ in self:
            pass
        rows = [self._done[row] for row in range(len(self._job.prompt.length))]
        totals = jax.tree.map(lambda *leaves: np.stack(leaves), *(served.totals for served, _ in rows))
        done = Progress([served.tokens for served, _ in rows], np.array([code for _, code in rows]), totals)
        return finish(self._job, done, {"decode": self.seconds["loop"]}, stops=self._stops)


def group_of(slots: int, data: int) -> int:
    """Number of prompts that a prefill reads: an eighth of the slots, of which it is a divisor, or the data axis."""
    return max(size for size in range(data, slots + 1, data) if slots % size == 0 and size <= max(data, slots // 8))


def _read(params, seed, streams, prompt, length, budget, limit, known, *, model, drafter, cache_len: int):
    """State of some rows before their first round."""
    init = loop.make_init(model, drafter, cache_len=cache_len, max_new=cache_len)
    return init(params, loop.row_keys(jax.random.key(seed), streams), prompt, length, budget, limit, known)


_reading = jax.jit(_read, static_argnames=("model", "drafter", "cache_len"))  # never run: it keeps what was traced


@functools.partial(programs.jit, static=("model", "drafter", "cache_len", "axes"), donate=("state",))
def admit(
    params, state, seed, streams, prompt, length, budget, limit, at, known, *, model, drafter, cache_len: int,
    axes: tuple[int, ...],
) -> loop.GenerationState:  # fmt: skip
    """Reads the prompts of R rows and writes their state into slots `at`, R numbers."""
    loop.count_trace()
    fresh = _read(
        params, seed, streams, prompt, length, budget, limit, known, model=model, drafter=drafter, cache_len=cache_len
    )

    def insert(old, new, axis: int):
        if axis == SHARED:
            return old
        wider = [(0, 0) if i == axis else (0, old.shape[i] - n) for i, n in enumerate(new.shape)]
        # Buffers are left-aligned: a narrower bucket of prompts fills the beginning.
        new = jnp.pad(new, wider) if any(after for _, after in wider) else new
        for row in range(new.shape[axis]):  # slices are written in place; XLA copies the buffer around a scatter
            piece = jax.lax.slice_in_dim(new, row, row + 1, axis=axis)
            old = jax.lax.dynamic_update_slice_in_dim(old, piece, at[row], axis=axis)
        return old

    leaves, structure = jax.tree.flatten(state)
    return structure.unflatten(map(insert, leaves, jax.tree.leaves(fresh), axes))


@functools.partial(programs.jit, static=("model", "drafter", "verify"), donate=("state",))
def chunk(params, state, ended, most, *, model, drafter, verify) -> tuple[loop.GenerationState, jax.Array]:
    """Rounds in one while_loop until `ended` more rows have stopped; the number of rounds too."""
    loop.count_trace()
    return loop.until_ended(loop.make_step(model, drafter, verify), params, state, ended, most)


def _several(given: Any, kind: type) -> bool:
    """Whether an option has an entry for each row, each a sequence, in place of one for all."""
    if isinstance(given, str) or not (listed := checks.items(given)):
        return False
    return all(not isinstance(one, str) and checks.items(one) is not None for one in listed) and not isinstance(
        listed[0], kind
    )


def _by_row(name: str, given: Any, rows: int, several: bool) -> list[Any]:
    if not several:
        return [given] * rows
    if len(given) != rows:
        raise ValueError(f"{name} has {len(given)} entries for {rows} prompts: pass one list, or one for each prompt")
    return list(given)
