"""Loss of DFlash heads: blocks behind random positions of the target's answers (Chen et al. 2026, arXiv 2602.06036).

context   c_0 ... c_a-1              before the anchor a: keys and values alone
block     t_a   mask   mask   ...    positions a, a + 1, ...: sees the context and itself, no other block
drafts          t_a+1  t_a+2  ...    from the slot of the token itself, or with `from_anchor` the one before
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.heads.dflash import DFlash
from specjax.heads.head import Head
from specjax.models.llama import Attention
from specjax.models.rope import Rotation
from specjax.training import losses
from specjax.training.eagle import Batch, Step, compare, first_nats, measured, of_text, read_target, wanted
from specjax.training.losses import TEXT
from specjax.training.unrolled import MASKED, every_anchor, rows_at
from specjax.types import Params

D_PACE = "d-pace"  # the same, weighted by how far a block is likely to be accepted


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How a DFlash head is trained; the defaults are those of its authors for blocks of 16.

    Attributes:
      steps: drafted tokens of a block, one less than its slots.
      divergence: TEXT, D_PACE, or from the target's distribution, a name of `losses.DIVERGENCES`.
      gamma: the k-th drafted token weighs exp(-k / gamma), k = 0, 1, ...; not with D_PACE.
      share: blocks per token of a text: 512 of texts of 3,072 tokens.
    """

    steps: int = 15
    divergence: str = TEXT
    gamma: float = 7.0
    share: float = 512 / 3072


def attend_blocks(
    module: DFlash, context: Float[Array, "B C D"], at: Int[Array, "B N"], attn: Attention, x: Float[Array, "B S D"],
    turn: Rotation, index: int, state: Any,
) -> tuple[Float[Array, "B S D"], Any]:  # fmt: skip
    """`heads.eagle.Attend` of blocks of b slots, S = N * b, over the context before each block and over the block."""
    config, window = module.config, module.config.windows[index]
    place = jnp.arange(context.shape[1], dtype=jnp.int32)
    known = module.turn(place[None])
    k, v = attn.keys(context, known), attn.values(context)
    blocks = lambda rows: rows.reshape(*at.shape, config.block, k.shape[2], -1, attn.head_width)
    q = blocks(attn.queries(x, turn) * attn.head_width**-0.5)
    own_k, own_v = (blocks(rows)[..., 0, :] for rows in (attn.keys(x, turn), attn.values(x)))
    seen = place[None, None] < at[..., None]
    near = np.ones((config.block, config.block), bool)
    if window is not None:
        seen = seen & (place[None, None] >= at[..., None] - window)
        near = np.tril(near) if config.causal else near
    far_scores = jnp.einsum("bnskgw,bckw->bnkgsc", q, k)
    near_scores = jnp.einsum("bnskgw,bntkw->bnkgst", q, own_k)
    far_scores = jnp.where(seen[:, :, None, None, None], far_scores, MASKED)
    near_scores = jnp.where(jnp.asarray(near)[None, None, None, None], near_scores, MASKED)
    weights = jax.nn.softmax(jnp.concatenate([far_scores, near_scores], -1), axis=-1)
    far, near = jnp.split(weights, [context.shape[1]], -1)
    mixed = jnp.einsum("bnkgsc,bckw->bnskgw", far, v) + jnp.einsum("bnkgst,bntkw->bnskgw", near, own_v)
    return attn.o(mixed.reshape(*x.shape[:2], -1)), state


def anchors(how: Blocks, batch: Batch, key: jax.Array | None) -> tuple[Int[Array, "B N"], Bool[Array, "B N"]]:
    """Random positions whose next token is part of the answer, and which of them are such; without a key, all."""
    at = every_anchor(jnp.asarray(batch.tokens))
    valid = jnp.asarray(batch.answer)[:, 1:]
    if key is None:
        return at, valid
    order = jnp.where(valid, jax.random.uniform(key, at.shape), 2.0)
    at = jnp.argsort(order, axis=1)[:, : max(1, round(at.shape[1] * how.share))].astype(jnp.int32)
    return at, rows_at(valid, at)


def run(
    head: Head, params: Params, fixed: Params, batch: Batch, at: Int[Array, "B N"], valid: Bool[Array, "B N"]
) -> tuple[list[Step], Int[Array, "B N K"]]:
    """The head and its target at every drafted token of the blocks behind `at`, and those tokens of the texts.

    Args:
      head: its kind, shape and target; its own parameters are not used.
      fixed: the target's parameters.
      at, valid: from `anchors`.
    """
    module, tokens, answer = head.module(params), jnp.asarray(batch.tokens), jnp.asarray(batch.answer)
    seen, ends = read_target(head, fixed, batch)
    attend = functools.partial(attend_blocks, module, module.fuse(seen.hiddens), at)
    out, _ = module(ends, rows_at(tokens, at), at, attend, None)
    drafting = module.config.drafting
    logits = module.logits(ends, out).reshape(*at.shape, module.config.block, -1)[:, :, drafting]
    steps, labels, every = [], [], wanted(head, seen.logits)
    for number in range(module.config.most):
        place = at + 1 + number
        mask = valid & (place < tokens.shape[1]) & rows_at(answer, place)
        ahead = jax.tree.map(lambda rows, at=place - 1: rows_at(rows, at), every)
        steps.append(compare(head, ahead, logits[:, :, number], mask))
        labels.append(rows_at(tokens, place))
    return steps, jnp.stack(labels, -1)


def d_pace(values: Float[Array, "B N K"], mask: Bool[Array, "B N K"]) -> Float[Array, "B N K"]:
    """Weights of D-PACE from -log q of the tokens of the text: the expected tokens that a block still accepts.

    sum_{j >= k} prod_{i <= j} (q_i / 2 + 1/2), without gradient; masked tokens neither count nor reduce the others.
    """
    smooth = jnp.where(mask, 0.5 * jnp.exp(-jax.lax.stop_gradient(values)) + 0.5, 1.0)
    reached = jnp.where(mask, jnp.cumprod(smooth, -1), 0.0)
    return jnp.where(mask, jnp.flip(jnp.cumsum(jnp.flip(reached, -1), -1), -1), 0.0)


def loss(head: Head, how: Blocks, params: Params, fixed: Params, batch: Batch, key: jax.Array) -> tuple:
    """`TrainingTask.loss`: the weighted sum over the drafted tokens, by their number, and the cross-entropy with the
    target at the first one."""
    steps, labels = run(head, params, fixed, batch, *anchors(how, batch, key))
    mask = jnp.stack([step.mask for step in steps], -1)
    if how.divergence in (TEXT, D_PACE):
        found = [of_text(head, step, labels[..., number]) for number, step in enumerate(steps)]
        values = jnp.stack([value for value, _ in found], -1)
        mask = mask & jnp.stack([known for _, known in found], -1)
    else:
        divergence = losses.DIVERGENCES[how.divergence]
        values = jnp.stack([divergence(step.log_p, step.log_q) for step in steps], -1)
    decay = jnp.exp(-jnp.arange(len(steps), dtype=jnp.float32) / how.gamma)
    weights = d_pace(values, mask) if how.divergence == D_PACE else decay[None, None]
    return losses.masked_mean(values * weights, mask), first_nats(steps)


def measure(head: Head, how: Blocks, params: Params, fixed: Params, batch: Batch) -> tuple[dict[str, Array], Array]:
    """`TrainingTask.measure`: acceptance by position, and simulated tokens per target pass, of random blocks, as in
    training: those of all positions are many times the text."""
    steps, _ = run(head, params, fixed, batch, *anchors(how, batch, jax.random.key(0)))
    return measured(steps)
