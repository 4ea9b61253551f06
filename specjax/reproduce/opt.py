"""A report on OPT: c matrix, pairs of models, and a cascade of three models.

The published numbers are those of the report; it does not give gamma, temperature, prompts and the definition of its
acceptance rate.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from specjax.bench.record import Case, Row, Shelf
from specjax.bench.tasks import digest
from specjax.reproduce.checks import (
    NOTHING,
    ONE,
    SIGMAS,
    Estimate,
    Pair,
    alpha,
    each_greater,
    holds,
    near,
    same_order,
    share,
    speed,
)
from specjax.reproduce.pairs import PairRun, Stand, Target, family, own_model, pair_case
from specjax.reproduce.report import Report, busy, find
from specjax.reproduce.setup import Experiment, Items, Setup
from specjax.strategy import Strategy

REPORT = "Accelerating large model inference with speculative decoding (a project of the course MIT 6.s898)"
TASK, TEMPERATURE = "story", 1.0
ASSUMED = (
    "the report does not give its prompts, temperature and gamma, nor what its acceptance rate divides by: here story "
    "prompts, temperature {t:g}, gamma {g}, and accepted / drafted beside accepted / tested"
)
CONTRADICTION = (
    "the published matrix contradicts itself: opt-125m against opt-1.3b is 0.022 / 0.015 = 1.47 by the row of opt-13b, "
    "and 0.015 by its own, so no times of one machine in one state can give all three"
)
STEP = "a step: one token of greedy decoding of one request, the prompt's reading apart"
PLACED = "the report puts the loss of three levels down to how the models were placed on its devices"


def stand_ins(setup: Setup) -> list[str]:
    chosen = family(setup)
    return [*chosen.notes, "; ".join(f"{of} by {name}" for of, name in chosen.opt.items())]


# --- the c matrix ----------------------------------------------------------------------------------------------------

# (target, draft) -> c: time of a forward pass of the draft, relative to the target.
COSTS = {("opt-1.3b", "opt-125m"): 0.015, ("opt-13b", "opt-125m"): 0.022, ("opt-13b", "opt-1.3b"): 0.015}


def cost_cases(setup: Setup, items: Items) -> list[Case]:
    """One case with all models interleaved: c compares times of one machine in one state."""
    names = family(setup).opt

    def measure(shelf: Shelf) -> list[Row]:
        from specjax.bench import rounds

        models = {role: shelf.model(name) for role, name in names.items()}
        settings = {"max_new_tokens": setup.max_new_tokens, "ignore_eos": True, "seed": setup.seed, "temperature": 0.0}
        texts = [item.text for item in items[TASK]][: setup.timed]
        return [rounds.step_times(models, texts, settings, setup.repeats)]

    return [Case(setup.key("c-matrix", of=names, digest=digest(items[TASK])), "a step of each model", measure)]


def cost_report(setup: Setup, rows: Sequence[Row]) -> Report:
    step = rows[0]["step_ms"] if rows else {}
    here = {pair: Estimate(step[pair[1]] / step[pair[0]] if step else None) for pair in COSTS}
    table = [
        {"target": pair[0], "draft": pair[1], "c": c, "c here": here[pair].value, "ms a step here": step.get(pair[1])}
        for pair, c in COSTS.items()
    ]
    small, middle = here["opt-13b", "opt-125m"], here["opt-13b", "opt-1.3b"]
    checks = [
        each_greater(
            "a draft's step is shorter than its target's (c < 1)",
            [Pair(f"{draft} for {target}:", ONE, c) for (target, draft), c in here.items()],
        ),
        near(
            "c is 0.015 to 0.022 (within a factor of 2)",
            [(f"{pair[1]} for {pair[0]}", c, here[pair]) for pair, c in COSTS.items()], factor=2.0,
            because="a step of a small model is made of fixed costs that shrink less than its weights",
        ),
        each_greater(
            "for opt-13b, opt-125m costs more than opt-1.3b (0.022 against 0.015)",
            [Pair("opt-125m against opt-1.3b:", small, middle)], show="{:.3f}".format,
        ),
    ]  # fmt: skip
    return Report(table, checks, [*stand_ins(setup), CONTRADICTION, STEP, *busy(rows)])


# --- pairs and three levels ------------------------------------------------------------------------------------------


class Rate(NamedTuple):
    """A target with its drafts, the largest first: tokens per second and the acceptance rate of each level."""

    target: str
    drafts: tuple[str, ...]
    tokens_per_second: float
    accepted: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        return " > ".join((self.target, *self.drafts))


TWO_LEVELS = (
    Rate("opt-13b", (), 0.047),
    Rate("opt-13b", ("opt-1.3b",), 0.087, (0.19,)),
    Rate("opt-13b", ("opt-125m",), 0.057, (0.15,)),
)
PAIRS = (*TWO_LEVELS, Rate("opt-1.3b", (), 0.336), Rate("opt-1.3b", ("opt-125m",), 1.05, (0.38,)))
HIERARCHY = (*TWO_LEVELS, Rate("opt-13b", ("opt-1.3b", "opt-125m"), 0.030, (0.17, 0.33)))
LARGER, SMALLER, THREE = (rate.name for rate in HIERARCHY[1:])


def rate_cases(rates: Sequence[Rate], setup: Setup, items: Items) -> list[Case]:
    """One row for each rate with drafts; pairs and hierarchy share the rows that both need."""
    return [rate_case(setup, items, rate) for rate in rates if rate.drafts]


def rate_case(setup: Setup, items: Items, rate: Rate) -> Case:
    names = family(setup).opt
    drafts = tuple(names[draft] for draft in rate.drafts)
    stand, measure = own_model(drafts[0]), PairRun.speed
    if len(drafts) > 1:
        strategy = Strategy.of("cascade", inner=Strategy.of("model", gamma=setup.gamma))
        stand, measure = Stand(" > ".join(drafts), strategy, drafts), lambda run: run.speed() | run.inner()
    return pair_case(
        setup, items, Target(names[rate.target], TASK, {}), stand, measure, title=rate.name, experiment="opt",
        gamma=setup.gamma, temperature=TEMPERATURE, named={"of": rate.name},
    )  # fmt: skip


def plain_speed(rows: Sequence[Row], target: str) -> Estimate:
    """Tokens per second of the target alone: the mean over the measurements next to its drafts."""
    found = [row["plain_tokens_per_second"] for row in rows if row["of"].split(" > ")[0] == target]
    return Estimate(sum(found) / len(found) if found else None)


def side_by_side(rates: Sequence[Rate], rows: Sequence[Row]) -> list[Row]:
    """Published and measured numbers."""
    table = []
    for rate in rates:
        row = find(rows, of=rate.name)
        base = next(one.tokens_per_second for one in rates if one.target == rate.target and not one.drafts)
        here = (row["tokens_per_second"] if row else None) if rate.drafts else plain_speed(rows, rate.target).value
        table.append({
            "target": rate.target, "drafts": ", ".join(rate.drafts) or "none",
            "tokens/s": rate.tokens_per_second, "tokens/s here": here,
            "× plain": rate.tokens_per_second / base if rate.drafts else None,
            "× plain here": row["speedup"] if row else None,
            "accepted": ", ".join(f"{x:.0%}" for x in rate.accepted) or None,
            "per drafted here": percents(row, "accepted_per_drafted") if row else None,
            "per tested here": percents(row, "accepted_per_tested") if row else None,
        })  # fmt: skip
    return table


def percents(row: Row, name: str) -> str:
    return ", ".join(f"{row[one]:.0%}" for one in (name, f"inner_{name}") if one in row)


def pays(rates: Sequence[Rate], row: dict[str, Row | None]) -> list[Pair]:
    """The speed of each pair against plain decoding."""
    return [Pair(f"{one.name}:", speed(row[one.name]), ONE) for one in rates if len(one.drafts) == 1]


def pair_report(setup: Setup, rows: Sequence[Row]) -> Report:
    pairs = [rate for rate in PAIRS if rate.drafts]
    row = {rate.name: find(rows, of=rate.name) for rate in pairs}
    beside = f"{LARGER} against {SMALLER}:"
    plain = [plain_speed(rows, name) for name in ("opt-1.3b", "opt-13b")]
    checks = [
        each_greater("every draft makes its target faster", pays(PAIRS, row)),
        same_order(
            "acceptance: 125m for 1.3b above 1.3b for 13b above 125m for 13b",
            [(one.name, one.accepted[0], alpha(row[one.name])) for one in pairs], show="{:.2f}".format,
        ),
        each_greater(
            "the larger draft is accepted more often by the same target",
            [Pair(beside, alpha(row[LARGER]), alpha(row[SMALLER]))],
        ),
        each_greater(
            "the larger draft makes opt-13b faster than the smaller one does",
            [Pair(beside, speed(row[LARGER]), speed(row[SMALLER]))],
        ),
        each_greater("the smaller target is the faster one", [Pair("plain, tokens/s:", *plain)], show="{:.0f}".format),
    ]  # fmt: skip
    return Report(side_by_side(PAIRS, rows), checks, notes(setup, rows, row))


def notes(setup: Setup, rows: Sequence[Row], row: dict[str, Row | None], *more: str) -> list[str]:
    """Stand-ins, assumptions, and cost and tokens of a round of each pair."""
    lines = [*stand_ins(setup), ASSUMED.format(t=TEMPERATURE, g=setup.gamma), *more]
    for name, found in row.items():
        if found is None:
            continue
        spent, gamma = found["costs"], found["gamma"]
        steps = gamma * spent["c"] + spent["verify_cost"]
        lines.append(
            f"{name}: a round takes {gamma} draft steps of c = {spent['c']:.2f} and a verification of "
            f"{spent['verify_cost']:.2f}, {steps:.2f} steps of the target in all, and yields "
            f"{found['tokens_per_call']:.2f} tokens"
        )
    return [*lines, *busy(rows)]


def hierarchy_report(setup: Setup, rows: Sequence[Row]) -> Report:
    row = {rate.name: find(rows, of=rate.name) for rate in HIERARCHY if rate.drafts}
    last, middle = row[THREE], row[LARGER]
    inner = share(last["inner_accepted_per_tested"], last["inner_tested"]) if last else NOTHING
    checks = [
        each_greater(
            "three levels are slower than plain decoding (0.030 against 0.047)",
            [Pair("plain against three levels:", ONE, speed(last))],
        ),
        each_greater(
            "three levels are slower than two",
            [Pair(f"{name} against three:", speed(row[name]), speed(last)) for name in (LARGER, SMALLER)],
        ),
        each_greater("two levels are faster than plain decoding", pays(HIERARCHY, row)),
        each_greater(
            "the inner level accepts more than the outer one (33 % against 17 %)",
            [Pair("inner against outer:", inner, alpha(last))],
        ),
    ]
    a, b = alpha(last), alpha(middle)
    lines = notes(setup, rows, row, PLACED)
    if a.value is not None and b.value is not None:
        # The inner level is lossless: drafts follow the distribution of the middle model with or without a third model.
        checks.append(
            holds(
                "acceptance of the middle model is about the same with a third level (17 % against 19 %)",
                abs(a.value - b.value) <= SIGMAS * math.hypot(a.error, b.error),
                f"{a.value:.3f} ± {a.error:.3f} with it, {b.value:.3f} ± {b.error:.3f} without",
            )
        )
    if last is not None:
        per = last["inner_rounds"] / max(last["tokens"] / last["tokens_per_call"], 1)
        lines.append(f"three levels: {per:.2f} inner rounds in each of the target's")
    return Report(side_by_side(HIERARCHY, rows), checks, lines)


EXPERIMENTS = {
    "c-matrix": Experiment(
        "The c matrix: a draft's step over its target's", f"{REPORT}, Calculating c for each model pair", (TASK,),
        cost_cases, cost_report,
    ),
    "pairs": Experiment(
        "Tokens per second and acceptance of pairs", f"{REPORT}, Acceptance rates and wall time given M_p and M_q",
        (TASK,), partial(rate_cases, PAIRS), pair_report,
    ),
    "hierarchy": Experiment(
        "Three levels: opt-13b, opt-1.3b, opt-125m", f"{REPORT}, Results of hierarchical speculative decoding", (TASK,),
        partial(rate_cases, HIERARCHY), hierarchy_report,
    ),
}  # fmt: skip
