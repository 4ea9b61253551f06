"""`specjax sweep` on toy checkpoints: measured from options and from a preset, stopped, resumed; options refused."""

import json

import pytest

from specjax.bench import grid
from specjax.cli import sweep as command


@pytest.fixture
def preset(models, tmp_path, monkeypatch):
    """A grid of two draft lengths, in the working directory."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(
        "from specjax.bench.grid import Grid\n"
        "GRID = Grid(('model:gamma=3', 'model:gamma=1', 'tree:shape=2'), axis='gamma', about='two lengths',"
        f" target={models['target']!r}, drafts=({models['draft']!r},), verifiers=('token',), count=2, seed=3,"
        " temperatures=(0.0,), max_new_tokens=6, ignore_eos=True, batch=1, timed=1, repeats=1)\n"
    )
    return file


@pytest.fixture
def base(models):
    """Options of a small grid."""
    size = ["--count", "3", "--timed", "2", "--repeats", "1", "--temperatures", "0", "--max-new-tokens", "8"]
    return ["sweep", "--target", models["target"], "--gammas", "3", "--ignore-eos", *size]


def rows(path) -> list[dict]:
    return [json.loads(line)["row"] for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_preset_is_measured_shown_and_drawn(specjax_program, preset, tmp_path):
    ran = specjax_program("sweep", "mine.py", "--picture", "mine.svg", "--markdown", "mine.md")
    found = rows(tmp_path / "mine.jsonl")
    assert ran.code == 0 and [row["gamma"] for row in found] == [3, 1]
    assert all(row["equal_to_plain"] == 1.0 and row["nodes"] == row["gamma"] + 1 for row in found)
    assert "left out" in ran.err and "token" in ran.err  # a tree, which the token verifier does not support
    assert "two lengths" in ran.out and "mine.jsonl" in ran.out
    assert "two lengths" in (tmp_path / "mine.svg").read_text()
    lines = (tmp_path / "mine.md").read_text().splitlines()
    assert "drafter" in lines[0] and [line.count("model:gamma=1") for line in lines[2:]] == [1, 0]


@pytest.mark.slow
def test_a_grid_of_options_is_measured_and_resumed(specjax_program, base, models, tmp_path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    args = [*base, "--drafts", models["draft"], "--drafters", "model", "ngram", "plain", "--batch", "2"]
    args += ["--json", str(file)]
    ran = specjax_program(*args)
    found = rows(file)
    assert ran.code == 0 and [row["drafter"] for row in found] == ["model:gamma=3", "ngram:gamma=3", "plain"]
    for row in found:
        assert (row["task"], row["prompts"], row["lossless"], row["equal_to_plain"]) == ("story", 3, True, 1.0)
        assert row["speedup"] == pytest.approx(row["tokens_per_second"] / row["plain_tokens_per_second"])
        assert set(row["load"]) == {"drafted", "plain"} and row["tokens"] == 24 and row["target"] == models["target"]
    model, ngram, plain = found
    assert (model["gamma"], plain["gamma"], model["drafts"], ngram["drafts"]) == (3, None, models["draft"], "")
    assert plain["tokens_per_call"] == 1 and plain["accepted_per_tested"] is None
    assert 1 < model["tokens_per_call"] <= 4 and 0 < model["overlap"] <= 1 and ngram["overlap"] is None

    def measured(*args, **options):
        raise ValueError("measured again")

    monkeypatch.setattr(grid, "measure", measured)
    again = specjax_program(*args)
    assert again.code == 0 and rows(file) == found and "ngram" in again.out
    assert "measured again" in specjax_program(*args, "--seed", "1").err


@pytest.mark.slow
def test_a_stopped_sweep_resumes(specjax_program, preset, tmp_path, monkeypatch):
    calls = []

    def measure(work, strategy, temperature, drafter, verifier):
        calls.append(strategy)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {
            "drafter": strategy.text, "gamma": strategy.gamma, "nodes": 2, "verifier": "token", "lossless": True,
            "temperature": temperature, "tokens_per_call": 2.0, "accepted_per_tested": 0.5, "tokens_per_second": 1.0,
            "speedup": 1.0, "load": {"drafted": 0.0},
        }  # fmt: skip

    monkeypatch.setattr(grid, "measure", measure)
    ran = specjax_program("sweep", "mine.py")
    assert ran.code == 130 and "1 of 3" in ran.err and "mine.jsonl" in ran.err
    assert "two lengths" in ran.out and len(rows(tmp_path / "mine.jsonl")) == 1
    assert specjax_program("sweep", "mine.py").code == 0 and len(calls) == 3
    assert len(rows(tmp_path / "mine.jsonl")) == 2
    assert specjax_program("sweep", "mine.py").code == 0 and len(calls) == 3
    assert specjax_program("sweep", "mine.py", "--seed", "0").code == 0 and len(calls) == 5  # another grid


def test_options_override_a_preset(preset, monkeypatch):
    monkeypatch.setattr(command, "run", lambda grid, title, results: grids.append(grid) or 0)
    grids = []
    args = ["--temperatures", "0", "1", "--target", "x", "--seed", "0", "--count", "5"]
    assert command.main(["mine.py", *args]) == command.main(["mine.py", "--drafters", "ngram", "--quick"]) == 0
    changed, other = grids
    assert (changed.count, changed.temperatures, changed.target, changed.seed) == (5, (0.0, 1.0), "x", 0)
    assert changed.drafts == grid.read(preset).drafts and changed.max_new_tokens == 6 and changed.ignore_eos
    assert changed.drafters == grid.read(preset).drafters
    assert other.drafters == ("ngram",) and other.seed == 3


def test_presets_by_name(specjax_program, tmp_path, monkeypatch):
    ran = specjax_program("sweep", "--list")
    assert ran.code == 0 and {"gamma", "temperature", "tree_size", "draft_size", "verifier"} <= {
        line.split()[0] for line in ran.out.splitlines()
    }
    monkeypatch.setattr(command, "HOMES", (tmp_path / "absent",))
    assert "configs/sweeps" in specjax_program("sweep", "gamma").err


def test_a_model_without_a_chat_template(specjax_program, base):
    ran = specjax_program(*base, "--drafters", "ngram", "--style", "own")
    assert ran.code == 2 and "style" in ran.err


def test_nothing_is_measured_if_nothing_is_supported(specjax_program, base):
    ran = specjax_program(*base, "--drafters", "ngram", "--verifiers", "kseq")
    assert ran.code == 2 and "left out" in ran.err and "'kseq'" in ran.err


@pytest.mark.torch
@pytest.mark.slow
def test_transformers_beside(specjax_program, base, models, tmp_path):
    args = [*base, "--drafts", models["draft"], "--drafters", "model", "ngram", "--peer", "transformers"]
    ran = specjax_program(*args, "--json", str(tmp_path / "a.jsonl"))
    model, ngram = rows(tmp_path / "a.jsonl")
    assert ran.code == 0 and model["equal_to_transformers_plain"] == model["equal_to_transformers_assisted"] == 1.0
    assert "ratio_to_lookup" in ngram and "assisted" in ran.out


BAD = {
    "preset": (["gama"], "gamma"),
    "no preset": (["absent.py"], "absent.py"),
    "count": (["mine.py", "--count", "0"], "count"),
    "task": (["mine.py", "--tasks", "storey"], "story"),
    "verifier": (["--verifiers", "tokn"], "token"),
    "drafter": (["--drafters", "modle"], "model"),
    "setting": (["--drafters", "model:gama=3"], "gamma"),
    "style": (["--style", "chatlm"], "chatml"),
    "gamma twice": (["--gammas", "3", "3"], "gammas"),
    "gamma": (["--gammas", "0"], "gammas"),
    "gamma too large": (["--gammas", "3", "100000"], "gammas"),
    "temperature": (["mine.py", "--temperatures", "nan"], "temperatures"),
    "temperature too large": (["mine.py", "--temperatures", "0", "1e300"], "temperatures"),
    "max new tokens": (["mine.py", "--max-new-tokens", "99999999999"], "max_new_tokens"),
    "seed": (["mine.py", "--seed", "-1"], "seed"),
    "file": (["--file", "absent.jsonl"], "absent.jsonl"),
    "two sources": (["--file", "x.txt", "--dataset", "y"], "dataset"),
    "two tasks of a file": (["--tasks", "story", "chat", "--file", "x.txt"], "tasks"),
    "format": (["--format", "txt"], "format"),
    "draft": (["--target", "x", "--drafters", "model"], "drafts"),
    "unused draft": (["--drafts", "x", "--drafters", "ngram"], "drafts"),
    "lossy": (["--verifiers", "lossy-typical", "--lossless"], "lossy-typical"),
    "peer": (["--peer", "vllm"], "peer"),
    "picture": (["mine.py", "--picture", "a.gif"], "--picture"),
    "json": (["mine.py", "--json", "absent/a.jsonl"], "--json"),
    "category": (["--category", "rag"], "rag"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("no_model_is_loaded", "preset")
def test_bad_options_get_one_line(case, refused):
    args, name = BAD[case]
    refused("sweep", *args, name=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gamma", "temperature", "tree_size", "draft_size", "verifier"])
def test_every_preset_is_measured(name, specjax_program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = specjax_program("sweep", name, "--quick", "--picture", "a.svg")
    assert ran.code == 0 and "left out" not in ran.err and len(rows(tmp_path / f"{name}.jsonl")) >= 6
