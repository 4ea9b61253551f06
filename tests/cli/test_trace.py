"""`specjax trace` end to end on toy checkpoints."""

import json
import sys

import pytest

import specjax as sj
from specjax.cli import trace as command

NEW = ["--max-new-tokens", "10", "--repeats", "1"]
GAMMA = ["--gamma", "3"]
PICTURES = ("strip", "walltime", "depth")


@pytest.fixture
def base(models):
    """Settings of one kind share programs between tests."""
    settings = ["--temperature", "0.7", "--seed", "5"]
    return ["trace", "--target", models["target"], "--draft", models["draft"], *NEW, *settings]


def loaded(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_json_output(specjax_program, base, models):
    ran = specjax_program(*base, *GAMMA, "Once", "--json")
    head, *rounds, end = loaded(ran.out)
    assert (ran.code, head["kind"], end["kind"]) == (0, "run", "end") and {r["kind"] for r in rounds} == {"round"}
    target, draft = sj.load(models["target"]), sj.load(models["draft"])
    expected = sj.generate(
        target, ["Once"], drafter=sj.drafters.model(draft, gamma=3), max_new_tokens=10, temperature=0.7, seed=5
    )
    assert end["tokens"] == expected.tokens == [[t for r in rounds for t in r["committed"]]]
    assert sum(r["accepted"] for r in rounds) == end["stats"]["accepted"] == expected.stats.accepted
    assert rounds[-1]["ended"] == "max_tokens" and [r["round"] for r in rounds] == list(range(1, len(rounds) + 1))
    assert head["target"] == models["target"] and head["draft"] == models["draft"] and head["draft_steps"] == 3
    assert head["lossless"] is True and head["versions"]["specjax"] == sj.__version__
    assert [d["depth"] for d in end["by_depth"]] == [1, 2, 3]


@pytest.mark.slow
def test_terminal_output(specjax_program, base):
    ran = specjax_program(*base, *GAMMA, "Once")
    lines = ran.out.splitlines()
    assert ran.code == 0 and lines[0].startswith("Round by round: target ")
    first = lines[1]
    assert first.split()[0] == "1" and "Once" in first and ("{+" in first or "{*" in first)
    assert any(line.strip().startswith("\u03b3 = 3  ") for line in lines)
    assert any(line.strip().startswith("\u03b3 = 7  ") for line in lines)  # a second draft length
    assert any(line.strip().startswith("plain  ") for line in lines)
    assert "Acceptance by depth" in ran.out and "accepted / tested" in ran.out and "summary" in ran.out


@pytest.mark.slow
def test_figures(specjax_program, base, tmp_path):
    folder = tmp_path / "pictures"
    ran = specjax_program(*base, *GAMMA, "Once", "upon", "--gammas", "2", "--output", str(folder))
    names = {"rounds.jsonl", *(f"{n}.{k}" for n in ("strip_1", "strip_2", "walltime", "depth") for k in ("svg", "png"))}
    assert ran.code == 0 and {path.name for path in folder.iterdir()} == names
    assert (
        "\u03b3 = 2" in (folder / "walltime.svg").read_text()
        and "\u03b3 = 3" not in (folder / "walltime.svg").read_text()
    )
    assert {r["row"] for r in loaded((folder / "rounds.jsonl").read_text())[1:-1]} == {0, 1}
    again = specjax_program(*base, "Once", "--drafter", "ngram", "--format", "svg", "--json", "--output", str(folder))
    assert again.code == 2 and again.err.startswith("specjax trace: error: draft ")  # unused, refused as by generate


@pytest.mark.slow
def test_drafter_without_a_model_and_plain_decoding(specjax_program, models, tmp_path):
    plain = ["trace", "--target", models["target"], *NEW, "Once"]
    ngram = specjax_program(*plain, "--drafter", "ngram", "--json", "--output", str(tmp_path), "--format", "svg")
    assert ngram.code == 0 and loaded(ngram.out)[0]["draft_steps"] == 1
    assert {path.name for path in tmp_path.iterdir()} == {"rounds.jsonl", *(f"{name}.svg" for name in PICTURES)}
    alone = specjax_program(*plain, "--drafter", "plain")
    assert alone.code == 0 and "Acceptance by depth" not in alone.out and "\u03b3" not in alone.out


@pytest.mark.slow
def test_tree(specjax_program, base):
    ran = specjax_program(*base, "Once", "--drafter", "tree:shape=2x1", "--temperature", "0")
    lines = [line.strip() for line in ran.out.splitlines()]
    assert ran.code == 0 and "verifier multiround-without" in ran.out and "\u03b3" not in ran.out
    assert any(line.startswith("drafted  ") for line in lines) and any(line.startswith("plain  ") for line in lines)


@pytest.mark.slow
def test_options_override_a_preset(specjax_program, models, tmp_path):
    preset = tmp_path / "preset.py"
    preset.write_text(
        "from specjax.config import RunConfig\n"
        f"CONFIG = RunConfig(target={models['target']!r}, draft={models['draft']!r}, gamma=3, temperature=0.7,"
        " max_new_tokens=10, stop_token=(256,))\n"
    )
    head, *_, end = loaded(specjax_program("trace", "--config", str(preset), "--repeats", "1", "--json", "Once").out)
    assert head["draft_steps"] == 3 and len(end["tokens"][0]) == 10 and head["settings"]["stop_token"] == [256]


def test_a_record_is_one_line():
    record = {"text": "a\x85b\u2028c\u2029d\ne\x0bf", "ü": 1}
    line = command.json_line(record)
    assert len(line.splitlines()) == 1 and json.loads(line) == record and "ü" in line


def test_draft_lengths_of_the_lanes():
    assert command.lane_gammas(5, ()) == [5, 3] and command.lane_gammas(3, ()) == [3, 7]
    assert command.lane_gammas(None, ()) == [] and command.lane_gammas(5, (7, 1)) == [7, 1]


@pytest.mark.slow
def test_nan_is_a_warning_and_an_exit_code(specjax_program, models, tmp_path):
    ran = specjax_program(
        "trace", "--target", models["broken"], "--drafter", "plain", *NEW, "Once", "--json", "--output", str(tmp_path)
    )
    assert ran.code == 1 and "rounds.jsonl" in {path.name for path in tmp_path.iterdir()}
    assert "NaN" in ran.err and loaded(ran.out)[-1]["stop_reasons"] == ["nan"]


BAD = {
    "empty prompt": ([""], "prompt 1"),
    "gammas 0": (["x", "--gammas", "0"], "--gammas"),
    "gammas too long": (["x", "--gammas", "100000"], "--gammas"),
    "gammas twice": (["x", "--gammas", "3", "3"], "--gammas"),
    "gammas for a tree": (["x", "--drafter", "tree", "--draft", "d", "--gammas", "3"], "--gammas"),
    "gammas for plain": (["x", "--drafter", "plain", "--gammas", "3"], "--gammas"),
    "repeats": (["x", "--repeats", "0"], "--repeats"),
    "rounds": (["x", "--rounds", "0"], "--rounds"),
    "format twice": (["x", "--format", "svg", "svg"], "--format"),
    "format": (["x", "--format", "gif"], "--format"),
    "a file": (["x", "--output", "{file}"], "--output"),
    "no parent": (["x", "--output", "{file}/a/b"], "--output"),
    "verifier": (["x", "--verifier", "tokn"], "'token'"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("nothing_is_computed")
def test_invalid_options_are_refused_before_any_work(case, refused, models, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    args, name = BAD[case]
    refused("trace", "--target", models["target"], *[a.format(file=file) for a in args], name=name)


@pytest.mark.slow
def test_missing_matplotlib_is_reported_before_any_work(specjax_program, base, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = specjax_program(*base, *GAMMA, "Once", "--output", str(tmp_path / "pictures"))
    assert ran.code == 2 and "specjax[plot]" in ran.err and not list(tmp_path.iterdir())
    assert specjax_program(*base, *GAMMA, "Once", "--json").code == 0
