"""Benchmarks of random models: arithmetic of their rows, prompts, and small runs."""

import numpy as np
import pytest

import specjax as sj
from specjax.bench import decode, peer, rounds
from specjax.measuring import Runs
from specjax.models import opt

SMALL = opt.OPTConfig(vocab_size=40, width=16, embed_width=16, layers=3, heads=1, mlp_width=8, max_positions=256)


@pytest.fixture
def small(monkeypatch):
    """Shapes, lengths and pauses small enough for a test; no transformers beside."""
    monkeypatch.setattr(opt, "sizes", lambda: {"tiny": SMALL})
    monkeypatch.setattr(peer, "available", lambda: False)
    monkeypatch.setattr("specjax.measuring.PAUSE", 0.0)
    for module in (decode, rounds):
        monkeypatch.setattr(module, "NEW", 6)


def runs(load: float, *seconds: float) -> Runs:
    return Runs(None, (), seconds, load)


def test_a_summary_divides_tokens_by_the_median():
    ours = {"specjax": runs(0.1, 3.0, 1.0, 2.0), "specjax plain": runs(0.2, 8.0)}
    row = decode.summary(ours | {"transformers": runs(0.3, 5.0, 7.0, 6.0)}, 128)
    assert row["specjax_tokens_per_second"] == 64
    assert row["specjax_plain_tokens_per_second"] == 16
    assert row["specjax_seconds"] == [1.0, 2.0, 3.0]
    assert row["ratio"] == 3.0
    assert (row["specjax_load"], row["specjax_plain_load"], row["transformers_load"]) == (0.1, 0.2, 0.3)
    assert "ratio" not in decode.summary({"specjax": runs(0.0, 1.0)}, 1)


def test_prompts_are_reproducible_and_in_the_vocabulary():
    one, other = decode.random_prompts(3, 50, 20), decode.random_prompts(3, 50, 20)
    assert one == other
    assert np.shape(one) == (3, 20)
    assert np.min(one) >= 4
    assert np.max(one) < 50


def test_bandwidth_is_positive():
    assert decode.bandwidth(megabytes=4, repeats=1) > 1e6


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_plain_and_speculative_rows(monkeypatch):
    monkeypatch.setattr(decode, "bandwidth", lambda: 1e9)
    (row,) = decode.plain("tiny", "float32", (1,), 1)
    assert row["rows"] == row["steps_of_one_row"] == row["bandwidth_gb"] == 1 and row["step_ms"] > 0
    (row,) = decode.speculative("tiny", "float32", (2,), 1)
    assert row["gamma"] == 2 and 0.5 < row["accepted_per_tested"] <= 1 and row["round_ms"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_round_is_compared_with_its_parts():
    (row,) = rounds.composition("tiny", "float32", (2,), 1)
    assert row["relative"] == pytest.approx(row["round_ms"] / (2 * row["draft_step_ms"] + row["verify_ms"]))


@pytest.mark.usefixtures("small")
@pytest.mark.slow
def test_overhead_rows():
    found = list(rounds.overhead(40, (2,), (0.0, 1.0), 1))
    assert [row["temperature"] for row in found] == [0.0, 1.0] and all(row["round_us"] > 0 for row in found)


def test_a_verification_is_compared_with_the_step_of_its_own_turn(monkeypatch):
    """The ratios are 2, 1 and 4; that of the medians would be 4. The first run is the warm-up."""
    seconds = {1: [9.0, 1.0, 10.0, 2.0], 8: [9.0, 2.0, 10.0, 8.0]}

    def program(model, drafter):
        times = iter(seconds.get(1 if drafter is None else drafter.drafter.tree.size, seconds[1]))
        return lambda: next(times)

    monkeypatch.setattr(rounds, "random_model", lambda size, dtype: None)
    monkeypatch.setattr(rounds, "_rounds", program)
    monkeypatch.setattr("specjax.measuring.PAUSE", 0.0)
    found = {row["tokens"]: row["relative"] for row in rounds.verify_cost("125m", "float32", 3)}
    assert found[1] == found[2] == 1.0 and found[8] == pytest.approx(2.0)


@pytest.mark.slow
def test_the_free_drafter_changes_nothing_and_costs_one_verification():
    model = sj.load("bundled/opt-tiny")
    settings = {"max_new_tokens": 6, "temperature": 0.0}
    plain = sj.generate(model, ["Once upon a time"], **settings)
    free = sj.generate(model, ["Once upon a time"], drafter=rounds.load_free(sj.trees.chain(3)), **settings)
    assert free.tokens == plain.tokens and free.stats.tested == free.stats.rounds
