"""The arithmetic of the benchmark's rows, on times that were made up."""

import numpy as np
import pytest

from specjax.bench import decode, machine


def timed(*seconds: float):
    return decode.Timed(seconds)


def test_a_summary_divides_tokens_by_the_median():
    row = decode.summary(
        {"specjax": timed(3.0, 1.0, 2.0), "specjax plain": timed(8.0), "transformers": timed(5.0, 7.0, 6.0)},
        {"specjax": 0.1, "specjax plain": 0.2, "transformers": 0.3},
        128,
    )
    assert row["specjax_tokens_per_second"] == 64
    assert row["specjax_plain_tokens_per_second"] == 16
    assert row["specjax_seconds"] == [1.0, 2.0, 3.0]
    assert row["ratio"] == 3.0
    assert (row["specjax_load"], row["specjax_plain_load"], row["transformers_load"]) == (0.1, 0.2, 0.3)
    assert "ratio" not in decode.summary({"specjax": timed(1.0)}, {"specjax": 0.0}, 1)


def test_what_others_used_of_the_machine(monkeypatch):
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
    start, end = machine.Ticks(10.0, 1.0, 100.0), machine.Ticks(16.0, 3.0, 102.0)
    assert machine.others(start, end) == pytest.approx((6.0 - 2.0) / (2.0 * 4))
    assert machine.others(start, start) == 0.0
    assert machine.others(start, machine.Ticks(10.5, 3.0, 102.0)) == 0.0  # ticks are coarse: never below nothing


def test_prompts_are_the_same_in_every_run_and_of_the_vocabulary():
    one, other = decode.prompts(3, 50, 20), decode.prompts(3, 50, 20)
    assert one == other
    assert np.shape(one) == (3, 20)
    assert np.min(one) >= 4
    assert np.max(one) < 50
