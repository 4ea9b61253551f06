"""Loss of Falcon heads: coupled sequential glancing distillation, experimental (Gao et al. 2024, arXiv 2412.12639).

    row i       0         1         | 2         3         | ...     blocks of k = 2 rows, which see each other
    pair        f_0, t_1  f_1, t_2  | f_2, t_3  f_3, t_4  |
    drafts      t_3       t_4       | t_5       t_6       |         from an output that imitates f_2, f_3, ...
    glanced                         | f_4, t_5  f_3, t_4  |         the first row given what it shall predict

The loss is that of a second pass, in which some rows are given the pair of their own target: as many as a growing
accuracy and the progress of training leave, so that the others learn to depend on the rest of their block.

What the paper does not state, chosen here: blocks begin at multiples of k; the first k - 1 rows of a random block are
glanced together. Its mixture of divergence and cross-entropy with the target has the gradient of one divergence.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.heads.head import Head
from specjax.training import losses
from specjax.training.eagle import Batch, Step, Wanted, compare, first_nats, measured, noisy, read_target, wanted
from specjax.training.unrolled import shifted
from specjax.types import Params


@dataclasses.dataclass(frozen=True)
class Glancing:
    """How a Falcon head is trained; the defaults are those of the paper.

    Attributes:
      steps: tokens that a pass drafts, k.
      divergence: from the target's distribution, a name of `losses.DIVERGENCES`.
      features, tokens: weights of the loss between drafted and true features, and of the divergence.
      glance: of the wrong tokens of the first pass, the share that is glanced at the beginning; it falls to 0.
      noise: half of the width of uniform noise on the features, at 512 positions.
    """

    steps: int = 2
    divergence: str = "kl"
    features: float = 1.0
    tokens: float = 0.1
    glance: float = 0.4
    noise: float = 0.1


class Rows(NamedTuple):
    """What the target computes for every row of the texts."""

    tokens: Int[Array, "B A"]  # of the pairs
    given: Float[Array, "B A D"]
    goal_tokens: Int[Array, "B A"]  # pairs of the positions whose features the rows imitate
    goal: Float[Array, "B A D"]
    wanted: Wanted  # for the drafted tokens
    mask: Bool[Array, "B A"]  # the drafted token is part of the answer


def rows_of(head: Head, seen, batch: Batch) -> Rows:
    """The rows of a batch."""
    tokens, size = jnp.asarray(batch.tokens), head.config.block
    cut = lambda rows, by: shifted(rows, by)[:, :-1]
    return Rows(
        cut(tokens, 1), seen.features[:, :-1], cut(tokens, 1 + size), cut(seen.features, size),
        jax.tree.map(lambda rows: cut(rows, size), wanted(head, seen.logits)), cut(jnp.asarray(batch.answer), 1 + size),
    )  # fmt: skip


def drafted(head: Head, params: Params, ends, tokens: Int[Array, "B A"], given: Float[Array, "B A D"]) -> tuple:
    """(outputs, logits) of all rows, in which rows of a block see each other."""
    module, place = head.module(params), jnp.arange(tokens.shape[1], dtype=jnp.int32)
    block = place // head.config.block
    visible = jnp.broadcast_to((block[None] <= block[:, None])[None], (len(tokens), len(place), len(place)))
    positions = jnp.broadcast_to(place[None], tokens.shape)
    attend = lambda attn, x, turn, index, state: attn(x, turn, visible, state, index, None)
    out, _ = module(ends, tokens, given, positions, attend, None)
    return out, module.logits(ends, out)


def glanced(
    how: Glancing, size: int, wrong: Bool[Array, "B A"], mask: Bool[Array, "B A"], progress: Float[Array, ""],
    key: jax.Array,
) -> Bool[Array, "B A"]:  # fmt: skip
    """Rows that are given their target: the first k - 1 of random blocks, `glance` * (1 - progress) of the wrong ones.

    Args:
      size: k.
      wrong: rows whose most probable token is not the target's, in the first pass.
      mask: rows whose drafted token is part of the answer.
    """
    rows, width = mask.shape
    padded = jnp.pad(mask, ((0, 0), (0, -width % size)))
    live = padded.reshape(rows, -1, size).any(-1)
    order = jnp.where(live, jax.random.uniform(key, live.shape), 2.0)
    rank = jnp.argsort(jnp.argsort(order, axis=1), axis=1)
    share = how.glance * (1.0 - progress) / max(size - 1, 1)
    count = jnp.round((wrong & mask).sum(1).astype(jnp.float32) * share).astype(jnp.int32)
    chosen = jnp.repeat(live & (rank < count[:, None]), size, axis=1)[:, :width]
    early = jnp.arange(width, dtype=jnp.int32) % size < size - 1
    return chosen & early[None] & mask


def loss(head: Head, how: Glancing, params: Params, fixed: Params, batch: Batch, key: jax.Array) -> tuple:
    """`TrainingTask.loss`: that of the second pass, and the first one's cross-entropy with the target, at the first
    place of the blocks."""
    of_noise, of_rows = jax.random.split(key)
    seen, ends = read_target(head, fixed, batch)
    rows = rows_of(head, seen, batch)
    given = noisy(rows.given, how.noise, of_noise)
    _, first = jax.lax.stop_gradient(drafted(head, params, ends, rows.tokens, given))
    wrong = first.argmax(-1) != rows.wanted.best
    swap = glanced(how, head.config.block, wrong, rows.mask, jnp.asarray(batch.progress, jnp.float32), of_rows)
    tokens = jnp.where(swap, rows.goal_tokens, rows.tokens)
    out, logits = drafted(head, params, ends, tokens, jnp.where(swap[..., None], rows.goal, given))
    step = compare(head, rows.wanted, logits, rows.mask)
    value = how.tokens * losses.masked_mean(losses.DIVERGENCES[how.divergence](step.log_p, step.log_q), step.mask)
    value = value + how.features * losses.masked_mean(losses.smooth_l1(out, rows.goal), step.mask)
    return value, first_nats(by_place(head, compare(head, rows.wanted, first, rows.mask)))


def by_place(head: Head, step: Step) -> list[Step]:
    """The rows at each place of the blocks, as steps of a chain of k tokens."""
    size = head.config.block
    whole = step.mask.shape[1] // size * size
    return [jax.tree.map(lambda rows, place=place: rows[:, place:whole:size], step) for place in range(size)]


def measure(head: Head, how: Glancing, params: Params, fixed: Params, batch: Batch) -> tuple[dict[str, Array], Array]:
    """`TrainingTask.measure`: acceptance by position of one pass, and simulated tokens per target pass."""
    del how
    seen, ends = read_target(head, fixed, batch)
    rows = rows_of(head, seen, batch)
    _, logits = drafted(head, params, ends, rows.tokens, rows.given)
    steps = by_place(head, compare(head, rows.wanted, logits, rows.mask))
    return measured(steps)
