"""Enumerates every draft and outcome of a chain verifier in float64, through the shipped functions."""

import functools
import itertools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from specjax import trees
from specjax.types import Draft
from specjax.verify import token
from tests.distributions import Model, Prefix, drafts, measure

try:
    from jax import enable_x64 as enable_x64
except ImportError:  # where older versions of jax keep it
    from jax.experimental import enable_x64 as enable_x64

ROOT_TOKEN = 0


def chain_batch(
    p: Model,
    q: Model,
    vocab: int,
    gamma: int,
    *,
    points: bool = False,
    proposes: Callable[[Prefix], bool] = lambda prefix: True,
) -> tuple[np.ndarray, Draft, jnp.ndarray]:
    """One row for each chain: its probability under q, the draft, and the target's log-probabilities. Chains of zero
    mass are included: one shape for every pair of models.

    Args:
      points: the draft is passed without log_q, as point masses; q must be one-hot.
      proposes: whether a node is proposed after a prefix.
    """
    possible = list(drafts(q, vocab, gamma))
    tokens = np.array([(ROOT_TOKEN, *chain) for _, chain in possible], np.int32)
    probs = lambda model: np.array([[model(chain[:i]) for i in range(gamma + 1)] for _, chain in possible])
    valid = [[True, *(proposes(chain[:i]) for i in range(gamma))] for _, chain in possible]
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(probs(p)), np.log(probs(q))
    draft = Draft(jnp.asarray(tokens), jnp.asarray(valid), None if points else jnp.asarray(log_q))
    return np.array([mass for mass, _ in possible]), draft, jnp.asarray(log_p)


def token_outcomes(mass: np.ndarray, draft: Draft, log_p: jnp.ndarray) -> Iterator[tuple[float, Prefix]]:
    """(probability, emitted tokens) of every outcome of `token_level`.

    The probability that a node passes is the measure of the uniforms for which `walk` accepts it, all others passing;
    the last token's distribution is `next_token_mass`. No part of the method is written here a second time.
    """
    rows, size = draft.tokens.shape
    gamma, tree = size - 1, trees.chain(size - 1)
    walk, next_mass = compiled(token.accepts, token.residual)
    chance = np.ones((rows, gamma + 1))
    for node in range(gamma):
        others = np.zeros((rows, gamma))
        passes = lambda u, node=node, others=others: (
            walk(
                np.where(np.arange(gamma) == node, u[:, None], others), np.zeros((rows, 2)), tree, draft, log_p
            ).accepted
            > node
        )
        chance[:, node] = measure(passes, (rows,))
    chance[:, gamma] = 0.0  # nothing is tested past the last node
    tokens, reached = np.asarray(draft.tokens), mass.copy()
    for stop in range(gamma + 1):
        last = np.asarray(next_mass(draft, log_p, np.full(rows, stop, np.int32)))
        last = last / np.where(reached > 0, last.sum(-1), 1.0)[:, None]
        here = reached * (1 - chance[:, stop])
        for row, final in itertools.product(range(rows), range(last.shape[-1])):
            if here[row] * last[row, final] > 0:
                yield here[row] * last[row, final], (*tokens[row, 1 : stop + 1].tolist(), final)
        reached = reached * chance[:, stop]


@functools.cache
def compiled(*parts):
    """The shipped functions; other `parts`, as of a broken verifier, are other programs."""
    del parts
    return (
        jax.jit(lambda *given: token.walk(*given), static_argnums=2),
        jax.jit(lambda *given: token.next_token_mass(*given)),
    )
