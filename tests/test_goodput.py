"""Goodput on simulated step times: near the best fixed length at every batch size, and never slower than plain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import policies, theory
from specjax.policies import Round

ROUNDS, MOST, CONTEXT = 600, 8, 300
# Seconds: a pass reads the weights, then computes and reads keys and values with the rows; a draft step is a tenth.
TARGET = theory.StepTime(2e-7, 2e-4, 1e-2)
DRAFT = theory.StepTime(2e-8, 2e-5, 1e-3)


def simulate(rule, alpha: np.ndarray, *, seed: int = 0) -> tuple[float, np.ndarray]:
    """Tokens per second of a batch that is decoded for ever, and the lengths of its rounds.

    Args:
      alpha: [rounds, B], the chance that each draft token is accepted.
    """
    policy, rows = rule.policy, alpha.shape[1]
    length = jnp.full((rows,), CONTEXT, jnp.int32)

    def one_round(carry, given):
        state, tokens, seconds = carry
        chance, u = given
        wanted, state = policy.plan(rule.params, state, jnp.ones(rows, bool))
        step = jnp.arange(MOST, dtype=jnp.int32)[None]
        passed = (u < chance[:, None]) & (step < wanted[:, None])
        accepted = jnp.sum(jnp.cumprod(passed, axis=1, dtype=jnp.int32), axis=1, dtype=jnp.int32)
        state = policy.observe(rule.params, state, Round(wanted, accepted))
        gamma = jnp.max(wanted).astype(jnp.float32)
        pass_of = lambda model, fed: model.context * rows * CONTEXT + model.token * fed + model.constant
        spent = pass_of(TARGET, rows * (gamma + 1)) + gamma * pass_of(DRAFT, rows)
        # A served row has a bounded context: finished rows are replaced.
        state = state._replace(context=jnp.full((rows,), float(CONTEXT))) if hasattr(state, "context") else state
        return (state, tokens + jnp.sum(accepted + 1), seconds + spent), jnp.max(wanted)

    @jax.jit
    def run(alpha, u):
        start = policy.start(rule.params, length), jnp.int32(0), jnp.float32(0)
        return jax.lax.scan(one_round, start, (alpha, u))

    u = jax.random.uniform(jax.random.key(seed), (len(alpha), rows, MOST))
    (_, tokens, seconds), lengths = run(jnp.asarray(alpha, jnp.float32), u)
    return float(tokens) / float(seconds), np.asarray(lengths)


def fixed(gamma: int):
    """A policy of one length, with functions: `policies.fixed` is never called by the loop."""
    plan = lambda params, state, live: (jnp.full(live.shape, gamma, jnp.int32), state)
    return policies.Rule("fixed", policies.fixed(gamma).policy._replace(plan=plan))


def goodput():
    return policies.goodput(TARGET, draft=DRAFT, gamma_max=MOST)


@pytest.mark.parametrize(
    "alpha", [pytest.param(0.05), *(pytest.param(a, marks=pytest.mark.slow) for a in (0.2, 0.4, 0.7)), 0.9]
)
@pytest.mark.parametrize("rows", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 16, 64))])
def test_within_5_percent_of_the_best_length_and_3_percent_of_plain(rows, alpha):
    chances = np.full((ROUNDS, rows), alpha)
    each = [simulate(fixed(gamma), chances)[0] for gamma in range(MOST + 1)]
    speed, _ = simulate(goodput(), chances)
    assert speed > 0.95 * max(each)
    assert speed > 0.97 * each[0]


@pytest.mark.slow
def test_the_length_follows_the_acceptance():
    """Half of the rounds with a good draft, half with a useless one: no fixed length is as fast."""
    chances = np.repeat([0.9, 0.05], ROUNDS // 2)[:, None] * np.ones((1, 16))
    each = [simulate(fixed(gamma), chances)[0] for gamma in range(MOST + 1)]
    speed, lengths = simulate(goodput(), chances)
    assert len(set(lengths.tolist())) > 2 and 0 in lengths
    assert speed > max(each)
