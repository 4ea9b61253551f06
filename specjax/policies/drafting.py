"""Policies that decide while drafting, after each token: a threshold on confidence, and DISCO's classifier."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax import checks
from specjax.categorical import largest
from specjax.policies.policy import Drawn, Policy, Rule, as_planned, learn_nothing
from specjax.programs import memoize
from specjax.types import Params

TOP = 10  # probabilities of the draft that DISCO's classifier reads


def threshold(theta: float | int = 0.4, *, gamma_max: int = 16) -> Rule:
    """Drafts until a token whose probability under the draft model is below theta; that token is kept, as the last one.

    The confidence is the model's own, before temperature and other warps. transformers' assisted generation has this
    rule (`assistant_confidence_threshold`) with a theta that it adapts, on probabilities after the warps.

    Args:
      theta: least probability after which another token is drafted, 0 to 1.
      gamma_max: greatest length, at least 1.

    Returns:
      The rule.

    Raises:
      ValueError: an argument out of range.

    >>> import specjax as sj
    >>> sj.policies.threshold(0.3, gamma_max=8).name
    'threshold 0.3 up to 8'
    """
    checks.integer("gamma_max", gamma_max, least=1)
    policy = _threshold(gamma_max)
    checks.number("theta", theta, least=0, most=1)
    return Rule(f"threshold {theta:g} up to {gamma_max}", policy, {"theta": jnp.asarray(theta, jnp.float32)})


@memoize
def _threshold(gamma_max: int) -> Policy:
    def go_on(params, state, drawn: Drawn, position):
        del position
        probs = jax.nn.softmax(drawn.logits, axis=-1)
        confidence = jnp.take_along_axis(probs, drawn.token[:, None], axis=-1)[:, 0]
        return confidence >= params["theta"], state

    return Policy(gamma_max, lambda params, length: (), as_planned(gamma_max), go_on, learn_nothing)


class Disco(NamedTuple):
    """Numbers of a trained DISCO policy; `specjax.training.disco` makes them.

    hidden, out: kernels (in, out) and biases of the classifier. stop: it drafts on while the chance that everything
    drafted so far is accepted is at least this.
    """

    hidden: Float[Array, "F H"]
    hidden_bias: Float[Array, "H"]
    out: Float[Array, "H"]
    out_bias: Float[Array, ""]
    stop: Float[Array, ""]


def disco(params: Disco, *, gamma_max: int = 16) -> Rule:
    """A trained classifier predicts the acceptance of each draft token; drafting ends when the product is too small.

    It reads the draft's distribution alone: its TOP largest probabilities, its entropy, and the position. Drafting ends
    when the product of the predictions, the probability that a further token counts at all, falls below `params.stop`.
    DISCO, Mamou et al. 2024, arXiv 2405.04304, section 4, compares the last token's prediction alone.

    Args:
      params: a trained classifier, from `specjax.training.disco`.
      gamma_max: greatest length, at least 1.

    Returns:
      The rule.

    Raises:
      ValueError: arrays of the wrong shape, or gamma_max below 1.

    >>> import numpy as np
    >>> import specjax as sj
    >>> weights = sj.policies.Disco(np.zeros((12, 4)), np.zeros(4), np.zeros(4), np.zeros(()), np.float32(0.5))
    >>> sj.policies.disco(weights, gamma_max=8).name
    'disco up to 8'
    """
    wanted = TOP + 2
    if params.hidden.ndim != 2 or params.hidden.shape[0] != wanted:
        raise ValueError(
            f"DISCO's classifier reads {wanted} features, got a kernel of shape {tuple(params.hidden.shape)}: train it "
            "with specjax.training.disco"
        )
    checks.integer("gamma_max", gamma_max, least=1)
    return Rule(f"disco up to {gamma_max}", _disco(gamma_max), params)


@memoize
def _disco(gamma_max: int) -> Policy:
    start = lambda params, length: jnp.ones(length.shape, jnp.float32)  # the chance that all so far is accepted

    def plan(params, state, live):
        del params, live
        return jnp.full(state.shape, gamma_max, jnp.int32), jnp.ones_like(state)

    def go_on(params: Disco, state, drawn: Drawn, position):
        chance = jax.nn.sigmoid(score(params, features(drawn.logits, position)))
        state = state * chance
        return state >= params.stop, state

    return Policy(gamma_max, start, plan, go_on, learn_nothing)


def features(logits: Float[Array, "B V"], position) -> Float[Array, "B F"]:
    """What the classifier reads of one draft token: TOP probabilities, entropy over log V, position over 10."""
    size = logits.shape[-1]
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    probs = jnp.exp(log_probs)
    entropy = -jnp.sum(jnp.where(probs > 0, probs * log_probs, 0.0), axis=-1, keepdims=True) / jnp.log(float(size))
    top = largest(probs, min(TOP, size))[0]
    top = jnp.pad(top, ((0, 0), (0, TOP - top.shape[-1])))
    place = jnp.broadcast_to(jnp.asarray(position, jnp.float32) / 10, entropy.shape)
    return jnp.concatenate([top, entropy, place], axis=-1)


def score(params: Params, read: Float[Array, "*lead F"]) -> Float[Array, "*lead"]:
    """The classifier's logit of acceptance: one hidden layer."""
    hidden = jax.nn.relu(read @ params.hidden + params.hidden_bias[(None,) * (read.ndim - 1)])
    return hidden @ params.out + params.out_bias
