"""Published tables at the size of the published models: random weights and simulated acceptance (`bench/shapes.py`).

Speeds and costs are measured, acceptance is that of the publication. Where a target does not fit into memory, the
largest of its series that does takes its place, and its own numbers are extrapolated by the time of a step.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specjax import theory
from specjax.bench.record import Case, Missing, Row, Shelf
from specjax.estimates import MISSING, Estimate
from specjax.reproduce import figures, levels, opt, paper
from specjax.reproduce.checks import ONE, ClaimCheck, Pair, each_greater, near
from specjax.reproduce.opt import HIERARCHY, LARGER, PAIRS, SMALLER, THREE, Rate
from specjax.reproduce.pairs import BASE, CNNDM, ENDE, LARGE, SMALL
from specjax.reproduce.paper import TABLE_2
from specjax.reproduce.report import Report, conditions, find, shown
from specjax.reproduce.setup import OPT_SHAPES, T5_SHAPES, Experiment, Items, Setup
from specjax.strategy import Strategy

if TYPE_CHECKING:
    from specjax.bench.shapes import ShapeRun
    from specjax.model import Model

PROMPT = {ENDE: 64, CNNDM: 512}  # tokens of a sentence and of an article, as T5 reads them
STORY = 64
CLOSE = 1.07  # factor between measured and predicted speeds
OUTER, LONGEST = 7, 12  # block lengths of the outer level of a cascade
SIMULATED = "acceptance is simulated: claims about α are not checked"
GIVEN = f"{SIMULATED}; α is the published one"
ASSUMED = (
    "the report does not give its temperature and gamma, nor what its acceptance rate divides by: here temperature "
    "{t:g} and gamma {g}, and the α per tested token at which that share of the drafted tokens is accepted; if the "
    "published rates were per tested token, no draft could be faster than 1 / (1 - rate), and the published ones are"
)


def published(row: Row) -> str | None:
    """The published speed-up of a row of `bench shapes`, with its target and alpha; None without a counterpart."""
    size = row["draft"].rpartition("-")[2]
    for one in TABLE_2:
        same = (f"T5-{size}", f"model:gamma={one.gamma}", f"{one.alpha:g}")
        if row["draft"].startswith(("t5", "flan-t5")) and (one.draft, row["drafter"], row["alpha"]) == same:
            return f"{one.speed} (T5-XXL, {one.task}, T={one.temperature:g})"
    for rate in (*PAIRS, *HIERARCHY):
        if rate.drafts and rate.name == f"{row['target']} > {row['draft']}":
            accepted = ", ".join(f"{share:.0%}" for share in rate.accepted)
            return f"{gain(rate):.2f} ({accepted} accepted, γ not given)"
    return None


def gain(rate: Rate) -> float:
    """Published tokens per second over those of the target alone."""
    plain = next(one for one in PAIRS if one.target == rate.target and not one.drafts)
    return rate.tokens_per_second / plain.tokens_per_second


# --- what is measured ------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A published speed-up, the shapes that are measured for it, and its columns in the table."""

    name: str
    run: "ShapeRun"
    speed: float
    columns: Row


def targets(setup: Setup, sizes: Sequence[str], drafts: tuple[str, ...]) -> list[str]:
    """The targets of the setup among some sizes; by default the largest that fits beside the drafts.

    Raises:
      ValueError: a target of the setup does not fit, or none does.
    """
    from specjax.bench.shapes import ShapeRun, check_run

    strategy = Strategy.of("model") if len(drafts) == 1 else Strategy.of("cascade", inner=Strategy.of("model"))
    runs = {name: ShapeRun(name, drafts, strategy, dtype=setup.dtype) for name in sizes}
    named = [name for name in setup.targets if name in sizes]
    for name in named:
        check_run(runs[name])
    for name in () if named else sizes[:-1]:
        with contextlib.suppress(ValueError):
            check_run(runs[name])
            return [name]
    if not named:
        check_run(runs[sizes[-1]])
    return named or [sizes[-1]]


def table_2_entries(setup: Setup) -> list[Entry]:
    """T5 v1.1, the shapes of the paper."""
    from specjax.bench.shapes import ShapeRun

    shape = {SMALL: "t5-v1_1-small", BASE: "t5-v1_1-base", LARGE: "t5-v1_1-large"}
    made = lambda target, one: ShapeRun(
        target, (shape[one.draft],), Strategy.of("model", gamma=one.gamma), (one.alpha,), dtype=setup.dtype,
        temperature=one.temperature, prompt=PROMPT[one.task], new=setup.max_new_tokens,
    )  # fmt: skip
    columns = lambda one: {"task": one.task, "M_q": one.draft, "T": one.temperature, "γ": one.gamma, "α": one.alpha}
    chosen = targets(setup, T5_SHAPES, (shape[SMALL],))
    return [Entry(one.name, made(target, one), one.speed, columns(one)) for target in chosen for one in TABLE_2]


def rate_entries(rates: Sequence[Rate], setup: Setup) -> list[Entry]:
    """OPT; the published acceptance is taken per drafted token."""
    from specjax.bench.shapes import ShapeRun

    found = []
    for rate in (rate for rate in rates if rate.drafts):
        alphas = rate.alphas(setup.gamma)
        for target in targets(setup, OPT_SHAPES, opt.DRAFTS) if rate.target == OPT_SHAPES[0] else [rate.target]:
            gammas = (setup.gamma,) if len(rate.drafts) == 1 else best_blocks(target, rate.drafts, alphas, setup.dtype)
            strategy = Strategy.of("model", gamma=gammas[-1])
            if len(gammas) > 1:
                strategy = Strategy.of("cascade", gamma=gammas[0], inner=strategy)
            run = ShapeRun(
                target, rate.drafts, strategy, alphas[:1], alphas[-1], setup.dtype,
                temperature=opt.TEMPERATURE, prompt=STORY, new=setup.max_new_tokens,
            )  # fmt: skip
            columns = {
                "drafts": ", ".join(rate.drafts), "γ": ", ".join(map(str, gammas)), "accepted": list(rate.accepted),
                "α": list(alphas),
            }  # fmt: skip
            found.append(Entry(rate.name, run, gain(rate), columns))
    return found


def best_blocks(target: str, drafts: Sequence[str], alphas: Sequence[float], dtype: str) -> tuple[int, ...]:
    """Block lengths of a cascade that are best by theory if a step takes the time of reading its weights."""
    sizes = [step_size(name, dtype) for name in (target, *drafts)]
    costs = [size / sizes[0] for size in sizes[1:]]
    return theory.best_cascade(alphas, costs, gamma_max=LONGEST, gamma_min=(OUTER, 1)).gammas


def cases(experiment: str, entries: Callable[[Setup], list[Entry]], setup: Setup, items: Items) -> list[Case]:
    """A case for each published speed and target."""
    del items
    return [
        Case(
            setup.key(experiment, of=one.name, run=one.run.key), f"{one.name}: {one.run.title}",
            partial(measure, setup, one),
        )
        for one in entries(setup)
    ]  # fmt: skip


def measure(setup: Setup, entry: Entry, shelf: Shelf) -> list[Row]:
    from specjax.bench import shapes

    run = entry.run
    for draft in run.drafts:
        if step_size(draft, run.dtype) >= step_size(run.target, run.dtype):
            raise Missing(f"{draft} is not smaller than {run.target}")
    models = loaded(shelf, (run.target, *run.drafts), run.dtype)
    row = shapes.measure(run, models.__getitem__, repeats=setup.repeats)
    published_row = {"of": entry.name, "published": entry.speed, "columns": entry.columns}
    return [row | published_row | {"load": {"requests": row["load"]}}]


def loaded(shelf: Shelf, names: Sequence[str], dtype: str) -> "dict[str, Model]":
    """These shapes with random weights; all others are dropped."""
    from specjax.bench.decode import random_model

    models: dict[str, Model] = shelf.keep("shapes", dict)
    for other in set(models) - set(names):
        del models[other]
    for name in names:
        if name not in models:
            models[name] = random_model(name, dtype)
    return models


# --- the time of a step ----------------------------------------------------------------------------------------------


def step_size(name: str, dtype: str) -> int:
    """Bytes that a decoding step of a shape reads."""
    from specjax.models.format import default_format
    from specjax.models.shapes import published_shapes, step_bytes

    return step_bytes(*published_shapes()[name], default_format(dtype))


def step_time(seconds: Mapping[str, float], dtype: str) -> Callable[[str], float]:
    """Time of a step of any shape: a constant plus a time per byte, fitted to measured shapes by relative error."""
    measured, sizes = np.array(list(seconds.values())), [step_size(name, dtype) for name in seconds]
    columns = np.stack([np.ones(len(sizes)), np.array(sizes)], axis=1) / measured[:, None]
    scale = columns.max(0)
    fitted = np.linalg.lstsq(columns / scale, np.ones(len(sizes)), rcond=None)[0] / scale
    if fitted[0] < 0:  # no constant: through the origin
        fitted = np.array([0.0, 1 / columns[:, 1].mean()])
    return lambda name: float(fitted[0] + fitted[1] * step_size(name, dtype))


def measured_steps(rows: Sequence[Row]) -> dict[str, float]:
    """Milliseconds of a step of every target and draft, medians over rows."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["target"], []).append(row["step_ms"])
        for draft in row["draft"].split(" > "):
            if f"c {draft}" in row:
                found.setdefault(draft, []).append(row[f"c {draft}"] * row["step_ms"])
    return {name: float(np.median(values)) for name, values in found.items()}


def at_full_size(rows: Sequence[Row], full: str) -> dict[str, float]:
    """Speed-up by row with the published target: theorem 3.8 with its extrapolated step and the measured verification.

    Of pairs with the largest target measured, unless that is the published one.
    """
    steps = measured_steps(rows)
    if len(steps) < 2:
        return {}
    whole = step_time(steps, rows[0]["dtype"])(full)
    found = {}
    for row in rows:
        draft, gamma = row["draft"], row["columns"]["γ"]
        if row["target"] == full or f"c {draft}" not in row or row["target"] != largest_target(rows):
            continue
        c, alpha = row[f"c {draft}"] * row["step_ms"] / whole, float(row["alpha"])
        found[row["of"]] = float(theory.walltime_factor(alpha, int(gamma), c, verify_cost=row["verify"]))
    return found


def largest_target(rows: Sequence[Row]) -> str:
    return max((row["target"] for row in rows), key=lambda name: step_size(name, rows[0]["dtype"]))


# --- reports ---------------------------------------------------------------------------------------------------------


def table_of(rows: Sequence[Row], full: str) -> list[Row]:
    """Published and measured numbers."""
    from specjax.bench.shapes import over_turns

    predicted = at_full_size(rows, full)
    number = lambda row, name: shown(over_turns(row, name)) if name in row else None
    costs = lambda row: ", ".join(f"{row[name]:.3g}" for name in row if name.startswith("c "))
    return [
        {
            "target here": row["target"], **row["columns"], "c": costs(row), "verify": number(row, "verify"),
            "overhead": number(row, "overhead"), "closed form": number(row, "closed_form"),
            "decoding here": number(row, "speedup"), "speed here": number(row, "speedup_with_prompt"),
            f"at {full}": predicted.get(row["of"]) if row["target"] == largest_target(rows) else None,
            "speed": row["published"],
        }
        for row in rows
    ]  # fmt: skip


def speed_checks(rows: Sequence[Row]) -> list[ClaimCheck]:
    """What all tables of speeds are checked for."""
    from specjax.bench.shapes import over_turns

    name = lambda row: f"{row['of']} by {row['target']}"
    closed = [(name(row), over_turns(row, "closed_form"), over_turns(row, "speedup")) for row in rows]
    return [
        near(f"decoding follows the closed form with the measured costs (within a factor of {CLOSE})", closed,
             factor=CLOSE, there="by theory", because="fixed costs of a round"),
        each_greater("speculation pays (speed above 1)",
                     [Pair(f"{name(row)}:", over_turns(row, "speedup_with_prompt"), ONE) for row in rows
                      if row["published"] > 1]),
    ]  # fmt: skip


def size_notes(rows: Sequence[Row], full: str) -> list[str]:
    """What the size of the target changes."""
    steps = measured_steps(rows)
    target = largest_target(rows)
    if target == full or len(steps) < 2:
        return []
    whole = step_time(steps, rows[0]["dtype"])(full)
    shown_steps = ", ".join(f"{name} {ms:.3g}" for name, ms in steps.items())
    return [
        f"milliseconds per step here: {shown_steps}; a constant plus a time per byte of weights extrapolates to "
        f"{whole:.3g} for {full}, {whole / steps[target]:.3g} times that of {target}, which divides c by as much",
        f"'at {full}' is theorem 3.8 with that c and the verification cost measured with {target}: an extrapolation",
    ]


def table_2_report(setup: Setup, rows: Sequence[Row]) -> Report:
    from specjax.bench.shapes import over_turns

    del setup
    full, speed = T5_SHAPES[0], lambda row: over_turns(row, "speedup_with_prompt") if row else MISSING
    groups = {(one.task, one.temperature) for one in TABLE_2}
    chosen = sorted({row["target"] for row in rows})
    at = lambda target, task, draft, t: speed(find(rows, target=target, of=f"{task}, {draft}, T={t:g}"))
    smallest = [
        Pair(f"{name}, {task}, T={t:g}, {SMALL} against {other}:", at(name, task, SMALL, t), at(name, task, other, t))
        for name in chosen
        for task, t in sorted(groups)
        for other in (BASE, LARGE)
    ]
    predicted = at_full_size(rows, full)
    sizes = [(one.name, Estimate(one.speed), Estimate(predicted[one.name])) for one in TABLE_2 if one.name in predicted]
    checks = [*speed_checks(rows), each_greater("the smallest draft is the fastest", smallest)]
    if sizes:
        checks.append(
            near(f"speed extrapolated to {full} has the published size (within a factor of 1.25)", sizes, factor=1.25)
        )
    return Report(table_of(rows, full), checks, [GIVEN, *size_notes(rows, full), *conditions(rows)])


def pair_report(setup: Setup, rows: Sequence[Row]) -> Report:
    notes = [SIMULATED, ASSUMED.format(t=opt.TEMPERATURE, g=setup.gamma), *size_notes(rows, OPT_SHAPES[0])]
    return Report(table_of(rows, OPT_SHAPES[0]), speed_checks(rows), [*notes, *conditions(rows)])


def hierarchy_report(setup: Setup, rows: Sequence[Row]) -> Report:
    from specjax.bench.shapes import over_turns

    speed = lambda target, name: over_turns(row, "speedup") if (row := find(rows, target=target, of=name)) else MISSING
    chosen = sorted({row["target"] for row in rows})
    checks = [
        each_greater("three levels are slower than plain decoding (0.030 against 0.047)",
                     [Pair(f"{target}, plain against three levels:", ONE, speed(target, THREE)) for target in chosen]),
        each_greater("three levels are slower than two",
                     [Pair(f"{target}, {name} against three:", speed(target, name), speed(target, THREE))
                      for target in chosen for name in (LARGER, SMALLER)]),
    ]  # fmt: skip
    made = pair_report(setup, rows)
    notes = [*made.notes, f"three levels: outer γ of at least {OUTER}, the best by theory if a step reads its weights"]
    return Report(made.table, [*made.checks[:1], *checks], notes)


def step_cases(setup: Setup, items: Items) -> list[Case]:
    """Steps of all models, interleaved; one case for each target."""
    del items

    def measured(target: str, shelf: Shelf) -> list[Row]:
        from specjax.bench import rounds
        from specjax.bench.decode import random_prompts

        names = {OPT_SHAPES[0]: target} | {name: name for name in opt.DRAFTS}
        models = loaded(shelf, tuple(names.values()), setup.dtype)
        settings = {"max_new_tokens": setup.max_new_tokens, "temperature": 0.0}
        prompts = random_prompts(setup.timed, models[target].vocab_size, STORY)  # errors are over prompts, too
        programs = {role: (models[name], None) for role, name in names.items()}
        return [rounds.round_runs(programs, prompts, settings, setup.repeats) | {"target": target}]

    return [
        Case(setup.key("c-matrix", target=target), f"a step of {target} and its drafts", partial(measured, target))
        for target in targets(setup, OPT_SHAPES, opt.DRAFTS)
    ]


def step_report(setup: Setup, rows: Sequence[Row]) -> Report:
    from specjax.bench import rates

    parts = [opt.cost_report(setup, [row]) for row in rows]
    notes, full = [opt.CONTRADICTION, opt.STEP], OPT_SHAPES[0]
    for row in rows:
        steps = {name: 1e3 / rates.per_second(row, name, unit="rounds") for name in row["runs"]}
        steps[row["target"]] = steps.pop(full)
        if row["target"] != full:
            whole = step_time(steps, setup.dtype)(full)
            each = ", ".join(f"{name} {steps[name] / whole:.3g}" for name in opt.DRAFTS)
            notes.append(
                f"{row['target']} takes the place of {full}, whose step is extrapolated to {whole:.3g} ms (a constant "
                f"plus a time per byte of weights): c would be {each}"
            )
    table = [
        {"target here": row["target"], **line} for row, part in zip(rows, parts, strict=True) for line in part.table
    ]
    return Report(table, [check for part in parts for check in part.checks], [*notes, *conditions(rows)])


def lane_cases(setup: Setup, items: Items) -> list[Case]:
    """One request with each draft length; streams are chosen for the published α of table 2."""
    del items
    one, draft = TABLE_2[0], "t5-v1_1-small"

    def lane(target: str, gamma: int, shelf: Shelf) -> list[Row]:
        from specjax import drafters
        from specjax.bench import shapes
        from specjax.bench.decode import random_prompts
        from specjax.trace import rounds

        models = loaded(shelf, (target, draft), setup.dtype)
        drafter = drafters.model(models[draft], gamma=gamma) if gamma else drafters.plain()
        streams = shapes.typical_streams(drafter.drafter.tree, (one.alpha,), setup.max_new_tokens, 1)
        options: dict[str, Any] = {
            "max_new_tokens": setup.max_new_tokens, "temperature": one.temperature, "rows": streams,
            "verifier": shapes.verifier((one.alpha,)),
        }  # fmt: skip
        prompts = random_prompts(1, models[target].vocab_size, PROMPT[ENDE])
        trace = rounds.record(models[target], prompts, drafter, options, repeats=setup.repeats)
        return [figures.lane_row(gamma, trace) | {"target": target}]

    return [
        Case(
            setup.key("figure-5", target=target, gamma=gamma), f"{target} > {draft}, γ = {gamma}",
            partial(lane, target, gamma),
        )
        for target in targets(setup, T5_SHAPES, (draft,))[:1]
        for gamma in figures.LANES
    ]  # fmt: skip


def lane_report(setup: Setup, rows: Sequence[Row]) -> Report:
    made = figures.trace_report(setup, rows)
    costs = [note for note in made.notes if note.startswith("γ")]
    stand = f"T5-XXL by {rows[0]['target']}, the draft by t5-v1_1-small; one request, every round timed apart"
    return made._replace(notes=[GIVEN, stand, *costs])


def real(name: str, known: Mapping[str, Experiment], *made: Any) -> Experiment:
    """The experiment of that name with other cases and another report."""
    of_cases, report = made
    return known[name]._replace(title=f"{known[name].title}, at real size", tasks=(), cases=of_cases, report=report)


EXPERIMENTS = {
    "c-matrix": real("c-matrix", opt.EXPERIMENTS, step_cases, step_report),
    "pairs": real("pairs", opt.EXPERIMENTS, partial(cases, "opt", partial(rate_entries, PAIRS)), pair_report),
    "hierarchy": real(
        "hierarchy", opt.EXPERIMENTS, partial(cases, "opt", partial(rate_entries, HIERARCHY)), hierarchy_report
    ),
    "table-2": real("table-2", paper.EXPERIMENTS, partial(cases, "table-2", table_2_entries), table_2_report),
    "figure-5": real("figure-5", figures.EXPERIMENTS, lane_cases, lane_report),
    "levels": Experiment("When three levels pay, at real size", opt.REPORT, (), levels.cases, levels.report),
}
