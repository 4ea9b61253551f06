"""`specjax sweep` from end to end on toy checkpoints: measured, stopped, gone on with; and what it refuses."""

import json

import pytest

from specjax.bench import grid
from specjax.cli import sweep as command


@pytest.fixture
def preset(models, tmp_path, monkeypatch):
    """A sweep of two draft lengths, in the folder that the program is called in."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(
        "from specjax.bench.sweep import Sweep\n"
        "SWEEP = Sweep('gamma', ('model:gamma=3', 'model:gamma=1', 'tree:shape=2'), about='two lengths',"
        f" target={models['target']!r}, drafts=({models['draft']!r},), verifiers=('token',), count=2,"
        " max_new_tokens=6, batch=1, timed=1, repeats=1)\n"
    )
    return file


def rows(path) -> list[dict]:
    return [json.loads(line)["row"] for line in path.read_text().splitlines()]


def test_it_is_measured_told_and_drawn(specjax_program, preset, tmp_path):
    ran = specjax_program("sweep", "mine.py", "--picture", "mine.svg", "--markdown", "mine.md")
    found = rows(tmp_path / "mine.jsonl")
    assert ran.code == 0 and [row["gamma"] for row in found] == [3, 1]
    assert all(row["equal_to_plain"] == 1.0 and row["nodes"] == row["gamma"] + 1 for row in found)
    assert "left out" in ran.err and "only chains" in ran.err  # the tree, which the token verifier does not serve
    assert "two lengths" in ran.out and "best speed" in ran.out and "rows: mine.jsonl" in ran.out
    assert "two lengths" in (tmp_path / "mine.svg").read_text()
    lines = (tmp_path / "mine.md").read_text().splitlines()
    assert lines[0].startswith("| gamma | drafter |") and [line.split()[1] for line in lines[2:]] == ["1", "3"]


def test_stopped_and_gone_on_with(specjax_program, preset, tmp_path, monkeypatch):
    measure, calls = grid.measure, []

    def stopped(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*args)

    monkeypatch.setattr(grid, "measure", stopped)
    ran = specjax_program("sweep", "mine.py")
    assert ran.code == 130 and "1 of 3 are measured and kept in mine.jsonl; the same command goes on" in ran.err
    assert "two lengths" in ran.out and len(rows(tmp_path / "mine.jsonl")) == 1
    again = specjax_program("sweep", "mine.py")
    assert again.code == 0 and len(calls) == 3 and len(rows(tmp_path / "mine.jsonl")) == 2
    assert specjax_program("sweep", "mine.py").code == 0 and len(calls) == 3
    assert specjax_program("sweep", "mine.py", "--seed", "1").code == 0 and len(calls) == 5  # another sweep


def test_the_command_line_changes_a_preset(preset):
    from specjax.bench.sweep import read

    changed = command.changed(read(preset), command.Changes(count=5, temperatures=(0.0, 1.0), target="x"))
    assert (changed.count, changed.temperatures, changed.target) == (5, (0.0, 1.0), "x")
    assert changed.drafts == read(preset).drafts and changed.max_new_tokens == 6


def test_presets_by_name(specjax_program, tmp_path, monkeypatch):
    ran = specjax_program("sweep", "--list")
    assert ran.code == 0 and {"gamma", "temperature", "tree_size", "draft_size", "verifier"} <= {
        line.split()[0] for line in ran.out.splitlines()
    }
    monkeypatch.setattr(command, "HOMES", (tmp_path / "absent",))
    assert "there is no configs/sweeps here: name a preset's file" in specjax_program("sweep", "gamma").err


BAD = {
    "name": (["gama"], "did you mean 'gamma'"),
    "no file": (["absent.py"], "absent.py: no such preset"),
    "count": (["mine.py", "--count", "0"], "count must be a whole number of at least 1, got 0"),
    "task": (["mine.py", "--tasks", "storey"], "unknown task 'storey'"),
    "no drafts": (["mine.py", "--file", "absent.txt"], "absent.txt"),
    "seed": (["mine.py", "--seed", "-1"], "seed must be a whole number in 0..4294967295, got -1"),
    "hot": (["mine.py", "--temperatures", "0", "1e300"], "at most 3.4028234663852886e+38, got 1e+300"),
    "nan": (["mine.py", "--temperatures", "nan"], "temperatures must be at least 0, got nan"),
    "long": (["mine.py", "--max-new-tokens", "99999999999"], "max-new-tokens must be at most 1048576"),
    "picture": (["mine.py", "--picture", "a.gif"], "must end in .svg or .png"),
    "json": (["mine.py", "--json", "absent/a.jsonl"], "--json absent/a.jsonl: cannot write to the folder absent"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("no_model_is_loaded", "preset")
def test_bad_options_get_one_line(case, refused):
    args, said = BAD[case]
    refused("sweep", *args, said=said)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gamma", "temperature", "tree_size", "draft_size", "verifier"])
def test_every_preset_is_measured(name, specjax_program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = specjax_program("sweep", name, "--quick", "--picture", "a.svg")
    assert ran.code == 0 and "left out" not in ran.err and len(rows(tmp_path / f"{name}.jsonl")) >= 6
