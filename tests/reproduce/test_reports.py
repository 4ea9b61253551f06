"""Reports of given rows: published numbers reproduce themselves, mirrored ones do not."""

import copy

import numpy as np
import pytest

from specjax import theory
from specjax.bench import rates
from specjax.bench.record import Shelf
from specjax.reproduce import figures, opt, pairs, paper, report
from specjax.reproduce.checks import ClaimVerdict
from specjax.reproduce.setup import Setup

SETUP = Setup()
MANY = 10**6
SHELF = Shelf("float32", print)


def runs(rates, unit):
    """Two turns of two prompts of programs with these rates, without noise."""
    return {
        name: {key: np.full((2, 2), 100 / rate).tolist() for key in ("seconds", "decode_seconds")}
        | {unit: np.full((2, 2), 100).tolist()}
        for name, rate in rates.items()
    }  # fmt: skip


def alike(alpha, speed, gamma, *, tested=MANY, c=0.0, noise=0.0, plain=1.0):
    """A row with these numbers; its two prompts differ by `noise`."""
    apart = np.array([1 - noise, 1 + noise]) * tested / 2
    counts = {"rounds": [320, 320], "tokens": [640, 640], "tested": [tested / 2] * 2, "drafted": [tested] * 2}
    counts |= {name: (alpha * apart).tolist() for name in ("accepted", "overlap")}
    costs = {"step": 1.0, "verify": 1.0, "round": 1 / (1 + gamma * c), "draft": 1 / max(c, 1e-9)}
    return (
        rates.rate_columns(counts, ["a", "b"])
        | rates.run_columns(runs({"drafted": speed, "plain": 1.0}, "tokens"), "ab")
        | {"gamma": gamma, "costs": rates.run_columns(runs(costs, "rounds"), "ab") | {"gamma": gamma}}
        | {"tokens_per_second": speed * plain, "plain_tokens_per_second": plain}
    )  # fmt: skip


def opt_rows(published, *, turn=lambda x: x):
    base = {rate.target: rate.tokens_per_second for rate in published if not rate.drafts}
    found = []
    for rate in published:
        if not rate.drafts:
            continue
        plain = base[rate.target]
        row = alike(turn(rate.accepted[0]), rate.tokens_per_second / plain, 5, c=0.1, plain=plain) | {"of": rate.name}
        if len(rate.drafts) == 2:
            row["inner"] = alike(rate.accepted[1], 1.0, 5)
            row["predicted"] = {"gammas": [7, 2], "alphas": [0.2, 0.3], "costs": [0.1, 0.1], "two": 1.0, "three": 1.0}
        found.append(row)
    return found


def table_2(turn=lambda x: x, **noise):
    rows = []
    for one in paper.TABLE_2:
        cost = max(float(theory.implied_cost(one.alpha, one.gamma, one.speed)), 0.0)
        speed = 1 / turn(1 / one.speed) if turn(1.0) != 1.0 else one.speed
        row = alike(turn(one.alpha), speed, one.gamma, c=cost, **noise)
        rows.append(row | {"task": one.task, "draft": one.draft, "temperature": one.temperature})
    return rows


def table_3(turn=lambda x: x):
    return [
        alike(turn(one.alpha), 1.0, 1) | {"target": one.target, "draft": one.draft, "temperature": one.temperature}
        for one in paper.TABLE_3
    ]


def verdicts(found):
    return [check.verdict for check in found.checks]


EXPERIMENTS = opt.EXPERIMENTS | paper.EXPERIMENTS | figures.EXPERIMENTS


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("pairs", opt_rows(opt.PAIRS)),
        ("hierarchy", opt_rows(opt.HIERARCHY)),
        ("table-2", table_2()),
        ("table-3", table_3()),
    ],
)
def test_published_numbers_are_reproduced(name, rows):
    found = EXPERIMENTS[name].report(SETUP, rows)
    assert len(found.checks) >= 5 and set(verdicts(found)) == {ClaimVerdict.REPRODUCED}, found.checks


def test_mirrored_numbers_are_not_reproduced():
    mirror = lambda x: 1 - x
    acceptance = [0, 1, 2]  # the checks of table 2 on alpha
    found = paper.speed_report(SETUP, table_2(mirror))
    assert [verdicts(found)[i] for i in acceptance] == [ClaimVerdict.NOT] * 3
    assert ClaimVerdict.REPRODUCED not in verdicts(paper.alpha_report(SETUP, table_3(mirror)))
    assert verdicts(opt.pair_report(SETUP, opt_rows(opt.PAIRS, turn=mirror)))[1:3] == [ClaimVerdict.NOT] * 2


def test_load_is_noted():
    rows = [
        row | {"load": {"drafted": 0.05, "plain": load}}
        for row, load in zip(table_2(), [0.0] * 11 + [0.62], strict=True)
    ]
    assert any("up to 62%" in note for note in paper.speed_report(SETUP, rows).notes)
    assert not any("other programs" in note for note in paper.speed_report(SETUP, rows[:-1]).notes)


def test_prompts_that_differ_leave_claims_open():
    """However many tokens were tested: here a million of each prompt."""
    rows = table_2(noise=0.2)
    for number, row in enumerate(rows):
        row["sample"] = f"prompts {number}"
    assert verdicts(paper.speed_report(SETUP, rows))[0] is ClaimVerdict.OPEN
    paired = table_2(noise=0.002)  # the same prompts in each row
    assert verdicts(paper.speed_report(SETUP, paired))[0] is ClaimVerdict.REPRODUCED


def test_theorem_3_8_can_fail():
    """A round that takes longer than its parts is slower than the theorem."""
    rows = table_2()
    assert verdicts(paper.speed_report(SETUP, rows))[-1] is ClaimVerdict.REPRODUCED
    slow = [row | rates.run_columns(runs({"drafted": 0.5 * rates.speed(row).value, "plain": 1.0}, "tokens"), "ab")
            for row in rows]  # fmt: skip
    assert verdicts(paper.speed_report(SETUP, slow))[-1] is ClaimVerdict.NOT


def test_a_third_level_that_changes_acceptance_is_found():
    def verdict(alpha, **noise):
        *others, last = opt_rows(opt.HIERARCHY)
        changed = alike(alpha, 1.0, 5, **noise)
        rows = [*others, last | {name: changed[name] for name in ("counts", "sample")}]
        return verdicts(opt.hierarchy_report(SETUP, rows))[-1]

    assert verdict(0.19) is ClaimVerdict.REPRODUCED and verdict(0.15) is ClaimVerdict.NOT
    assert verdict(0.19, noise=0.3) is ClaimVerdict.OPEN  # a large error is no evidence


def test_published_costs_contradict_each_other():
    """No three times of a step have these ratios: two of them fix the third, at 1.47 instead of 0.015."""
    steps = {"opt-13b": 1.0, "opt-1.3b": 1 / 0.015, "opt-125m": 1 / 0.022}
    found = opt.cost_report(SETUP, [rates.run_columns(runs(steps, "rounds"), "ab")])
    assert verdicts(found) == [ClaimVerdict.PARTLY, ClaimVerdict.PARTLY, ClaimVerdict.REPRODUCED]
    assert any("1.47" in note for note in found.notes)


def theory_rows(name):
    return [row for case in EXPERIMENTS[name].cases(SETUP, {}) for row in case.measure(SHELF)]


@pytest.mark.parametrize("name", ["table-1", "figure-4"])
def test_theory_is_reproduced(name):
    found = EXPERIMENTS[name].report(SETUP, theory_rows(name))
    assert set(verdicts(found)) == {ClaimVerdict.REPRODUCED} and found.table


def test_figure_3_claims_nothing():
    found = EXPERIMENTS["figure-3"].report(SETUP, theory_rows("figure-3"))
    assert found.table and not found.checks


def test_wrong_theory_is_detected():
    rows = copy.deepcopy(theory_rows("table-1"))
    rows[2]["speed"] += 0.02
    assert verdicts(paper.trade_report(SETUP, rows)) == [ClaimVerdict.REPRODUCED, ClaimVerdict.PARTLY]
    rows = copy.deepcopy(theory_rows("figure-4"))
    rows[0]["operations"] = [value + 0.05 for value in rows[0]["operations"]]
    assert verdicts(figures.factor_report(SETUP, rows)) == [ClaimVerdict.PARTLY]


def lane(gamma, rounds, step):
    calls = [["TARGET_PROMPT", 0.0, step]] + ([["DRAFT_PROMPT", step, step]] if gamma else [])
    now = step * len(calls)
    for _ in range(rounds):
        for kind in ["DRAFT"] * gamma + ["TARGET"]:
            calls.append([kind, now, step])
            now += step
    return {"gamma": gamma, "lane": f"γ = {gamma}", "tokens": 9, "target_calls": rounds, "seconds": now, "calls": calls}


def test_trace_diagram():
    found = figures.trace_report(SETUP, [lane(7, 2, 0.1), lane(3, 3, 0.1), lane(0, 30, 1.0)])
    assert set(verdicts(found)) == {ClaimVerdict.REPRODUCED}
    slow = figures.trace_report(SETUP, [lane(7, 20, 1.0), lane(3, 10, 1.0), lane(0, 9, 0.1)])
    assert verdicts(slow) == [ClaimVerdict.NOT, ClaimVerdict.NOT]
    equal = figures.trace_report(SETUP, [lane(7, 3, 0.1), lane(3, 3, 0.1), lane(0, 30, 1.0)])
    assert verdicts(equal)[0] is ClaimVerdict.NOT  # as many calls are not fewer
    assert figures.trace_report(SETUP, [lane(7, 2, 0.1)]).checks == []


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_rows_no_verdicts(name):
    if name in ("table-1", "figure-3", "figure-4"):
        return
    found = EXPERIMENTS[name].report(SETUP, [])
    assert set(verdicts(found)) <= {ClaimVerdict.UNMEASURED} and found.notes


def test_stand_ins():
    """Every published draft has a stand-in, or a note that there is none; originals have known sizes."""
    for family in (pairs.BUNDLED, pairs.ORIGINAL):
        assert set(family.opt) == {"opt-13b", "opt-1.3b", "opt-125m"}
        for task in set(paper.TASKS) & set(family.targets):
            assert set(family.targets[task].drafts) == {*paper.DRAFTS, pairs.UNIGRAM, pairs.BIGRAM}
    named = {*pairs.ORIGINAL.opt.values(), *(target.model for target in pairs.ORIGINAL.targets.values())}
    assert named <= set(pairs.ORIGINAL.sizes)
    assert any("CNN/DM: not measured" in note for note in paper.speed_report(SETUP, []).notes)
    original = paper.alpha_report(Setup(models="original"), [])
    assert any("LaMDA" in note for note in original.notes) and any("never published" in note for note in original.notes)


def test_markdown():
    experiment = EXPERIMENTS["table-1"]
    found = experiment.report(SETUP, theory_rows("table-1"))
    text = report.as_markdown(experiment.title, experiment.source, found, "table_1.svg")
    assert text.startswith("## Table 1") and "![" in text and "| reproduced |" in text and "- theorems 3.8" in text
    assert report.cell(None) == "–" and report.cell(2535.4) == "2535" and report.cell(0.0151) == "0.0151"
    assert report.summary(found.checks) == "2 reproduced"


def test_greedy_texts_that_repeat_themselves_are_named():
    rows = [{"temperature": 0.0, "repetition": 0.12}, {"temperature": 0.0, "repetition": 0.31}]
    (note,) = report.conditions([*rows, {"temperature": 1.0, "repetition": 0.9}, {"temperature": 0.0}])
    assert "12%" in note and "31%" in note and "90%" not in note
    assert not report.conditions([{"temperature": 1.0, "repetition": 0.9}])
