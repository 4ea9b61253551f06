"""How the experiments measure: a pair of models with its costs, acceptance alone, the inner level of a cascade."""

from collections.abc import Sequence
from typing import Any

from specjax.bench.record import Row
from specjax.bench.runner import Shelf
from specjax.reproduce.checks import NOTHING, Measured, share
from specjax.reproduce.models import Drafting, Stand
from specjax.reproduce.setup import Setup, spelled

Texts = Sequence[str]
BUSY = 0.1  # share of the processors


def work(shelf: Shelf, setup: Setup, target: str, task: str, texts: Texts) -> Any:
    """What is decoded. A decoder goes on to the last token asked for; an encoder-decoder ends where it ends."""
    from specjax.bench import grid

    model = shelf.model(target)
    prompts = spelled(task, texts, encoder_decoder=model.encoder_decoder)
    settings = {"max_new_tokens": setup.max_new_tokens, "ignore_eos": not model.encoder_decoder, "seed": setup.seed}
    return grid.Work(model, prompts, settings, setup.batch, setup.timed, setup.repeats)


def sped(shelf: Shelf, setup: Setup, job: Any, stand: Stand, drafting: Drafting) -> Row:
    """Acceptance, speed and costs of a draft; where the draft is a chain, a round taken apart."""
    from specjax import verify
    from specjax.bench import costs, grid

    guide = stand.make(shelf, drafting)
    cell = grid.Cell(stand.name, drafting.gamma, "token", drafting.temperature)
    row = grid.measure(job, cell, guide, verify.TABLE["token"])
    settings = job.settings | {"ignore_eos": True, "temperature": drafting.temperature}
    prompts = job.prompts[: setup.timed]
    taken_apart = costs.of_round(job.target, prompts, guide, drafting.gamma, settings, setup.repeats)
    return row | {"repeats": setup.repeats, "costs": taken_apart}


def accepted(shelf: Shelf, job: Any, stand: Stand, drafting: Drafting) -> Row:
    """Acceptance alone."""
    from specjax.bench import grid

    settings = job.settings | {
        "temperature": drafting.temperature, "drafter": stand.make(shelf, drafting), "verifier": "token",
    }  # fmt: skip
    return grid.acceptance(job, settings) | {"prompts": len(job.prompts)}


def inner_rates(job: Any, guide: Any, temperature: float) -> Row:
    """What the inner rounds of a cascade accepted, over all prompts, one after the other."""
    import jax

    from specjax import api
    from specjax import decoding as loop

    tested = taken = drafted = rounds = 0
    for number, prompt in enumerate(job.prompts):
        request = api.prepare(
            job.target, [prompt], drafter=guide, rows=[number], temperature=temperature, **job.settings
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
    """The row that says all this of itself; None where there is none."""
    return next((row for row in rows if all(row.get(name) == value for name, value in wanted.items())), None)


def busy(rows: Sequence[Row]) -> list[str]:
    """A warning, where other programs used much of the machine meanwhile."""
    loads = [load for row in rows for part in (row, row.get("costs", {})) for load in part.get("load", {}).values()]
    worst = max(loads, default=0.0)
    if worst <= BUSY:
        return []
    return [f"other programs used up to {worst:.0%} of the processors meanwhile: speeds and c say less than acceptance"]


def alpha(row: Row | None) -> Measured:
    """The chance of acceptance: the mean overlap of both laws where the draft has laws, else accepted / tested."""
    if row is None:
        return NOTHING
    seen = row["overlap"] if row["overlap"] is not None else row["accepted_per_tested"]
    return share(seen, row["tested"])


def speed(row: Row | None, name: str = "speedup") -> Measured:
    """A speed, with an error from the spread of its runs: half of their range, over the root of their number; of a
    single run, a quarter of the value."""
    if row is None:
        return NOTHING
    low, middle, high = row["seconds"]
    spread = (high - low) / 2 / middle / row["repeats"] ** 0.5 if row["repeats"] > 1 else 0.25
    return Measured(row[name], row[name] * spread)
