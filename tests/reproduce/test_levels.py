"""When three levels pay: the theory at clear cases, and verdicts of given rows."""

import itertools

import pytest

from specjax import theory
from specjax.reproduce import levels, opt
from specjax.reproduce.checks import ClaimVerdict
from specjax.reproduce.levels import Costs
from specjax.reproduce.setup import Setup

SETUP = Setup(shapes="real", dtype="bfloat16")
CHEAP, DEAR = Costs(0.1, 0.01, 0.0), Costs(0.5, 0.4, 0.0)


def test_three_levels_pay_where_a_cheap_model_drafts_well_for_a_good_one():
    assert levels.gain((0.9, 0.6), CHEAP) > 1.05
    assert levels.gain((0.9, 0.6), DEAR) < 1
    assert levels.gain((0.2, 0.3), CHEAP) < 1


def test_free_verification_is_the_published_theory():
    best = levels.three_levels((0.8, 0.7), CHEAP)
    known = theory.best_cascade([0.8, 0.7], [0.1, 0.01], gamma_max=levels.OUTER, gamma_min=(1, 1))
    assert best.factor == pytest.approx(known.factor)
    two = levels.two_levels(0.8, 0.1, CHEAP)
    assert two.factor == pytest.approx(float(theory.walltime_factor(0.8, two.gammas[0], 0.1)))


def rows(three):
    """Rows of both groups: two levels at 1, three at `three[group]`."""
    found = []
    for group, drafts in itertools.product(levels.groups(SETUP), (opt.DRAFTS[:1], opt.DRAFTS[1:], opt.DRAFTS)):
        speed = three[group] if len(drafts) == 2 else 1.0
        names = ("speedup", "speedup_with_prompt", "closed_form")
        numbers = dict.fromkeys(names, speed) | {"verify": 1.2, "overhead": 0.0}
        numbers |= {f"c {draft}": cost for draft, cost in zip(opt.DRAFTS, (0.4, 0.05), strict=True) if draft in drafts}
        turns = {name: [value, value * 1.001] for name, value in numbers.items()}
        found.append(numbers | {
            "target": "opt-2.7b", "draft": " > ".join(drafts), "alpha": "0.5", "dtype": "bfloat16", "step_ms": 400.0,
            "of": f"{group}: {', '.join(drafts)}", "published": 0.0, "turns": turns, "load": {"requests": 0.0},
            "columns": {"acceptance": group, "drafts": ", ".join(drafts), "γ": "4", "α": [0.5]},
        })  # fmt: skip
    return found


@pytest.mark.slow
def test_verdicts_follow_the_speeds():
    as_claimed = levels.report(SETUP, rows({"published": 0.5, "paying": 1.5}))
    assert [check.verdict for check in as_claimed.checks] == [ClaimVerdict.REPRODUCED] * 3
    mirrored = levels.report(SETUP, rows({"published": 1.5, "paying": 0.5}))
    assert [check.verdict for check in mirrored.checks[:2]] == [ClaimVerdict.NOT] * 2
    assert any("opt-13b (extrapolated)" in note for note in as_claimed.notes)


def test_costs_are_those_of_the_rows():
    found = levels.measured_costs(rows({"published": 1.0, "paying": 1.0}), "opt-2.7b")
    assert found is not None and tuple(found) == pytest.approx((0.4, 0.05, 0.05))
