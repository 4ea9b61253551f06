"""Tokens per round of every verifier on the same drafts."""

import jax
import pytest

import specjax as sj
from specjax.bench import verifiers
from tests import battery

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [2, 2]]


def rows(**options):
    target, draft = battery.target("opt"), battery.draft("opt")
    drafter = sj.drafters.model(draft, gamma=3)
    given = {"rounds": 120, "batch": 4, "new": 16} | options
    with jax.debug_key_reuse(False):  # a round repeats the draft that was judged
        return list(verifiers.committed(target, drafter, PROMPTS, **given))


@pytest.mark.slow
def test_every_verifier_judges_the_same_rounds():
    found = {row["verifier"]: row for row in rows()}
    assert {"token", "block", "multiround", "traversal"} <= set(found) and "lossy-typical" not in found
    assert len({row["rounds"] for row in found.values()}) == 1 and found["token"]["rounds"] >= 120
    assert found["token"]["difference"] == 0 and found["token"]["difference_error"] == 0
    block = found["block"]
    assert block["difference"] == pytest.approx(block["tokens_per_round"] - found["token"]["tokens_per_round"])
    assert block["difference"] > -4 * block["difference_error"] and 1 <= block["tokens_per_round"] <= 4
    worst = found["non-iterative"]  # never better than token-level verification, here clearly worse
    assert worst["difference"] < 0


def test_verdicts_and_rows_draw_from_different_streams():
    """A row's key is fold_in(key(seed), row): no verdict of any turn may be drawn from the key of a row."""
    from specjax import decoding

    rows = {tuple(jax.random.key_data(k).tolist()) for k in decoding.row_keys(jax.random.key(0), jax.numpy.arange(64))}
    verdicts = set()
    for turn in range(8):
        key = verifiers._judges_key(0, turn)
        every = [key, *(jax.random.fold_in(key, number) for number in range(64))]
        verdicts |= {tuple(jax.random.key_data(one).tolist()) for one in every}
    assert len(verdicts) == 8 * 65 and not rows & verdicts


@pytest.mark.slow
def test_costs_are_shares_of_a_target_pass(monkeypatch):
    from specjax.models import opt

    small = opt.OPTConfig(
        vocab_size=40, width=8, embed_width=8, layers=1, heads=1, mlp_width=8, max_positions=verifiers.SLOTS
    )
    monkeypatch.setattr(opt, "sizes", lambda: {"125m": small})
    names = ("token", "deterministic")
    found = list(verifiers.cost(rows=2, gamma=2, repeats=1, names=names))
    assert [row["verifier"] for row in found] == list(names)
    assert all(row["share"] == row["ms"] / row["pass_ms"] > 0 for row in found)
