"""Policies that decide at the start of a round: fixed, best by theory, +2/-1, goodput of a batch, an oracle."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax import checks, theory
from specjax.policies.policy import (
    Policy,
    Round,
    Rule,
    as_planned,
    learn_nothing,
    on_forever,
)
from specjax.programs import memoize
from specjax.theory import StepTime
from specjax.theory.tokens import Numbers

HEURISTIC_START, UP, DOWN = 5, 2, 1  # of Gante 2023; transformers 5.23 starts at 20, with a constant length


def fixed(gamma: int) -> Rule:
    """Every row drafts gamma tokens in every round.

    Args:
      gamma: draft tokens per round, at least 0; 0 is plain decoding.

    Returns:
      The rule.

    Raises:
      ValueError: gamma below 0.

    >>> import specjax as sj
    >>> sj.policies.fixed(4).name
    'fixed 4'
    """
    return Rule(f"fixed {checks.integer('gamma', gamma, least=0)}", _fixed(gamma))


@memoize
def _fixed(gamma: int) -> Policy:
    start = lambda params, length: ()
    return Policy(gamma, start, as_planned(gamma), on_forever, learn_nothing, constant=True)


def best(
    alpha: float | int, c: float | int, *, gamma_max: int = 16, verify_cost: Numbers | None = None,
    overhead: float = 0.0,
) -> Rule:  # fmt: skip
    """The best fixed length by `theory.best_gamma`; 0, plain decoding, if nothing pays.

    Leviathan et al. 2023, arXiv 2211.17192, section 3.5.

    Args:
      alpha: probability that a draft token is accepted, such as `Stats.accepted_per_tested`.
      c: time of a draft step divided by that of a target step.
      gamma_max: greatest length that is considered, at least 0.
      verify_cost: [gamma_max + 1], time of a target forward pass over 1, 2, ... tokens divided by that over one token.
        None: all 1.
      overhead: other time per round, in target steps.

    Returns:
      The rule.

    Raises:
      ValueError: an argument out of range.

    >>> import specjax as sj
    >>> sj.policies.best(0.8, 0.05).name
    'fixed 8'
    """
    checks.integer("gamma_max", gamma_max, least=0)
    found = theory.best_gamma(alpha, c, gamma_max=gamma_max, verify_cost=verify_cost, overhead=overhead)
    return fixed(int(found.gamma))


def heuristic(*, gamma_max: int = 16, start: int | None = None) -> Rule:
    """Two tokens more after a round in which all were accepted, one less after any other; at least 1, by row.

    The heuristic schedule of transformers' assisted generation as published (Gante 2023), with a largest length. Newer
    releases of transformers start at 20 and keep the length by default.

    Args:
      gamma_max: greatest length, at least 1.
      start: length of the first round, 1 to gamma_max. None: 5, or gamma_max if that is less.

    Returns:
      The rule.

    Raises:
      ValueError: an argument out of range.

    >>> import specjax as sj
    >>> sj.policies.heuristic(gamma_max=8).name
    'heuristic up to 8'
    """
    checks.integer("gamma_max", gamma_max, least=1)
    policy = _heuristic(gamma_max)
    first = (
        min(HEURISTIC_START, gamma_max) if start is None else checks.integer("start", start, least=1, most=gamma_max)
    )
    return Rule(f"heuristic up to {gamma_max}", policy, {"start": jnp.asarray(first, jnp.int32)})


@memoize
def _heuristic(gamma_max: int) -> Policy:
    def start(params, length):
        return jnp.broadcast_to(params["start"], length.shape)

    def plan(params, state, live):
        del params, live
        return state, state

    def observe(params, state, seen: Round):
        del params
        whole = seen.accepted == seen.drafted
        return jnp.clip(jnp.where(whole, state + UP, state - DOWN), 1, gamma_max)

    return Policy(gamma_max, start, plan, on_forever, observe)


POOLED = 8.0  # rows that the evidence of a batch counts as at most: it must fade while nothing is drafted


class GoodputState(NamedTuple):
    """What each row has shown so far, the latest rounds weighing most."""

    accepted: Float[Array, "B"]
    tested: Float[Array, "B"]
    context: Float[Array, "B"]  # tokens that the row holds


def goodput(
    target: StepTime,
    *,
    draft: StepTime | None = None,
    gamma_max: int = 8,
    prior: float | int = 0.7,
    weight: float | int = 2.0,
    decay: float | int = 0.95,
) -> Rule:
    """The common length of greatest `theory.goodput`: tokens per second of the whole batch, from each row's own alpha.

    A row's alpha is accepted / tested, with older rounds decaying and `weight` tests of the batch's alpha added, to
    which `weight` tests of the prior are added: a batch that drafts nothing returns to the prior, and is tried again.
    One length for all rows: they are verified as one block, in which a shorter row saves nothing. Ended rows count as
    cost (they are computed), not as gain.

    SmartSpec, Liu et al. 2024, arXiv 2406.14066, section 4.

    Args:
      target: seconds of a target forward pass, fitted by `theory.fit_step_time`.
      draft: seconds of a draft step, fitted likewise. None: drafting takes no time.
      gamma_max: greatest length, at least 1.
      prior: alpha before anything was tested, 0 to 1.
      weight: number of tests that the prior counts as, above 0.
      decay: factor per round on the counts of earlier rounds, 0 to 1.

    Returns:
      The rule.

    Raises:
      ValueError: an argument out of range.

    >>> import specjax as sj
    >>> step = sj.theory.StepTime(1e-2, 1e-4, 1e-7)
    >>> sj.policies.goodput(step, gamma_max=6).name
    'goodput up to 6'
    """
    checks.integer("gamma_max", gamma_max, least=1)
    policy = _goodput(gamma_max)
    checks.number("prior", prior, least=0, most=1)
    checks.number("decay", decay, least=0, most=1)
    checks.number("weight", weight, least=checks.POSITIVE)
    numbers = {
        "target": [*target], "draft": [0.0] * 3 if draft is None else [*draft], "prior": prior, "weight": weight,
        "decay": decay,
    }  # fmt: skip
    return Rule(f"goodput up to {gamma_max}", policy, {k: jnp.asarray(v, jnp.float32) for k, v in numbers.items()})


@memoize
def _goodput(gamma_max: int) -> Policy:
    gammas = np.arange(gamma_max + 1, dtype=np.float32)

    def start(params, length):
        del params
        nothing = jnp.zeros(length.shape, jnp.float32)
        return GoodputState(nothing, nothing, length.astype(jnp.float32))

    def plan(params, state: GoodputState, live):
        # A row is shrunk to the batch, and the batch to the prior, which would otherwise draft for useless drafts.
        weight, rows_live = params["weight"], jnp.maximum(jnp.sum(live, dtype=jnp.float32), 1.0)
        share = jnp.minimum(rows_live, POOLED) / rows_live
        pooled = lambda counts: share * jnp.sum(jnp.where(live, counts, 0.0))
        common = (pooled(state.accepted) + weight * params["prior"]) / (pooled(state.tested) + weight)
        alpha = (state.accepted + weight * common) / (state.tested + weight)
        tokens = jnp.cumsum(alpha[:, None] ** gammas[None], axis=1)  # [B, gamma_max + 1]
        gained = jnp.sum(jnp.where(live[:, None], tokens, 0.0), axis=0)
        rows = float(live.shape[0])
        pass_of = lambda model, fed: model[0] * jnp.sum(state.context) + model[1] * fed + model[2]
        seconds = pass_of(params["target"], rows * (gammas + 1)) + gammas * pass_of(params["draft"], rows)
        chosen = jnp.argmax(gained / seconds).astype(jnp.int32)
        return jnp.broadcast_to(chosen, live.shape), state

    def observe(params, state: GoodputState, seen: Round):
        return GoodputState(
            params["decay"] * state.accepted + seen.accepted.astype(jnp.float32),
            params["decay"] * state.tested + seen.tested.astype(jnp.float32),
            state.context + (seen.accepted + 1).astype(jnp.float32),
        )

    return Policy(gamma_max, start, plan, on_forever, observe, by_row=False)


def oracle(agrees: np.ndarray, *, gamma_max: int = 16) -> Rule:
    """The upper bound for greedy decoding: each row drafts exactly the tokens that will be accepted.

    The text must be known, so this speed-up cannot be achieved in practice. No policy with the same gamma_max takes
    fewer draft steps for as few rounds.

    Args:
      agrees: [B, T] bool, from `agreement`: whether the t-th new token of the row is the draft model's most probable
        one, given the text before it.
      gamma_max: greatest length, at least 1.

    Returns:
      The rule.

    Raises:
      ValueError: an array of another shape or dtype, or gamma_max below 1.

    >>> import numpy as np
    >>> import specjax as sj
    >>> sj.policies.oracle(np.ones((1, 8), bool), gamma_max=4).name
    'oracle up to 4'
    """
    table = np.asarray(agrees)
    if table.ndim != 2 or table.dtype != bool:
        raise ValueError(f"agrees must be a table [rows, tokens] of bool, got {table.dtype} of shape {table.shape}")
    runs = np.zeros((table.shape[0], table.shape[1] + 1), np.int32)
    for at in reversed(range(table.shape[1])):  # length of the run of agreements that starts there
        runs[:, at] = np.where(table[:, at], runs[:, at + 1] + 1, 0)
    checks.integer("gamma_max", gamma_max, least=1)
    return Rule(f"oracle up to {gamma_max}", _oracle(gamma_max), {"runs": jnp.asarray(runs)})


@memoize
def _oracle(gamma_max: int) -> Policy:
    start = lambda params, length: jnp.zeros_like(length)  # new tokens so far

    def plan(params, state: Int[Array, "B"], live):
        del live
        at = jnp.minimum(state, params["runs"].shape[1] - 1)
        return jnp.take_along_axis(params["runs"], at[:, None], axis=1)[:, 0], state

    def observe(params, state, seen: Round):
        del params
        return state + seen.accepted + 1

    return Policy(gamma_max, start, plan, on_forever, observe)


def agreement(draft: Any, prompts: np.ndarray, length: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Whether the draft's most probable token is the one that follows, at every position of known texts.

    Args:
      draft: a model from `specjax.load`.
      prompts: [B, P] token ids, left-aligned.
      length: [B], number of tokens of each prompt.
      tokens: [B, T] new tokens of greedy decoding.

    Returns:
      [B, T] bool.
    """
    new = tokens.shape[1]
    read = draft.lm.prefill(draft.params, jnp.asarray(prompts), jnp.asarray(length), prompts.shape[1] + new)
    block = jnp.concatenate([read.pending[:, None], jnp.asarray(tokens, jnp.int32)[:, :-1]], axis=1)
    mask = np.tril(np.ones((new, new), bool))
    out, _ = draft.lm.extend(draft.params, block, read.cache, mask, np.arange(new, dtype=np.int32))
    return np.asarray(jnp.argmax(out.logits, -1)) == tokens
