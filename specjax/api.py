"""The user's face of decoding: `generate` and `stream` on text or tokens, and what comes out."""

import dataclasses
import functools
import reprlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax import checks, defaults, drafters, placement, programs, sampling, stopping, verify
from specjax import decoding as loop
from specjax.drafters import LoadedDrafter
from specjax.drafters.bounded import BoundedModel
from specjax.measuring import timed
from specjax.metrics import Stats, stats
from specjax.model import Model
from specjax.sampling import LogitBias, Stages
from specjax.stopping import Stop
from specjax.streaming import Writer, interrupts_wait, spelled
from specjax.types import Info
from specjax.verify import Verifier

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
      stats: rates, tokens a target call, walltime in parts (compiling is one of its own), compiles.
      lossless: whether the tokens follow the target's own law.
    """

    texts: list[str] | None
    tokens: list[list[int]]
    stop_reasons: list[str]
    stats: Stats
    lossless: bool


class Prompt(NamedTuple):
    """Prompts as prefill reads them.

    Attributes:
      tokens: [B, P] int32, left-aligned; P is a bucket.
      length: [B] int32.
      cache_len: cache slots for committed tokens, a bucket.
    """

    tokens: jax.Array
    length: jax.Array
    cache_len: int


class Job(NamedTuple):
    """A checked request: static choices, arrays, and the state after prefill."""

    target: Model
    guide: LoadedDrafter
    verifier: Verifier
    stages: Stages
    params: loop.DecodeParams
    prompt: Prompt
    state: loop.GenerationState
    stops: tuple[str, ...]
    traces: int
    seconds: dict[str, float]

    @property
    def static(self) -> dict[str, Any]:
        return {
            "model": self.target.variant(capture=self.guide.drafter.capture), "drafter": self.guide.drafter,
            "verify": self.verifier.fn, "stages": self.stages,
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


class Progress(NamedTuple):
    """What is known on the host of a run, finished or not: enough to tell its user everything."""

    tokens: list[list[int]]
    stop: np.ndarray
    totals: loop.Totals


def generate(target: Model, prompts: Prompts, **options: Any) -> Generation:
    """Continues the prompts; the tokens have the target's law whatever the drafter (out.lossless says so).

    Ctrl-C takes effect when all rounds are done, and then nothing is returned: `stream` can be interrupted.

    Args:
      target: a model from `specjax.load`.
      prompts: a string, strings, or lists of token ids.
      drafter: from `specjax.drafters`; None decodes plainly, by the same loop.
      verifier: a name of `specjax.verify.TABLE`, or a `Verifier`; None: the one that suits the drafter
        (`verify.default`), "token" for chains.
      lossless: refuse a lossy verifier.
      max_new_tokens: one number, or one for each row.
      temperature, top_k, top_p, min_p, repetition_penalty: one number, or one for each row. Temperature 0 is greedy, 1
        the model's own law; the default is 0.8, here and on the command line. The other stages are off by default.
      logit_bias: token -> bias, see `sampling.sampling_params`.
      seed: of the random streams, 0 by default: the same call gives the same tokens. `rows` numbers the streams
        (default 0, 1, ...), so that a row draws the same numbers wherever it lies in a batch.
      stop: strings that end a row. stop_tokens: token ids that do. ignore_eos: go on past the end of text.
      cache_len: tokens that a row's cache may hold (default: what the request needs, at most the model's positions).
      profile: measure draft and verify apart after the run (compiles two more functions).

    Raises:
      ValueError: bad input, in one line, before any weight is touched. TypeError: an option that does not exist.
    """
    profile = options.pop("profile", False)
    checks.option_names(prepare, options, caller="generate")
    job = prepare(target, prompts, **options)
    state, run, compiling = timed(lambda: loop.generate(job.params, job.state, **job.static))
    seconds = _add_seconds(job.seconds, run, compiling)
    tokens, length, stop, totals = jax.device_get((state.tokens, state.length, state.stop, state.totals))
    if profile:
        seconds |= split_seconds(job, state, seconds["decode"])
    rows = [tokens[b, : length[b]].tolist() for b in range(len(length))]
    return finish(job, Progress(rows, stop, totals), seconds)


class Stream:
    """Rounds as they happen: iterate for `Event`s; `result()` at any time gives all that was generated so far.

    The streamed texts of a row that has ended are together its text of the result, and never show what a stop string
    cuts. Rows that still run when `result` is asked are "interrupted".

    Ctrl-C loses nothing, wherever it comes: a round under way is finished and kept before KeyboardInterrupt is raised,
    and iterating again goes on from there.
    """

    def __init__(self, job: Job):
        self._job = job
        self._state = job.state
        self._runs: list[float] = []
        self._compiling = 0.0
        stop, totals = jax.device_get((job.state.stop, job.state.totals))
        self._done = Progress([[] for _ in stop], stop, totals)
        text = job.target.text
        self._writers = [Writer(text, job.stops) for _ in stop] if text else None
        self._ready: list[Event] = []
        self._storing = False
        self.rounds = 0

    def __iter__(self) -> Iterator[Event]:
        while True:
            if not self._ready and np.any(self._done.stop == Stop.RUNNING):
                with interrupts_wait(self._on_loan):
                    self._round()
            if not self._ready:
                return
            yield self._ready.pop(0)

    def _on_loan(self) -> bool:
        """Whether a round has taken the state, whose memory it writes to, and has not been noted yet."""
        return self._storing or self._state.tokens.is_deleted()

    def _round(self) -> None:
        (state, info), run, compiling = timed(
            lambda: loop.one_round(self._job.params, self._state, **self._job.static)
        )  # fmt: skip
        self._storing = True
        self._state = state
        started = time.perf_counter()
        info, stop, totals = jax.device_get((info, state.stop, state.totals))
        self._runs.append(run + time.perf_counter() - started)
        self._compiling += compiling
        new = [info.committed[b, : info.emitted[b]].tolist() for b in range(len(stop))]
        texts = ["" for _ in new]
        if self._writers:
            ended = (self._done.stop == Stop.RUNNING) & (stop != Stop.RUNNING)
            texts = [
                writer.add(tokens) + (writer.end() if over else "")
                for writer, tokens, over in zip(self._writers, new, ended, strict=True)
            ]
        self._done = Progress([old + more for old, more in zip(self._done.tokens, new, strict=True)], stop, totals)
        self._ready.append(Event(texts, new, info))
        self.rounds += 1
        self._storing = False

    def result(self, *, profile: bool = False) -> Generation:
        """Everything so far; with `profile`, decoding time is split into draft and verify (compiles two functions)."""
        decode, starting = steady(self._runs, compiled=self._compiling > 0)
        seconds = _add_seconds(self._job.seconds, decode, self._compiling + starting)
        if profile:
            copy = jax.tree.map(jnp.copy, self._state)  # iterating may go on
            seconds |= split_seconds(self._job, copy, seconds["decode"])
        return finish(self._job, self._done, seconds)


def stream(target: Model, prompts: Prompts, **options: Any) -> Stream:
    """`generate` round by round: `for event in stream(...)`, then `.result()`. Takes the same options."""
    options.pop("profile", None)
    checks.option_names(prepare, options, caller="stream")
    return Stream(prepare(target, prompts, **options))


def prepare(
    target: Model,
    prompts: Prompts,
    *,
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
    stop: Sequence[str] | str = (),
    stop_tokens: Sequence[int] = (),
    ignore_eos: bool = False,
    cache_len: int | None = None,
) -> Job:
    """Checks everything, then reads the prompts. See `generate` for the arguments."""
    traces = loop.trace_count()
    guide = drafters.plain() if drafter is None else drafter
    chosen = check_parts(target, guide, verifier)
    if checks.flag("lossless", lossless):
        chosen.require_lossless()
    tokens, length = tokenize(target, prompts)
    batch = len(length)
    budget = checks.integer_rows("max_new_tokens", max_new_tokens, batch, least=1, most=defaults.LARGEST_NEW)
    if cache_len is not None:
        checks.integer("cache_len", cache_len, least=1)
    slots, limit = cache_size(target, guide, length, budget, cache_len)
    width = programs.prompt_bucket(tokens.shape[1])
    width = width if target.encoder_decoder else min(width, slots)
    tokens = np.pad(tokens, ((0, 0), (0, width - tokens.shape[1])))
    laws = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }  # fmt: skip
    checks.numbers(**laws)
    checks.flag("ignore_eos", ignore_eos)
    checks.biases(logit_bias)
    params, stages = sampling.sampling_params(batch, target.vocab_size, **laws, logit_bias=logit_bias)
    stops = checks.stop_strings(stop)
    rules = stopping.rules(
        target.vocab_size,
        eos=() if ignore_eos else target.eos,
        stop_tokens=checks.token_ids("stop_tokens", stop_tokens),
        stop_strings=stops,
        pieces=target.text.pieces() if target.text and stops else None,
    )
    seed = checks.integer("seed", seed, least=0, most=defaults.LARGEST_SEED)
    numbers = row_numbers(rows, batch)
    decode = loop.DecodeParams(target.params, guide.params, params, rules)
    given = jax.device_put(
        (np.uint32(seed), np.asarray(numbers, np.uint32), tokens, length, np.asarray(budget, np.int32), np.int32(limit))
    )
    inputs = jax.block_until_ready((_row_keys(*given[:2]), *given[2:]))  # key, prompt, length, budget, limit
    if target.mesh is not None:
        decode, inputs = placement.place_params(decode, target.mesh), placement.place_rows(inputs, target.mesh)
    model = target.variant(capture=guide.drafter.capture)
    static = {"model": model, "drafter": guide.drafter, "stages": stages}
    state, run, compiling = timed(
        lambda: loop.prefill(decode, *inputs, **static, cache_len=slots, max_new=slots)
    )  # fmt: skip
    started = time.perf_counter()
    if target.mesh is not None and target.rules is not None:
        source = guide.source
        rules = None if source is None or source.mesh is None else source.rules
        state = jax.device_put(state, placement.state_shardings(state, target.mesh, target.rules, draft=rules))
    state = jax.block_until_ready(state)
    seconds = {"prefill": run + time.perf_counter() - started, "compile": compiling}
    prompt = Prompt(inputs[1], inputs[2], slots)
    return Job(target, guide, chosen, stages, decode, prompt, state, stops, traces, seconds)


@functools.partial(programs.jit, static=())
def _row_keys(seed, rows):
    return loop.row_keys(jax.random.key(seed), rows)


def check_parts(target: Model, guide: LoadedDrafter, verifier: str | Verifier | None) -> Verifier:
    """The verifier, of parts that fit together; where none is named, the one that suits the drafter.

    Raises:
      ValueError: something that is no model, drafter or verifier, or a drafter that cannot serve the target.
    """
    if not isinstance(target, Model):
        raise ValueError(f"the target must be a model from specjax.load, got {type(target).__name__}: load it first")
    if isinstance(target, BoundedModel):
        raise ValueError(
            f"{target.name} forgets, so its laws are not those of the model: it can draft, and the target is the model "
            "itself"
        )
    if not isinstance(guide, LoadedDrafter):
        raise ValueError(
            f"drafter must be one from specjax.drafters, got {type(guide).__name__}: for a draft model write "
            "drafter=specjax.drafters.model(draft)"
        )
    chosen = named_verifier(guide, verifier)
    guide.check(target)
    part = guide.drafter
    chosen.check(part.tree, part.siblings, f"drafter {guide.name!r}", dynamic=part.dynamic)
    check_mesh(target, guide)
    return chosen


def named_verifier(guide: LoadedDrafter, verifier: str | Verifier | None) -> Verifier:
    """The verifier of that name, or for None the one that suits the drafter.

    Raises:
      ValueError: no such name, or something that is no verifier.
    """
    part = guide.drafter
    if verifier is None:
        return verify.default(part.tree, part.siblings, part.dynamic)
    chosen = verify.get(verifier) if isinstance(verifier, str) else verifier
    if not isinstance(chosen, Verifier):
        raise ValueError(f"verifier must be a name or a specjax.verify.Verifier, got {type(chosen).__name__}")
    return chosen


def row_numbers(rows: Sequence[int] | None, batch: int) -> np.ndarray:
    """[B] numbers of the rows' random streams.

    Raises:
      ValueError: not one number for each prompt, or one that is no uint32.
    """
    if rows is None:
        return np.arange(batch)
    given = checks.items(rows)
    if given is None or len(given) != batch:
        got = reprlib.repr(rows) if given is None else len(given)
        raise ValueError(f"rows numbers the random streams: {batch} prompts need {batch} numbers, got {got}")
    return checks.integer_rows("rows", given, batch, least=0, most=defaults.LARGEST_SEED)


def check_mesh(target: Model, guide: LoadedDrafter) -> None:
    """Raises ValueError where target and draft lie on different meshes: one program runs on one."""
    if guide.source is not None and guide.source.mesh not in (None, target.mesh):
        told = [None if m is None else dict(m.shape) for m in (guide.source.mesh, target.mesh)]
        raise ValueError(
            f"draft {guide.source.name} lies on a mesh of {told[0]} and target {target.name} on {told[1]}: load both "
            "with the same mesh (replicate=True gives every device the whole draft)"
        )


def tokenize(target: Model, prompts: Prompts) -> tuple[np.ndarray, np.ndarray]:
    """Left-aligned prompts [B,P] int32, as wide as the longest, and their lengths [B].

    Raises:
      ValueError: no prompt, an empty one, neither text nor token ids, text without a tokenizer, or a token outside the
        vocabulary.
    """
    ids: list[list[int]] = []
    for row, prompt in enumerate(checks.prompt_rows(prompts)):
        if isinstance(prompt, str):
            if target.text is None:
                raise ValueError(f"{target.name} has no tokenizer: give prompts as lists of token ids")
            try:
                prompt.encode()
            except UnicodeEncodeError:
                raise ValueError(f"prompt {row} holds half of a surrogate pair: it is not valid Unicode") from None
            prompt = target.text.encode(prompt) if prompt else []  # not a start token alone
        ids.append(prompt)
        if not ids[-1]:
            raise ValueError(f"prompt {row} is empty: give at least one token")
        worst = max(ids[-1], key=lambda t: abs(t - target.vocab_size / 2))
        if not 0 <= worst < target.vocab_size:
            raise ValueError(f"prompt {row} holds token {worst}, outside {target.name}'s {target.vocab_size} tokens")
    length = np.array([len(p) for p in ids], np.int32)
    padded = np.zeros((len(ids), length.max()), np.int32)
    for row, prompt in enumerate(ids):
        padded[row, : len(prompt)] = prompt
    return padded, length


def cache_size(
    target: Model, guide: LoadedDrafter, length: np.ndarray, budget: np.ndarray, wanted: int | None
) -> tuple[int, int]:
    """Sizes of the caches, and the tokens that a row may hold.

    Args:
      length, budget: [B] tokens of each prompt, and new tokens of each row.
      wanted: the `cache_len` of the request.

    Returns:
      Cache slots for committed tokens, a bucket; and the largest number of tokens of a row, prompt included, which is
      not larger.

    Raises:
      ValueError: a prompt that does not fit.
    """
    limit = min((m for m in (wanted, target.positions) if m is not None), default=None)
    used = np.ones_like(length) if target.encoder_decoder else length
    need = int((used + budget).max()) - 1  # the last token never enters the cache
    if limit is not None:
        if used.max() > limit:
            what = f"cache_len={wanted}" if limit == wanted else f"the model's {limit} positions"
            which = "the prompt" if len(length) == 1 else f"prompt {int(length.argmax())} (counted from 0)"
            raise ValueError(
                f"{which} has {used.max()} tokens and does not fit into {what}: shorten it"
                + ("" if limit == target.positions else ", or raise cache_len")
            )
        need = min(need, limit)
    slots = programs.cache_bucket(need, target.positions)
    return slots, slots if limit is None else min(limit, slots)


def finish(job: Job, done: Progress, seconds: dict[str, float]) -> Generation:
    """What is known of a run as a `Generation`; rows that still run are interrupted."""
    codes = [Stop.INTERRUPTED if code == Stop.RUNNING else Stop(code) for code in done.stop]
    text = job.target.text
    texts = None if text is None else [spelled(text, row, job.stops) for row in done.tokens]
    length = np.array([len(row) for row in done.tokens])
    laws = job.guide.drafter.vocab_size is not None
    compiles = loop.trace_count() - job.traces
    measured = stats(done.totals, length, seconds, compiles=compiles, drafted_laws=laws)
    return Generation(texts, done.tokens, [code.name.lower() for code in codes], measured, job.verifier.lossless)


def steady(rounds: Sequence[float], *, compiled: bool) -> tuple[float, float]:
    """Seconds of decoding, and seconds to start the program, which add up to those of all rounds.

    The first run of a program just compiled pays for more than jax reports as compiling. It counts as the median of the
    others at most, and the rest is starting.
    """
    if not compiled or len(rounds) < 2:
        return sum(rounds, 0.0), 0.0
    first, *others = rounds
    usual = min(first, statistics.median(others))
    return usual + sum(others), first - usual


def _add_seconds(seconds: dict[str, float], decode: float, compiling: float) -> dict[str, float]:
    added = {"decode": seconds.get("decode", 0.0) + decode, "compile": seconds["compile"] + compiling}
    return seconds | added


def split_seconds(job: Job, state: loop.GenerationState, decode: float, repeats: int = 5) -> dict[str, float]:
    """Decoding time split into draft and verify, by their measured shares of rounds that follow the state.

    The state is donated: the halves run as in the loop, with caches written in place.
    """
    draft, check = loop.parts(**job.static)
    times = {"draft": [], "verify": []}
    for number in range(repeats + 1):  # the first compiles
        started = time.perf_counter()
        state, drafted = jax.block_until_ready(draft(job.params, state))
        between = time.perf_counter()
        state, _ = jax.block_until_ready(check(job.params, state, drafted))
        if number:
            times["draft"].append(between - started)
            times["verify"].append(time.perf_counter() - between)
    cost = {name: float(np.median(values)) for name, values in times.items()}
    whole = sum(cost.values())
    return {name: decode * value / whole for name, value in cost.items()}
