"""`specjax advise` end to end on toy checkpoints, and invalid options."""

import json
import os
import signal

import pytest

from specjax.advisor import measure
from specjax.advisor.measure import BatchRun
from specjax.strategy import Strategy

BAD = {
    "drafter": (["--drafters", "modle"], "'model'"),
    "twice": (["--drafters", "ngram", "ngram"], "--drafters"),
    "no draft": (["--target", "x", "--drafters", "tree"], "--draft"),
    "cascade": (["--drafters", "cascade"], "--draft"),
    "same draft": (["--draft", "a", "--draft", "a"], "--draft"),
    "three drafts": (["--draft", "a", "--draft", "b", "--draft", "c"], "--draft"),
    "task": (["--task", "storey"], "'story'"),
    "two sources": (["--task", "story", "--prompts", "x.txt"], "--task"),
    "no file": (["--prompts", "absent.txt"], "absent.txt"),
    "count": (["--count", "0"], "--count"),
    "batch": (["--batch", "0"], "--batch"),
    "new": (["--max-new-tokens", "0"], "--max-new-tokens"),
    "verify": (["--verify", "-1"], "--verify"),
    "repeats": (["--repeats", "0"], "--repeats"),
    "temperature": (["--temperature", "-1"], "--temperature"),
    "nan": (["--temperature", "nan"], "--temperature"),
    "hot": (["--temperature", "1e300"], "--temperature"),
    "long": (["--max-new-tokens", "99999999999"], "--max-new-tokens"),
    "seed": (["--seed", "99999999999"], "--seed"),
    "negative seed": (["--seed", "-1"], "--seed"),
    "output": (["--output", "no/such/file.json"], "--output"),
    "picture": (["--picture", "advice.gif"], ".svg"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("no_model_is_loaded")
def test_invalid_options_are_one_line(case, refused):
    args, name = BAD[case]
    refused("advise", *args, name=name)


def test_models_that_do_not_fit_are_refused(specjax_program, models):
    ran = specjax_program("advise", "--target", models["target"], "--draft", models["other"])
    assert ran.code == 2 and "vocabulary" in ran.err and len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("at, wanted", [(9, "No advice"), (60, "interrupted")], ids=["early", "late"])
def test_ctrl_c_keeps_measurements(at, wanted, specjax_program, models, tmp_path, monkeypatch):
    ran = []

    def decode(work, strategy, number):  # a fast machine on which nothing helps
        ran.append(strategy)
        if len(ran) == at:
            os.kill(os.getpid(), signal.SIGINT)
        seconds, rows = 4.0 if strategy.name == "plain" else 8.0, len(work.batches[number].prompts)
        return BatchRun(1.0, seconds, 4, ((4, 0),), [[1] * 4] * rows)

    monkeypatch.setattr(measure, "decode", decode)
    output = tmp_path / "advice.json"
    args = ["--target", models["target"], "--drafters", "ngram", "suffix", "--count", "2", "--max-new-tokens", "4"]
    stopped = specjax_program("advise", *args, "--output", str(output))
    found = json.loads(output.read_text())
    assert stopped.code == 130 and len(ran) == at and "interrupted" in stopped.err
    assert wanted in stopped.out and found["interrupted"] and found["counted"] and not found["helps"]
    assert (found["measured"] is None) == (wanted == "No advice") == (not found["candidates"])


@pytest.mark.slow
def test_the_recommended_command_runs(specjax_program, models, tmp_path):
    prompts, output, picture = tmp_path / "prompts.txt", tmp_path / "advice.json", tmp_path / "advice.svg"
    prompts.write_text("abcabcabcabc\nhello hello hello\n")
    args = ["advise", "--target", models["target"], "--draft", models["draft"], "--prompts", str(prompts)]
    args += ["--max-new-tokens", "16", "--ignore-eos", "--repeats", "2", "--verify", "2"]
    ran = specjax_program(*args, "--output", str(output), "--picture", str(picture))
    assert ran.code == 0 and "predicted" in ran.out and "specjax generate --target" in ran.out
    found = json.loads(output.read_text())
    assert len(found["trials"]) >= 2 and found["candidates"] and not found["interrupted"]
    best = found["trials"][0]
    assert found["helps"] == (best["measured_speedup"] - best["measured_error"] > 1)
    for row in found["candidates"]:
        Strategy.parse(row["drafter"])
    assert found["reason"][0].startswith("Use ") and found["reason"][0] in ran.out
    assert picture.read_text().lstrip().startswith("<?xml")
    args = ["--drafter", found["use"], "--target", models["target"], "--max-new-tokens", "8", "--quiet"]
    args += ["--verifier", found["verifier"]] if found["verifier"] else []
    args += [word for draft in found["use_drafts"] for word in ("--draft", draft)]
    again = specjax_program("generate", *args, "abc")
    assert again.code == 0


@pytest.mark.slow
def test_nan_is_one_line(specjax_program, models):
    ran = specjax_program("advise", "--target", models["broken"], "--drafters", "ngram", "--max-new-tokens", "4")
    assert ran.code == 1 and "NaN" in ran.err and len(ran.err.splitlines()) == 1
