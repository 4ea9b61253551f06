"""Loss of P-EAGLE heads: all drafted positions of an anchor in one pass, fewer anchors the deeper (arXiv 2602.01469).

    anchor a    0     1     2    ...      depth 0: the pair (f_a, t_a+1), which drafts t_a+2
    depth d     -     1     -    ...      a mask row at position a + d, which drafts t_a+2+d

A mask row sees the pairs up to its anchor and the mask rows before it at the same anchor, as in drafting, so that the
attention is that of training-time test (`training.unrolled`).
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array

from specjax.heads.head import Head
from specjax.training import losses
from specjax.training.eagle import Batch, Step, compare, first_nats, read_target, wanted
from specjax.training.unrolled import Keys, acceptance, attend_anchored, every_anchor, rows_at, sampled, shifted
from specjax.types import Params


@dataclasses.dataclass(frozen=True)
class Parallel:
    """How a P-EAGLE head is trained; the defaults are those of the package `speculators`.

    Attributes:
      steps: drafted tokens that are trained, K.
      divergence: from the target's distribution, a name of `losses.DIVERGENCES`.
      kept, least: depth d trains max(kept**d, least) of the anchors.
    """

    steps: int = 8
    divergence: str = "kl"
    kept: float = 0.7
    least: float = 0.2

    def share(self, depth: int) -> float:
        """Of the anchors that depth d >= 1 trains."""
        return max(self.kept**depth, self.least)


def run(head: Head, how: Parallel, params: Params, fixed: Params, batch: Batch, key: jax.Array | None) -> list[Step]:
    """The head and its target at every depth.

    Args:
      head: its kind, shape and target; its own parameters are not used.
      fixed: the target's parameters.
      key: of the anchors; None: all of them at every depth.
    """
    module, tokens, answer = head.module(params), jnp.asarray(batch.tokens), jnp.asarray(batch.answer)
    seen, ends = read_target(head, fixed, batch)
    at = every_anchor(tokens)
    anchors = at.shape[1]
    keys = {index: Keys([], []) for index in range(module.config.layers)}
    given = module.fuse(seen.features[:, :anchors], tuple(hidden[:, :anchors] for hidden in seen.hiddens))
    fed, kept, found = tokens[:, 1:], jnp.ones(at.shape, bool), []
    order = None if key is None else jax.random.uniform(key, at.shape)
    total, every = shifted(answer, 2)[:, :anchors].sum(1, dtype=jnp.int32), wanted(head, seen.logits)
    for depth in range(how.steps):
        drafted = shifted(answer, 2 + depth)[:, :anchors]
        if depth and order is not None:
            places, kept = sampled(how.share(depth), depth, order, kept & rows_at(drafted, at), total, anchors)
            at, order = rows_at(at, places), rows_at(order, places)
            keys = {index: own.at(places) for index, own in keys.items()}
        if depth:
            fed = jnp.full(at.shape, module.config.mask_token, tokens.dtype)
            given = jnp.broadcast_to(module.mask_given(), (*at.shape, module.config.width))
        out, keys = module(ends, fed, given, at + depth, functools.partial(attend_anchored, at), keys)
        mask = kept & rows_at(drafted, at)
        ahead = jax.tree.map(lambda rows, place=at + 1 + depth: rows_at(rows, place), every)
        found.append(compare(head, ahead, module.logits(ends, out), mask))
    return found


def loss(head: Head, how: Parallel, params: Params, fixed: Params, batch: Batch, key: jax.Array) -> tuple:
    """`TrainingTask.loss`: the mean over the rows of all depths, and the cross-entropy with the target at depth 0."""
    steps = run(head, how, params, fixed, batch, key)
    divergence = losses.DIVERGENCES[how.divergence]
    values = jnp.concatenate([divergence(step.log_p, step.log_q) for step in steps], 1)
    return losses.masked_mean(values, jnp.concatenate([step.mask for step in steps], 1)), first_nats(steps)


def measure(head: Head, how: Parallel, params: Params, fixed: Params, batch: Batch) -> tuple[dict[str, Array], Array]:
    """`TrainingTask.measure`: acceptance by position, and simulated tokens per target pass."""
    steps = run(head, how, params, fixed, batch, None)
    found = acceptance([s.overlap for s in steps], [s.match for s in steps], [s.mask for s in steps])
    return {"nats": first_nats(steps)} | found, steps[0].mask.sum()
