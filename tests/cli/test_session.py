"""Reported seconds: compilation is separate from running."""

import json


def test_a_warm_run_compiles_nothing(specjax_program, models):
    own = ["--logit-bias", "5=0.1"]  # a program that no other test compiles
    args = ["generate", "--target", models["target"], "Once", "Then", "--drafter", "plain", "--json", *own]
    seconds = [json.loads(specjax_program(*args).out)["stats"]["seconds"] for _ in range(2)]
    assert seconds[0]["compile"] > 0 and seconds[1]["compile"] == 0
    assert all(part["prefill"] > 0 and part["decode"] > 0 for part in seconds)
