"""The user's face of decoding: `generate` and `stream` on text or tokens, and what comes out."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decoding as loop
from specjax import drafters, sampling, sharding, stopping, verify
from specjax.drafters import Guide
from specjax.metrics import Stats, stats
from specjax.model import Model
from specjax.sampling import LogitBias, Stages
from specjax.stopping import Stop
from specjax.text import Streamer, cut_at
from specjax.types import Info
from specjax.verify import Verifier

PROMPT_BUCKET = 32  # prompts are padded to multiples of this, so that few lengths compile
Prompts = str | Sequence[str] | Sequence[Sequence[int]]
PerRow = float | int | Sequence[float] | Sequence[int]


@dataclasses.dataclass(frozen=True)
class Generation:
    """What was generated, row by row.

    Attributes:
      texts: new text, cut before the first stop string; None without a tokenizer.
      tokens: new tokens, the one that stopped the row included.
      stop_reasons: a `Stop` name in lower case for each row: eos, stop_token, stop_string, max_tokens, cache_full,
        nan, interrupted.
      stats: rates, tokens a target call, walltime, compiles.
      lossless: whether the tokens follow the target's own law.
    """

    texts: list[str] | None
    tokens: list[list[int]]
    stop_reasons: list[str]
    stats: Stats
    lossless: bool


class Job(NamedTuple):
    """A checked request: static choices, arrays, and the state after prefill."""

    target: Model
    guide: Guide
    verifier: Verifier
    stages: Stages
    params: loop.DecodeParams
    state: loop.GenerationState
    stops: tuple[str, ...]
    traces: int
    prefill_seconds: float

    @property
    def static(self) -> dict[str, Any]:
        return {
            "model": self.target.lm, "drafter": self.guide.drafter, "verify": self.verifier.fn, "stages": self.stages,
        }  # fmt: skip


class Event(NamedTuple):
    """One round, as `stream` yields it.

    Attributes:
      texts: text that each row's new tokens complete (empty strings without a tokenizer).
      tokens: new tokens of each row.
      info: diagnostics on the host (numpy), the draft's tokens among them.
    """

    texts: list[str]
    tokens: list[list[int]]
    info: Info


def generate(target: Model, prompts: Prompts, **options) -> Generation:
    """Continues the prompts; the tokens have the target's law whatever the drafter (out.lossless says so).

    Args:
      target: a model from `specjax.load`.
      prompts: a string, strings, or lists of token ids.
      drafter: from `specjax.drafters`; None decodes plainly, by the same loop.
      verifier: a name of `specjax.verify.TABLE`, or a `Verifier`.
      max_new_tokens: one number, or one for each row.
      temperature, top_k, top_p, min_p, repetition_penalty: one number, or one for each row; temperature 0 is greedy.
      logit_bias: token -> bias, see `sampling.sampling_params`.
      seed: of the random streams; `rows` numbers them (default 0, 1, ...), so that a row draws the same numbers
        wherever it lies in a batch.
      stop: strings that end a row. stop_tokens: token ids that do. ignore_eos: go on past the end of text.
      cache_len: tokens that a row's cache may hold (default: what the request needs, at most the model's positions).
      profile: measure draft and verify apart after the run (compiles two more functions).

    Raises:
      ValueError: bad input, in one line, before any weight is touched.
    """
    profile = options.pop("profile", False)
    job = prepare(target, prompts, **options)
    started = time.perf_counter()
    state = jax.block_until_ready(loop.generate(job.params, job.state, **job.static))
    seconds = {"prefill": job.prefill_seconds, "decode": time.perf_counter() - started}
    if profile:
        seconds |= split_seconds(job, state, seconds["decode"])
    return finish(job, state, seconds)


class Stream:
    """Rounds as they happen: iterate for `Event`s; `result()` at any time gives all that was generated so far.

    Rows that are still running when `result` is asked are "interrupted"; nothing already generated is ever lost.
    """

    def __init__(self, job: Job):
        self._job = job
        self._state = job.state
        self._seconds = 0.0
        text = job.target.text
        rows = job.state.length.shape[0]
        self._streamers = [Streamer(text) for _ in range(rows)] if text else None

    def __iter__(self) -> Iterator[Event]:
        rounds = loop.stream(self._job.params, self._state, **self._job.static)
        while True:
            started = time.perf_counter()
            entry = next(rounds, None)
            if entry is None:
                break
            self._state, info = entry
            info = jax.device_get(info)
            self._seconds += time.perf_counter() - started
            tokens = [info.committed[b, : info.emitted[b]].tolist() for b in range(len(info.emitted))]
            texts = ["" for _ in tokens]
            if self._streamers:
                texts = [s.add(t) for s, t in zip(self._streamers, tokens, strict=True)]
            yield Event(texts, tokens, info)

    def result(self, *, profile: bool = False) -> Generation:
        """Everything so far; with `profile`, decoding time is split into draft and verify (compiles two functions)."""
        seconds = {"prefill": self._job.prefill_seconds, "decode": self._seconds}
        if profile:
            seconds |= split_seconds(self._job, self._state, self._seconds)
        return finish(self._job, self._state, seconds)


def stream(target: Model, prompts: Prompts, **options) -> Stream:
    """`generate` round by round: `for event in stream(...)`, then `.result()`. Takes the same options."""
    options.pop("profile", None)
    return Stream(prepare(target, prompts, **options))


def prepare(
    target: Model,
    prompts: Prompts,
    *,
    drafter: Guide | None = None,
    verifier: str | Verifier = "token",
    max_new_tokens: int | Sequence[int] = 64,
    temperature: PerRow = 1.0,
    top_k: int | Sequence[int] = 0,
    top_p: PerRow = 1.0,
    min_p: PerRow = 0.0,
    repetition_penalty: PerRow = 1.0,
    logit_bias: LogitBias | None = None,
    seed: int = 0,
    rows: Sequence[int] | None = None,
    stop: Sequence[str] | str = (),
    stop_tokens: Sequence[int] = (),
    ignore_eos: bool = False,
    cache_len: int | None = None,
) -> Job:
    """Checks everything, then reads the prompts. See `generate` for the arguments."""
    traces = loop.trace_count()
    guide = drafter or drafters.plain()
    chosen = verify.get(verifier) if isinstance(verifier, str) else verifier
    guide.check(target)
    check_mesh(target, guide)
    tokens, length = tokenize(target, prompts)
    batch = len(length)
    budget = np.broadcast_to(np.asarray(max_new_tokens, np.int64), (batch,)) if np.ndim(max_new_tokens) == 0 else None
    budget = np.asarray(max_new_tokens, np.int64) if budget is None else budget
    if budget.shape != (batch,) or budget.min() < 1:
        raise ValueError(f"max_new_tokens must be at least 1, one number or {batch}; got {max_new_tokens}")
    longest = int(budget.max())
    cache_len = cache_room(target, guide, tokens, length, longest, cache_len)
    params, stages = sampling.sampling_params(
        batch, target.vocab_size, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, logit_bias=logit_bias,
    )  # fmt: skip
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    rules = stopping.rules(
        target.vocab_size,
        eos=() if ignore_eos else target.eos,
        stop_tokens=stop_tokens,
        stop_strings=stops,
        pieces=target.text.pieces() if target.text and stops else None,
    )
    numbers = np.arange(batch) if rows is None else np.asarray(rows)
    if numbers.shape != (batch,):
        raise ValueError(f"rows numbers the random streams: {batch} prompts need {batch} numbers, got {numbers.shape}")
    decode = loop.DecodeParams(target.params, guide.params, params, rules)
    started = time.perf_counter()
    state = loop.prefill(
        decode, loop.row_keys(seed, jnp.asarray(numbers, jnp.uint32)), jnp.asarray(tokens), jnp.asarray(length),
        jnp.asarray(budget, jnp.int32), model=target.lm, drafter=guide.drafter, stages=stages, cache_len=cache_len,
        max_new=longest,
    )  # fmt: skip
    state = jax.block_until_ready(on_mesh(target, guide, state))
    return Job(target, guide, chosen, stages, decode, state, stops, traces, time.perf_counter() - started)


def check_mesh(target: Model, guide: Guide) -> None:
    """Raises ValueError where target and draft lie on different meshes: one program runs on one."""
    if guide.source is not None and guide.source.mesh not in (None, target.mesh):
        told = [None if m is None else dict(m.shape) for m in (guide.source.mesh, target.mesh)]
        raise ValueError(
            f"draft {guide.source.name} lies on a mesh of {told[0]} and target {target.name} on {told[1]}: load both "
            "with the same mesh (replicate=True gives every device the whole draft)"
        )


def on_mesh(target: Model, guide: Guide, state: loop.GenerationState) -> loop.GenerationState:
    """The state as rounds keep it, so that the first round compiles for all of them."""
    if target.mesh is None or target.rules is None:
        return state
    source = guide.source
    draft = sharding.replicated(target.rules) if source is None or source.mesh is None else source.rules
    return jax.device_put(state, sharding.state_shardings(state, target.mesh, target.rules, draft=draft))


def tokenize(target: Model, prompts: Prompts) -> tuple[np.ndarray, np.ndarray]:
    """Left-aligned prompts [B,P] int32, padded to a bucket, and their lengths [B].

    Raises:
      ValueError: no prompt, an empty one, text without a tokenizer, or a token outside the vocabulary.
    """
    if isinstance(prompts, str):
        prompts = [prompts]
    if len(prompts) == 0:
        raise ValueError("there is no prompt: give a string, or a list of strings or of token ids")
    ids: list[list[int]] = []
    for row, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            if target.text is None:
                raise ValueError(f"{target.name} has no tokenizer: give prompts as lists of token ids")
            prompt = target.text.encode(prompt)
        if isinstance(prompt, int | np.integer):
            raise ValueError(f"prompt {row} is the single token {prompt}: give a list of prompts, [[1, 2, 3]] for one")
        ids.append([int(token) for token in prompt])
        if not ids[-1]:
            raise ValueError(f"prompt {row} is empty: give at least one token")
        worst = max(ids[-1], key=lambda t: abs(t - target.vocab_size / 2))
        if not 0 <= worst < target.vocab_size:
            raise ValueError(f"prompt {row} holds token {worst}, outside {target.name}'s {target.vocab_size} tokens")
    length = np.array([len(p) for p in ids], np.int32)
    width = -(-int(length.max()) // PROMPT_BUCKET) * PROMPT_BUCKET
    padded = np.zeros((len(ids), width), np.int32)
    for row, prompt in enumerate(ids):
        padded[row, : len(prompt)] = prompt
    return padded, length


def cache_room(
    target: Model, guide: Guide, tokens: np.ndarray, length: np.ndarray, longest: int, wanted: int | None
) -> int:
    """Tokens that the caches hold: as asked, else prompt and new tokens, within the positions of both models."""
    prompt = 1 if target.encoder_decoder else int(length.max())
    need = (1 if target.encoder_decoder else tokens.shape[1]) + longest
    limit = min((m for m in (positions(target), guide.positions) if m is not None), default=None)
    room = need if wanted is None else wanted
    room = room if limit is None else min(room, limit)
    if prompt > room:
        what = f"cache_len={wanted}" if wanted is not None and wanted == room else f"the model's {room} positions"
        raise ValueError(
            f"the longest prompt has {prompt} tokens and does not fit into {what}: shorten it"
            + ("" if limit is not None and room == limit else ", or raise cache_len")
        )
    return room


def positions(model: Model) -> int | None:
    """Positions that the model has, None where they are unbounded (relative positions)."""
    return getattr(model.config, "max_positions", None)


def finish(job: Job, state: loop.GenerationState, seconds: dict[str, float]) -> Generation:
    """Brings a state to the host as a `Generation`; rows that still run are interrupted."""
    tokens, length, stop, totals = jax.device_get((state.tokens, state.length, state.stop, state.totals))
    rows = [tokens[b, : length[b]].tolist() for b in range(len(length))]
    codes = [Stop.INTERRUPTED if code == Stop.RUNNING else Stop(code) for code in stop]
    texts = None
    if job.target.text is not None:
        texts = [cut_at(job.target.text.decode(row), job.stops) for row in rows]
    laws = job.guide.drafter.vocab_size is not None
    compiles = loop.trace_count() - job.traces
    measured = stats(totals, length, seconds, compiles=compiles, drafted_laws=laws)
    return Generation(texts, rows, [code.name.lower() for code in codes], measured, job.verifier.lossless)


def split_seconds(job: Job, state: loop.GenerationState, decode: float, repeats: int = 5) -> dict[str, float]:
    """Decoding time split into draft and verify, by their measured shares of a round on the last state."""
    draft, check = loop.parts(job.params, **job.static)
    with jax.debug_key_reuse(False):  # the same draws over and over: they are timed and thrown away
        drafted = jax.block_until_ready(draft(job.params, state))
        jax.block_until_ready(check(job.params, state, drafted))
        times = {"draft": [], "verify": []}
        for _ in range(repeats):
            for name, call in (
                ("draft", lambda: draft(job.params, state)),
                ("verify", lambda: check(job.params, state, drafted)),
            ):
                started = time.perf_counter()
                jax.block_until_ready(call())
                times[name].append(time.perf_counter() - started)
    cost = {name: float(np.median(values)) for name, values in times.items()}
    whole = sum(cost.values())
    return {name: decode * value / whole for name, value in cost.items()}
