"""Published tables at real size: runs on tiny shapes under the published names, extrapolation, and verdicts."""

import dataclasses

import pytest

from specjax import theory
from specjax.bench import shapes as bench
from specjax.bench.record import Shelf
from specjax.models import opt, t5_config
from specjax.reproduce import shapes
from specjax.reproduce.checks import ClaimVerdict
from specjax.reproduce.paper import TABLE_2
from specjax.reproduce.setup import OPT_SHAPES, T5_SHAPES, Setup
from tests import battery

SETUP = Setup(shapes="real", max_new_tokens=16, repeats=2, gamma=2)
WIDTHS = {"small": 16, "base": 24, "large": 32, "xl": 48, "xxl": 64}
LAYERS = {"125m": 1, "1.3b": 2, "2.7b": 3, "6.7b": 4, "13b": 5}


@pytest.fixture
def tiny(monkeypatch):
    """Tiny shapes under the published names."""
    of_t5 = t5_config.T5Config(vocab_size=40, head_width=8, heads=2, mlp_width=16, encoder_layers=1, decoder_layers=1)
    of_opt = opt.OPTConfig(vocab_size=40, width=16, embed_width=16, heads=2, layers=1, mlp_width=16, max_positions=256)
    monkeypatch.setattr(t5_config, "sizes", lambda: {
        f"t5-v1_1-{name}": dataclasses.replace(of_t5, width=width) for name, width in WIDTHS.items()
    })  # fmt: skip
    monkeypatch.setattr(opt, "sizes", lambda: {
        name: dataclasses.replace(of_opt, layers=layers) for name, layers in LAYERS.items()
    })  # fmt: skip


def measured(name, setup=SETUP):
    shelf = Shelf(setup.dtype, print)
    return [row for case in shapes.EXPERIMENTS[name].cases(setup, {}) for row in case.measure(shelf)]


# --- what is measured ---


@pytest.mark.slow
def test_the_largest_target_that_fits_stands_for_the_published_one(monkeypatch):
    monkeypatch.setattr(bench, "free_memory", lambda: 10e9)
    bfloat16 = dataclasses.replace(SETUP, dtype="bfloat16")
    assert shapes.targets(bfloat16, T5_SHAPES, ("t5-v1_1-small",)) == ["t5-v1_1-xl"]
    assert shapes.targets(bfloat16, OPT_SHAPES, ("opt-1.3b", "opt-125m")) == ["opt-2.7b"]
    named = dataclasses.replace(bfloat16, targets=("opt-1.3b", "t5-v1_1-base", "t5-v1_1-large"))
    assert shapes.targets(named, T5_SHAPES, ("t5-v1_1-small",)) == ["t5-v1_1-base", "t5-v1_1-large"]
    for refused in (dataclasses.replace(bfloat16, targets=("opt-13b",)), SETUP):
        monkeypatch.setattr(bench, "free_memory", lambda: 1e9)
        with pytest.raises(ValueError, match="GB"):
            shapes.targets(refused, OPT_SHAPES, ("opt-1.3b", "opt-125m"))


def test_table_2_takes_the_published_acceptance_and_draft_length(monkeypatch):
    monkeypatch.setattr(bench, "free_memory", lambda: None)
    entries = shapes.table_2_entries(SETUP)
    assert [entry.name for entry in entries] == [one.name for one in TABLE_2]
    for entry, one in zip(entries, TABLE_2, strict=True):
        run = entry.run
        assert (run.alpha, run.strategy.gamma, run.temperature) == ((one.alpha,), one.gamma, one.temperature)
        assert entry.run.target == "t5-v1_1-xxl" and entry.run.drafts == (one.draft.lower().replace("t5", "t5-v1_1"),)


def test_three_levels_take_blocks_of_at_least_seven(monkeypatch):
    monkeypatch.setattr(bench, "free_memory", lambda: None)
    entry = shapes.rate_entries(shapes.HIERARCHY, SETUP)[-1]
    outer, inner = entry.run.strategy.gamma, entry.run.strategy["inner"].gamma
    assert outer is not None and outer >= shapes.OUTER and inner >= 1
    drafted = [(theory.expected_tokens(alpha, SETUP.gamma) - 1) / SETUP.gamma for alpha in (
        *entry.run.alpha, entry.run.inner_alpha
    )]  # fmt: skip
    assert drafted == pytest.approx([0.17, 0.33], abs=2e-3)


@pytest.mark.parametrize("name", battery.others_slow(["c-matrix", "hierarchy", "figure-5", "levels"], []))
def test_experiments_run(name, tiny):
    experiment, rows = shapes.EXPERIMENTS[name], measured(name)
    found = experiment.report(SETUP, rows)
    assert len(rows) == {"c-matrix": 1, "hierarchy": 3, "figure-5": 3, "levels": 6}[name]
    assert found.table and found.checks and "at real size" in experiment.title
    if name == "hierarchy":
        assert found.table[-1]["γ"].startswith(("7", "8", "9", "1"))
    if name == "figure-5":
        assert [row["tokens"] for row in rows] == [16] * 3


@pytest.mark.slow
def test_drafts_as_large_as_the_target_are_left_out(tiny):
    from specjax.bench.record import Missing

    setup = dataclasses.replace(SETUP, targets=("t5-v1_1-base",))
    cases = shapes.EXPERIMENTS["table-2"].cases(setup, {})
    shelf = Shelf(setup.dtype, print)
    (first,) = cases[0].measure(shelf)
    assert first["target"] == "t5-v1_1-base"
    for case in cases[1:3]:
        with pytest.raises(Missing, match="smaller"):
            case.measure(shelf)


# --- reports ---


def row(one, *, target="t5-v1_1-xl", step=100.0, c=0.05, verify=1.2, speed=None, closed=None):
    factor = float(theory.walltime_factor(one.alpha, one.gamma, c, verify_cost=verify))
    draft = one.draft.lower().replace("t5", "t5-v1_1")
    numbers = {"verify": verify, "speedup": speed or factor, "speedup_with_prompt": speed or factor,
               "closed_form": closed or factor, f"c {draft}": c, "overhead": 0.0}  # fmt: skip
    return numbers | {
        "target": target, "draft": draft, "alpha": f"{one.alpha:g}", "dtype": "bfloat16", "step_ms": step,
        "of": one.name, "published": one.speed, "load": {"requests": 0.0},
        "turns": {name: [value] * 3 for name, value in numbers.items()},
        "columns": {"task": one.task, "M_q": one.draft, "T": one.temperature, "γ": one.gamma, "α": one.alpha},
    }  # fmt: skip


def test_a_step_is_extrapolated_by_the_bytes_that_it_reads():
    sizes = {name: shapes.step_size(name, "bfloat16") for name in ("t5-v1_1-small", "t5-v1_1-large", "t5-v1_1-xxl")}
    linear = lambda size: 0.5 + 2e-9 * size
    fitted = shapes.step_time({name: linear(sizes[name]) for name in ("t5-v1_1-small", "t5-v1_1-large")}, "bfloat16")
    assert fitted("t5-v1_1-xxl") == pytest.approx(linear(sizes["t5-v1_1-xxl"]))
    steep = shapes.step_time({"t5-v1_1-small": 1.0, "t5-v1_1-large": 100.0}, "bfloat16")
    assert steep("t5-v1_1-small") > 0  # no negative constant


@pytest.mark.slow
def test_measured_speeds_that_follow_theory_are_reproduced():
    rows = [row(one, c={"T5-small": 0.02, "T5-base": 0.05, "T5-large": 0.2}[one.draft]) for one in TABLE_2]
    found = shapes.table_2_report(SETUP, rows)
    verdicts = {check.claim.split(" (")[0]: check.verdict for check in found.checks}
    assert verdicts["decoding follows the closed form with the measured costs"] is ClaimVerdict.REPRODUCED
    assert verdicts["the smallest draft is the fastest"] is not ClaimVerdict.NOT
    assert all(line["at t5-v1_1-xxl"] > line["decoding here"] if isinstance(line["decoding here"], float) else True
               for line in found.table)  # fmt: skip
    assert any("extrapolates" in note for note in found.notes)


def test_measured_speeds_off_by_ten_percent_are_not_reproduced():
    rows = [row(one, speed=2.0, closed=2.2) for one in TABLE_2]
    assert shapes.speed_checks(rows)[0].verdict is ClaimVerdict.NOT


def test_nothing_is_extrapolated_from_the_published_target():
    rows = [row(one, target="t5-v1_1-xxl") for one in TABLE_2]
    assert shapes.at_full_size(rows, "t5-v1_1-xxl") == {}
    assert shapes.size_notes(rows, "t5-v1_1-xxl") == []
