"""Training tasks: OPT on packed text, T5 on pairs, each optionally with a teacher."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.model import Model
from specjax.models import opt, t5
from specjax.models.opt import OPTConfig
from specjax.models.t5 import T5Config
from specjax.training import data
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
) -> TrainingTask:
    """An OPT model on packed tokens: `rows` windows of `length` tokens per step."""

    def labels(batch):
        return batch[:, 1:], jnp.ones(batch[:, 1:].shape, bool)

    return TrainingTask(
        init=lambda key: opt.FAMILY.init(key, config, FORMAT),
        logits=lambda params, batch: opt.FAMILY.score(params, config, FORMAT, batch[:, :-1]),
        labels=labels,
        batch=lambda step: data.batch(packed, seed=seed, step=step, rows=rows, length=length),
        held_out=tuple(
            data.batch(held_out, seed=1, step=i, rows=rows, length=length) for i in range(evaluations)
        ),
        teacher=None if teacher is None else (
            lambda params, batch: opt.FAMILY.score(params, teacher.config, teacher.fmt, batch[:, :-1])
        ),
        teacher_params=None if teacher is None else teacher.params,
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
) -> TrainingTask:
    """A T5 model on pairs: batches of about `tokens` target tokens, padded to one of `widths`; see `data.dropped`."""
    parts = data.buckets(train, widths or (train.source.shape[1],))
    pieces = max(1, held_out.target.size // tokens)

    def labels(batch):
        return batch.labels, batch.labels != 0

    def logits(params: Any, batch, config=config, fmt=FORMAT):
        return t5.FAMILY.score(params, config, fmt, batch.source, batch.inputs, encoder_length=batch.length)

    return TrainingTask(
        init=lambda key: t5.FAMILY.init(key, config, FORMAT),
        logits=logits,
        labels=labels,
        batch=lambda step: data.dropped(
            data.pair_batch(parts, seed=seed, step=step, tokens=tokens), drop, unknown, seed=seed, step=step
        ),
        held_out=tuple(
            data.shifted(held_out, part) for part in np.array_split(np.arange(len(held_out.source)), pieces)
        ),
        teacher=None if teacher is None else (
            lambda params, batch: logits(params, batch, teacher.config, teacher.fmt)
        ),
        teacher_params=None if teacher is None else teacher.params,
    )  # fmt: skip
