"""Medusa-2: heads trained together with low-rank adapters of their target, which without the adapters is its teacher.

    teacher    W                           the target as it was
    tuned      W + (alpha / rank) A B      what the heads read and draft for
    loss       KL(teacher || tuned) + weight sin(pi / 2 progress) sum_k decay^k CE(head k)

Self-distillation: Cai et al. 2024, arXiv 2401.10774, sections 2.2.2 and 2.3.2. Adapters: Hu et al. 2021, arXiv
2106.09685, without dropout, on all kernels. A table of tokens that is also the output matrix stays as it is.
"""

import dataclasses
import functools
import os
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from specjax import sharding
from specjax.heads.head import Head
from specjax.heads.medusa_formats import save_together
from specjax.models.family import Rules
from specjax.models.format import Format
from specjax.models.products import in_order
from specjax.training import losses, staged
from specjax.training.eagle import Batch, compare, measured, of_target, read_target, wanted
from specjax.training.lm import FORMAT
from specjax.training.unrolled import shifted
from specjax.types import Params, PyTree


@dataclasses.dataclass(frozen=True)
class Joint(staged.Staged):
    """How heads and target are trained together.

    Attributes:
      weight: of the heads' losses beside the divergence from the teacher, at the end of the training.
      rank, alpha: of the adapters.
      heads_rate: learning rate of the heads, relative to that of the adapters.
    """

    steps: int = 5
    decay: float = 0.8
    weight: float = 0.01
    rank: int = 32
    alpha: float = 16.0
    heads_rate: float = 4.0

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


# --- adapters --------------------------------------------------------------------------------------------------------


def new_adapters(params: Params, rank: int, fmt: Format, key: jax.Array, path: str = "") -> Params:
    """Matrices "a" [in, rank] and "b" [rank, out] beside every kernel, with b = 0: the model is as it was.

    Args:
      params: of the target, in the layout of `fmt`; where layers are stacked, so are their adapters.
      path: of the parameters, by which their random numbers differ.
    """
    found: Params = {}
    for name, child in params.items():
        if name == "kernel":
            parts = in_order(child) if isinstance(child, Mapping) else [child]
            *stack, rows, columns = parts[0].shape
            inputs, outputs = (columns * len(parts), rows) if fmt.products.out_in else (rows, columns)
            own = jax.random.fold_in(key, np.uint32(zlib.crc32(path.encode())))
            found["a"] = jax.random.uniform(own, (*stack, inputs, rank), minval=-1.0, maxval=1.0) * inputs**-0.5
            found["b"] = jnp.zeros((*stack, rank, outputs), jnp.float32)
        elif isinstance(child, Mapping) and (inside := new_adapters(child, rank, fmt, key, f"{path}.{name}")):
            found[name] = inside
    return found


def with_adapters(params: Params, adapters: Params, scale: float, fmt: Format) -> Params:
    """Parameters with `scale` A B added to their kernels."""
    found = dict(params)
    for name, child in adapters.items():
        if isinstance(child, Mapping):
            found[name] = with_adapters(params[name], child, scale, fmt)
    if "a" in adapters:
        more = scale * (adapters["a"] @ adapters["b"])
        found["kernel"] = _added(params["kernel"], more.swapaxes(-1, -2) if fmt.products.out_in else more)
    return found


def _added(kernel: Any, more: Array) -> Any:
    if not isinstance(kernel, Mapping):
        return (kernel.astype(jnp.float32) + more).astype(kernel.dtype)
    parts = jnp.split(more, len(kernel), axis=-1)
    return {name: _added(kernel[name], part) for name, part in zip(map(str, range(len(parts))), parts, strict=True)}


def tuned(head: Head, how: Joint, params: Params, fixed: Params) -> Params:
    """The target's parameters with its adapters."""
    return with_adapters(fixed, params["adapters"], how.scale, head.target.fmt)


# --- training --------------------------------------------------------------------------------------------------------


def init(head: Head, how: Joint, key: jax.Array) -> Params:
    """The heads, as Medusa's begin or as they were trained before; and adapters."""
    adapters = new_adapters(head.target.params, how.rank, head.target.fmt, jax.random.fold_in(key, np.uint32(1)))
    return {"head": staged.init_medusa(head, how, key), "adapters": adapters}


def loss(head: Head, how: Joint, params: Params, fixed: Params, batch: Batch, key: jax.Array) -> tuple:
    """`TrainingTask.loss`, and the cross-entropy of the tuned target with the teacher."""
    del key
    teacher, _ = read_target(head, fixed, batch)
    seen, ends = of_target(head, tuned(head, how, params, fixed), batch)
    answer = shifted(jnp.asarray(batch.answer), 1)
    log_p, log_q = (jax.nn.log_softmax(one.logits) for one in (teacher, seen))
    apart = losses.masked_mean(losses.DIVERGENCES["kl"](log_p, log_q), answer)
    # What the heads are compared with is no part of their loss: the target learns from its teacher alone.
    compared = seen._replace(logits=jax.lax.stop_gradient(seen.logits))
    steps = staged.stages(head, how, params["head"], compared, ends, batch)
    ramp = jnp.sin(jnp.pi / 2 * jnp.asarray(batch.progress, jnp.float32))
    nats = losses.masked_mean(losses.DIVERGENCES["ce"](log_p, log_q), answer)
    return apart + how.weight * ramp * staged.total(head, how, steps, batch), nats


def measure(head: Head, how: Joint, params: Params, fixed: Params, batch: Batch) -> tuple[dict[str, Array], Array]:
    """`TrainingTask.measure`: acceptance of the heads by the tuned target, and its divergence from the teacher."""
    teacher, _ = read_target(head, fixed, batch)
    seen, ends = of_target(head, tuned(head, how, params, fixed), batch)
    steps = staged.stages(head, how, params["head"], seen, ends, batch)
    found, _ = measured(steps)
    answer = shifted(jnp.asarray(batch.answer), 1)
    whole = dataclasses.replace(head, draft_tokens=None)
    own = compare(whole, wanted(whole, teacher.logits), seen.logits, answer)
    means = {name: losses.masked_mean(losses.DIVERGENCES[name](own.log_p, own.log_q), answer) for name in ("ce", "kl")}
    agreement = losses.masked_mean(own.match.astype(jnp.float32), answer)
    return found | {"nats": means["ce"], "teacher_kl": means["kl"], "teacher_top_1": agreement}, answer.sum()


def shardings(params: Params, mesh: Mesh, rules: Rules) -> PyTree:
    """Of the heads by their rules; adapters are whole on every device."""
    whole = NamedSharding(mesh, P())
    heads = sharding.shardings(params["head"], mesh, rules, FORMAT, kv_heads=1)
    return {"head": heads, "adapters": jax.tree.map(lambda leaf: whole, params["adapters"])}


def rate(how: Joint, path: str) -> float:
    """The learning rate of a parameter, relative to that of the recipe."""
    return how.heads_rate if path.startswith("head.") else 1.0


def save(head: Head, how: Joint, params: Params, folder: str | os.PathLike[str]) -> None:
    """Writes the tuned target and its heads as one folder, which `specjax.load` and `specjax.load_head` read."""
    merged = jax.jit(functools.partial(tuned, head, how))(params, head.target.params)
    target = dataclasses.replace(head.target, params=merged)
    save_together(dataclasses.replace(head, params=params["head"], target=target), folder)
