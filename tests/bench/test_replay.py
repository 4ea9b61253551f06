"""Chains counted on one run: what each of them counts when it is run."""

import dataclasses

import pytest

import specjax as sj
from specjax.bench import grid, replay, tasks
from specjax.reproduce.setup import other_texts
from tests import battery


@pytest.mark.parametrize(
    ("name", "ended"), battery.others_slow([("eagle3", False), ("eagle3", True), ("medusa", True)], [("eagle3", True)])
)
def test_greedy_chains_are_those_that_are_run(name, ended):
    """Also of texts that end inside a chain."""
    target = sj.load("bundled/opt-target")
    if ended:
        target = dataclasses.replace(target, eos=(target.text.encode(".")[-1],))
    head = sj.load_head(f"bundled/opt-target-{name}", target)
    prompts = tasks.prompts_for(target, "story", [*map(tasks.Item, other_texts("story"))][:3])
    settings = {"max_new_tokens": 20, "ignore_eos": not ended, "seed": 0}
    work = grid.Workload(target, prompts, settings, 2, 1, 1)
    found = replay.greedy_chains(work, sj.drafters.head(head, gamma=3), (1, 2))
    drafted = settings | {"temperature": 0.0, "drafter": sj.drafters.head(head, gamma=2)}
    assert found[2] == grid.acceptance(work, drafted)
    assert min(found[2]["counts"]["tokens"]) < 20 or not ended
    assert sum(found[2]["counts"]["accepted"]) > sum(found[1]["counts"]["accepted"]) > 0
