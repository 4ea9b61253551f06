"""Acceptance over all places of the target's text, against both models' scores of that text."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax.bench.grid import Workload, acceptance
from specjax.bench.record import Shelf
from specjax.reproduce.pairs import PairRun, own_model
from specjax.reproduce.setup import Setup
from tests import battery

PROMPTS = [[5, 6, 7], [8, 9]]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "temperature"), [*itertools.product(["opt", "t5"], [0.0, 1.0])])
def test_alpha_is_the_mean_overlap_over_all_places(family, temperature):
    target, draft = battery.target(family), battery.draft(family)
    settings = {"max_new_tokens": 8, "ignore_eos": True, "seed": 1}

    class Run(PairRun):
        def drafter(self):
            return sj.drafters.model(draft, gamma=self.gamma)

    work = Workload(target, PROMPTS, settings, 2, 1, 1)
    found = Run(Shelf("float32", print), Setup(), work, "story", own_model("draft"), 1, temperature).acceptance()
    none = sj.verify.TABLE["simulated"]._replace(fn=sj.verify.simulated(0.0))
    drafter = sj.drafters.model(draft, gamma=1)
    texts = sj.generate(target, PROMPTS, drafter=drafter, verifier=none, temperature=temperature, **settings).tokens
    if not temperature:
        assert texts == sj.generate(target, PROMPTS, temperature=0.0, **settings).tokens
    overlap = []
    for prompt, text in zip(PROMPTS, texts, strict=True):
        before = [target.config.start_token] if target.encoder_decoder else prompt
        given = ([prompt] if target.encoder_decoder else []), [*before, *text]
        read = [jnp.asarray([ids]) for ids in (*given[0], given[1])]
        p, q = (np.asarray(model.score(*read))[0, len(before) - 1 : -1] for model in (target, draft))
        if temperature:
            p, q = (np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True)) for x in (p, q))
            overlap.append(np.minimum(p, q).sum())
        else:
            overlap.append((p.argmax(-1) == q.argmax(-1)).sum())
    assert found["counts"]["tested"] == [8, 8] and found["accepted_per_tested"] == 0
    assert found["counts"]["overlap"] == pytest.approx(overlap, rel=1e-4)


@pytest.mark.slow
def test_tested_places_alone_are_another_quantity():
    """Where agreement comes in runs, places tested by a verifier are not those of the text."""
    target, draft = battery.target("opt"), battery.draft("opt")
    drafter = sj.drafters.model(draft, gamma=1)
    settings = {"max_new_tokens": 24, "ignore_eos": True, "seed": 0, "temperature": 0.0, "drafter": drafter}
    work = Workload(target, PROMPTS, {}, 2, 1, 1)
    tested = acceptance(work, settings | {"verifier": "token"})
    assert tested["tested"] < tested["tokens"]
