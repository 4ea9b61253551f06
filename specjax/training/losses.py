"""Losses over the vocabulary, in float32: next-token cross-entropy and divergence from a teacher."""

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


def forward_kl(
    teacher: Float[Array, "B S V"], student: Float[Array, "B S V"], mask: Bool[Array, "B S"]
) -> Float[Array, ""]:
    """Mean of KL(teacher || student) in nats: distillation (Hinton et al. 2015; DistillSpec, arXiv 2310.08461).

    No gradient flows to the teacher.
    """
    log_p = jax.nn.log_softmax(jax.lax.stop_gradient(teacher))
    log_q = jax.nn.log_softmax(student)
    return masked_mean((jnp.exp(log_p) * (log_p - log_q)).sum(-1), mask)


def overlap(
    teacher: Float[Array, "B S V"], student: Float[Array, "B S V"], mask: Bool[Array, "B S"]
) -> Float[Array, ""]:
    """Mean of sum_x min(p, q): the acceptance rate of the student as a draft model (Leviathan et al. 2023)."""
    p, q = jax.nn.softmax(teacher), jax.nn.softmax(student)
    return masked_mean(jnp.minimum(p, q).sum(-1), mask)


def masked_mean(values: Float[Array, "B S"], mask: Bool[Array, "B S"]) -> Float[Array, ""]:
    """Mean over the positions where mask is True; 0 if there are none."""
    count = jnp.maximum(mask.sum(), 1).astype(values.dtype)
    return jnp.where(mask, values, 0).sum() / count
