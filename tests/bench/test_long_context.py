"""Bytes per token of self-speculation on long rows."""

import pytest

import specjax as sj
from specjax import estimates
from specjax.bench import long_context


@pytest.mark.slow
def test_a_token_reads_what_its_round_read(tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("The king went out. He saw a fox, and the fox saw him. " * 40)
    monkeypatch.setattr(long_context, "STRATEGIES", ("plain", "sinks", "layer-skip"))
    options = {"prompt": 40, "rows": 2, "gamma": 2, "budget": 16, "temperature": 0.0, "new": 8, "repeats": 2}
    model = sj.load("bundled/opt-draft")
    found = list(long_context.measure("bundled/opt-draft", "float32", str(text), **options))
    assert [row["strategy"] for row in found] == ["plain", "sinks"]  # a single layer cannot be skipped
    plain, sinks = found
    assert plain["time_of_plain"] == 1 and sinks["time_of_plain"] > 0
    weights = sum(leaf.nbytes for name, leaf in _leaves(model.params) if "positions" not in name)
    slot = 2 * model.config.layers * model.config.width * 4
    assert plain["mb_per_token"] * 1e6 == pytest.approx(weights / 2 + (40 + 8 + 3) * slot)
    drafted = 2 * sinks["draft_step_mb"] + sinks["target_pass_mb"]
    assert sinks["mb_per_token"] == pytest.approx(drafted / sinks["tokens_per_call"])
    assert plain["bytes_of_plain"] == 1 and 1 <= sinks["tokens_per_call"] <= 3
    assert sinks["bytes_of_plain"] == pytest.approx(sinks["mb_per_token"] / plain["mb_per_token"])
    assert sinks["draft_step_mb"] < plain["target_pass_mb"]
    written = sj.generate(
        model, long_context.cut(model, text.read_text(), 40, 2), max_new_tokens=8, temperature=0.0, ignore_eos=True
    )
    assert plain["repetition"] == sinks["repetition"] == estimates.repetition(written.tokens).value


def _leaves(params):
    import jax

    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]


def test_a_text_must_be_long_enough():
    model = sj.load("bundled/opt-tiny")
    with pytest.raises(ValueError, match=r"prompts.*400"):
        long_context.cut(model, "too short", 100, 4)
    prompts = long_context.cut(model, "one two three four five six seven eight", 2, 3)
    assert [len(prompt) for prompt in prompts] == [2, 2, 2]
