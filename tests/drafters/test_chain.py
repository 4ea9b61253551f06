"""The chain drafter's cache: it lags by one after a block accepted whole, and otherwise is what was committed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, sampling
from specjax.drafters.chain import chain
from specjax.drafters.writer import model_writer
from specjax.models import opt
from tests import battery

GAMMA = 3
ROWS = 4
# a round: how many tokens each row keeps of its gamma drafts and one more; 0: the row has stopped
ROUNDS = ([GAMMA + 1, 1, 2, 0], [GAMMA + 1, GAMMA + 1, 3, 0], [1, 2, GAMMA + 1, 0])


def greedy(logits, ancestors=None):
    params = sampling.sampling_params(ROWS, battery.VOCAB, temperature=0.0)
    del ancestors
    return sampling.warp(params, logits)


@pytest.fixture(scope="module")
def history():
    """What was committed, the drafts and the states round by round."""
    model = battery.target("opt")
    drafter = chain(model_writer(model.lm), GAMMA)
    propose = jax.jit(lambda params, key, state, pending: drafter.propose(params, key, state, pending, greedy))
    commit = jax.jit(drafter.commit)
    rng = np.random.default_rng(0)
    lengths = np.array([3, 1, 7, 5], np.int32)
    rows = [battery.prompts()[i, :n].tolist() for i, n in enumerate(lengths)]
    state = jax.jit(drafter.init, static_argnums=3)(
        model.params, jnp.asarray(battery.prompts()[:ROWS]), jnp.asarray(lengths), 40, None
    )
    seen = []
    for number, kept in enumerate(ROUNDS):
        pending = jnp.asarray([row[-1] for row in rows], jnp.int32)
        before = [list(row) for row in rows]
        draft, proposed = propose(model.params, jax.random.split(jax.random.key(number), ROWS), state, pending)
        tokens = np.zeros((ROWS, GAMMA + 1), np.int32)
        for row, n in enumerate(kept):  # accepted drafts, then a token of the target's that nobody foresaw
            block = [*draft.tokens[row, 1 : max(n, 1)].tolist(), int(rng.integers(battery.VOCAB))][:n]
            tokens[row, :n] = block
            tokens[row, n:] = 12
            rows[row] += block
        state = commit(model.params, proposed, battery.commit_of(tokens, kept))
        seen.append((before, kept, draft, state))
    return seen


@pytest.mark.slow
def test_the_cache_lags_only_after_full_acceptance(history):
    for before, kept, _, state in history:
        assert state.lag.tolist() == [int(n == GAMMA + 1) for n in kept]
        after = [len(row) + n for row, n in zip(before, kept, strict=True)]
        running = [n > 0 for n in kept]
        held = np.asarray(state.cache.length + state.lag)
        assert held[running].tolist() == (np.array(after) - 1)[running].tolist()  # all but `pending`


def test_a_stopped_row_stays_as_it_is(history):
    assert {int(state.cache.length[3]) for *_, state in history} == {4}


def test_every_draft_is_what_the_model_predicts_from_the_whole_text(history):
    """Greedy drafts from ragged, rolled-back and lagging caches equal argmaxes of a run without any cache."""
    model = battery.target("opt")
    score = jax.jit(lambda tokens: opt.FAMILY.score(model.params, model.config, battery.FMT, tokens))
    for before, _, draft, _ in history:
        whole = [text + draft.tokens[row, 1:].tolist() for row, text in enumerate(before)]
        padded = np.zeros((ROWS, 24), np.int32)  # causal: what comes after a position does not matter to it
        for row, text in enumerate(whole):
            padded[row, : len(text)] = text
        best = np.asarray(score(jnp.asarray(padded)).argmax(-1))
        for row, text in enumerate(before):
            assert whole[row][len(text) :] == best[row, len(text) - 1 : len(whole[row]) - 1].tolist()


def test_control_a_token_that_was_not_fed_is_detected(history):
    """The control: without the token that lags, the next drafts are others."""
    model = battery.target("opt")
    drafter = chain(model_writer(model.lm), GAMMA)
    before, _, draft, _ = history[1]
    *_, state = history[0]
    assert state.lag.tolist()[0] == 1
    forgets = state._replace(lag=jnp.zeros_like(state.lag))
    pending = jnp.asarray([row[-1] for row in before], jnp.int32)
    propose = jax.jit(lambda params, key, state, pending: drafter.propose(params, key, state, pending, greedy))
    other, _ = propose(model.params, jax.random.split(jax.random.key(1), ROWS), forgets, pending)
    assert other.tokens[0].tolist() != draft.tokens[0].tolist()
    assert other.tokens[1].tolist() == draft.tokens[1].tolist()


def test_gamma_zero_is_refused():
    with pytest.raises(ValueError, match="gamma"):
        drafters.model(battery.target("opt"), gamma=0)
