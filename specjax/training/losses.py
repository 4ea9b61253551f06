"""Losses over the vocabulary, in float32: next-token cross-entropy and divergences from a teacher or a target."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def cross_entropy(
    logits: Float[Array, "B S V"], labels: Int[Array, "B S"], mask: Bool[Array, "B S"]
) -> Float[Array, ""]:
    """Mean of -log p(label) in nats over the positions where mask is True.

    >>> import jax.numpy as jnp
    >>> from specjax.training import losses
    >>> logits, mask = jnp.zeros((1, 2, 4)), jnp.array([[True, False]])
    >>> round(float(losses.cross_entropy(logits, jnp.zeros((1, 2), jnp.int32), mask)), 4)  # log 4
    1.3863
    """
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return masked_mean(jax.nn.logsumexp(logits, axis=-1) - picked, mask)


LogProbs = Float[Array, "B S V"]


def reverse_kl(log_p: LogProbs, log_q: LogProbs) -> Float[Array, "B S"]:
    """KL(q || p)."""
    return (jnp.exp(log_q) * (log_q - log_p)).sum(-1)


def jensen_shannon(log_p: LogProbs, log_q: LogProbs) -> Float[Array, "B S"]:
    """Mean of the divergences of p and q from their mean."""
    log_m = jnp.logaddexp(log_p, log_q) - jnp.log(2.0)
    return 0.5 * ((jnp.exp(log_p) * (log_p - log_m)).sum(-1) + (jnp.exp(log_q) * (log_q - log_m)).sum(-1))


def accepted(log_p: LogProbs, log_q: LogProbs) -> Float[Array, "B S"]:
    """sum_x min(p, q), the acceptance rate alpha."""
    return jnp.exp(jnp.minimum(log_p, log_q)).sum(-1)


def hybrid(log_p: LogProbs, log_q: LogProbs) -> Float[Array, "B S"]:
    """KL(p || q) early in training, total variation later: weight exp(-3 alpha) of the former, without its gradient."""
    alpha = accepted(log_p, log_q)
    weight = jnp.exp(-3.0 * jax.lax.stop_gradient(alpha))
    return weight * (jnp.exp(log_p) * (log_p - log_q)).sum(-1) + (1 - weight) * (1 - alpha)


TEXT = "text"  # cross-entropy with the tokens of the answers, instead of a divergence from a distribution
# name -> (log p of the target, log q of the head or draft) -> a loss at each position
DIVERGENCES: dict[str, Callable[[LogProbs, LogProbs], Float[Array, "B S"]]] = {
    "ce": lambda log_p, log_q: -(jnp.exp(log_p) * log_q).sum(-1),
    "kl": lambda log_p, log_q: (jnp.exp(log_p) * (log_p - log_q)).sum(-1),
    "reverse-kl": reverse_kl,
    "jsd": jensen_shannon,
    "tv": lambda log_p, log_q: 1.0 - accepted(log_p, log_q),
    "log-alpha": lambda log_p, log_q: -jnp.log(accepted(log_p, log_q)),
    "lk": hybrid,
    "ce-tv": lambda log_p, log_q: -0.5 * (jnp.exp(log_p) * log_q).sum(-1) + 0.5 * (1.0 - accepted(log_p, log_q)),
}


def smooth_l1(found: Float[Array, "B S D"], goal: Float[Array, "B S D"]) -> Float[Array, "B S"]:
    """Huber loss with threshold 1, mean over the width: EAGLE's loss of features."""
    apart = jnp.abs(found - goal)
    return jnp.where(apart < 1.0, 0.5 * apart**2, apart - 0.5).mean(-1)


def masked_mean(values: Float[Array, "*B"], mask: Bool[Array, "*B"]) -> Float[Array, ""]:
    """Mean over the positions where mask is True; 0 if there are none."""
    count = jnp.maximum(mask.sum(), 1).astype(values.dtype)
    return jnp.where(mask, values, 0).sum() / count
