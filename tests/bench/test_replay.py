"""Chains counted on one run: what each of them counts when it is run."""

import dataclasses

import pytest

import specjax as sj
from specjax.bench import grid, replay
from tests import battery
from tests.drafters.test_head import head
from tests.drafters.test_staged_heads import head as staged_head

HEADS = {"eagle3": head, "mlp": staged_head}
CASES = [("eagle3", False), ("eagle3", True), ("mlp", True)]


@pytest.mark.parametrize(("kind", "ended"), battery.others_slow(CASES, [("eagle3", True)]))
def test_greedy_chains_are_those_that_are_run(kind, ended):
    """Also of texts that end inside a chain, and after a prompt of one token."""
    one = HEADS[kind](kind, "opt")
    prompts = [row[:length].tolist() for row, length in zip(battery.prompts(), battery.LENGTHS, strict=True)]
    settings = {"max_new_tokens": 20, "ignore_eos": not ended, "seed": 0}
    if ended:
        texts = sj.generate(one.target, prompts, temperature=0.0, **settings | {"ignore_eos": True}).tokens
        later = {token for row in texts for token in row} - {row[0] for row in texts}
        rarest = min(sorted(later), key=lambda token: sum(token in row for row in texts))
        one = dataclasses.replace(one, target=dataclasses.replace(one.target, eos=(rarest,)))
    work = grid.Workload(one.target, prompts, settings, 2, 1, 1)
    found = replay.greedy_chains(work, sj.drafters.head(one, gamma=3), (1, 2))
    drafted = settings | {"temperature": 0.0, "drafter": sj.drafters.head(one, gamma=2)}
    assert found[2] == grid.acceptance(work, drafted)
    assert (min(found[2]["counts"]["tokens"]) < 20) == ended
    assert sum(found[2]["counts"]["accepted"]) > 0
