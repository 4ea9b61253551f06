"""Measurements of the experiments: acceptance, speed and costs of a pair, and the inner level of a cascade."""

from collections.abc import Sequence
from typing import Any

from specjax.bench.record import Row, Shelf
from specjax.reproduce.checks import NOTHING, Estimate, share
from specjax.reproduce.models import DraftRequest, Stand
from specjax.reproduce.setup import Setup, spelled

Texts = Sequence[str]
BUSY = 0.1  # share of the processors


def work(shelf: Shelf, setup: Setup, target: str, task: str, texts: Texts) -> Any:
    """Prompts and settings. Decoder-only models decode past the end of text, encoder-decoders stop there."""
    from specjax.bench import grid

    model = shelf.model(target)
    prompts = spelled(model, task, texts)
    settings = {"max_new_tokens": setup.max_new_tokens, "ignore_eos": not model.encoder_decoder, "seed": setup.seed}
    return grid.Workload(model, prompts, settings, setup.batch, setup.timed, setup.repeats)


def sped(shelf: Shelf, setup: Setup, job: Any, stand: Stand, drafting: DraftRequest) -> Row:
    """Acceptance, speed and costs of a draft."""
    from specjax import verify
    from specjax.bench import grid, rounds
    from specjax.registry import Strategy

    drafter = stand.make(shelf, drafting)
    strategy = Strategy.of("model", gamma=drafting.gamma)
    row = grid.measure(job, strategy, drafting.temperature, drafter, verify.TABLE["token"]) | {"drafter": stand.name}
    settings = job.settings | {"ignore_eos": True, "temperature": drafting.temperature}
    prompts = job.prompts[: setup.timed]
    taken_apart = rounds.round_times(job.target, prompts, drafter, drafting.gamma, settings, setup.repeats)
    return row | {"repeats": setup.repeats, "costs": taken_apart}


def accepted(shelf: Shelf, job: Any, stand: Stand, drafting: DraftRequest) -> Row:
    """Acceptance of a draft."""
    from specjax.bench import grid

    settings = job.settings | {
        "temperature": drafting.temperature, "drafter": stand.make(shelf, drafting), "verifier": "token",
    }  # fmt: skip
    return grid.acceptance(job, settings) | {"prompts": len(job.prompts)}


def inner_rates(job: Any, drafter: Any, temperature: float) -> Row:
    """Acceptance in the inner rounds of a cascade, over all prompts."""
    import jax

    from specjax import api
    from specjax import decoding as loop

    tested = taken = drafted = rounds = 0
    for number, prompt in enumerate(job.prompts):
        request = api.prepare(
            job.target, [prompt], drafter=drafter, rows=[number], temperature=temperature, **job.settings
        )
        state = loop.generate(request.params, request.state, **request.static)
        tally = jax.device_get(state.draft.tally)
        tested, taken = tested + int(tally.tested.sum()), taken + int(tally.accepted.sum())
        drafted, rounds = drafted + int(tally.drafted.sum()), rounds + int(tally.rounds.sum())
    return {
        "inner_tested": tested, "inner_rounds": rounds, "inner_accepted_per_tested": taken / max(tested, 1),
        "inner_accepted_per_drafted": taken / max(drafted, 1),
    }  # fmt: skip


# --- reading rows ----------------------------------------------------------------------------------------------------


def find(rows: Sequence[Row], **wanted: Any) -> Row | None:
    """The first row with these values, or None."""
    return next((row for row in rows if all(row.get(name) == value for name, value in wanted.items())), None)


def busy(rows: Sequence[Row]) -> list[str]:
    """A note if other programs used much of the machine."""
    loads = [load for row in rows for part in (row, row.get("costs", {})) for load in part.get("load", {}).values()]
    worst = max(loads, default=0.0)
    if worst <= BUSY:
        return []
    return [f"other programs used up to {worst:.0%} of the processors: speeds and c are less reliable than acceptance"]


def alpha(row: Row | None) -> Estimate:
    """Acceptance probability: the mean overlap of p and q if the drafter has a q, else accepted / tested."""
    if row is None:
        return NOTHING
    seen = row["overlap"] if row["overlap"] is not None else row["accepted_per_tested"]
    return share(seen, row["tested"])


def speed(row: Row | None, name: str = "speedup") -> Estimate:
    """A speed with an error from the spread of its runs; a quarter of the value for a single run."""
    if row is None:
        return NOTHING
    low, middle, high = row["seconds"]
    spread = (high - low) / 2 / middle / row["repeats"] ** 0.5 if row["repeats"] > 1 else 0.25
    return Estimate(row[name], row[name] * spread)
