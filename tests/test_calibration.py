"""Times of forward passes: measured on this machine, and predicted for a slice."""

import pytest

import specjax as sj
from specjax import calibration, theory
from specjax.planning import roofline
from specjax.planning.request import PlanRequest
from tests import battery


@pytest.mark.slow
def test_times_are_those_that_rounds_took(monkeypatch):
    """Rounds that take 3 ms + 0.2 ms per fed token + 1 us per cached token."""
    exact = theory.StepTime(1e-6, 2e-4, 3e-3)

    def seconds(job):
        rows, fed = len(job.prompt.length), job.drafter.drafter.tree.size
        return float(theory.step_time(exact, rows * int(job.prompt.length[0]), rows * fed))

    monkeypatch.setattr(calibration, "round_seconds", seconds)
    target, draft = battery.target("opt"), battery.draft("opt")
    times = sj.calibrate(target, draft, rows=(1, 2), gamma=2, repeats=1)
    assert times.draft is not None
    for found in times:
        assert found == pytest.approx(exact, rel=1e-6)


def test_planned_times_grow_with_the_work():
    request = PlanRequest("facebook/opt-13b", "facebook/opt-125m", "v5e:2x4", 1, (1, 8), 8, 512, 512, 4, "bfloat16")
    times = roofline.step_times(request)
    plain = roofline.speed(request, 0.8).plain.value
    context, tokens = 8 * roofline.mean_context(request), 8
    assert float(theory.step_time(times.target, context, tokens)) == pytest.approx(plain, rel=0.05)
    assert times.draft is not None and times.draft.constant < times.target.constant


@pytest.mark.parametrize("options", [{"rows": (0,)}, {"gamma": 0}, {"repeats": 0}])
def test_invalid_arguments_raise(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        sj.calibrate(battery.target("opt"), **options)
