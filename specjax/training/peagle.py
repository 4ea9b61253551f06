"""Loss of P-EAGLE heads: all drafted positions of an anchor in one pass, fewer anchors the deeper (arXiv 2602.01469).

    anchor a    0     1     2    ...      depth 0: the pair (f_a, t_a+1), which drafts t_a+2
    depth d     -     1     -    ...      a mask row at position a + d, which drafts t_a+2+d

A mask row sees the pairs up to its anchor and the mask rows before it at the same anchor, as in drafting, so that the
attention is that of training-time test (`training.unrolled`).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.heads.head import Head
from specjax.training import eagle, losses
from specjax.training.eagle import Batch, Step, Unrolling
from specjax.types import Params


def masks(module: Any, tokens: Int[Array, "B N"], out: Float[Array, "B N D"]) -> tuple[Array, Array]:
    """The pairs of a later step: mask rows."""
    return jnp.full_like(tokens, module.config.mask_token), jnp.broadcast_to(module.mask_given(), out.shape)


def run(head: Head, how: Unrolling, params: Params, fixed: Params, batch: Batch, key: jax.Array | None) -> list[Step]:
    """`eagle.run`, where later steps are mask rows."""
    return eagle.run(head, params, fixed, batch, how, key, masks)[0]


def loss(head: Head, how: Unrolling, params: Params, fixed: Params, batch: Batch, key: jax.Array) -> tuple:
    """`TrainingTask.loss`: the mean over the rows of all depths, and the cross-entropy with the target at depth 0."""
    steps = run(head, how, params, fixed, batch, key)
    divergence = losses.DIVERGENCES[how.divergence]
    values = jnp.concatenate([divergence(step.log_p, step.log_q) for step in steps], 1)
    return losses.masked_mean(values, jnp.concatenate([step.mask for step in steps], 1)), eagle.first_nats(steps)


def measure(head: Head, how: Unrolling, params: Params, fixed: Params, batch: Batch) -> tuple[dict[str, Array], Array]:
    """`TrainingTask.measure`: acceptance by position, and simulated tokens per target pass."""
    return eagle.measured(run(head, how, params, fixed, batch, None))
