"""Tokens a round of every verifier on the same drafts."""

import jax
import numpy as np
import pytest

import specjax as sj
from specjax.bench import committed
from tests import battery

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [2, 2]]


def rows(**options):
    target, draft = battery.target("opt"), battery.draft("opt")
    guide = sj.drafters.model(draft, gamma=3)
    given = {"rounds": 120, "batch": 4, "new": 16} | options
    with jax.debug_key_reuse(False):  # the round that goes on draws what was judged, on purpose
        return list(committed.committed(target, guide, PROMPTS, **given))


@pytest.mark.slow
def test_every_verifier_judges_the_same_rounds():
    found = {row["verifier"]: row for row in rows()}
    assert {"token", "block", "multiround", "traversal"} <= set(found) and "lossy-typical" not in found
    assert len({row["rounds"] for row in found.values()}) == 1 and found["token"]["rounds"] >= 120
    assert found["token"]["difference"] == 0 and found["token"]["error"] == 0
    block = found["block"]
    assert block["difference"] == pytest.approx(block["tokens_per_round"] - found["token"]["tokens_per_round"])
    assert block["difference"] > -4 * block["error"] and 1 <= block["tokens_per_round"] <= 4
    worst = found["non-iterative"]  # never better than token by token, and here clearly worse
    assert worst["difference"] < 0


def test_the_error_is_that_of_independent_prompts():
    rng = np.random.default_rng(0)
    weights = rng.integers(5, 15, size=(4000, 40)).astype(float)
    sums = weights * 0.5 + rng.normal(size=weights.shape) * 3
    spread = np.std(sums.sum(1) / weights.sum(1))
    told = np.mean([committed._ratio_error(s, w) for s, w in zip(sums, weights, strict=True)])
    assert told == pytest.approx(spread, rel=0.05)
    assert np.isnan(committed._ratio_error(np.ones(1), np.ones(1)))
