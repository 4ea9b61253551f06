"""Figures 3, 4 and 5 of Leviathan et al. 2023: the best gamma, speed and operations, the walltime of three runs."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from specjax import theory
from specjax.bench.record import Case, Row, Shelf
from specjax.bench.tasks import digest
from specjax.reproduce import drawing, published
from specjax.reproduce.checks import ClaimCheck, all_within, holds
from specjax.reproduce.measuring import find, work
from specjax.reproduce.models import DraftRequest, family
from specjax.reproduce.published import ENDE, FIGURE_5_GAMMAS, SMALL, TABLE_1
from specjax.reproduce.setup import Experiment, Items, Report, Setup

ALPHAS = tuple(round(0.5 + 0.01 * step, 2) for step in range(45))  # 0.5 .. 0.94
COSTS = (0.01, 0.02, 0.05, 0.1)
GAMMAS = (2, 3, 5, 7, 10)
SHOWN = (0.5, 0.6, 0.7, 0.8, 0.9)  # of ALPHAS in the table
LONGEST = 64  # the best gamma of all these alphas and costs lies below it
FREE = "the figure is a drawing without printed numbers; the values of {what} are chosen here"

# --- figure 3 --------------------------------------------------------------------------------------------------------


def best_cases(setup: Setup, items: Items) -> list[Case]:
    del setup, items

    def measure(shelf: Shelf) -> list[Row]:
        del shelf
        best = [theory.best_gamma(np.array(ALPHAS), c, gamma_max=LONGEST) for c in COSTS]
        return [
            {"c": c, "alpha": list(ALPHAS), "gamma": one.gamma.tolist(), "factor": np.asarray(one.factor).tolist()}
            for c, one in zip(COSTS, best, strict=True)
        ]

    key = {"bench": "reproduce", "experiment": "figure-3", "alphas": ALPHAS, "costs": COSTS}
    return [Case(key, "figure 3", measure)]


def best_report(setup: Setup, rows: Sequence[Row]) -> Report:
    del setup
    table: list[Row] = [
        {"α": a} | {f"c = {row['c']}": row["gamma"][row["alpha"].index(a)] for row in rows} for a in SHOWN
    ]
    in_alpha = all(bool(np.all(np.diff(row["gamma"]) >= 0) and row["gamma"][-1] > row["gamma"][0]) for row in rows)
    in_cost = (
        bool(np.all(np.diff([row["gamma"] for row in rows], axis=0) <= 0)) and rows[0]["gamma"] != rows[-1]["gamma"]
    )
    ends = lambda place: ", ".join(f"{row['gamma'][place]} at c = {row['c']}" for row in rows)
    checks = [
        holds("the best γ rises with α", in_alpha, f"from {ends(0)} (α {ALPHAS[0]}) to {ends(-1)} (α {ALPHAS[-1]})"),
        holds("the best γ falls with c", in_cost, f"at every α; at α {ALPHAS[-1]}: {ends(-1)}"),
    ]
    notes = [FREE.format(what="c"), "the γ of greatest theorem 3.8 among 0 .. 64, in float64"]
    return Report(
        "Figure 3: the best γ", published.FIGURE_3_SOURCE, table, checks, notes, partial(drawing.best_gamma, rows=rows)
    )


# --- figure 4 --------------------------------------------------------------------------------------------------------


def factor_cases(setup: Setup, items: Items) -> list[Case]:
    del setup, items

    def measure(shelf: Shelf) -> list[Row]:
        del shelf
        a = np.array(ALPHAS)
        return [
            {
                "gamma": gamma, "alpha": list(ALPHAS),
                "speed": np.asarray(theory.walltime_factor(a, gamma, 0)).tolist(),
                "operations": np.asarray(theory.operations_factor(a, gamma, 0)).tolist(),
            }
            for gamma in GAMMAS
        ]  # fmt: skip

    key = {"bench": "reproduce", "experiment": "figure-4", "alphas": ALPHAS, "gammas": GAMMAS}
    return [Case(key, "figure 4", measure)]


def factor_report(setup: Setup, rows: Sequence[Row]) -> Report:
    del setup
    at = lambda row, name, a: row[name][row["alpha"].index(a)]
    table: list[Row] = [
        {"α": a}
        | {f"speed, γ = {row['gamma']}": at(row, "speed", a) for row in rows}
        | {f"operations, γ = {row['gamma']}": at(row, "operations", a) for row in rows}
        for a in SHOWN
    ]
    up = all(bool(np.all(np.diff(row["speed"]) > 0)) for row in rows)
    down = all(bool(np.all(np.diff(row["operations"]) < 0)) for row in rows)
    span = lambda name: "; ".join(f"γ {row['gamma']}: {row[name][0]:.2f} to {row[name][-1]:.2f}" for row in rows)
    ends = f"from α {ALPHAS[0]} to {ALPHAS[-1]}: "
    points = [
        (f"{name} at α {one.alpha}, γ {one.gamma}", getattr(one, name), at(row, name, one.alpha))
        for one in TABLE_1
        for row in rows
        if row["gamma"] == one.gamma
        for name in ("speed", "operations")
    ]
    checks = [
        holds("speed rises with α", up, ends + span("speed")),
        holds("the increase in operations falls with α", down, ends + span("operations")),
        all_within("the curves run through the points of table 1", points, digits=2),
    ]
    notes = [FREE.format(what="γ"), "theorems 3.8 and 3.11 with c = 0; crosses: table 1 as printed"]
    return Report(
        "Figure 4: speed and operations", published.FIGURE_4_SOURCE, table, checks, notes,
        partial(drawing.factors, rows=rows, points=TABLE_1),
    )  # fmt: skip


# --- figure 5 --------------------------------------------------------------------------------------------------------

TASK = "translation"
TRACED = 1  # prompts: the figure shows one request


def trace_cases(setup: Setup, items: Items) -> list[Case]:
    """The longest prompt, greedy, with each gamma and plainly; one case per lane."""
    target = family(setup).targets[ENDE]
    item = max(items[TASK], key=lambda one: len(one.text))

    def measure(shelf: Shelf, gamma: int) -> list[Row]:
        from specjax import drafters
        from specjax.trace import lanes, rounds

        job = work(shelf, setup, target.model, TASK, [item.text])
        drafting = DraftRequest(job.target, TASK, gamma, 0.0, setup)
        drafter = target.drafts[SMALL].make(shelf, drafting) if gamma else drafters.plain()
        options = job.settings | {"temperature": 0.0}
        trace = rounds.record(job.target, job.prompts, drafter, options, repeats=setup.repeats)
        lane = lanes.lane(f"γ = {gamma}" if gamma else "standard", trace)
        return [{
            "gamma": gamma, "lane": lane.name, "tokens": lane.tokens, "target_calls": lane.target_passes,
            "seconds": lane.seconds, "calls": [[call.kind.name, call.start, call.seconds] for call in lane.spans],
        }]  # fmt: skip

    stand = target.drafts[SMALL].name
    return [
        Case(
            setup.key("figure-5", target=target.model, draft=stand, gamma_of=gamma, digest=digest([item])),
            f"γ = {gamma}" if gamma else "standard decoding", partial(measure, gamma=gamma),
        )
        for gamma in (*FIGURE_5_GAMMAS, 0)
    ]  # fmt: skip


def why(rows: Sequence[Row]) -> list[str]:
    """Cost of a draft step and of a verification, in steps of standard decoding."""
    plain = find(rows, gamma=0)
    if plain is None:
        return []
    step = mean(plain, "TARGET")
    return [
        f"{row['lane']}: a draft step takes {mean(row, 'DRAFT') / step:.2f} steps of standard decoding, a verification "
        f"{mean(row, 'TARGET') / step:.2f}, and a round yields {row['tokens'] / row['target_calls']:.2f} tokens"
        for row in rows
        if row["gamma"]
    ]


def mean(row: Row, kind: str) -> float:
    """Mean seconds of a forward pass of this kind."""
    spent = [call[2] for call in row["calls"] if call[0] == kind]
    return sum(spent) / len(spent)


def count(row: Row, kind: str) -> int:
    return sum(call[0] == kind for call in row["calls"])


def trace_report(setup: Setup, rows: Sequence[Row]) -> Report:
    target = family(setup).targets[ENDE]
    table: list[Row] = [
        {
            "lane": row["lane"], "tokens": row["tokens"], "calls of M_p": row["target_calls"],
            "calls of M_q": count(row, "DRAFT"),
            "encoder calls": count(row, "TARGET_PROMPT") + count(row, "DRAFT_PROMPT"), "ms": 1e3 * row["seconds"],
        }
        for row in rows
    ]  # fmt: skip
    notes = [
        *family(setup).paper_notes,
        f"T5-XXL by {target.model}, the draft by {target.drafts[SMALL].name}; one translation, greedy, every round "
        "timed apart (specjax.trace)", *why(rows),
    ]  # fmt: skip
    whole = len(rows) == len(FIGURE_5_GAMMAS) + 1
    draw = partial(drawing.lanes, rows=rows) if rows else None
    return Report(
        "Figure 5: calls on a time axis",
        published.FIGURE_5_SOURCE,
        table,
        trace_checks(rows) if whole else [],
        notes,
        draw,
    )


def trace_checks(rows: Sequence[Row]) -> list[ClaimCheck]:
    lane = [find(rows, gamma=gamma) for gamma in (*FIGURE_5_GAMMAS, 0)]
    seven, three, plain = (one or {} for one in lane)
    drafted = [row for row in rows if row["gamma"]]
    before = all(count(row, "DRAFT") == row["gamma"] * row["target_calls"] for row in drafted)
    calls = [row["target_calls"] for row in (seven, three, plain)]
    times = [1e3 * row["seconds"] for row in (seven, three, plain)]
    read = all(count(row, "TARGET_PROMPT") == 1 and count(row, "DRAFT_PROMPT") == bool(row["gamma"]) for row in rows)
    said = "γ 7 {:.4g}, γ 3 {:.4g}, standard {:.4g}"
    return [
        holds(
            "each call of M_p is preceded by γ calls of M_q", before,
            "; ".join(f"{row['lane']}: {count(row, 'DRAFT')} for {row['target_calls']}" for row in drafted),
        ),
        holds("the encoders of M_p and M_q are called once each, before", read, "M_q's where there is one"),
        holds("M_p is called less with a longer draft", calls[0] <= calls[1] < calls[2], said.format(*calls)),
        holds(
            "both speculative lanes are shorter than standard decoding", max(times[:2]) < times[2],
            said.format(*times) + " ms",
        ),
    ]  # fmt: skip


EXPERIMENTS = {
    "figure-3": Experiment("the best gamma by alpha and c", published.FIGURE_3_SOURCE, (), best_cases, best_report),
    "figure-4": Experiment(
        "speed and operations by alpha and gamma", published.FIGURE_4_SOURCE, (), factor_cases, factor_report
    ),
    "figure-5": Experiment(
        "a trace diagram: gamma 7, gamma 3, standard decoding", published.FIGURE_5_SOURCE, (TASK,), trace_cases,
        trace_report,
    ),
}  # fmt: skip
