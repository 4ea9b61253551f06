"""The drafter of docs/guides/writing-a-drafter.md, with the code of that page."""

import functools
import itertools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decoding as loop
from specjax import drafters, sampling
from tests import battery, distributions
from tests.battery import run, texts
from tests.test_decoding import SAMPLED, draws_warped_and_tells_raw, exact_joint, sampled_counts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "writing-a-drafter.md"
V, GAMMA = battery.VOCAB, 3


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@functools.cache
def page() -> dict:
    """The names that the code of the page defines."""
    names: dict = {}
    for block in blocks():
        exec(compile(block, str(PAGE), "exec"), names)
    return names


@functools.cache
def last_seen() -> drafters.LoadedDrafter:
    return drafters.LoadedDrafter("last seen", page()["template"](V, GAMMA))


def proposals():
    """Draft of a ragged batch, mixed temperatures, and the memory after a commit and a propose."""
    made = last_seen().drafter
    params = sampling.sampling_params(battery.ROWS, V, temperature=SAMPLED)

    @jax.jit
    def rounds(prompts, lengths, key):
        warp = lambda logits, ancestors=None: sampling.warp(params, logits)
        state = made.init((), prompts, lengths, 30, None)
        pending = jnp.take_along_axis(prompts, lengths[:, None] - 1, 1)[:, 0]
        draft, state = made.propose((), key, state, pending, warp)
        return draft, made.commit((), state, battery.commit_of(draft.tokens, jnp.minimum(lengths - 1, GAMMA + 1)))

    return rounds(
        jnp.asarray(battery.prompts()), jnp.asarray(battery.LENGTHS), loop.row_keys(0, jnp.arange(battery.ROWS))
    )


@pytest.mark.slow
def test_the_page_speeds_up_decoding_and_names_its_drafter():
    """Its own assertion compares the tokens with plain decoding."""
    assert page()["drafted"].stats.tokens_per_call > 1.2
    assert page()["last_seen"](battery.target("opt"), gamma=2).name == "last seen x2"


def test_the_drafter_has_at_most_forty_lines():
    code = next(block for block in blocks() if "def propose" in block)
    lines = [line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(lines) <= 40


def test_memory_holds_the_last_successor_of_each_token():
    draft, memory = proposals()
    follows = np.asarray(memory.follows)
    for row, n in enumerate(battery.LENGTHS):
        new = np.asarray(draft.tokens)[row, : min(n - 1, GAMMA + 1)]
        text = [*battery.prompts()[row, :n].tolist(), *new.tolist()]
        wanted = np.full((V,), page()["UNMET"])
        for one, other in itertools.pairwise(text):
            wanted[one] = other
        np.testing.assert_array_equal(follows[row], wanted)
        assert memory.last[row] == text[-1]


@pytest.mark.slow
def test_rows_that_end_early_and_greedy_rows_equal_plain():
    budget = np.array([9, 24, 5, 1, 24, 24, 7, 24])
    plain = texts(run("opt", drafters.plain(), SAMPLED))
    whole = run("opt", last_seen(), SAMPLED)
    traces = loop.trace_count()
    cut = run("opt", last_seen(), SAMPLED, budget=budget)
    assert loop.trace_count() == traces
    assert texts(cut) == [row[:n] for row, n in zip(texts(whole), budget, strict=True)]
    for row in (0, 4):
        assert texts(whole)[row] == plain[row]
    assert 0 < whole.totals.accepted.sum() < whole.totals.tested.sum()


@pytest.mark.slow
@pytest.mark.parametrize("family", tuple(battery.FAMILIES))
def test_greedy_equals_plain_everywhere(family):
    assert texts(run(family, last_seen())) == battery.plain(family)


@pytest.mark.slow
def test_greedy_equals_plain_in_a_cascade():
    made = drafters.cascade(battery.draft("opt"), last_seen(), gamma=4)
    state = run("opt", made)
    assert texts(state) == battery.plain("opt")
    assert 0 < state.draft.tally.accepted.sum() < state.draft.tally.tested.sum()


def p_value(made: drafters.LoadedDrafter) -> float:
    return min(distributions.chi_square(h, exact_joint(t)) for t, h in sampled_counts(made).items())


@pytest.mark.slow
def test_sampled_rows_follow_the_joint_distribution():
    assert p_value(last_seen()) > distributions.ALPHA


@pytest.mark.slow
def test_control_another_log_q_fails_the_distribution_test():
    right = last_seen()
    other = draws_warped_and_tells_raw(right.drafter.propose, 1.5)
    assert p_value(right._replace(drafter=right.drafter._replace(propose=other))) < distributions.ALPHA
