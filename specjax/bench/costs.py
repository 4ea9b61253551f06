"""What a round is made of, in steps of the target: a draft step (the c of the theory), and a verification.

All are timed inside the loop that users run, one request at a time, in turns. The prompt's own reading is left out.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from specjax import api
from specjax.bench.decode import Row, interleave
from specjax.bench.rounds import free
from specjax.drafters import LoadedDrafter
from specjax.model import Model


class Clock:
    """A program that decodes prompts one by one, and remembers the seconds of a round."""

    def __init__(self, target: Model, prompts: Sequence[Any], guide: LoadedDrafter | None, settings: dict[str, Any]):
        self.target, self.prompts, self.guide, self.settings = target, prompts, guide, settings
        self.seconds: list[float] = []

    def __call__(self) -> None:
        done = [
            api.generate(self.target, [prompt], drafter=self.guide, rows=[row], **self.settings).stats
            for row, prompt in enumerate(self.prompts)
        ]
        self.seconds.append(sum(s.seconds["decode"] for s in done) / sum(s.rounds for s in done))

    @property
    def median(self) -> float:
        """Of all runs but the first, which compiled."""
        return statistics.median(self.seconds[1:])


def steps(models: dict[str, Model], prompts: Sequence[Any], settings: dict[str, Any], repeats: int) -> Row:
    """Milliseconds of a step of plain decoding of each model, and the load beside each."""
    clocks = {name: Clock(model, prompts, None, settings) for name, model in models.items()}
    _, load = interleave(dict(clocks), repeats)
    return {"step_ms": {name: 1e3 * clock.median for name, clock in clocks.items()}, "load": load}


def of_round(
    target: Model, prompts: Sequence[Any], guide: LoadedDrafter, gamma: int, settings: dict[str, Any], repeats: int
) -> Row:
    """A round of a chain of gamma tokens taken apart.

    Returns:
      step_ms, verify_ms, round_ms: plain decoding, a round whose draft is free, and a round. c and verify_cost: a
      draft step, (round - verification) / gamma, and a verification of gamma + 1 tokens, over a step of the target.
    """
    clocks = {
        "step": Clock(target, prompts, None, settings),
        "verify": Clock(target, prompts, LoadedDrafter("free", free(gamma)), settings),
        "round": Clock(target, prompts, guide, settings),
    }
    programs: dict[str, Callable[[], Any]] = dict(clocks)
    _, load = interleave(programs, repeats)
    step, verify, whole = (clocks[name].median for name in ("step", "verify", "round"))
    return {
        "step_ms": 1e3 * step, "verify_ms": 1e3 * verify, "round_ms": 1e3 * whole,
        "c": max(whole - verify, 0.0) / gamma / step, "verify_cost": verify / step, "load": load,
    }  # fmt: skip
