"""What forward passes take on this machine: the costs that `policies.goodput` weighs."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from specjax import checks, drafters, measuring, programs, request
from specjax import decoding as loop
from specjax.model import Model
from specjax.theory import StepTime, StepTimes, fit_step_time

NEW = 16  # tokens of a row: a measurement is the average over their rounds
LONG = 512  # tokens of the longer prompts; fewer where the model has fewer positions
SHORT = 32


def calibrate(
    target: Model, draft: Model | None = None, *, rows: Sequence[int] = (1, 8), gamma: int = 8, repeats: int = 3
) -> StepTimes:
    """Measures rounds of 1 and of `gamma` + 1 tokens, with short and long prompts, and fits their times.

    The programs are those of `generate`, so that sampling and verification count too. A draft step is measured as a
    step of the draft decoding by itself. SmartSpec, Liu et al. 2024, arXiv 2406.14066, section 4.

    Args:
      target, draft: on the mesh and in the number formats that will be used.
      rows: batch sizes, at least one; the largest is best that of the requests.
      gamma: draft tokens per round, at least 1.
      repeats: interleaved runs, of which the median counts.

    Returns:
      The fitted times.

    Raises:
      ValueError: an argument out of range.

    >>> import specjax as sj
    >>> times = sj.calibrate(sj.load("bundled/opt-tiny"), rows=(1, 2), gamma=2, repeats=1)
    >>> times.target.constant >= 0, times.draft
    (True, None)
    """
    sizes = checks.integers("rows", rows, least=1).tolist()
    checks.integer("gamma", gamma, least=1)
    checks.integer("repeats", repeats, least=1)
    of_draft = None if draft is None else _fitted(draft, sizes, (0,), repeats)
    return StepTimes(_fitted(target, sizes, (0, gamma), repeats), of_draft)


def _fitted(model: Model, rows: Sequence[int], gammas: Sequence[int], repeats: int) -> StepTime:
    """Of rounds over 1 + gamma tokens."""
    most = LONG if model.positions is None else min(LONG, model.positions - NEW - max(gammas))
    measured = {
        (count, gamma, prompt): functools.partial(round_seconds, _job(model, count, gamma, prompt, most + NEW))
        for count in rows for gamma in gammas for prompt in (min(SHORT, most // 2), most)
    }  # fmt: skip
    runs = measuring.interleave(measured, repeats)
    seconds = [measuring.spread(runs[one].each(float)).median for one in measured]
    context = [count * prompt for count, _, prompt in measured]
    return fit_step_time(context, [count * (1 + gamma) for count, gamma, _ in measured], seconds)


def _job(model: Model, rows: int, gamma: int, prompt: int, cache_len: int) -> request.Job:
    """Random prompts, and prompt lookup: its rounds cost no more than a pass over gamma + 1 tokens."""
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, (rows, prompt)).tolist()
    drafter = drafters.ngram(gamma=gamma) if gamma else drafters.plain()
    options = {"max_new_tokens": NEW, "temperature": 0.0, "ignore_eos": True, "cache_len": cache_len}
    job = request.prepare(model, tokens, drafter=drafter, **options)
    # Buckets follow the need of a request: all prompts share the program of the longest one.
    return job._replace(cache_len=programs.cache_bucket(cache_len, model.positions)).begin()


def round_seconds(job: request.Job, **changed: Any) -> float:
    """Seconds of a round after the prompts are read, on average over a generation.

    Args:
      job: one that was begun.
      changed: static arguments of the rounds, in place of those of the job.
    """
    state = jax.block_until_ready(job.prefill())
    ended, seconds, _ = measuring.timed(lambda: loop.generate(job.params, state, **(job.static | changed)))
    return seconds / int(ended.totals.rounds.max())
