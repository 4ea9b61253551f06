"""Consistency of the published numbers, which a misprint would break."""

import pytest

from specjax import theory
from specjax.reproduce import opt
from specjax.reproduce import paper as p


def test_table_1_follows_the_formulas():
    for one in p.TABLE_1:
        assert one.speed == round(float(theory.walltime_factor(one.alpha, one.gamma, 0)), 2)
        assert one.operations == round(float(theory.operations_factor(one.alpha, one.gamma, 0)), 2)


def test_table_2_is_complete_and_consistent_with_table_3():
    """Twelve rows; table 3 prints the same alphas of the same models."""
    assert {(one.task, one.draft, one.temperature) for one in p.TABLE_2} == {
        (task, draft, t) for task in p.TASKS for draft in p.DRAFTS for t in (0, 1)
    }
    names = {p.ENDE: p.T5_ENDE, p.CNNDM: p.T5_CNNDM}
    third = {(one.target, one.draft, one.temperature): one.alpha for one in p.TABLE_3}
    for one in p.TABLE_2:
        assert third[names[one.task], one.draft, one.temperature] == one.alpha


def test_table_3_is_complete():
    counts = {name: sum(one.target == name for one in p.TABLE_3) for name in (p.GPT, p.T5_ENDE, p.T5_CNNDM, p.LAMDA)}
    assert counts == {p.GPT: 6, p.T5_ENDE: 10, p.T5_CNNDM: 10, p.LAMDA: 6} and len(p.TABLE_3) == 32
    assert all(0 < one.alpha < 1 for one in p.TABLE_3)


def test_tables_of_the_report_agree():
    assert set(opt.PAIRS[:3]) == set(opt.HIERARCHY[:3])
    assert [len(rate.accepted) for rate in opt.HIERARCHY] == [0, 1, 1, 2]


def test_implied_costs_of_table_2():
    """Negative for four rows, as in docs/concepts/theory.md: they are above the formula with a free draft."""
    costs = [float(theory.implied_cost(one.alpha, one.gamma, one.speed)) for one in p.TABLE_2]
    assert sum(cost < 0 for cost in costs) == 4 and max(costs) == pytest.approx(0.279, abs=1e-3)
