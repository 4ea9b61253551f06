"""Tables 1, 2 and 3 of Leviathan et al. 2023: theory, speed on two tasks, acceptance of n-gram drafts."""

from collections.abc import Sequence

from specjax import theory
from specjax.bench.record import Case, Row, Shelf
from specjax.bench.tasks import digest
from specjax.reproduce import published
from specjax.reproduce.checks import ClaimCheck, Estimate, Pair, all_within, each_greater, near
from specjax.reproduce.measuring import accepted, alpha, busy, find, sped, speed, work
from specjax.reproduce.models import NO_GPT, DraftRequest, Target, family
from specjax.reproduce.published import (
    BASE,
    BIGRAM,
    CNNDM,
    DRAFTS,
    ENDE,
    LARGE,
    SMALL,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    UNIGRAM,
    Acceptance,
    Speed,
)
from specjax.reproduce.published import TASKS as TASK_NAMES
from specjax.reproduce.setup import Experiment, Items, Report, Setup

TEMPERATURES = (0.0, 1.0)
TWO = ("translation", "summarization")
THREE = (*TWO, "story")
ALONE = 1  # gamma of table 3: a round then tests one token, at places that no earlier acceptance has chosen

# --- table 1 ---------------------------------------------------------------------------------------------------------


def theory_cases(setup: Setup, items: Items) -> list[Case]:
    """Closed forms in float64."""
    del items

    def measure(shelf: Shelf) -> list[Row]:
        del shelf
        return [
            {
                "alpha": one.alpha, "gamma": one.gamma,
                "operations": float(theory.operations_factor(one.alpha, one.gamma, 0)),
                "speed": float(theory.walltime_factor(one.alpha, one.gamma, 0)),
            }
            for one in TABLE_1
        ]  # fmt: skip

    return [Case({"bench": "reproduce", "experiment": "table-1"}, "table 1", measure)]


def theory_report(setup: Setup, rows: Sequence[Row]) -> Report:
    del setup
    table, speeds, operations = [], [], []
    for one in TABLE_1:
        row = find(rows, alpha=one.alpha, gamma=one.gamma)
        if row is None:
            continue
        name = f"α {one.alpha}, γ {one.gamma}"
        table.append({
            "α": one.alpha, "γ": one.gamma, "operations": one.operations, "operations here": row["operations"],
            "speed": one.speed, "speed here": row["speed"],
        })  # fmt: skip
        operations.append((name, one.operations, row["operations"]))
        speeds.append((name, one.speed, row["speed"]))
    checks = [
        all_within("operations to their printed digits", operations, digits=2),
        all_within("speed to its printed digits", speeds, digits=2),
    ]
    notes = ["theorems 3.8 and 3.11 with c = 0 of time and of operations, in float64: specjax.theory"]
    return Report("Table 1: operations and speed, c = 0", published.TABLE_1_SOURCE, table, checks, notes)


# --- table 2 ---------------------------------------------------------------------------------------------------------


def speed_case(setup: Setup, items: Items, one: Speed) -> Case:
    target = family(setup).targets[one.task]
    stand = target.drafts[one.draft]

    def measure(shelf: Shelf) -> list[Row]:
        job = work(shelf, setup, target.model, target.task, [item.text for item in items[target.task]])
        drafting = DraftRequest(job.target, target.task, one.gamma, float(one.temperature), setup)
        row = sped(shelf, setup, job, stand, drafting)
        return [row | {"task": one.task, "draft": one.draft, "temperature": one.temperature}]

    told = f"{one.task}, {one.draft}, T={one.temperature:g}"
    key = setup.key(
        "table-2", task=one.task, target=target.model, draft=stand.name, of=one.draft, temperature=one.temperature,
        gamma_of=one.gamma, digest=digest(items[target.task]),
    )  # fmt: skip
    return Case(key, told, measure)


def speed_cases(setup: Setup, items: Items) -> list[Case]:
    return [speed_case(setup, items, one) for one in TABLE_2]


def expected(row: Row) -> float:
    """Speed-up by theorem 3.8 with the measured alpha and costs."""
    seen = alpha(row).value
    assert seen is not None
    spent = row["costs"]
    factor = theory.walltime_factor(min(seen, 1.0), row["gamma"], spent["c"], verify_cost=spent["verify_cost"])
    return float(factor)


def speed_report(setup: Setup, rows: Sequence[Row]) -> Report:
    row = {one: find(rows, task=one.task, draft=one.draft, temperature=one.temperature) for one in TABLE_2}
    table = []
    for one, found in row.items():
        table.append({
            "task": one.task, "M_q": one.draft, "T": one.temperature, "γ": one.gamma,
            "α": one.alpha, "α here": alpha(found).value, "speed": one.speed, "speed here": speed(found).value,
            "c here": found["costs"]["c"] if found else None,
            "verify": found["costs"]["verify_cost"] if found else None,
            "by theory": expected(found) if found else None,
        })  # fmt: skip
    notes = [*family(setup).paper_notes, *stand_ins(setup), *speed_notes(row), *busy(rows)]
    return Report(
        "Table 2: translation and summarization, three drafts", published.TABLE_2_SOURCE, table, speed_checks(row),
        notes,
    )  # fmt: skip


def speed_checks(row: dict[Speed, Row | None]) -> list[ClaimCheck]:
    def of(task: str, draft: str, temperature: float) -> Row | None:
        return next(
            row for one, row in row.items() if (one.task, one.draft, one.temperature) == (task, draft, temperature)
        )

    groups = [(task, temperature) for task in TASK_NAMES for temperature in TEMPERATURES]
    sizes = [
        Pair(f"{task}, T={t:g}, {a} against {b}:", alpha(of(task, a, t)), alpha(of(task, b, t)))
        for task, t in groups
        for a, b in ((BASE, SMALL), (LARGE, BASE))
    ]
    each = [(task, draft) for task in TASK_NAMES for draft in DRAFTS]
    cold = [Pair(f"{k}, {d}:", alpha(of(k, d, 0.0)), alpha(of(k, d, 1.0))) for k, d in each]
    cold_speed = [Pair(f"{k}, {d}:", speed(of(k, d, 0.0)), speed(of(k, d, 1.0))) for k, d in each]
    fastest = [
        Pair(f"{k}, T={t:g}, {SMALL} against {d}:", speed(of(k, SMALL, t)), speed(of(k, d, t)))
        for k, t in groups
        for d in (BASE, LARGE)
    ]
    tasks = [
        Pair(f"{d}, T={t:g}:", alpha(of(ENDE, d, t)), alpha(of(CNNDM, d, t))) for d in DRAFTS for t in TEMPERATURES
    ]
    pays = [Pair(f"{o.task}, {o.draft}, T={o.temperature:g}:", speed(found), Estimate(1.0)) for o, found in row.items()]
    theorem = [
        (f"{o.task}, {o.draft}, T={o.temperature:g}", expected(found), speed(found))
        for o, found in row.items()
        if found is not None
    ]
    return [
        each_greater("α rises with the draft's size", sizes),
        each_greater("α is higher at temperature 0 than at 1", cold),
        each_greater("α is higher in translation than in summarization", tasks),
        each_greater("speculation pays (speed above 1)", pays),
        each_greater("the smallest draft is the fastest", fastest),
        each_greater("speed is higher at temperature 0 than at 1", cold_speed),
        near(
            "speed is what theorem 3.8 says of α, γ and the costs (within a factor of 1.25)",
            theorem,
            factor=1.25,
            there="by theory",
            because="speed includes reading the prompt, which speculation does not shorten and the theorem leaves out",
        ),
    ]


def stand_ins(setup: Setup) -> list[str]:
    """Stand-ins, one line per target."""
    lines = []
    for name, target in family(setup).targets.items():
        if name in TASK_NAMES:
            drafts = ", ".join(f"{of} by {target.drafts[of].name}" for of in DRAFTS)
            lines.append(f"{name}: T5-XXL by {target.model}; {drafts}")
    return lines


def speed_notes(row: dict[Speed, Row | None]) -> list[str]:
    """Explains the speeds: the speed-up of the measured alpha at the costs that the published numbers imply."""
    seen = [(one, found) for one, found in row.items() if found is not None]
    if not seen:
        return []
    costs = [found["costs"] for _, found in seen]
    implied = [max(float(theory.implied_cost(one.alpha, one.gamma, one.speed)), 0.0) for one in row]
    low, high = min(one["c"] for one in costs), max(one["c"] for one in costs)
    first, last = min(one["verify_cost"] for one in costs), max(one["verify_cost"] for one in costs)
    would = [
        f"{one.task}, {one.draft}, T={one.temperature:g}: "
        f"{float(theory.walltime_factor(min(alpha(found).value or 0.0, 1.0), one.gamma, cost)):.2f}"
        for (one, found), cost in zip(row.items(), implied, strict=True)
        if found is not None
    ]
    return [
        f"c is {low:.2f} to {high:.2f} here, and {min(implied):.2f} to {max(implied):.2f} by the paper's own α, γ and "
        f"speed; a verification costs {first:.2f} to {last:.2f} steps here, and 1 in the paper's model",
        "the α of here at the paper's costs would give: " + "; ".join(would),
    ]


# --- table 3 ---------------------------------------------------------------------------------------------------------


def alpha_case(setup: Setup, items: Items, one: Acceptance, target: Target) -> Case:
    stand = target.drafts[one.draft]

    def measure(shelf: Shelf) -> list[Row]:
        job = work(shelf, setup, target.model, target.task, [item.text for item in items[target.task]])
        drafting = DraftRequest(job.target, target.task, ALONE, one.temperature, setup)
        row = accepted(shelf, job, stand, drafting)
        return [row | {"target": one.target, "draft": one.draft, "temperature": one.temperature}]

    key = setup.key(
        "table-3", of=[one.target, one.draft], target=target.model, draft=stand.name, temperature=one.temperature,
        digest=digest(items[target.task]),
    )  # fmt: skip
    return Case(key, f"{one.target}, {one.draft}, T={one.temperature:g}", measure)


def stand_for(setup: Setup, name: str) -> Target | None:
    """Stand-in for a target of table 3, which has other names for the two tasks of T5."""
    return family(setup).targets.get({published.T5_ENDE: ENDE, published.T5_CNNDM: CNNDM}.get(name, name))


def alpha_cases(setup: Setup, items: Items) -> list[Case]:
    cases = []
    for one in TABLE_3:
        target = stand_for(setup, one.target)
        if target is not None:
            cases.append(alpha_case(setup, items, one, target))
    return cases


def alpha_report(setup: Setup, rows: Sequence[Row]) -> Report:
    row = {one: find(rows, target=one.target, draft=one.draft, temperature=one.temperature) for one in TABLE_3}
    table = []
    for one, found in row.items():
        table.append({
            "M_p": one.target, "M_q": one.draft, "T": one.temperature, "α": one.alpha, "α here": alpha(found).value,
            "tested": found["tested"] if found else None,
        })  # fmt: skip
    none = [name for name in dict.fromkeys(one.target for one in TABLE_3) if stand_for(setup, name) is None]
    notes = [
        *family(setup).paper_notes,
        *(f"nothing stands for {name}" + (f": {NO_GPT}" if name == published.GPT else "") for name in none),
        "unigram and bigram are counted from what the target says about texts of other tasks, "
        f"{len(row)} rows at γ = {ALONE}: the paper counts its training data, of which there is far more",
    ]
    return Report(
        "Table 3: acceptance of unigrams, bigrams and models", published.TABLE_3_SOURCE, table, alpha_checks(row), notes
    )


def alpha_checks(row: dict[Acceptance, Row | None]) -> list[ClaimCheck]:
    of = {(one.target, one.draft, one.temperature): alpha(found) for one, found in row.items()}
    targets = [published.GPT, published.T5_ENDE, published.T5_CNNDM]
    groups = [(name, t) for name in targets for t in TEMPERATURES]
    models = lambda name: [o.draft for o in row if o.target == name and o.temperature == 0 and o.draft not in SIMPLE]
    smallest = {name: models(name)[0] for name in targets}
    order = [(name, t, draft) for name, t in groups for draft in (UNIGRAM, BIGRAM)]
    return [
        each_greater(
            "unigrams and bigrams are accepted now and then (α above 0)",
            [Pair(f"{n}, {d}, T={t:g}:", of[n, d, t], Estimate(0.0)) for n, t, d in order],
        ),
        each_greater(
            "a bigram is accepted more often than a unigram",
            [Pair(f"{n}, T={t:g}:", of[n, BIGRAM, t], of[n, UNIGRAM, t]) for n, t in groups],
        ),
        each_greater(
            "the smallest model is accepted more often than a bigram",
            [Pair(f"{n}, T={t:g}:", of[n, smallest[n], t], of[n, BIGRAM, t]) for n, t in groups],
        ),
        each_greater(
            "larger models are accepted more often",
            [
                Pair(f"{n}, T={t:g}, {b} against {a}:", of[n, b, t], of[n, a, t])
                for n, t in groups
                for a, b in zip(models(n), models(n)[1:], strict=False)
            ],
        ),
        each_greater(
            "models on T5's tasks are accepted more often at temperature 0",
            [
                Pair(f"{n}, {d}:", of[n, d, 0.0], of[n, d, 1.0])
                for n in (published.T5_ENDE, published.T5_CNNDM)
                for d in models(n)
            ],
        ),
        near(
            "α of unigrams and bigrams has the published size (within a factor of 2)",
            [
                (f"{o.target}, {o.draft}, T={o.temperature:g}", o.alpha, of[o.target, o.draft, o.temperature])
                for o in row
                if o.draft in SIMPLE and o.target in targets
            ],
            factor=2.0, because="short texts of few topics, and tables from few of them",
        ),
    ]  # fmt: skip


SIMPLE = (UNIGRAM, BIGRAM)

EXPERIMENTS = {
    "table-1": Experiment("operations and speed in theory", published.TABLE_1_SOURCE, (), theory_cases, theory_report),
    "table-2": Experiment(
        "speed and alpha in translation and summarization, three drafts, T = 0 and 1", published.TABLE_2_SOURCE, TWO,
        speed_cases, speed_report,
    ),
    "table-3": Experiment(
        "alpha of unigrams, bigrams and models", published.TABLE_3_SOURCE, THREE, alpha_cases, alpha_report
    ),
}  # fmt: skip
