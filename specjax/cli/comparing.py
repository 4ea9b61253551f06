"""Speculative and plain decoding of the same prompts, interleaved: medians, and where greedy outputs differ."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax import drafters, measuring
from specjax.api import Generation
from specjax.cli.prompts import Prompt
from specjax.config import Run
from specjax.model import Model
from specjax.prompts import tokenize

BUCKET = 32  # scored prefixes are padded to multiples of this
PARTS = ("prefill", "decode")


class RunMedian(NamedTuple):
    """Median seconds of the runs of one drafter, and the seconds of compiling before them."""

    prefill: float
    decode: float
    tokens: int
    compile: float

    @property
    def speed(self) -> float:
        """Tokens per second of decoding."""
        return self.tokens / self.decode


class Difference(NamedTuple):
    """The first token at which a greedy row's outputs differ.

    Attributes:
      plain, fast: tokens there; None if that output had ended.
      margin: the largest minus the second largest logit of the target there. Near zero, a tie within rounding.
    """

    row: int
    position: int
    plain: int | None
    fast: int | None
    margin: float


class Comparison(NamedTuple):
    """Measurements. If `greedy` is False, rows are sampled: equal in distribution, and tokens are not compared."""

    plain: RunMedian
    fast: RunMedian
    repeats: int
    greedy: bool
    differences: tuple[Difference, ...]

    @property
    def speedup(self) -> float:
        """Ratio of tokens per second to plain decoding, without prefill."""
        return self.fast.speed / self.plain.speed

    @property
    def speedup_whole(self) -> float:
        """The same with prefill."""
        speed = lambda run: run.tokens / (run.prefill + run.decode)
        return speed(self.fast) / speed(self.plain)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `equal` is None for sampled rows."""
        return {
            "speedup": self.speedup, "speedup_with_prefill": self.speedup_whole, "repeats": self.repeats,
            "plain": self.plain._asdict(), "speculative": self.fast._asdict(),
            "equal": not self.differences if self.greedy else None,
            "differences": [found._asdict() for found in self.differences],
        }  # fmt: skip


def compare(
    run: Run,
    prompts: Sequence[Prompt],
    *,
    repeats: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Decodes the prompts with and without the drafter: once to compile, then `repeats` times interleaved.

    Args:
      progress: called after each run with the number of runs done and of all runs.
    """
    # Plain decoding with a lossy verifier would not be plain.
    plain = run._replace(drafter=drafters.plain(), config=dataclasses.replace(run.config, verifier=None))
    programs = {"plain": lambda: plain.generate(prompts), "fast": lambda: run.generate(prompts)}
    found = measuring.interleave(programs, repeats, progress=progress)
    runs = {}
    for name, measured in found.items():
        seconds = {part: statistics.median(measured.each(lambda out, p=part: out.stats.seconds[p])) for part in PARTS}
        stats = measured.warm_up.stats
        runs[name] = RunMedian(**seconds, tokens=stats.tokens, compile=stats.seconds["compile"])
    greedy = not np.any(run.config.temperature)
    first = [found[name].warm_up for name in ("plain", "fast")]
    apart = differences(run.target, *tokenize(run.target, prompts), *first) if greedy else ()
    return Comparison(runs["plain"], runs["fast"], repeats, greedy, apart)


def differences(
    target: Model, prompts: np.ndarray, length: np.ndarray, plain: Generation, fast: Generation
) -> tuple[Difference, ...]:
    """The first difference of each row, if there is one."""
    found = []
    for row, (one, other) in enumerate(zip(plain.tokens, fast.tokens, strict=True)):
        if one == other:
            continue
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        token = lambda tokens, at=at: tokens[at] if at < len(tokens) else None
        margin = logit_margin(target, prompts[row, : length[row]].tolist(), one[:at])
        found.append(Difference(row, at, token(one), token(other), margin))
    return tuple(found)


def logit_margin(target: Model, prompt: list[int], written: list[int]) -> float:
    """The largest minus the second largest target logit after `prompt` and the new tokens `written`."""
    prefix = [target.config.start_token, *written] if target.encoder_decoder else [*prompt, *written]
    limit = target.positions or len(prefix) + BUCKET
    padded = np.zeros((1, max(len(prefix), min(-(-len(prefix) // BUCKET) * BUCKET, limit))), np.int32)
    padded[0, : len(prefix)] = prefix
    arrays = [np.asarray([prompt], np.int32), padded] if target.encoder_decoder else [padded]
    logits = np.sort(np.asarray(target.score(*map(jnp.asarray, arrays)))[0, len(prefix) - 1])
    return float(logits[-1] - logits[-2])
