"""`specjax bench shapes`: combinations, the table, rows that are not measured again, and invalid options."""

import json

import pytest

from specjax.bench import shapes
from specjax.cli import bench_shapes
from specjax.reproduce.shapes import published


def row(run, model, *, repeats, progress):
    progress(1, 2)
    return {
        "bench": "shapes", "target": run.target, "draft": " > ".join(run.drafts), "drafter": run.strategy.text,
        "alpha": "/".join(f"{alpha:g}" for alpha in run.alpha), "dtype": run.dtype, "rows": run.rows, "step_ms": 1.0,
        "c t5-small": 0.02, "verify": 1.25, "overhead": 0.01, "tokens_per_second": 30.0, "speedup": 2.5,
        "speedup_with_prompt": 2.25, "closed_form": 2.75, "turns": {"speedup": [2.5, 2.5], "closed_form": [2.65, 2.85]},
    }  # fmt: skip


@pytest.fixture
def measured(monkeypatch):
    """The runs that were measured."""
    found = []

    def measure(run, *args, **options):
        found.append(run)
        return row(run, *args, **options)

    monkeypatch.setattr(shapes, "measure", measure)
    return found


def test_every_combination_is_a_row_and_is_not_measured_again(specjax_program, measured, tmp_path):
    file, table = tmp_path / "rows.jsonl", tmp_path / "table.md"
    args = ["bench", "shapes", "--target", "t5-base", "--alpha", "0.75", "0.9/0.5", "--gamma", "3", "7"]
    args += ["--rows", "1", "2", "--json", str(file), "--markdown", str(table)]
    ran = specjax_program(*args)
    assert ran.code == 0 and len(measured) == 8 and "closed form" in ran.out and "3.4 (T5-XXL, EnDe, T=0)" in ran.out
    assert "2.75 ± 0.125" in ran.out
    assert {(run.alpha, run.strategy.gamma, run.rows) for run in measured} == {
        (alpha, gamma, rows) for alpha in ((0.75,), (0.9, 0.5)) for gamma in (3, 7) for rows in (1, 2)
    }
    assert [json.loads(line)["row"]["speedup"] for line in file.read_text().splitlines()] == [2.5] * 8
    assert "| t5-base > t5-small | model:gamma=7 | 0.75 |" in table.read_text()
    again = specjax_program(*args)
    assert again.code == 0 and again.out == ran.out and len(measured) == 8


@pytest.mark.parametrize(
    ("drafter", "draft", "drafts", "gammas"),
    [
        ("model", ["opt-125m"], 1, [3, 4]),
        ("model:gamma=2", ["opt-125m"], 1, [2]),
        ("tree:3x2", ["opt-125m"], 1, [None]),
        ("ngram", ["opt-125m"], 0, [3, 4]),
        ("head:folder=eagle3", ["opt-125m"], 0, [3, 4]),
        ("cascade", ["opt-350m", "opt-125m"], 2, [3, 4]),
    ],
)
def test_gamma_and_drafts_apply_to_drafters_that_take_them(drafter, draft, drafts, gammas):
    options = bench_shapes.BenchShapes("opt-1.3b", tuple(draft), drafter, gamma=(3, 4))
    every = bench_shapes.runs(options)
    assert [run.strategy.gamma for run in every] == gammas and {len(run.drafts) for run in every} == {drafts}


@pytest.mark.parametrize(("models", "drafter", "alpha", "expected"), [
    (("t5-large", "t5-small"), "model:gamma=7", "0.75", "3.4 (T5-XXL, EnDe, T=0)"),
    (("t5-xl", "t5-v1_1-large"), "model:gamma=3", "0.56", "1.7 (T5-XXL, CNN/DM, T=1)"),
    (("opt-13b", "opt-1.3b"), "model:gamma=5", "0.5", "1.85 (19% accepted, γ not given)"),
    (("opt-13b", "opt-1.3b > opt-125m"), "cascade:gamma=5", "0.5", "0.64 (17%, 33% accepted, γ not given)"),
    (("t5-large", "t5-small"), "model:gamma=6", "0.75", None), (("t5-large", "t5-small"), "tree:3x2", "0.75", None),
    (("opt-350m", "opt-125m"), "model:gamma=7", "0.75", None),
])  # fmt: skip
def test_published_speeds(models, drafter, alpha, expected):
    assert published({"target": models[0], "draft": models[1], "drafter": drafter, "alpha": alpha}) == expected


@pytest.mark.slow
def test_list(specjax_program):
    ran = specjax_program("bench", "shapes", "--list")
    assert ran.code == 0 and all(name in ran.out for name in ("opt-6.7b", "t5-11b", "t5-xl", "llama-3-70b"))


BAD = {
    "target": (["--target", "t5-lrge"], "t5-large"),
    "draft": (["--draft", "t5-smal"], "t5-small"),
    "vocabulary": (["--draft", "opt-125m"], "opt-125m"),
    "too large": (["--target", "opt-66b", "--draft", "opt-125m"], "largest"),
    "positions": (["--target", "opt-125m", "--draft", "opt-125m", "--max-new-tokens", "5000"], "positions"),
    "alpha": (["--alpha", "1.5"], "--alpha"),
    "alpha of words": (["--alpha", "0.5/x"], "--alpha"),
    "inner alpha": (["--inner-alpha", "2"], "--inner-alpha"),
    "gamma": (["--gamma", "0"], "--gamma"),
    "dtype": (["--dtype", "int4"], "dtype"),
    "rows twice": (["--rows", "1", "1"], "--rows"),
    "drafter": (["--drafter", "modle"], "model"),
    "drafts": (["--drafter", "cascade"], "cascade"),
    "json": (["--json", "absent/rows.jsonl"], "--json"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("nothing_is_computed")
def test_bad_options_get_one_line(case, refused, monkeypatch):
    monkeypatch.setattr(shapes, "free_memory", lambda: 8e9)
    args, name = BAD[case]
    refused("bench", "shapes", *args, name=name)


@pytest.mark.slow
def test_a_measured_row(specjax_program):
    ran = specjax_program("bench", "shapes", "--target", "opt-125m", "--draft", "opt-125m", "--gamma", "2",
                          "--max-new-tokens", "8", "--prompt-tokens", "8", "--repeats", "1")  # fmt: skip
    assert ran.code == 0 and "opt-125m > opt-125m" in ran.out
