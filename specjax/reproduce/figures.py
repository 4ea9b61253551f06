"""Figures 3, 4 and 5 of Leviathan et al. 2023: the best gamma, speed and operations, the walltime of three runs.

They are drawings without printed numbers: the values of c and gamma of figures 3 and 4 are chosen here.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from specjax import theory
from specjax.bench.record import Case, Row
from specjax.estimates import Estimate
from specjax.reproduce.checks import ClaimCheck, Pair, all_within, each_greater, holds
from specjax.reproduce.pairs import ENDE, SMALL, PairRun, family, pair_case
from specjax.reproduce.paper import PAPER, TABLE_1, t5_notes
from specjax.reproduce.report import Report, draw_best_gamma, draw_factors, draw_lanes, find
from specjax.reproduce.setup import Experiment, Items, Setup, computed

ALPHAS = tuple(round(0.5 + 0.01 * step, 2) for step in range(45))  # 0.5 .. 0.94
COSTS = (0.01, 0.02, 0.05, 0.1)
GAMMAS = (2, 3, 5, 7, 10)
SHOWN = (0.5, 0.6, 0.7, 0.8, 0.9)  # of ALPHAS in the table
LONGEST = 64  # the best gamma of all these alphas and costs is smaller
FREE = "the figure is a drawing without printed numbers; the values of {what} are chosen here"


def at(row: Row, name: str, alpha: float) -> Any:
    return row[name][row["alpha"].index(alpha)]


# --- figure 3 --------------------------------------------------------------------------------------------------------


def best_gammas() -> list[Row]:
    best = [theory.best_gamma(np.array(ALPHAS), c, gamma_max=LONGEST) for c in COSTS]
    return [
        {"c": c, "alpha": list(ALPHAS), "gamma": one.gamma.tolist(), "factor": np.asarray(one.factor).tolist()}
        for c, one in zip(COSTS, best, strict=True)
    ]


def best_report(setup: Setup, rows: Sequence[Row]) -> Report:
    del setup
    table: list[Row] = [{"α": a} | {f"c = {row['c']}": at(row, "gamma", a) for row in rows} for a in SHOWN]
    notes = [
        FREE.format(what="c"), "the γ of greatest theorem 3.8 among 0 .. 64, in float64: nothing is measured",
    ]  # fmt: skip
    return Report(table, [], notes, partial(draw_best_gamma, rows=rows))


# --- figure 4 --------------------------------------------------------------------------------------------------------


def factors() -> list[Row]:
    of = {"speed": theory.walltime_factor, "operations": theory.operations_factor}
    return [
        {"gamma": gamma, "alpha": list(ALPHAS)}
        | {name: np.asarray(factor(np.array(ALPHAS), gamma, 0)).tolist() for name, factor in of.items()}
        for gamma in GAMMAS
    ]


def factor_report(setup: Setup, rows: Sequence[Row]) -> Report:
    del setup
    names = ("speed", "operations")
    table: list[Row] = [
        {"α": a} | {f"{name}, γ = {row['gamma']}": at(row, name, a) for name in names for row in rows} for a in SHOWN
    ]
    points = [
        (f"{name} at α {one.alpha}, γ {one.gamma}", getattr(one, name), at(row, name, one.alpha))
        for one in TABLE_1
        for row in rows
        if row["gamma"] == one.gamma
        for name in names
    ]
    checks = [all_within("the curves run through the points of table 1", points, digits=2)]
    notes = [FREE.format(what="γ"), "theorems 3.8 and 3.11 with c = 0; crosses: table 1 as printed"]
    return Report(table, checks, notes, partial(draw_factors, rows=rows, points=TABLE_1))


# --- figure 5 --------------------------------------------------------------------------------------------------------

LANES = (7, 3, 0)  # draft lengths; 0 is standard decoding


def lane_of(run: PairRun) -> Row:
    """One lane of the diagram, of a greedy request."""
    from specjax.trace import rounds

    options = run.work.settings | {"temperature": run.temperature}
    trace = rounds.record(run.work.target, run.work.prompts, run.drafter(), options, repeats=run.setup.repeats)
    return lane_row(run.gamma, trace)


def lane_row(gamma: int, trace: Any) -> Row:
    """Every forward pass of a recorded run, on a time axis."""
    from specjax.trace import lanes

    lane = lanes.lane(f"γ = {gamma}" if gamma else "standard", trace)
    return {
        "gamma": gamma, "lane": lane.name, "tokens": lane.tokens, "target_calls": lane.target_passes,
        "seconds": lane.seconds, "calls": [[span.kind.name, span.start, span.seconds] for span in lane.spans],
    }  # fmt: skip


def trace_cases(setup: Setup, items: Items) -> list[Case]:
    """The longest prompt, greedy, with each gamma and plainly; one case per lane."""
    target = family(setup).targets[ENDE]
    longest = {target.task: [max(items[target.task], key=lambda one: len(one.text))]}
    return [
        pair_case(
            setup, longest, target, target.drafts[SMALL], lane_of, title=f"γ = {gamma}" if gamma else "standard",
            experiment="figure-5", gamma=gamma, temperature=0.0, named={},
        )
        for gamma in LANES
    ]  # fmt: skip


def mean(row: Row, kind: str) -> float:
    """Mean seconds of a forward pass of this kind."""
    spent = [call[2] for call in row["calls"] if call[0] == kind]
    return sum(spent) / len(spent)


def count(row: Row, kind: str) -> int:
    return sum(call[0] == kind for call in row["calls"])


def trace_report(setup: Setup, rows: Sequence[Row]) -> Report:
    target, plain = family(setup).targets[ENDE], find(rows, gamma=0)
    table = [
        {
            "lane": row["lane"], "tokens": row["tokens"], "calls of M_p": row["target_calls"],
            "calls of M_q": count(row, "DRAFT"),
            "encoder calls": count(row, "TARGET_PROMPT") + count(row, "DRAFT_PROMPT"), "ms": 1e3 * row["seconds"],
        }
        for row in rows
    ]  # fmt: skip
    step = mean(plain, "TARGET") if plain else float("nan")
    notes = [
        *t5_notes(setup),
        f"T5-XXL by {target.model}, the draft by {target.drafts[SMALL].name}; one translation, greedy, every round "
        "timed apart (specjax.trace)",
    ]
    notes += [
        f"{row['lane']}: a draft step takes {mean(row, 'DRAFT') / step:.2f} steps of standard decoding, a verification "
        f"{mean(row, 'TARGET') / step:.2f}, and a round yields {row['tokens'] / row['target_calls']:.2f} tokens"
        for row in rows
        if plain and row["gamma"]
    ]
    checks = trace_checks(rows) if len(rows) == len(LANES) else []
    return Report(table, checks, notes, partial(draw_lanes, rows=rows) if rows else None)


def trace_checks(rows: Sequence[Row]) -> list[ClaimCheck]:
    """Claims about one request. That γ drafts precede each pass, and prompts are read once, is how lanes are drawn."""
    found = [find(rows, gamma=gamma) or {} for gamma in LANES]
    calls = [row["target_calls"] for row in found]
    *drafted, standard = (Estimate(1e3 * row["seconds"]) for row in found)
    shorter = [Pair(f"γ = {gamma}:", standard, own) for gamma, own in zip(LANES, drafted, strict=False)]
    return [
        holds(
            "M_p is called less with a longer draft", calls[0] < calls[1] < calls[2],
            "γ 7 {:.4g}, γ 3 {:.4g}, standard {:.4g}".format(*calls),
        ),
        each_greater("both speculative lanes are shorter than standard decoding (ms of one run each)", shorter),
    ]  # fmt: skip


EXPERIMENTS = {
    "figure-3": Experiment(
        "Figure 3: the best γ", f"{PAPER}, figure 3: the optimal gamma as a function of alpha for various values of c",
        (), computed("figure-3", best_gammas), best_report,
    ),
    "figure-4": Experiment(
        "Figure 4: speed and operations",
        f"{PAPER}, figure 4: speedup and operations as a function of alpha for various values of gamma", (),
        computed("figure-4", factors), factor_report,
    ),
    "figure-5": Experiment(
        "Figure 5: calls on a time axis",
        f"{PAPER}, figure 5: a simplified trace diagram, gamma 7, gamma 3 and standard decoding", ("translation",),
        trace_cases, trace_report,
    ),
}  # fmt: skip
