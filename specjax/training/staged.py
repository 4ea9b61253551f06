"""Losses of heads with one stage per drafted token: Medusa-1 and MLP speculators.

position i    the target's feature f_i, after which t_i+1 is pending; stage k drafts t_i+2+k
Medusa        stage k reads f_i alone                   Cai et al. 2024, arXiv 2401.10774, section 2.2.1
MLP           and the true tokens t_i+1 .. t_i+1+k      Wertheimer et al. 2024, arXiv 2404.19124, section 2
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.heads.head import Head
from specjax.heads.medusa import Medusa
from specjax.training import losses
from specjax.training.eagle import (
    Batch,
    Step,
    compare,
    first_nats,
    kernel,
    measured,
    of_text,
    output_rows,
    read_target,
    wanted,
)
from specjax.training.lm import FORMAT
from specjax.training.losses import TEXT
from specjax.training.unrolled import shifted
from specjax.types import Output, Params


@dataclasses.dataclass(frozen=True)
class Staged:
    """How the stages are trained.

    Attributes:
      steps: number of stages.
      divergence: TEXT, as published, or from the target's distribution, a name of `losses.DIVERGENCES`.
      decay: weight of each stage relative to the one before it.
    """

    steps: int
    divergence: str = TEXT
    decay: float = 1.0


def run(head: Head, how: Staged, params: Params, fixed: Params, batch: Batch) -> list[Step]:
    """The head and its target at every stage.

    Args:
      head: its kind, shape and target; its own parameters are not used.
      fixed: the target's parameters.
    """
    return stages(head, how, params, *read_target(head, fixed, batch), batch)


def stages(head: Head, how: Staged, params: Params, seen: Output, ends: Any, batch: Batch) -> list[Step]:
    """The same for what the target computed, and the target without its layers."""
    module, tokens, answer = head.module(params), jnp.asarray(batch.tokens), jnp.asarray(batch.answer)
    anchors = tokens.shape[1] - 1
    features = seen.features[:, :anchors].astype(jnp.float32)
    found, state, every = [], module.start(features), wanted(head, seen.logits)
    for step in range(how.steps):
        if isinstance(module, Medusa):  # whose stages draft for the nodes of one root
            logits = module.logits(step, ends, features)
        else:
            state, logits = module.stage(step, ends, state, shifted(tokens, 1 + step)[:, :anchors])
        ahead = jax.tree.map(lambda rows, by=1 + step: shifted(rows, by)[:, :anchors], every)
        found.append(compare(head, ahead, logits, shifted(answer, 2 + step)[:, :anchors]))
    return found


def total(head: Head, how: Staged, steps: list[Step], batch: Batch) -> Float[Array, ""]:
    """The weighted sum of the losses of the stages."""
    found = jnp.zeros((), jnp.float32)
    for number, step in enumerate(steps):
        if how.divergence == TEXT:
            values, known = of_text(head, step, shifted(jnp.asarray(batch.tokens), 2 + number)[:, : step.mask.shape[1]])
        else:
            values, known = losses.DIVERGENCES[how.divergence](step.log_p, step.log_q), step.drafted
        found = found + how.decay**number * losses.masked_mean(values, step.mask & known)
    return found


def loss(head: Head, how: Staged, params: Params, fixed: Params, batch: Batch, key: jax.Array) -> tuple:
    """`TrainingTask.loss`, and the cross-entropy with the target at the first stage."""
    del key
    steps = run(head, how, params, fixed, batch)
    return total(head, how, steps, batch), first_nats(steps)


def measure(head: Head, how: Staged, params: Params, fixed: Params, batch: Batch) -> tuple[dict[str, Array], Array]:
    """`TrainingTask.measure`: acceptance by position, and simulated tokens per target pass."""
    steps = run(head, how, params, fixed, batch)
    return measured(steps)


def init_medusa(head: Head, how: Staged, key: jax.Array) -> Params:
    """Blocks of zeros, and output matrices that are the target's: at first every head drafts as the target would."""
    del how
    if head.params:
        return head.params
    params = head.kind.init(key, head.config, FORMAT)
    if not head.config.matrices:
        return params
    own = kernel(output_rows(head))
    return params | {"heads": {name: {"kernel": own} for name in params["heads"]}}
