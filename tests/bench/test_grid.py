"""The grid: points, cases, counts, ratios beside transformers, curves, tables and pictures; presets."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import specjax as sj
from specjax import estimates, plotting, presets
from specjax.bench import curves, rates
from specjax.bench import grid as grids
from specjax.bench.grid import Grid
from specjax.strategy import Strategy
from tests import battery

PRESETS = sorted((Path(__file__).resolve().parents[2] / "configs" / "sweeps").glob("*.py"))
PAIR = Grid(drafters=("model:gamma=3", "model:gamma=1", "ngram:gamma=2"), temperatures=(0.0, 1.0), axis="gamma")


def points(grid: Grid) -> list[grids.Point]:
    return grids.points(grid, grid.tasks or ("story",))


def row(point: grids.Point, **own):
    made = {
        "task": point.task, "drafts": " > ".join(point.drafts), "nodes": 2, "drafter": point.strategy.text,
        "gamma": point.strategy.gamma, "verifier": "token", "temperature": point.temperature, "lossless": True,
        "tokens_per_call": 2.0, "accepted_per_tested": 0.5, "tokens_per_second": 10.0, "speedup": 1.5,
        "load": {"drafted": 0.1, "plain": 0.2},
    }  # fmt: skip
    return point, made | own


# --- points ----------------------------------------------------------------------------------------------------------


def test_every_combination_once_with_the_drafts_that_it_needs():
    found = points(PAIR)
    assert [(p.strategy.text, p.temperature) for p in found] == [
        (text, t) for t in (0.0, 1.0) for text in ("model:gamma=3", "model:gamma=1", "ngram:gamma=2")
    ]
    assert [p.drafts for p in found[:3]] == [("bundled/opt-draft",)] * 2 + [()]
    two = Grid(drafters=("model", "ngram"), tasks=("story", "chat"), temperatures=(0.0,))
    assert [(p.task, p.strategy.text) for p in points(two)] == [
        (task, f"{name}:gamma=5") for task in ("story", "chat") for name in ("model", "ngram")
    ]


def test_gammas_and_verifiers_apply_where_a_strategy_sets_none():
    grid = Grid(
        drafters=("model:gamma=2", "model", "tree:3x2", "model:policy=heuristic", "plain"), gammas=(3, 2),
        verifiers=("token", "block"), temperatures=(0.0,),
    )  # fmt: skip
    found = [(p.strategy.text, p.strategy.verifier) for p in points(grid)]
    both = lambda text: [(text, "token"), (text, "block")]
    assert found == [
        *both("model:gamma=2"), *both("model:gamma=3"), *both("tree:shape=3x2"), *both("model:policy=heuristic"),
        ("plain", "token"),
    ]  # fmt: skip
    own = Grid(drafters=(Strategy.of("ngram", gamma=2, verifier="block"),), verifiers=("token",), temperatures=(0.0,))
    assert [p.strategy.verifier for p in points(own)] == ["block"]


def test_draft_models_by_default_by_name_and_by_position():
    names = lambda *drafters, **more: [p.drafts for p in points(Grid(drafters, temperatures=(0.0,), **more))]
    assert names("cascade") == [("bundled/opt-draft", "bundled/opt-tiny")]
    assert names("cascade", target="t", drafts=("a", "b")) == [("a", "b")]
    assert names(Strategy.of("model", drafts=(1,)), "model", drafts=("a", "b")) == [("b",), ("a",)]
    assert names() == [("bundled/opt-draft",), ()] and names(target="t") == [()]
    for drafters, drafts in ((("model",), ()), (("ngram",), ("a",)), (("cascade",), ("a",))):
        with pytest.raises(ValueError, match="drafts"):
            names(*drafters, target="t", drafts=drafts)


def test_keys_differ_where_rows_would():
    keys = lambda grid: [
        str(case.key) for items in [grids.read_items(grid)]
        for case in grids.cases(grid, grids.points(grid, tuple(items)), items)
    ]  # fmt: skip
    assert len(set(keys(PAIR))) == 6 and keys(PAIR) == keys(PAIR)
    assert not {*keys(PAIR)} & {*keys(PAIR.quick())}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"axis": "gama"}, "axis"), ({"count": 0}, "count"), ({"tasks": ("storey",)}, "task"),
        ({"dtype": "float8"}, "dtype"), ({"temperatures": (-1.0,)}, "temperatures"),
        ({"temperatures": (float("nan"),)}, "temperatures"), ({"temperatures": ()}, "temperatures"),
        ({"gammas": (3, 3)}, "gammas"), ({"gammas": (0,)}, "gammas"), ({"seed": -1}, "seed"),
        ({"file": "x.txt", "tasks": ("story", "chat")}, "tasks"), ({"file": "x.txt", "dataset": "y"}, "dataset"),
        ({"format": "txt"}, "format"), ({"split": "train"}, "split"), ({"peer": "vllm"}, "peer"),
        ({"style": "chatlm"}, "chatml"), ({"max_new_tokens": 2**30}, "max_new_tokens"),
    ],
)  # fmt: skip
def test_invalid_grids(changes, name):
    with pytest.raises(ValueError, match=name):
        Grid(**changes)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"drafters": ("modle",)}, "model"), ({"drafters": ("model:gama=3",)}, "gamma"),
        ({"drafters": ("table:absent",)}, "absent"), ({"verifiers": ("tokn",)}, "token"),
        ({"verifiers": ("lossy-typical",), "lossless": True}, "lossy-typical"),
    ],
)  # fmt: skip
def test_invalid_strategies(changes, name):
    with pytest.raises(ValueError, match=name):
        points(Grid(**changes))


def test_items_come_from_samples_a_file_or_nowhere(tmp_path):
    file = tmp_path / "test.jsonl"
    file.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    ((task, items),) = grids.read_items(Grid(file=str(file), scores=True)).items()
    assert task == "maths" and [item.text for item in items] == ["1 + 1?"]
    (task,) = grids.read_items(Grid(file=str(file), tasks=("chat",)))
    assert task == "chat" and len(grids.read_items(Grid(count=3))["story"]) == 3
    refused = {"as-is": Grid(tasks=("as-is",)), "scores": Grid(scores=True), "rag": Grid(category=("rag",))}
    for name, grid in refused.items():
        with pytest.raises(ValueError, match=name):
            grids.read_items(grid)


# --- measuring -------------------------------------------------------------------------------------------------------


SETTINGS = {"max_new_tokens": 8, "ignore_eos": True, "seed": 2}  # two tests share programs


@pytest.mark.slow
def test_the_counts_are_those_of_generate():
    target, prompts = battery.target("opt"), [[5, 6, 7], [8, 9], [3]]
    settings = SETTINGS | {"temperature": 1.0, "drafter": sj.drafters.model(battery.draft("opt"), gamma=3)}
    found = grids.acceptance(grids.Workload(target, prompts, {}, 2, 1, 1), settings)
    parts = [sj.generate(target, [p], rows=[n], **settings).stats for n, p in enumerate(prompts)]
    total = lambda name: sum(getattr(stats, name) for stats in parts)
    assert found["tokens"] == 24 and found["tokens_per_call"] == 24 / total("rounds")
    assert found["accepted_per_tested"] == total("accepted") / total("tested")
    assert found["accepted_per_drafted"] == total("accepted") / total("drafted")
    expected = sum(stats.overlap * stats.tested for stats in parts) / total("tested")
    assert found["overlap"] == pytest.approx(expected, rel=1e-5)
    assert found["counts"]["accepted"] == [stats.accepted for stats in parts]  # of each prompt, no filler rows
    rate = estimates.ratio([stats.accepted for stats in parts], [stats.tested for stats in parts])
    assert (
        found["accepted_per_tested_error"] == pytest.approx(rate.error) and rates.alpha(found).value == found["overlap"]
    )


@pytest.mark.slow
def test_speeds_have_errors_over_prompts_and_turns():
    target, prompts = battery.target("opt"), [[5, 6, 7], [8, 9]]
    drafter = sj.drafters.model(battery.draft("opt"), gamma=3)
    work = grids.Workload(target, prompts, SETTINGS, 2, 2, 3)
    found = grids.measure(work, Strategy.of("model", gamma=3), 1.0, drafter, sj.verify.TABLE["token"])
    assert np.shape(found["runs"]["drafted"]["seconds"]) == np.shape(found["runs"]["plain"]["tokens"]) == (3, 2)
    assert found["speedup"] == pytest.approx(found["tokens_per_second"] / found["plain_tokens_per_second"])
    assert found["speedup_error"] > 0 and found["decode_speedup_error"] > 0 and 0 <= found["repetition"] <= 1
    again = json.loads(json.dumps(found))  # as in a file
    assert rates.speed(again).error == pytest.approx(rates.speed(found).error) == pytest.approx(found["speedup_error"])


class FakePeer:
    """A peer whose decoders return constants."""

    draft = object()

    def plain(self, **options):
        return lambda prompts: [[0]]

    def assisted(self, **options):
        return lambda prompts: [[1]]

    def lookup(self, **options):
        return lambda prompts: [[2]]


@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        ("model:gamma=3", ["assisted", "plain"]),
        ("ngram:gamma=3", ["lookup", "plain"]),
        ("plain", ["plain"]),
    ],
)
def test_each_strategy_has_its_counterpart_in_transformers(strategy, names):
    work = grids.Workload(None, [[1]], {"max_new_tokens": 4}, 1, 1, 1)
    assert [name for name, _ in grids.peer_decoders(FakePeer(), work, Strategy.parse(strategy), 0.0)] == names


def test_ratios_compare_plain_with_plain_and_drafted_with_drafted_at_the_peers_faster_setting():
    rate = {
        "drafted": 30.0, "plain": 10.0, "transformers assisted": 15.0, "transformers plain": 4.0,
        "transformers packed assisted": 12.0, "transformers packed plain": 5.0,
    }  # fmt: skip
    runs = {name: {"seconds": [[30 / n, 30 / n]], "tokens": [[30, 30]]} for name, n in rate.items()}
    timed = rates.run_columns(runs, ["a", "b"])
    outputs = {
        "drafted": [[1, 2], [3]], "plain": [[1, 2], [3]], "transformers assisted": [[1, 2], [4]],
        "transformers plain": [[5], [5]], "transformers packed assisted": [[5], [5]],
        "transformers packed plain": [[1, 2], [3]],
    }  # fmt: skip
    assert grids.peer_columns(timed, outputs, greedy=True) == pytest.approx({
        "transformers_assisted_setting": "transformers", "transformers_plain_setting": "transformers packed",
        "transformers_assisted_tokens_per_second": 15.0, "ratio_to_assisted": 2.0, "ratio_to_assisted_error": 0.0,
        "equal_to_transformers_assisted": 0.5,
        "transformers_plain_tokens_per_second": 5.0, "ratio_to_plain": 2.0, "ratio_to_plain_error": 0.0,
        "equal_to_transformers_plain": 1.0,
    })  # fmt: skip
    assert "equal_to_transformers_plain" not in grids.peer_columns(timed, outputs, greedy=False)


@pytest.mark.slow
def test_scores_of_plain_decoding():
    import sacrebleu

    target = sj.load("bundled/opt-tiny")
    settings = {"max_new_tokens": 6, "seed": 0}
    work = grids.Workload(target, ["Once upon a time", "The fox"], settings, 2, 1, 1)
    texts = sj.generate(target, work.prompts, temperature=0.0, **settings).texts
    assert grids.scores(work, 0.0, texts)["bleu"] == pytest.approx(sacrebleu.corpus_bleu(texts, [texts]).score)


# --- tables and pictures ---------------------------------------------------------------------------------------------


def test_curves_ascend_and_are_named_by_what_varies():
    lines = curves.curves("gamma", [row(point) for point in points(PAIR)])
    assert [(c.name, c.x) for c in lines] == [
        ("model, T = 0", [1, 3]), ("ngram, T = 0", [2]), ("model, T = 1", [1, 3]), ("ngram, T = 1", [2]),
    ]  # fmt: skip
    assert [r["drafter"] for r in lines[0].rows] == ["model:gamma=1", "model:gamma=3"]
    named = Grid(drafters={"x": ("ngram:gamma=1",), "model": ("model:gamma=1",)}, temperatures=(0.0,))
    assert [(c.name, c.x) for c in curves.curves("drafter", [row(p) for p in points(named)])] == [
        ("x", ["ngram:gamma=1"]), ("", ["model:gamma=1"]),
    ]  # fmt: skip


def test_the_axis_is_the_first_that_varies():
    found = [row(point) for point in points(PAIR)]
    free = Grid()
    assert curves.axis_of(PAIR, found) == curves.axis_of(free, found) == "gamma"
    assert curves.axis_of(free, found[::3]) == "temperature" and curves.axis_of(free, found[:1]) == "drafter"


def test_a_table_names_once_what_all_rows_share():
    table = lambda **own: curves.table(curves.curves("gamma", [row(point, **own) for point in points(PAIR)]))
    rows, same = curves.short(table())
    assert "verifier token" in same and "task story" in same
    assert list(rows[0])[:3] == ["T", "drafter", "drafts"] and rows[0]["load"] == 0.2
    assert "BLEU" not in rows[0] and "BLEU" in curves.short(table(bleu=20.0))[0][0]
    assert "token (LOSSY)" in curves.short(table(lossless=False))[1]


def test_the_best_is_named_and_so_is_a_loss():
    every = points(PAIR)[:3]
    found = [row(point, speedup=0.5 + n / 10, tokens_per_call=3.0 - n) for n, point in enumerate(every)]
    speed, tokens = curves.best(found)
    assert "ngram:gamma=2" in speed and "0.70" in speed and "nothing" in speed
    assert "model:gamma=3" in tokens and "3.00" in tokens


@pytest.mark.slow
@pytest.mark.parametrize("axis", grids.AXES)
def test_pictures_of_every_axis(axis, tmp_path):
    lines = curves.curves(axis, [row(point) for point in points(PAIR)])
    plotting.save(tmp_path / "a.svg", partial(curves.picture, axis=axis, lines=lines, title="a title"))
    drawn = (tmp_path / "a.svg").read_text()
    assert "a title" in drawn and "tokens per target pass" in drawn and axis in drawn


# --- presets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", PRESETS, ids=lambda file: file.stem)
def test_every_preset_is_built(file):
    grid = grids.read(file)
    assert grid.about and len(points(grid)) >= 5
    assert f"specjax sweep {file.stem}" in file.read_text()


def test_the_ablations_are_complete():
    assert {file.stem for file in PRESETS} >= {"gamma", "temperature", "tree_size", "draft_size", "verifier"}


def test_invalid_presets(tmp_path):
    file = tmp_path / "p.py"
    file.write_text("from specjax.bench.grid import Grid\nGRID = Grid(drafters=('ngram',), cuont=3)\n")
    with pytest.raises(ValueError, match=r"cuont.*count"):
        grids.read(file)
    file.write_text("GRID = 3\n")
    with pytest.raises(ValueError, match="GRID"):
        grids.read(file)
    with pytest.raises(FileNotFoundError):
        presets.bound(tmp_path / "q.py", "GRID", Grid)
