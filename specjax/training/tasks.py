"""Training tasks: decoder-only models on packed text, T5 on pairs, each optionally distilled from a teacher.

DistillSpec, Zhou et al. 2023, arXiv 2310.08461: the divergence, and who writes the texts (section 3).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.model import Model
from specjax.models import t5
from specjax.models.family import Family
from specjax.models.t5 import T5Config
from specjax.training import data, losses, rollout
from specjax.training.data import PairBatch, Pairs
from specjax.training.lm import FORMAT, TrainingTask
from specjax.training.recipe import Distillation
from specjax.types import Params

DISTILLATION = Distillation()  # the default
FIRST = 4  # of a window that is written on, one in so many tokens is given
END = 1  # </s> of T5


class Batches(NamedTuple):
    """How a family reads a batch.

    Attributes:
      logits: (params, batch, family, config, fmt) -> [B, S, V] float32.
      labels: (batch) -> (labels [B, S] int32, which of them count).
      written: (batch, write) -> (batch with texts of a model, which of its labels count). `write(prompt, length, new)`
        samples tokens [B, new].
    """

    logits: Callable[..., Float[Array, "B S V"]]
    labels: Callable[[Any], tuple[Int[Array, "B S"], Bool[Array, "B S"]]]
    written: Callable[[Any, Callable[..., Any]], tuple[Any, Bool[Array, "B S"]]]


def text_task(
    family: Family,
    config: Any,
    packed: np.ndarray,
    held_out: np.ndarray,
    *,
    rows: int,
    length: int,
    seed: int = 0,
    evaluations: int = 16,
    teacher: Model | None = None,
    how: Distillation = DISTILLATION,
) -> TrainingTask:
    """A decoder-only model on packed tokens: `rows` windows of `length` tokens per step."""

    def labels(batch):
        return batch[:, 1:], jnp.ones(batch[:, 1:].shape, bool)

    def written(batch, write):
        given = max(1, length // FIRST)
        new = write(batch[:, :given], jnp.full((len(batch),), given, jnp.int32), length + 1 - given)
        batch = jnp.concatenate([batch[:, :given], new], 1)
        return batch, jnp.broadcast_to(jnp.arange(length)[None] >= given - 1, (len(batch), length))

    def logits(params, batch, family, config, fmt):
        return family.score(params, config, fmt, batch[:, :-1])

    loss, measure = language_losses(family, config, Batches(logits, labels, written), teacher, how)
    return TrainingTask(
        init=lambda key: family.init(key, config, FORMAT),
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
    how: Distillation = DISTILLATION,
) -> TrainingTask:
    """A T5 model on pairs: batches of about `tokens` target tokens, padded to one of `widths`; see `data.dropped`."""
    parts = data.buckets(train, widths or (train.source.shape[1],))
    pieces = max(1, held_out.target.size // tokens)

    def labels(batch):
        return batch.labels, batch.labels != 0

    def written(batch: PairBatch, write):
        new = write(batch.source, batch.length, batch.labels.shape[1])
        end = (new == END).astype(jnp.int32)
        ended = jnp.cumsum(end, 1) > end  # after the first end token
        new = jnp.where(ended, 0, new)
        inputs = jnp.pad(new, ((0, 0), (1, 0)))[:, :-1]
        return batch._replace(inputs=inputs, labels=new), ~ended

    def logits(params, batch, family, config, fmt):
        return family.score(params, config, fmt, batch.source, batch.inputs, encoder_length=batch.length)

    loss, measure = language_losses(t5.FAMILY, config, Batches(logits, labels, written), teacher, how)
    return TrainingTask(
        init=lambda key: t5.FAMILY.init(key, config, FORMAT),
        loss=loss,
        measure=measure,
        batch=lambda step: data.dropped(
            data.pair_batch(parts, seed=seed, step=step, tokens=tokens), drop, unknown, seed=seed,
            step=step,
        ),
        held_out=tuple(
            data.shifted(held_out, part) for part in np.array_split(np.arange(len(held_out.source)), pieces)
        ),
        fixed=() if teacher is None else teacher.params,
    )  # fmt: skip


def language_losses(
    family: Family, config: Any, batches: Batches, teacher: Model | None, how: Distillation
) -> tuple[Callable, Callable]:
    """`TrainingTask.loss` and `measure` of a model that predicts tokens."""
    divergence = losses.DIVERGENCES[how.divergence]
    own = (family, config, FORMAT)
    theirs = own if teacher is None else (teacher.family, teacher.config, teacher.fmt)

    def log_probs(params: Params, of: tuple[Family, Any, Any], batch: Any) -> Float[Array, "B S V"]:
        return jax.nn.log_softmax(batches.logits(params, batch, *of))

    def written(params: Params, fixed: Params, batch: Any, key: jax.Array) -> tuple[Any, Bool[Array, "B S"]]:
        """The batch with the texts of `how.texts`."""
        writer, (kind, *of) = (fixed, theirs) if how.texts == "target" else (params, own)
        lm = kind.language_model(*of)
        write = lambda prompt, length, new: rollout.sample(lm, writer, jnp.asarray(prompt), length, new, key)
        new, mask = batches.written(batch, write)
        if how.texts != "mixed":
            return new, mask
        mine = lambda one: (jnp.arange(len(one)) % 2 == 0).reshape(-1, *[1] * (one.ndim - 1))
        chosen = jax.tree.map(lambda a, b: jnp.where(mine(a), a, b), new, jax.tree.map(jnp.asarray, batch))
        return chosen, jnp.where(mine(mask), mask, batches.labels(batch)[1])

    def loss(params, fixed, batch, key):
        wanted, mask = batches.labels(batch)
        if teacher is None or how.distill == 0.0:
            nats = losses.cross_entropy(batches.logits(params, batch, *own), wanted, mask)
            return nats, nats
        share = how.distill
        if how.texts != "data":
            (batch, mask), share = written(params, fixed, batch, key), 1.0
            wanted, _ = batches.labels(batch)
        student = batches.logits(params, batch, *own)
        nats = losses.cross_entropy(student, wanted, mask)
        log_p = jax.lax.stop_gradient(log_probs(fixed, theirs, batch))
        apart = losses.masked_mean(divergence(log_p, jax.nn.log_softmax(student)), mask)
        return (1 - share) * nats + share * apart, nats

    def measure(params, fixed, batch):
        student, (wanted, mask) = batches.logits(params, batch, *own), batches.labels(batch)
        found = {"nats": losses.cross_entropy(student, wanted, mask)}
        if teacher is not None:
            log_p = log_probs(fixed, theirs, batch)
            found["overlap"] = losses.masked_mean(losses.accepted(log_p, jax.nn.log_softmax(student)), mask)
            same = (log_p.argmax(-1) == student.argmax(-1)).astype(jnp.float32)
            found["agreement"] = losses.masked_mean(same, mask)
        return found, mask.sum()

    return loss, measure
