"""Sweeps as data: combinations, curves, tables, pictures; presets that cannot be."""

from pathlib import Path

import pytest

from specjax import presets
from specjax.bench import sweep as sweeps
from specjax.bench.sweep import Sweep, Way
from specjax.reproduce import presets as reproducing

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SWEEPS = sorted((CONFIGS / "sweeps").glob("*.py"))
REPRODUCED = sorted((CONFIGS / "reproduce").glob("*.py"))
PAIR = Sweep("gamma", ("model:gamma=3", "model:gamma=1", "ngram:gamma=2"), temperatures=(0.0, 1.0))


def row(point, **own):
    made = {
        "task": point.task, "draft": " > ".join(point.drafts), "nodes": 2, "drafter": point.label,
        "gamma": point.spec.settings.get("gamma"), "verifier": "token", "temperature": point.temperature,
        "lossless": True, "tokens_per_call": 2.0, "accepted_per_tested": 0.5, "tokens_per_second": 10.0,
        "speedup": 1.5, "load": {"drafted": 0.1, "plain": 0.2},
    }  # fmt: skip
    return point, made | own


def test_every_combination_and_the_drafts_that_it_needs():
    points = sweeps.points(PAIR)
    assert [(p.label, p.temperature) for p in points] == [
        (label, t) for t in (0.0, 1.0) for label in ("model:gamma=3", "model:gamma=1", "ngram:gamma=2")
    ]
    assert [p.drafts for p in points[:3]] == [("bundled/opt-draft",)] * 2 + [()]
    own = Sweep("verifier", (Way("model", verifiers=("token", "block")), "ngram"), tasks=("story", "chat"))
    assert [(p.label, p.verifier) for p in sweeps.points(own)] == [
        ("model", "token"), ("model", "block"), ("ngram", "suits"),
    ] * 2  # fmt: skip


def test_keys_differ_where_rows_would():
    items = sweeps.read_items(PAIR)
    keys = [str(case.key) for case in sweeps.cases(PAIR, items)]
    assert len(set(keys)) == len(keys) == 6
    assert keys == [str(case.key) for case in sweeps.cases(PAIR, items)]
    assert not {*keys} & {str(case.key) for case in sweeps.cases(PAIR.quick(), items)}


def test_curves_ascend_and_are_told_apart_by_what_varies():
    found = [row(point) for point in sweeps.points(PAIR)]
    curves = sweeps.curves(PAIR, found)
    assert [(c.name, c.x) for c in curves] == [
        ("model, T = 0", [1, 3]), ("ngram, T = 0", [2]), ("model, T = 1", [1, 3]), ("ngram, T = 1", [2]),
    ]  # fmt: skip
    assert [r["drafter"] for r in curves[0].rows] == ["model:gamma=1", "model:gamma=3"]
    named = Sweep("drafter", (Way("ngram", line="x"), "model"))
    assert [(c.name, c.x) for c in sweeps.curves(named, [row(p) for p in sweeps.points(named)])] == [
        ("x", ["ngram"]), ("", ["model"]),
    ]  # fmt: skip


def test_the_table_says_what_is_the_same_once():
    rows, same = sweeps.short(sweeps.table(PAIR, [row(point) for point in sweeps.points(PAIR)]))
    assert same == "verifier token, task story" and list(rows[0])[:4] == ["gamma", "drafter", "draft", "T"]
    assert rows[0]["load"] == 0.2
    _, lossy = sweeps.short(sweeps.table(PAIR, [row(p, lossless=False) for p in sweeps.points(PAIR)]))
    assert "verifier token (LOSSY)" in lossy


def test_the_best_is_named_and_so_is_a_loss():
    points = sweeps.points(PAIR)
    found = [row(point, speedup=0.5 + n / 10, tokens_per_call=3.0 - n) for n, point in enumerate(points[:3])]
    assert sweeps.best(found) == [
        "T = 0, best speed: ngram:gamma=2, token: 0.70 × plain: nothing here is faster than plain decoding",
        "T = 0, best tokens a call: model:gamma=3, bundled/opt-draft, token: 3.00",
    ]


@pytest.mark.parametrize("axis", sweeps.AXES)
def test_pictures_of_every_axis(axis, tmp_path):
    from functools import partial

    from specjax import plotting

    sweep = Sweep(axis, PAIR.ways, temperatures=(0.0, 1.0))
    lines = sweeps.curves(sweep, [row(point) for point in sweeps.points(sweep)])
    plotting.save(tmp_path / "a.svg", partial(sweeps.picture, sweep=sweep, lines=lines, title="a title"))
    drawn = (tmp_path / "a.svg").read_text()
    assert "a title" in drawn and "tokens a call" in drawn and (axis in drawn)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"axis": "gama"}, "axis 'gama' is none of gamma,"),
        ({"ways": ()}, "ways of a sweep must be a tuple"),
        ({"count": 0}, "count must be a whole number of at least 1, got 0"),
        ({"tasks": ("storey",)}, "unknown task 'storey'"),
        ({"dtype": "float8"}, "unknown dtype 'float8'"),
        ({"temperatures": (-1.0,)}, "temperatures must be at least 0, got -1"),
        ({"file": "x.txt", "tasks": ("story", "chat")}, "are for one task"),
    ],
)
def test_sweeps_that_cannot_be(changes, said):
    with pytest.raises(ValueError, match=said):
        Sweep(**{"axis": "gamma", "ways": ("ngram",), **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ways": ("modle",)}, "did you mean 'model'"),
        ({"ways": ("model:gama=3",)}, "gama"),
        ({"verifiers": ("tokn",)}, "did you mean 'token'"),
        ({"drafts": ()}, "needs 1 draft models, and there are 0"),
    ],
)
def test_ways_that_cannot_be(changes, said):
    with pytest.raises(ValueError, match=said):
        sweeps.points(Sweep(**{"axis": "gamma", "ways": ("model",), **changes}))


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_every_preset_of_a_sweep_is_whole(file):
    sweep = sweeps.read(file)
    assert sweep.about and len(sweeps.points(sweep)) >= 5
    text = file.read_text()
    assert f"specjax sweep {file.stem}" in text


def test_the_ablations_are_all_there():
    assert {file.stem for file in SWEEPS} >= {"gamma", "temperature", "tree_size", "draft_size", "verifier"}


def test_there_is_a_preset_for_every_table_and_figure():
    from specjax.cli import reproduce

    found = {reproducing.read(file).name: file for file in REPRODUCED}
    assert set(found) == set(reproduce.experiments())
    for name, file in found.items():
        assert file.stem == name.replace("-", "_") and f"configs/reproduce/{file.name}" in file.read_text()


def test_a_preset_with_a_misspelt_option(tmp_path):
    file = tmp_path / "p.py"
    file.write_text("from specjax.bench.sweep import Sweep\nSWEEP = Sweep('gamma', ('ngram',), cuont=3)\n")
    with pytest.raises(ValueError, match=r"unknown option 'cuont', did you mean 'count'\?"):
        sweeps.read(file)
    file.write_text("SWEEP = 3\n")
    with pytest.raises(ValueError, match=r"defines no SWEEP = Sweep\(\.\.\.\)"):
        sweeps.read(file)
    with pytest.raises(FileNotFoundError, match="no such preset"):
        presets.bound(tmp_path / "q.py", "SWEEP", Sweep)
