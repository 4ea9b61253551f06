"""`specjax advise` from end to end on toy checkpoints, and what it refuses."""

import json
import os
import signal

import pytest

from specjax.advisor import running
from specjax.advisor.running import Run
from specjax.naming import drafting

BAD = {
    "drafter": (["--drafters", "modle"], "did you mean 'model'"),
    "twice": (["--drafters", "ngram", "ngram"], "--drafters names ngram twice"),
    "no draft": (["--target", "x", "--drafters", "tree"], "needs --draft"),
    "cascade": (["--drafters", "cascade"], "needs --draft twice"),
    "same draft": (["--draft", "a", "--draft", "a"], "--draft names a twice"),
    "three drafts": (["--draft", "a", "--draft", "b", "--draft", "c"], "--draft is given 3 times"),
    "task": (["--task", "storey"], "did you mean 'story'"),
    "two sources": (["--task", "story", "--prompts", "x.txt"], "leave one of them out"),
    "no file": (["--prompts", "absent.txt"], "absent.txt"),
    "count": (["--count", "0"], "--count must be at least 1, got 0"),
    "batch": (["--batch", "0"], "--batch must be at least 1, got 0"),
    "new": (["--max-new-tokens", "0"], "--max-new-tokens must be at least 1, got 0"),
    "verify": (["--verify", "-1"], "--verify must be at least 0, got -1"),
    "repeats": (["--repeats", "0"], "--repeats must be at least 1, got 0"),
    "temperature": (["--temperature", "-1"], "--temperature must be at least 0, got -1"),
    "nan": (["--temperature", "nan"], "--temperature must be at least 0, got nan"),
    "hot": (["--temperature", "1e300"], "--temperature must be at most 3.4028234663852886e+38, got 1e+300"),
    "long": (["--max-new-tokens", "99999999999"], "--max-new-tokens must be at most 1048576, got 99999999999"),
    "seed": (["--seed", "99999999999"], "--seed must be at most 4294967295, got 99999999999"),
    "negative seed": (["--seed", "-1"], "--seed must be at least 0, got -1"),
    "output": (["--output", "no/such/file.json"], "cannot write into the folder no/such"),
    "picture": (["--picture", "advice.gif"], "ends in .svg or .png"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("no_model_is_loaded")
def test_bad_options_get_one_line(case, refused):
    args, said = BAD[case]
    refused("advise", *args, said=said)


def test_models_that_do_not_go_together_are_refused(specjax_program, models):
    ran = specjax_program("advise", "--target", models["target"], "--draft", models["other"])
    assert ran.code == 2 and "vocabulary" in ran.err and len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("at, told", [(9, "No advice"), (60, "interrupted")], ids=["early", "late"])
def test_ctrl_c_keeps_what_was_measured(at, told, specjax_program, models, tmp_path, monkeypatch):
    ran = []

    def decode(work, way, number):  # a machine on which nothing pays and nothing takes long
        ran.append(way)
        if len(ran) == at:
            os.kill(os.getpid(), signal.SIGINT)
        return Run(1.0, 4.0 if way.kind == "plain" else 8.0, 4, (4, 0), [[1] * 4] * len(work.batches[number]))

    monkeypatch.setattr(running, "decode", decode)
    output = tmp_path / "advice.json"
    args = ["--target", models["target"], "--drafters", "ngram", "suffix", "--count", "2", "--max-new-tokens", "4"]
    stopped = specjax_program("advise", *args, "--output", str(output))
    found = json.loads(output.read_text())
    assert stopped.code == 130 and len(ran) == at and "what had been measured by then is kept" in stopped.err
    assert told in stopped.out and found["interrupted"] and found["counted"] and not found["helps"]
    assert (found["measured"] is None) == (told == "No advice") == (not found["candidates"])


@pytest.mark.slow
def test_a_pair_is_measured_and_the_answer_can_be_run(specjax_program, models, tmp_path):
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
        drafting.parse(row["drafter"])
    words = "This will not help" if not found["helps"] else "Use "
    assert found["reason"][0].startswith(words) and found["reason"][0] in ran.out
    assert picture.read_text().lstrip().startswith("<?xml")
    again = specjax_program("generate", "--drafter", found["use"], "--verifier", found["verifier"],
                            "--target", models["target"], *(w for d in found["use_drafts"] for w in ("--draft", d)),
                            "--max-new-tokens", "8", "--quiet", "abc")  # fmt: skip
    assert again.code == 0


@pytest.mark.slow
def test_a_broken_model_fails_in_one_line(specjax_program, models):
    ran = specjax_program("advise", "--target", models["broken"], "--drafters", "ngram", "--max-new-tokens", "4")
    assert ran.code == 1 and "NaN" in ran.err and len(ran.err.splitlines()) == 1
