"""Reported seconds: compilation is separate from running."""

import json


def test_a_warm_run_compiles_nothing(specjax_program, models):
    own = ["--min-p", "0.01", "--top-p", "0.9", "--repetition-penalty", "1.1"]  # stages that no other test compiles
    args = ["generate", "--target", models["target"], "Once", "--drafter", "plain", "--json", *own]
    seconds = [json.loads(specjax_program(*args).out)["stats"]["seconds"] for _ in range(2)]
    assert seconds[0]["compile"] > 0 and seconds[1]["compile"] == 0
    assert all(part["prefill"] > 0 and part["decode"] > 0 for part in seconds)
