"""A draft with fewer positions than the target: it stops drafting there, and the target's output goes on."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from specjax import drafters, policies, trees
from specjax.stopping import Stop
from tests import battery
from tests.battery import run, texts
from tests.drafters import drafting
from tests.models.small import laid_out

POSITIONS = 14  # prompts have 1 to 16 tokens, outputs 24


@functools.cache
def short(family: str = "opt"):
    """The draft of the battery with a table of a few positions."""
    model = battery.draft(family)
    plain = laid_out(model.params, battery.FMT)  # (in, out)
    table = plain["embed"]["positions"]["table"][: POSITIONS + 2]
    params = {**plain, "embed": {**plain["embed"], "positions": {"table": table}}}
    config = dataclasses.replace(model.config, max_positions=POSITIONS)
    found = dataclasses.replace(model, name="short", config=config, params=laid_out(params, battery.FMT))
    assert found.positions == POSITIONS < battery.target(family).positions
    return found


KINDS = {
    "chain": lambda: drafters.model(short(), gamma=3),
    "adaptive": lambda: drafters.model(short(), policy=policies.heuristic(gamma_max=4)),
    "tree": lambda: drafters.tree(short(), trees.regular((2, 2))),
    "dynamic tree": lambda: drafters.dynamic_tree(short(), size=6, depth=2, width=3),
    "cascade, inner": lambda: drafters.cascade(battery.draft("opt"), drafters.model(short(), gamma=2), gamma=4),
    "cascade, middle": lambda: drafters.cascade(short(), drafters.ngram(gamma=2), gamma=4),
    "bounded": lambda: drafters.model(drafters.bounded(short(), budget=8, slack=4, block=4), gamma=3),
}
VERIFIERS = {"tree": "multiround-without", "dynamic tree": "deterministic"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_output_continues_past_the_drafts_positions(kind):
    """Prompts longer than the draft's table, and outputs that end far behind it, token for token those of plain."""
    drafter = KINDS[kind]()
    state = run("opt", drafter, verify=drafting.verifier(drafter, VERIFIERS.get(kind, "token")))
    assert texts(state) == battery.plain("opt")
    assert state.stop.tolist() == [Stop.MAX_TOKENS] * battery.ROWS
    totals = jax.device_get(state.totals)
    if kind != "cascade, inner":
        past = battery.LENGTHS > POSITIONS
        assert not totals.drafted[past].any()
        assert totals.accepted[~past].sum() > 0


@pytest.mark.slow
def test_a_bounded_rotary_draft_has_no_last_position():
    drafter = drafters.model(drafters.bounded(battery.draft("llama"), budget=8, slack=4, block=4), gamma=3)
    plain = run("llama", drafters.plain(), setting=battery.Setting(max_new=100, cache_len=120))
    state = run("llama", drafter, setting=battery.Setting(max_new=100, cache_len=120))
    assert battery.target("llama").config.max_positions < 100
    assert texts(state) == texts(plain)
    late = np.asarray(state.totals.drafted) / np.asarray(state.totals.rounds)
    assert (late == 3).all()  # every round drafts a whole chain
