"""Training tasks: OPT on packed text, T5 on pairs, each optionally with a teacher."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.model import Model
from specjax.models import opt, t5
from specjax.models.opt import OPTConfig
from specjax.models.t5 import T5Config
from specjax.training import data, losses
from specjax.training.data import Pairs
from specjax.training.lm import FORMAT, TrainingTask


def text_task(
    config: OPTConfig,
    packed: np.ndarray,
    held_out: np.ndarray,
    *,
    rows: int,
    length: int,
    seed: int = 0,
    evaluations: int = 16,
    teacher: Model | None = None,
    distill: float = 0.9,
) -> TrainingTask:
    """An OPT model on packed tokens: `rows` windows of `length` tokens per step."""

    def labels(batch):
        return batch[:, 1:], jnp.ones(batch[:, 1:].shape, bool)

    def logits(params, batch, config=config, fmt=FORMAT):
        return opt.FAMILY.score(params, config, fmt, batch[:, :-1])

    loss, measure = language_losses(logits, labels, teacher, distill)
    return TrainingTask(
        init=lambda key: opt.FAMILY.init(key, config, FORMAT),
        loss=loss,
        measure=measure,
        batch=lambda step: data.batch(packed, seed=seed, step=step, rows=rows, length=length),
        held_out=tuple(
            data.batch(held_out, seed=1, step=i, rows=rows, length=length) for i in range(evaluations)
        ),
        fixed=() if teacher is None else teacher.params,
    )  # fmt: skip


def pair_task(
    config: T5Config,
    train: Pairs,
    held_out: Pairs,
    *,
    tokens: int,
    widths: Sequence[int] = (),
    drop: float = 0.0,
    unknown: int = 0,
    seed: int = 0,
    teacher: Model | None = None,
    distill: float = 0.9,
) -> TrainingTask:
    """A T5 model on pairs: batches of about `tokens` target tokens, padded to one of `widths`; see `data.dropped`."""
    parts = data.buckets(train, widths or (train.source.shape[1],))
    pieces = max(1, held_out.target.size // tokens)

    def labels(batch):
        return batch.labels, batch.labels != 0

    def logits(params: Any, batch, config=config, fmt=FORMAT):
        return t5.FAMILY.score(params, config, fmt, batch.source, batch.inputs, encoder_length=batch.length)

    loss, measure = language_losses(logits, labels, teacher, distill)
    return TrainingTask(
        init=lambda key: t5.FAMILY.init(key, config, FORMAT),
        loss=loss,
        measure=measure,
        batch=lambda step: data.dropped(
            data.pair_batch(parts, seed=seed, step=step, tokens=tokens), drop, unknown, seed=seed, step=step
        ),
        held_out=tuple(
            data.shifted(held_out, part) for part in np.array_split(np.arange(len(held_out.source)), pieces)
        ),
        fixed=() if teacher is None else teacher.params,
    )  # fmt: skip


def language_losses(
    logits: Callable[..., Any], labels: Callable[[Any], tuple[Any, Any]], teacher: Model | None, distill: float
) -> tuple[Callable, Callable]:
    """`TrainingTask.loss` and `measure` of a model that predicts tokens.

    Args:
      logits: (params, batch), and (..., config, fmt) of the teacher -> [B, S, V] float32.
      labels: (batch) -> (labels [B, S] int32, mask [B, S] bool).
      distill: weight of the divergence from the teacher; the rest is cross-entropy on the data.
    """

    def of_teacher(fixed, batch):
        assert teacher is not None
        return logits(fixed, batch, teacher.config, teacher.fmt)

    def loss(params, fixed, batch, key):
        del key
        student, (wanted, mask) = logits(params, batch), labels(batch)
        nats = losses.cross_entropy(student, wanted, mask)
        if teacher is None or distill == 0.0:
            return nats, nats
        return (1 - distill) * nats + distill * losses.forward_kl(of_teacher(fixed, batch), student, mask), nats

    def measure(params, fixed, batch):
        student, (wanted, mask) = logits(params, batch), labels(batch)
        found = {"nats": losses.cross_entropy(student, wanted, mask)}
        if teacher is not None:
            taught = of_teacher(fixed, batch)
            found["overlap"] = losses.overlap(taught, student, mask)
            same = (taught.argmax(-1) == student.argmax(-1)).astype(jnp.float32)
            found["agreement"] = losses.masked_mean(same, mask)
        return found, mask.sum()

    return loss, measure
