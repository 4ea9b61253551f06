"""`specjax bench tasks` from end to end on toy checkpoints, and what it refuses."""

import json

import pytest

from specjax.bench import grid
from specjax.cli import bench_tasks
from specjax.naming import drafting


@pytest.fixture
def base(models):
    ways = ["--target", models["target"], "--gamma", "3", "--max-new-tokens", "8", "--ignore-eos"]
    return ["bench", "tasks", *ways, "--count", "3", "--timed", "2", "--repeats", "1", "--temperature", "0"]


def rows(path) -> list[dict]:
    return [json.loads(line)["row"] for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_grid_is_measured_told_and_taken_up_again(specjax_program, base, models, tmp_path, monkeypatch):
    file, table = tmp_path / "rows.jsonl", tmp_path / "table.md"
    args = [*base, "--draft", models["draft"], "--drafters", "model", "ngram", "plain", "--batch", "2"]
    args += ["--json", str(file), "--markdown", str(table)]
    ran = specjax_program(*args)
    found = rows(file)
    assert ran.code == 0 and [row["drafter"] for row in found] == ["model", "ngram", "plain"]
    for row in found:
        assert (row["task"], row["prompts"], row["lossless"], row["equal_to_plain"]) == ("story", 3, True, 1.0)
        assert row["speedup"] == pytest.approx(row["tokens_per_second"] / row["plain_tokens_per_second"])
        assert set(row["load"]) == {"drafted", "plain"} and row["tokens"] == 24 and row["target"] == models["target"]
    model, ngram, plain = found
    assert (model["gamma"], plain["gamma"], model["draft"], ngram["draft"]) == (3, None, models["draft"], None)
    assert plain["tokens_per_call"] == 1 and plain["accepted_per_tested"] is None
    assert 1 < model["tokens_per_call"] <= 4 and 0 < model["overlap"] <= 1 and ngram["overlap"] is None
    lines = table.read_text().splitlines()
    heads = ["task", "T", "drafter", "\u03b3", "verifier", "tokens/call", "accepted/tested", "tokens/s", "\u00d7 plain"]
    assert lines[0] == "| " + " | ".join([*heads, "load"]) + " |" and len(lines) == 5
    assert all(head in ran.out for head in heads)

    def measured(*args, **options):
        raise ValueError("measured again")

    monkeypatch.setattr(grid, "measure", measured)
    again = specjax_program(*args)
    assert again.code == 0 and rows(file) == found and "ngram" in again.out
    assert "measured again" in specjax_program(*args, "--seed", "1").err


def test_a_chat_template_that_there_is_not(specjax_program, base):
    ran = specjax_program(*base, "--drafters", "ngram", "--style", "own")
    assert ran.code == 2 and "no chat template of its own" in ran.err


def test_what_a_verifier_does_not_serve_is_left_out_and_said(specjax_program, base):
    ran = specjax_program(*base, "--drafters", "ngram", "--verifiers", "kseq")
    assert ran.code == 2 and "left out" in ran.err and "'kseq'" in ran.err and "nothing was measured" in ran.err


BAD = {
    "task": (["--tasks", "storey"], "did you mean 'story'"),
    "drafter": (["--drafters", "modle"], "did you mean 'model'"),
    "verifier": (["--verifiers", "tokn"], "did you mean 'token'"),
    "style": (["--style", "chatlm"], "did you mean 'chatml'"),
    "twice": (["--gamma", "3", "3"], "--gamma contains 3 twice"),
    "category twice": (["--category", "rag", "rag"], "--category contains rag twice"),
    "no gamma": (["--gamma"], "--gamma requires at least one value"),
    "no temperature": (["--temperature"], "--temperature requires at least one value"),
    "format": (["--format", "nope"], "--format has no meaning without --file: leave it out"),
    "config": (["--dataset-config", "x"], "--dataset-config has no meaning without --dataset: leave it out"),
    "split": (["--file", "x.txt", "--split", "train"], "--split has no meaning without --dataset"),
    "field": (["--field", "text"], "--field has no meaning without --dataset"),
    "gamma": (["--gamma", "0"], "--gamma must be at least 1, got 0"),
    "temperature": (["--temperature", "-1"], "--temperature must be at least 0, got -1"),
    "nan": (["--temperature", "nan"], "--temperature must be at least 0, got nan"),
    "long": (["--max-new-tokens", "99999999999"], "--max-new-tokens must be at most 1048576, got 99999999999"),
    "many drafts": (["--gamma", "3", "100000"], "--gamma must be at most 1023, got 100000"),
    "seed": (["--seed", "99999999999"], "--seed must be at most 4294967295, got 99999999999"),
    "count": (["--count", "0"], "--count must be at least 1, got 0"),
    "timed": (["--timed", "0"], "--timed must be at least 1, got 0"),
    "no file": (["--file", "absent.jsonl"], "absent.jsonl"),
    "as-is": (["--tasks", "as-is"], "no prompts of its own"),
    "two tasks": (["--tasks", "story", "chat", "--file", "x.txt"], "are for one task"),
    "two sources": (["--file", "x.txt", "--dataset", "y"], "leave one of them out"),
    "draft": (["--target", "x", "--drafters", "model"], "--draft"),
    "draft unused": (["--draft", "x", "--drafters", "ngram"], "--draft x is not used"),
    "setting": (["--drafters", "model:gama=3"], "did you mean 'gamma'"),
    "drafter twice": (["--drafters", "tree:3x2", "tree:shape=3x2"], "--drafters contains tree:shape=3x2 twice"),
    "lossy": (["--verifiers", "token", "lossy-typical", "--lossless"], "'lossy-typical' is lossy"),
    "peer": (["--peer", "vllm"], "--peer"),
    "json": (["--json", "."], "--json . is a folder: pass a file"),
    "markdown": (["--markdown", "absent/a.md"], "--markdown absent/a.md: cannot write to the folder absent"),
    "category": (["--category", "rag"], "no item is of category 'rag'"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("no_model_is_loaded")
def test_bad_options_get_one_line(case, refused):
    args, said = BAD[case]
    refused("bench", "tasks", *args, said=said)


def test_every_way_once_and_a_drafter_brings_its_own_gamma():
    named = ("model:gamma=2", "model", "tree:3x2", "model:policy=heuristic", "plain")
    ways = bench_tasks.Ways(drafters=named, gamma=(3, 2), temperature=(0.0,))
    found = [(cell.drafter, cell.gamma, cell.verifier) for cell in bench_tasks.cells(ways, ("d",))]
    assert found == [
        ("model", 2, "suits"), ("model", 3, "suits"), ("tree:shape=3x2", None, "suits"),
        ("model:policy=heuristic", None, "suits"), ("plain", None, "suits"),
    ]  # fmt: skip
    cells = bench_tasks.cells(ways, ("d",))
    assert [drafting.label(bench_tasks.spec_of(cell)) for cell in cells[:3]] == [
        "model:gamma=2", "model:gamma=3", "tree:shape=3x2",
    ]  # fmt: skip


def test_as_many_draft_models_as_the_neediest_drafter_uses():
    names = lambda *drafters, **more: bench_tasks.draft_names(bench_tasks.Ways(drafters=drafters, **more))
    assert names() == names("model", "ngram") == ("bundled/opt-draft",) and names("ngram") == ()
    assert names("model", "cascade") == ("bundled/opt-draft", "bundled/opt-tiny")
    assert names("cascade", target="t", draft=("a", "b")) == ("a", "b")
    with pytest.raises(ValueError, match="--draft"):
        names("cascade", "model", target="t", draft=("a",))


def test_a_file_brings_its_task(tmp_path):
    file = tmp_path / "test.jsonl"
    file.write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    ((name, items),) = bench_tasks.read_items(bench_tasks.What(file=file)).items()
    assert name == "maths" and [item.text for item in items] == ["1 + 1?"]
    (named,) = bench_tasks.read_items(bench_tasks.What(tasks=("chat",), file=file))
    assert named == "chat"
