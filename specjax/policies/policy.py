"""Draft-length policies: pure functions with explicit state, carried in the state of the chain drafter."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.types import Params, PyTree

PolicyState = PyTree  # every leaf is led by rows: [B, ...]


class Drawn(NamedTuple):
    """A drawn draft token: what a policy may read to decide whether another one is drawn."""

    logits: Float[Array, "B V"]  # of the draft model, before any warp: its confidence at temperature 0 too
    log_q: Float[Array, "B V"]  # the warped distribution that the token was drawn from
    token: Int[Array, "B"]


class Round(NamedTuple):
    """Outcome of a round. Acceptance is a prefix: nothing is tested after the first rejected token."""

    drafted: Int[Array, "B"]
    accepted: Int[Array, "B"]

    @property
    def tested(self) -> Int[Array, "B"]:
        return self.accepted + (self.accepted < self.drafted).astype(jnp.int32)


class Policy(NamedTuple):
    """How many tokens each row drafts in a round, at most gamma_max.

    Lossless for every policy: `plan` reads only earlier rounds, and `go_on` decides about a token that is not drawn
    yet. Every drawn token is proposed, so that no policy can drop one because of its value, which would change the
    output distribution (invariant 7).

    gamma_max: static: what shapes are made for.
    start: (params, length [B]) -> state. `length`: tokens of each row's prompt.
    plan: (params, state, live [B]) -> (wanted [B], state). At the start of a round: draft at most this many. Rows that
        are not live have ended and draft nothing.
    go_on: (params, state, Drawn, position) -> (bool [B], state). After the token at `position` (1 is the first) was
        drawn: whether to draw one more. Answer and state of rows that do not draft are ignored.
    observe: (params, state, Round) -> state. After the round; the state of rows that have ended is kept as it was.
    constant: all rows always draft gamma_max; the functions are never called.
    by_row: whether a row's answers depend on that row alone. Where they do not, its sampled tokens depend on its
        neighbors (greedy tokens and the output distribution do not).
    """

    gamma_max: int
    start: Callable[[Params, Int[Array, "B"]], PolicyState]
    plan: Callable[[Params, PolicyState, Bool[Array, "B"]], tuple[Int[Array, "B"], PolicyState]]
    go_on: Callable[[Params, PolicyState, Drawn, Any], tuple[Bool[Array, "B"], PolicyState]]
    observe: Callable[[Params, PolicyState, Round], PolicyState]
    constant: bool = False
    by_row: bool = True


class Rule(NamedTuple):
    """A policy with its name and its numbers: what `drafters.model(..., policy=...)` takes.

    `params` are arguments of the compiled program: another threshold or other trained weights compile nothing.
    """

    name: str
    policy: Policy
    params: Params = ()

    @property
    def gamma_max(self) -> int:
        return self.policy.gamma_max


def on_forever(params, state, drawn, position):
    """`go_on` of a policy that decides only at the start of a round."""
    del params, position
    return jnp.ones(drawn.token.shape, bool), state


def learn_nothing(params, state, seen):
    """`observe` of a policy that has nothing to learn."""
    del params, seen
    return state


def as_planned(gamma_max: int) -> Callable:
    """`plan` of a policy that decides only while drafting."""

    def plan(params, state, live):
        del params
        return jnp.full(live.shape, gamma_max, jnp.int32), state

    return plan


def rows_where(row: Bool[Array, "B"], new: PyTree, old: PyTree) -> PyTree:
    """new where `row`, else old, for every leaf [B, ...]."""
    pick = lambda a, b: jnp.where(row.reshape(row.shape + (1,) * (a.ndim - 1)), a, b)
    return jax.tree.map(pick, new, old)


def ladder(gamma_max: int) -> tuple[int, ...]:
    """Draft lengths at which a round is verified: 0; then 3, 7, 15, ... up to half of gamma_max; and gamma_max.

    With `pending` they are blocks of 1, 4, 8, 16 tokens, which fill whole tiles. At most 2 + log2(gamma_max) lengths.

    Args:
      gamma_max: the greatest length.

    Returns:
      The lengths, ascending.

    >>> import specjax as sj
    >>> sj.policies.ladder(10)
    (0, 3, 10)
    """
    rungs = [0]
    step = 4
    while 2 * (step - 1) <= gamma_max:
        rungs.append(step - 1)
        step *= 2
    return (*rungs, gamma_max)


def check_buckets(buckets: tuple[int, ...], gamma_max: int) -> tuple[int, ...]:
    """The lengths, ascending; empty: every round is verified at gamma_max.

    Raises:
      ValueError: lengths that do not ascend, or whose last is not gamma_max.
    """
    given = tuple(buckets)
    ascending = all(a < b for a, b in itertools.pairwise(given))
    if given and not (ascending and given[0] >= 0 and given[-1] == gamma_max):
        raise ValueError(f"buckets must be draft lengths that ascend from at least 0 to gamma_max={gamma_max}, "
                         f"got {given}; () verifies every round at gamma_max")  # fmt: skip
    return given
