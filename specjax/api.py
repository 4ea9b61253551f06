"""Decoding of requests: `generate` and `stream` take prompts as text or tokens and return a `Generation`."""

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decoding as loop
from specjax import defaults, files, hosts
from specjax.drafters import LoadedDrafter
from specjax.measuring import timed
from specjax.metrics import Stats, split_seconds, stats, steady
from specjax.model import Model
from specjax.prompts import Prefix, Prompts
from specjax.request import Job, PerRow, prepare
from specjax.sampling import LogitBias
from specjax.stopping import Stop
from specjax.streaming import Writer, spelled
from specjax.totals import Totals
from specjax.types import Info
from specjax.verify import Verifier


@dataclasses.dataclass(frozen=True)
class Generation:
    """Generated rows, in the order of the prompts.

    Attributes:
      texts: new text of each row, cut before the first stop string; None without a tokenizer.
      tokens: new tokens of each row, including the token that stopped it.
      stop_reasons: name of a `Stop` code in lower case for each row: eos, stop_token, stop_string, max_tokens,
        cache_full, nan, interrupted.
      stats: acceptance rates, tokens per target pass, seconds of prefill, decode and compile, compiled functions.
      lossless: whether the verifier is lossless, so that tokens follow the target's distribution exactly.
    """

    texts: list[str] | None
    tokens: list[list[int]]
    stop_reasons: list[str]
    stats: Stats
    lossless: bool

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON values, statistics included, with NaN as None."""
        return {
            "texts": self.texts, "tokens": self.tokens, "stop_reasons": self.stop_reasons, "lossless": self.lossless,
            "stats": self.stats.to_dict(),
        }  # fmt: skip

    def to_json(self) -> str:
        """`to_dict` as JSON text.

        >>> import json
        >>> import specjax as sj
        >>> out = sj.generate(sj.load("bundled/opt-tiny"), [[5, 6, 7]], max_new_tokens=4, temperature=0)
        >>> json.loads(out.to_json())["stop_reasons"][0]
        'max_tokens'
        """
        return files.to_json(self.to_dict())


class Event(NamedTuple):
    """One round of a `Stream`.

    Attributes:
      texts: text that the new tokens of each row complete; empty strings without a tokenizer.
      tokens: new tokens of each row.
      info: diagnostics of the round as numpy arrays, draft tokens included.
    """

    texts: list[str]
    tokens: list[list[int]]
    info: Info


class Progress(NamedTuple):
    """Results of a run on the host, finished or not."""

    tokens: list[list[int]]
    stop: np.ndarray
    totals: Totals


def generate(
    target: Model,
    prompts: Prompts,
    *,
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
    stop: Sequence[str] | str = (),
    stop_tokens: Sequence[int] = (),
    ignore_eos: bool = False,
    cache_len: int | None = None,
    profile: bool = False,
) -> Generation:
    """Continues prompts with speculative decoding, in one compiled loop.

    With a lossless verifier, the tokens follow the target's distribution exactly, whatever the drafter. The loop cannot
    be interrupted; use `stream` for that.

    Args:
      target: a model from `specjax.load`.
      prompts: a string, a list of strings, or a list of lists of token ids.
      prefix: from `specjax.prefix`: every prompt continues it, and it is not read again.
      drafter: from `specjax.drafters`; None decodes autoregressively, with the same loop.
      verifier: a name in `specjax.verify.TABLE`, or a `Verifier`. None selects one that supports the drafter
        (`verify.default`): "token" for chains.
      lossless: raise an error if the verifier is lossy.
      max_new_tokens: largest number of new tokens, for all rows or for each.
      temperature: for all rows or for each. 0 is greedy, 1 the model's own distribution.
      top_k: number of most probable tokens that are kept; 0 is off.
      top_p: probability mass of the most probable tokens that are kept; 1 is off.
      min_p: smallest probability, relative to the most probable token, that is kept; 0 is off.
      repetition_penalty: factor that makes tokens of the row less likely; 1 is off.
      logit_bias: token id -> bias, for all rows or for each, or an array [V] or [B, V]; -inf bans a token.
      seed: seed of the random streams. The same call returns the same tokens.
      rows: numbers of the rows' random streams, by default 0, 1, ... A row's samples depend on the seed and on its
        number, not on its place in the batch.
      stop: strings that end a row.
      stop_tokens: token ids that end a row.
      ignore_eos: continue after the target's end-of-text tokens.
      cache_len: largest number of tokens of a row, prompt and new; None: the model's positions, if it has a limit.
      profile: measure drafting and verifying apart after the run, in `stats.seconds`. Compiles two more functions.

    Returns:
      Texts, tokens, stop reasons and statistics.

    Raises:
      ValueError: an invalid argument, before the target runs.

    Warns:
      UserWarning: a row stopped with `cache_full`, or with its first token.

    >>> import specjax as sj
    >>> target, draft = sj.load("bundled/opt-target"), sj.load("bundled/opt-draft")
    >>> out = sj.generate(target, "Once upon a time", drafter=sj.drafters.model(draft), max_new_tokens=8, temperature=0)
    >>> len(out.tokens[0]), out.stop_reasons, out.lossless
    (8, ['max_tokens'], True)
    """
    job = prepare(
        target, prompts, prefix=prefix, drafter=drafter, verifier=verifier, lossless=lossless,
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, logit_bias=logit_bias, seed=seed, rows=rows, stop=stop,
        stop_tokens=stop_tokens, ignore_eos=ignore_eos, cache_len=cache_len,
    ).begin()  # fmt: skip
    state, run, compiling = timed(lambda: loop.generate(job.params, job.state, **job.static))
    seconds = job.seconds | {"decode": run, "compile": job.seconds["compile"] + compiling}
    tokens, length, stops, totals = hosts.fetch((state.tokens, state.length, state.stop, state.totals))
    if profile:
        seconds |= split_seconds(job.params, state, run, **job.static)
    new = [tokens[b, : length[b]].tolist() for b in range(len(length))]
    return finish(job, Progress(new, stops, totals), seconds)


def stream(
    target: Model,
    prompts: Prompts,
    *,
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
    stop: Sequence[str] | str = (),
    stop_tokens: Sequence[int] = (),
    ignore_eos: bool = False,
    cache_len: int | None = None,
) -> "Stream":
    """`generate`, round by round: `for event in stream(...)`. Arguments and tokens are those of `generate`.

    Returns:
      An iterable of `Event`s. Its `result()` is the `Generation` of all rounds so far.

    Raises:
      ValueError: an invalid argument, before the target runs.

    >>> import specjax as sj
    >>> rounds = sj.stream(sj.load("bundled/opt-draft"), [[5, 6, 7]], max_new_tokens=4, temperature=0)
    >>> [len(event.tokens[0]) for event in rounds], rounds.result().stop_reasons
    ([1, 1, 1, 1], ['max_tokens'])
    """
    return Stream(prepare(
        target, prompts, prefix=prefix, drafter=drafter, verifier=verifier, lossless=lossless,
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, logit_bias=logit_bias, seed=seed, rows=rows, stop=stop,
        stop_tokens=stop_tokens, ignore_eos=ignore_eos, cache_len=cache_len,
    ).begin())  # fmt: skip


class _Point(NamedTuple):
    """A stream between two rounds. One assignment replaces it whole, so an exception leaves the old or the new one."""

    state: loop.GenerationState
    done: Progress
    writers: tuple[Writer, ...]
    event: Event | None
    runs: tuple[float, ...]
    compiling: float


class Stream:
    """Rounds of a request: iterate for `Event`s. `result()` returns the `Generation` of all rounds so far.

    The texts of a row's events are its text in the result, and never show text that a stop string cuts. Rows that are
    still running have the stop reason "interrupted".

    An exception, such as KeyboardInterrupt, leaves the stream as it was before the round, and iterating can continue.
    If the round had donated the state, earlier rounds are computed again.
    """

    def __init__(self, job: Job):
        self._job = job
        stop, totals = hosts.fetch((job.state.stop, job.state.totals))
        text = job.target.text
        writers = tuple(Writer(text, job.stops) for _ in stop) if text else ()
        self._at = _Point(job.state, Progress([[] for _ in stop], stop, totals), writers, None, (), 0.0)

    @property
    def rounds(self) -> int:
        """Number of complete rounds."""
        return len(self._at.runs)

    @property
    def in_round(self) -> bool:
        """Whether a round has taken the state and has not returned it; to be read from a signal handler."""
        return self._at.state.tokens.is_deleted()

    def __iter__(self) -> Iterator[Event]:
        while True:
            if self._at.event is None and np.any(self._at.done.stop == Stop.RUNNING):
                self._at = self._next()
            event = self._at.event
            if event is None:
                return
            self._at = self._at._replace(event=None)
            yield event

    def _next(self) -> _Point:
        """One more round."""
        job, before = self._job, self._at
        if self.in_round:
            before = before._replace(state=self._replay())
        (state, info), run, compiling = timed(lambda: loop.one_round(job.params, before.state, **job.static))
        info, stop, totals = hosts.fetch((info, state.stop, state.totals))
        new = [info.committed[b, : info.emitted[b]].tolist() for b in range(len(stop))]
        ended = (before.done.stop == Stop.RUNNING) & (stop != Stop.RUNNING)
        writers = tuple(writer.copy() for writer in before.writers)
        texts = [
            writer.add(tokens) + (writer.end() if over else "")
            for writer, tokens, over in zip(writers, new, ended, strict=True)
        ] if writers else [""] * len(new)  # fmt: skip
        done = Progress([old + more for old, more in zip(before.done.tokens, new, strict=True)], stop, totals)
        event = Event(texts, new, info)
        return _Point(state, done, writers, event, (*before.runs, run), before.compiling + compiling)

    def _replay(self) -> loop.GenerationState:
        """The state after the complete rounds, computed again."""
        state = self._job.prefill()
        for _ in range(self.rounds):
            state, _ = loop.one_round(self._job.params, state, **self._job.static)
        return state

    def result(self, *, profile: bool = False) -> Generation:
        """The rounds so far; `profile` splits the decoding time into draft and verify (compiles two functions)."""
        job, at = self._job, self._at
        decode, starting = steady(at.runs, compiled=at.compiling > 0)
        seconds = job.seconds | {"decode": decode, "compile": job.seconds["compile"] + at.compiling + starting}
        if profile:
            state = self._replay() if self.in_round else jax.tree.map(jnp.copy, at.state)  # iterating may continue
            seconds |= split_seconds(job.params, state, decode, **job.static)
        return finish(job, at.done, seconds)


def finish(
    job: Job, done: Progress, seconds: dict[str, float], *, stops: Sequence[Sequence[str]] | None = None
) -> Generation:
    """The `Generation` of a run. Rows that are still running are interrupted.

    Args:
      stops: stop strings of each row; None: those of the job.
    """
    _warn(job, done)
    codes = [Stop.INTERRUPTED if code == Stop.RUNNING else Stop(code) for code in done.stop]
    text = job.target.text
    stops = [job.stops] * len(done.tokens) if stops is None else stops
    rows = zip(done.tokens, stops, strict=True)
    texts = None if text is None else [spelled(text, row, own) for row, own in rows]
    length = np.array([len(row) for row in done.tokens])
    point_mass = job.drafter.drafter.vocab_size is None
    compiles = loop.trace_count() - job.traces
    measured = stats(done.totals, length, seconds, compiles=compiles, point_mass=point_mass)
    return Generation(texts, done.tokens, [code.name.lower() for code in codes], measured, job.verifier.lossless)


def _warn(job: Job, done: Progress) -> None:
    """Warns of rows that are shorter than requested for a reason that the text does not show."""
    target, rows = job.target, lambda chosen: ", ".join(str(row) for row, one in enumerate(chosen) if one)
    if full := rows(done.stop == Stop.CACHE_FULL):
        length, budget, limit = hosts.fetch((job.prompt.length, job.prompt.budget, job.prompt.limit))
        room = f"the {limit} positions of {target.name}" if limit == target.positions else f"cache_len={limit}"
        row = int(np.argmax(done.stop == Stop.CACHE_FULL))
        warnings.warn(
            f"row {full} stopped with cache_full: {room} hold a prompt of {length[row]} tokens and "
            f"{len(done.tokens[row])} of the {budget[row]} new ones",
            stacklevel=4,
        )
    if empty := rows(len(tokens) == 1 and tokens[0] in target.eos for tokens in done.tokens):
        chat = target.text is not None and target.text.chat is not None
        reason = (
            "a chat model expects its template: prompts from Model.chat, or --chat" if chat else
            "to this model, the prompt is a whole text"
        )  # fmt: skip
        warnings.warn(f"row {empty} ended with its first token: {reason}", stacklevel=4)
