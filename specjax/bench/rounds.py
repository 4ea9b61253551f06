"""What a round costs: verifying several tokens, a round against its parts, and the framework's own overhead."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from specjax import api, drafters, trees
from specjax.base import Drafter
from specjax.bench import peer
from specjax.bench.decode import NEW, Row, agreeing, interleave, prompts, random_model
from specjax.drafters import LoadedDrafter
from specjax.model import Model
from specjax.models import opt
from specjax.models.format import default_format
from specjax.programs import memoize
from specjax.types import Draft

TURN = 9  # runs of `overhead` a turn


@memoize
def free(gamma: int) -> Drafter:
    """A drafter that costs nothing: it always proposes token 0. Its rounds cost one verification."""
    tree = trees.chain(gamma)

    def propose(params, key, state, pending, warp):
        del params, key, warp
        tokens = jnp.pad(pending[:, None], ((0, 0), (0, gamma)))
        return Draft(tokens, jnp.ones_like(tokens, bool), None), state

    return Drafter(tree, lambda *args: (), propose, lambda params, state, committed: state)


class Rounds:
    """A program that decodes, and remembers the milliseconds of each round."""

    def __init__(self, model: Model, guide: LoadedDrafter | None, *, temperature: float = 0.0):
        self.model, self.guide, self.temperature = model, guide, temperature
        self.given = prompts(1, model.vocab_size)
        self.ms: list[float] = []
        self.stats: Any = None

    def __call__(self) -> None:
        out = api.generate(self.model, self.given, drafter=self.guide, max_new_tokens=NEW, temperature=self.temperature)
        self.stats = out.stats
        self.ms.append(1e3 * out.stats.seconds["decode"] / out.stats.rounds)

    @property
    def median(self) -> float:
        """Of all runs but the first, which compiled."""
        return statistics.median(self.ms[1:])


def verify_cost(size: str, dtypes: tuple[str, ...], repeats: int) -> Iterator[Row]:
    """Rounds that verify 2 .. 16 tokens, relative to a step of plain decoding; all inside the loop that users run.

    `relative` is the median over the turns of the ratio in the same turn: the machine drifts by more than it tells.
    """
    for dtype in dtypes:
        model = random_model(size, dtype)
        widths = (1, 2, 4, 6, 8, 16)
        runs = {width: Rounds(model, LoadedDrafter("free", free(width - 1)) if width > 1 else None) for width in widths}
        _, load = interleave({str(width): run for width, run in runs.items()}, repeats)
        for width, run in runs.items():
            yield {
                "bench": "verify", "size": size, "dtype": dtype, "tokens": width, "load": load[str(width)],
                "ms": run.median, "spread_ms": [min(run.ms[1:]), max(run.ms[1:])],
                "relative": statistics.median(own / step for own, step in zip(run.ms[1:], runs[1].ms[1:], strict=True)),
            }  # fmt: skip


def composition(size: str, dtypes: tuple[str, ...], gammas: tuple[int, ...], repeats: int) -> Iterator[Row]:
    """A round of a draft model against gamma of the draft's own steps and one verification, each measured apart."""
    for dtype in dtypes:
        target, draft = agreeing(size, dtype)
        step = Rounds(draft, None)
        wholes = {gamma: Rounds(target, drafters.model(draft, gamma=gamma)) for gamma in gammas}
        checks = {gamma: Rounds(target, LoadedDrafter("free", free(gamma))) for gamma in gammas}
        programs: dict[str, Callable[[], Any]] = {"step": step}
        programs |= {f"round {g}": run for g, run in wholes.items()} | {f"verify {g}": r for g, r in checks.items()}
        _, load = interleave(programs, repeats)
        for gamma in gammas:
            parts = gamma * step.median + checks[gamma].median
            yield {
                "bench": "composition", "size": size, "dtype": dtype, "gamma": gamma, "load": load[f"round {gamma}"],
                "round_ms": wholes[gamma].median, "draft_step_ms": step.median, "verify_ms": checks[gamma].median,
                "relative": wholes[gamma].median / parts,
            }  # fmt: skip


def overhead(
    vocabs: tuple[int, ...], gammas: tuple[int, ...], repeats: int, temperatures: tuple[float, ...] = (0.0, 1.0)
) -> Iterator[Row]:
    """Microseconds of a round between models that cost almost nothing: what the framework itself takes."""
    for vocab in vocabs:
        config = opt.OPTConfig(
            vocab_size=vocab, width=16, embed_width=16, layers=1, heads=1, mlp_width=16, max_positions=512
        )
        params = opt.init(jax.random.key(0), config, default_format())
        model = Model("tiny", opt, config, default_format(), params)
        for gamma in gammas:
            guide = drafters.model(model, gamma=gamma)
            for temperature in temperatures:
                ours = Rounds(model, guide, temperature=temperature)
                # A run takes some 50 ms: several a turn, or it would be timed with caches that the peer left behind.
                programs: dict[str, Callable[[], Any]] = {"specjax": lambda run=ours: [run() for _ in range(TURN)]}
                theirs: list[float] = []
                if peer.available():
                    programs["transformers"] = _assisted(model, gamma, temperature, theirs)
                _, load = interleave(programs, repeats)
                row: Row = {"bench": "overhead", "vocab": vocab, "gamma": gamma, "temperature": temperature}
                row |= {"round_us": 1e3 * ours.median, "load": load}
                if theirs:
                    row["peer_round_us"] = statistics.median(theirs[1:])
                    row["ratio"] = row["peer_round_us"] / row["round_us"]
                yield row


def _assisted(model: Model, gamma: int, temperature: float, microseconds: list[float]) -> Callable[[], None]:
    """Assisted generation of transformers on the same weights; appends the microseconds of a round."""
    big, small = peer.twin(model), peer.twin(model)
    calls = peer.count_calls(big)
    given = prompts(1, model.vocab_size)

    def run() -> None:
        calls.clear()
        started = time.perf_counter()
        peer.generate(big, given, NEW, draft=small, gamma=gamma, temperature=temperature)
        microseconds.append(1e6 * (time.perf_counter() - started) / len(calls))

    return run
