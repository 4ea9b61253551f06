"""Speculative against plain decoding, measured fairly: the same work, both warm, turn by turn, medians."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax import api, drafters
from specjax.api import Generation
from specjax.drafters import LoadedDrafter
from specjax.model import Model

BUCKET = 32  # prefixes that are scored are padded to multiples of this


class Run(NamedTuple):
    """One way of decoding: median seconds of its warm runs, and what compiling took before them."""

    prefill: float
    decode: float
    tokens: int
    compile: float

    @property
    def speed(self) -> float:
        """Tokens a second while decoding."""
        return self.tokens / self.decode


class Difference(NamedTuple):
    """Where a greedy row's two outputs part; margin: the target's top-1 minus top-2 logit there."""

    row: int
    position: int
    plain: int | None  # token; None where that output had ended
    fast: int | None
    margin: float


class Comparison(NamedTuple):
    """What was measured. `greedy` False: rows are sampled, so that equality is in law and tokens are not compared."""

    plain: Run
    fast: Run
    repeats: int
    greedy: bool
    differences: tuple[Difference, ...]

    @property
    def speedup(self) -> float:
        """Tokens a second against plain decoding, prompts apart."""
        return self.fast.speed / self.plain.speed

    @property
    def speedup_whole(self) -> float:
        """The same with the time to read the prompts."""
        speed = lambda run: run.tokens / (run.prefill + run.decode)
        return speed(self.fast) / speed(self.plain)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. `equal` is None for sampled rows."""
        return {
            "speedup": self.speedup, "speedup_with_prefill": self.speedup_whole, "repeats": self.repeats,
            "plain": self.plain._asdict(), "speculative": self.fast._asdict(),
            "equal": not self.differences if self.greedy else None,
            "differences": [found._asdict() for found in self.differences],
        }  # fmt: skip


def compare(
    target: Model, prompts: Sequence[str], guide: LoadedDrafter, options: dict[str, Any], *, repeats: int,
    progress: Callable[[int, int], None] = lambda done, all_runs: None,
) -> Comparison:  # fmt: skip
    """Decodes the prompts both ways, once to compile and then `repeats` times in turn.

    Args:
      target, prompts, guide: as for `specjax.generate`; `options` are its other keyword arguments.
      progress: told after each run how many of how many are done.
    """
    tokens, length = api.tokenize(target, prompts)
    guides = {"plain": drafters.plain(), "fast": guide}
    # Plain decoding with a lossy verifier would not be plain.
    settings = {"plain": options | {"verifier": None}, "fast": options}
    decode = lambda name: api.generate(target, prompts, drafter=guides[name], **settings[name])
    every = len(guides) * (repeats + 1)
    done = 0
    first: dict[str, Generation] = {}
    compiling: dict[str, float] = {}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in guides}
    for turn in range(repeats + 1):
        for name in guides:
            out = decode(name)
            done += 1
            progress(done, every)
            if turn == 0:
                first[name], compiling[name] = out, out.stats.seconds["compile"]
            else:
                times[name].append((out.stats.seconds["prefill"], out.stats.seconds["decode"]))
    runs = {}
    for name, seconds in times.items():
        prefill, decoding = (statistics.median(column) for column in zip(*seconds, strict=True))
        runs[name] = Run(prefill, decoding, first[name].stats.tokens, compiling[name])
    greedy = bool(np.all(np.asarray(options["temperature"]) == 0))
    found = differences(target, tokens, length, first["plain"], first["fast"]) if greedy else ()
    return Comparison(runs["plain"], runs["fast"], repeats, greedy, found)


def differences(
    target: Model, prompts: np.ndarray, length: np.ndarray, plain: Generation, fast: Generation
) -> tuple[Difference, ...]:
    """The first difference of each row, if any."""
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
    """The target's largest logit minus its second largest after `prompt` and `written`."""
    prefix = [target.config.start_token, *written] if target.encoder_decoder else [*prompt, *written]
    limit = target.positions or len(prefix) + BUCKET
    padded = np.zeros((1, max(len(prefix), min(-(-len(prefix) // BUCKET) * BUCKET, limit))), np.int32)
    padded[0, : len(prefix)] = prefix
    arrays = [np.asarray([prompt], np.int32), padded] if target.encoder_decoder else [padded]
    logits = np.sort(np.asarray(target.score(*map(jnp.asarray, arrays)))[0, len(prefix) - 1])
    return float(logits[-1] - logits[-2])
