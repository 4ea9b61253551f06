"""Tables 1, 2 and 3 of Leviathan et al. 2023: theory, speed on two tasks, acceptance of n-gram drafts."""

from collections.abc import Sequence
from typing import NamedTuple

from specjax import theory
from specjax.bench import rates
from specjax.bench.rates import alpha, decode_speed, speed
from specjax.bench.record import Case, Row
from specjax.estimates import MISSING, Estimate, combine
from specjax.reproduce.checks import ONE, ClaimCheck, Pair, all_within, each_greater, near
from specjax.reproduce.pairs import (
    BASE,
    BIGRAM,
    CNNDM,
    ENDE,
    GPT,
    LARGE,
    SMALL,
    UNIGRAM,
    PairRun,
    Target,
    family,
    pair_case,
)  # fmt: skip
from specjax.reproduce.report import Report, conditions, find, shown
from specjax.reproduce.setup import Experiment, Items, Setup, computed

PAPER = "Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding (arXiv 2211.17192)"
TASKS = (ENDE, CNNDM)
DRAFTS = (SMALL, BASE, LARGE)
TEMPERATURES = (0.0, 1.0)

# --- table 1 ---------------------------------------------------------------------------------------------------------


class Trade(NamedTuple):
    """Factors over plain decoding, for c = 0, as printed, to two decimals."""

    alpha: float
    gamma: int
    operations: float
    speed: float


TABLE_1 = (
    Trade(0.6, 2, 1.53, 1.96), Trade(0.7, 3, 1.58, 2.53), Trade(0.8, 2, 1.23, 2.44), Trade(0.8, 5, 1.63, 3.69),
    Trade(0.9, 2, 1.11, 2.71), Trade(0.9, 10, 1.60, 6.86),
)  # fmt: skip


def trades() -> list[Row]:
    """Closed forms in float64."""
    factors = {"operations": theory.operations_factor, "speed": theory.walltime_factor}
    return [
        {"alpha": one.alpha, "gamma": one.gamma}
        | {name: float(factor(one.alpha, one.gamma, 0)) for name, factor in factors.items()}
        for one in TABLE_1
    ]


def trade_report(setup: Setup, rows: Sequence[Row]) -> Report:
    del setup
    table: list[Row] = [
        {
            "α": one.alpha, "γ": one.gamma, "operations": one.operations, "operations here": row["operations"],
            "speed": one.speed, "speed here": row["speed"],
        }
        for one, row in zip(TABLE_1, rows, strict=True)
    ]  # fmt: skip
    checks = [
        all_within(
            f"{name} to {'their' if name == 'operations' else 'its'} printed digits",
            [(f"α {line['α']}, γ {line['γ']}", line[name], line[f"{name} here"]) for line in table],
            digits=2,
        )
        for name in ("operations", "speed")
    ]
    notes = ["theorems 3.8 and 3.11 with c = 0 of time and of operations, in float64: specjax.theory"]
    return Report(table, checks, notes)


# --- table 2 ---------------------------------------------------------------------------------------------------------


class Speed(NamedTuple):
    """T5-XXL, measured."""

    task: str
    draft: str
    temperature: float
    gamma: int
    alpha: float
    speed: float

    @property
    def name(self) -> str:
        return f"{self.task}, {self.draft}, T={self.temperature:g}"


TABLE_2 = (
    Speed(ENDE, SMALL, 0.0, 7, 0.75, 3.4),
    Speed(ENDE, BASE, 0.0, 7, 0.80, 2.8),
    Speed(ENDE, LARGE, 0.0, 7, 0.82, 1.7),
    Speed(ENDE, SMALL, 1.0, 7, 0.62, 2.6),
    Speed(ENDE, BASE, 1.0, 5, 0.68, 2.4),
    Speed(ENDE, LARGE, 1.0, 3, 0.71, 1.4),
    Speed(CNNDM, SMALL, 0.0, 5, 0.65, 3.1),
    Speed(CNNDM, BASE, 0.0, 5, 0.73, 3.0),
    Speed(CNNDM, LARGE, 0.0, 3, 0.74, 2.2),
    Speed(CNNDM, SMALL, 1.0, 5, 0.53, 2.3),
    Speed(CNNDM, BASE, 1.0, 3, 0.55, 2.2),
    Speed(CNNDM, LARGE, 1.0, 3, 0.56, 1.7),
)


def speed_cases(setup: Setup, items: Items) -> list[Case]:
    targets = family(setup).targets
    return [
        pair_case(
            setup, items, targets[one.task], targets[one.task].drafts[one.draft], PairRun.speed, title=one.name,
            experiment="table-2", gamma=one.gamma, temperature=one.temperature,
            named={"task": one.task, "draft": one.draft, "temperature": one.temperature},
        )
        for one in TABLE_2
        if one.task in targets
    ]  # fmt: skip


def by_theory(row: Row | None) -> Estimate:
    """Speed-up of decoding by theorem 3.8 with the measured alpha and costs."""
    if row is None:
        return MISSING
    costs, gamma = row["costs"], row["gamma"]
    factor = lambda a, c, v: float(theory.walltime_factor(min(a, 1.0), gamma, max(c, 0.0), verify_cost=v))
    return combine(factor, alpha(row), rates.draft_cost(costs), rates.cost(costs, "verify"))


def speed_report(setup: Setup, rows: Sequence[Row]) -> Report:
    row = {one: find(rows, task=one.task, draft=one.draft, temperature=one.temperature) for one in TABLE_2}
    table = [
        {
            "task": one.task, "M_q": one.draft, "T": one.temperature, "γ": one.gamma,
            "α": one.alpha, "α here": shown(alpha(found)), "speed": one.speed, "speed here": shown(speed(found)),
            "c here": shown(rates.draft_cost(found["costs"])) if found else None,
            "verify": shown(rates.cost(found["costs"], "verify")) if found else None,
            "decoding": shown(decode_speed(found)), "by theory": shown(by_theory(found)),
        }
        for one, found in row.items()
    ]  # fmt: skip
    notes = [*t5_notes(setup), *stand_ins(setup), *untrained(setup), *speed_notes(row), *conditions(rows)]
    return Report(table, speed_checks(row), notes)


def t5_notes(setup: Setup) -> tuple[str, ...]:
    return family(setup).notes + family(setup).about_t5


def stand_ins(setup: Setup) -> list[str]:
    """Stand-ins, one line per target."""
    targets = {name: target for name, target in family(setup).targets.items() if name in TASKS}
    named = lambda target: ", ".join(f"{of} by {target.drafts[of].name}" for of in DRAFTS)
    return [f"{name}: T5-XXL by {target.model}; {named(target)}" for name, target in targets.items()]


def untrained(setup: Setup) -> list[str]:
    """A note for each task that no pair was trained on."""
    return [
        f"{name}: not measured, no bundled pair was trained on it"
        for name in TASKS
        if name not in family(setup).targets
    ]


def speed_checks(row: dict[Speed, Row | None]) -> list[ClaimCheck]:
    places = {one: (one.task, one.draft, one.temperature) for one in row}
    a = {places[one]: alpha(found) for one, found in row.items()}
    s = {places[one]: speed(found) for one, found in row.items()}
    groups = [(task, t) for task in TASKS for t in TEMPERATURES]
    cold = lambda of: [Pair(f"{k}, {d}:", of[k, d, 0.0], of[k, d, 1.0]) for k in TASKS for d in DRAFTS]
    versus = lambda of, pairs: [
        Pair(f"{k}, T={t:g}, {one} against {other}:", of[k, one, t], of[k, other, t])
        for k, t in groups
        for one, other in pairs
    ]
    tasks = [Pair(f"{d}, T={t:g}:", a[ENDE, d, t], a[CNNDM, d, t]) for d in DRAFTS for t in TEMPERATURES]
    theorem = [(one.name, by_theory(found), decode_speed(found)) for one, found in row.items()]
    return [
        each_greater("α rises with the draft's size", versus(a, [(BASE, SMALL), (LARGE, BASE)])),
        each_greater("α is higher at temperature 0 than at 1", cold(a)),
        each_greater("α is higher in translation than in summarization", tasks),
        each_greater("speculation pays (speed above 1)", [Pair(f"{o.name}:", s[places[o]], ONE) for o in row]),
        each_greater("the smallest draft is the fastest", versus(s, [(SMALL, BASE), (SMALL, LARGE)])),
        each_greater("speed is higher at temperature 0 than at 1", cold(s)),
        near(
            "decoding follows theorem 3.8 with the measured α, c and verification (within a factor of 1.25)", theorem,
            factor=1.25, there="by theory",
            because="the theorem takes all places as equally easy, and leaves out the fixed costs of a round",
        ),
    ]  # fmt: skip


def speed_notes(row: dict[Speed, Row | None]) -> list[str]:
    """Explains the speeds: the speed-up of the measured alpha at the costs that the published numbers imply."""
    costs = [found["costs"] for found in row.values() if found is not None]
    if not costs:
        return []
    implied = {one: max(float(theory.implied_cost(one.alpha, one.gamma, one.speed)), 0.0) for one in row}
    ends = lambda values: f"{min(values):.2f} to {max(values):.2f}"
    would = [
        f"{one.name}: {float(theory.walltime_factor(min(alpha(found).value, 1.0), one.gamma, implied[one])):.2f}"
        for one, found in row.items()
        if found is not None
    ]
    return [
        f"c is {ends([rates.draft_cost(one).value for one in costs])} here, and {ends(implied.values())} by the "
        f"paper's own α, γ and speed; a verification costs {ends([rates.cost(one, 'verify').value for one in costs])} "
        "steps here, and 1 in the paper's model",
        "the measured α at the paper's costs would give: " + "; ".join(would),
    ]


# --- table 3 ---------------------------------------------------------------------------------------------------------

T5_ENDE, T5_CNNDM, LAMDA = "T5-XXL (EnDe)", "T5-XXL (CNN/DM)", "LaMDA (137B)"
SIMPLE = (UNIGRAM, BIGRAM)
ALONE = 1  # gamma: one token is drafted after each token of the target's text
WHY_NONE = {
    GPT: "the GPT-like models of table 3 (97M, 6M) were never published", LAMDA: "LaMDA was never published"
}  # fmt: skip


class Acceptance(NamedTuple):
    """Alpha without speed."""

    target: str
    draft: str
    temperature: float
    alpha: float

    @property
    def name(self) -> str:
        return f"{self.target}, {self.draft}, T={self.temperature:g}"


TABLE_3 = tuple(
    Acceptance(target, draft, temperature, both[int(temperature)])
    for target, rows in {
        GPT: {UNIGRAM: (0.03, 0.03), BIGRAM: (0.05, 0.05), "GPT-like (6M)": (0.88, 0.89)},
        T5_ENDE: {
            UNIGRAM: (0.08, 0.07), BIGRAM: (0.20, 0.19), SMALL: (0.75, 0.62), BASE: (0.80, 0.68), LARGE: (0.82, 0.71),
        },
        T5_CNNDM: {
            UNIGRAM: (0.13, 0.08), BIGRAM: (0.23, 0.16), SMALL: (0.65, 0.53), BASE: (0.73, 0.55), LARGE: (0.74, 0.56),
        },
        LAMDA: {"LaMDA (100M)": (0.61, 0.57), "LaMDA (2B)": (0.71, 0.71), "LaMDA (8B)": (0.75, 0.74)},
    }.items()
    for temperature in TEMPERATURES
    for draft, both in rows.items()
)  # fmt: skip


def stand_for(setup: Setup, name: str) -> Target | None:
    """Stand-in for a target of table 3, which has other names for the two tasks of T5."""
    return family(setup).targets.get({T5_ENDE: ENDE, T5_CNNDM: CNNDM}.get(name, name))


def alpha_cases(setup: Setup, items: Items) -> list[Case]:
    return [
        pair_case(
            setup, items, target, target.drafts[one.draft], PairRun.acceptance, title=one.name, experiment="table-3",
            gamma=ALONE, temperature=one.temperature,
            named={"target": one.target, "draft": one.draft, "temperature": one.temperature},
        )
        for one in TABLE_3
        if (target := stand_for(setup, one.target)) is not None
    ]  # fmt: skip


def alpha_report(setup: Setup, rows: Sequence[Row]) -> Report:
    row = {one: find(rows, target=one.target, draft=one.draft, temperature=one.temperature) for one in TABLE_3}
    table = [
        {
            "M_p": one.target, "M_q": one.draft, "T": one.temperature, "α": one.alpha, "α here": shown(alpha(found)),
            "places": found["tested"] if found else None,
        }
        for one, found in row.items()
    ]  # fmt: skip
    none = [name for name in dict.fromkeys(one.target for one in TABLE_3) if stand_for(setup, name) is None]
    notes = [
        *t5_notes(setup),
        *(f"{name}: not measured, {WHY_NONE.get(name, 'no pair was trained on it')}" for name in none),
        "α is the mean overlap of p and q over all places of texts of the target",
        "unigram and bigram are counted from samples of the target on texts of other tasks, "
        f"{len(row)} rows at γ = {ALONE}: the paper counts its training data, of which there is far more",
    ]
    return Report(table, alpha_checks({one: alpha(found) for one, found in row.items()}), notes)


def alpha_checks(found: dict[Acceptance, Estimate]) -> list[ClaimCheck]:
    of = {(one.target, one.draft, one.temperature): value for one, value in found.items()}
    targets = (GPT, T5_ENDE, T5_CNNDM)
    groups = [(name, t) for name in targets for t in TEMPERATURES]
    models = {
        n: [o.draft for o in found if (o.target, o.temperature) == (n, 0) and o.draft not in SIMPLE] for n in targets
    }
    return [
        each_greater(
            "a bigram is accepted more often than a unigram",
            [Pair(f"{n}, T={t:g}:", of[n, BIGRAM, t], of[n, UNIGRAM, t]) for n, t in groups],
        ),
        each_greater(
            "the smallest model is accepted more often than a bigram",
            [Pair(f"{n}, T={t:g}:", of[n, models[n][0], t], of[n, BIGRAM, t]) for n, t in groups],
        ),
        each_greater(
            "larger models are accepted more often",
            [
                Pair(f"{n}, T={t:g}, {b} against {a}:", of[n, b, t], of[n, a, t])
                for n, t in groups
                for a, b in zip(models[n], models[n][1:], strict=False)
            ],
        ),
        each_greater(
            "models on T5's tasks are accepted more often at temperature 0",
            [Pair(f"{n}, {d}:", of[n, d, 0.0], of[n, d, 1.0]) for n in (T5_ENDE, T5_CNNDM) for d in models[n]],
        ),
        near(
            "α of unigrams and bigrams has the published size (within a factor of 2)",
            [(o.name, Estimate(o.alpha), value) for o, value in found.items() if o.draft in SIMPLE],
            factor=2.0, because="short texts of few topics, and tables from few of them",
        ),
    ]  # fmt: skip


EXPERIMENTS = {
    "table-1": Experiment(
        "Table 1: operations and speed, c = 0", f"{PAPER}, table 1", (), computed("table-1", trades), trade_report
    ),
    "table-2": Experiment(
        "Table 2: translation and summarization, three drafts", f"{PAPER}, table 2", ("translation", "summarization"),
        speed_cases, speed_report,
    ),
    "table-3": Experiment(
        "Table 3: acceptance of unigrams, bigrams and models", f"{PAPER}, table 3",
        ("translation", "summarization", "story"), alpha_cases, alpha_report,
    ),
}  # fmt: skip
