"""Rows of `bench prefill` and `bench context`, on a bundled model."""

import pytest

from specjax.bench import context, peer
from tests import battery


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(peer, "available", lambda: False)
    monkeypatch.setattr("specjax.measuring.PAUSE", 0.0)
    monkeypatch.setattr(context, "NEW", 4)


def test_a_batch_of_unequal_prompts_is_compared_with_its_parts():
    rows = list(context.prefill("bundled/opt-tiny", "float32", 2, (20, 40), 2))
    assert [row["prompt"] for row in rows] == [20, 40, [20, 40]]
    for row in rows:
        tokens = 60 if row["prompt"] == [20, 40] else 2 * row["prompt"]
        assert row["specjax_tokens_per_second"] == pytest.approx(tokens / row["specjax_seconds"][1])
    assert rows[-1]["time_of_parts"] > 0


@pytest.mark.parametrize("drafter", battery.others_slow(context.DRAFTERS, []))
def test_the_round_is_timed_for_each_size_of_the_cache(drafter):
    rows = list(context.context("bundled/opt-tiny", "float32", 2, 8, drafter, (32, 64), 2))
    assert [row["cache_len"] for row in rows] == [32, 64]
    assert rows[0]["time_of_first"] == 1 and all(row["round_ms"] > 0 for row in rows)


def test_an_encoder_decoder_has_no_context():
    with pytest.raises(ValueError, match="decoder-only"):
        next(context.context("bundled/t5-draft", "float32", 1, 8, "plain", (64,), 1))


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning", "ignore:.*torch.jit.*:DeprecationWarning")
def test_the_peer_reads_the_same_prompts(monkeypatch):
    monkeypatch.undo()
    (row,) = context.prefill("bundled/t5-draft", "float32", 1, (8,), 1)
    assert row["ratio"] > 0 and row["transformers_tokens_per_second"] > 0
