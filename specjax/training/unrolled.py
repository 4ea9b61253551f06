"""Training-time test: a head is run as it drafts, several steps at every position at once.

EAGLE-3, Li et al. 2025, arXiv 2503.01840, section 3.2; HASS, Zhang et al. 2024, arXiv 2408.15766, section 3.2, whose
aligned attention is the same in another alignment. P-EAGLE's mask rows, arXiv 2602.01469, are steps of the same kind.

    anchor a    0     1     2    ...         step 0: the pair (f_a, t_a+1), which drafts t_a+2
    step s                                   the pair (output of step s-1 at a, t_a+1+s), which drafts t_a+2+s
                                             of P-EAGLE: the pair (learned feature, mask token)

At anchor a, step s attends to what it would see while drafting: the pairs of step 0 up to a, which have true features,
and its own chain, the pairs of the steps 1 .. s at the same anchor. The scores are [A, A + s]; no sequence is repeated.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.training import losses

MASKED = -1e30


class Keys(NamedTuple):
    """Keys and values of a layer: of step 0 at all anchors, and of the later steps at the anchors that go on."""

    k: list[Float[Array, "B _ K W"]]
    v: list[Float[Array, "B _ K W"]]

    def at(self, places: Int[Array, "B N"]) -> "Keys":
        """With the chains of some of the anchors."""
        return Keys(*([first, *(rows_at(one, places) for one in later)] for first, *later in self))


class Anchored(NamedTuple):
    """A step of the anchors that it is trained at.

    Attributes:
      out: undefined where `at` + 1 + step is past the end.
      at: the anchors.
      on: which of them count.
    """

    out: Float[Array, "B N D"]
    at: Int[Array, "B N"]
    on: Bool[Array, "B N"]


def unrolled(
    module: Any,
    ends: Any,
    tokens: Int[Array, "B S"],
    answer: Bool[Array, "B S"],
    given: Float[Array, "B A D"],
    steps: int,
    following: Callable[[Int[Array, "B N"], Float[Array, "B N D"]], tuple[Int[Array, "B N"], Float[Array, "B N D"]]],
    *,
    share: Callable[[int], float] = lambda step: 1.0,
    key: jax.Array | None = None,
) -> list[Anchored]:
    """Every step, at all anchors, A = S - 1, or at fewer the later it is.

    Args:
      module: a head of `heads.eagle`.
      ends: the target without its layers.
      answer: tokens that are to be drafted.
      given: what step 0 is given: `module.fuse` of the target's hidden states at the anchors.
      following: (tokens of the text, output of the step before) -> the pairs of a step.
      share: step s is trained at share(s) of the anchors.
      key: of the anchors; None: all of them at every step.
    """
    attend = functools.partial(attend_anchored, window=module.config.window, sinks=module.config.sinks)
    keys, found, at = {index: Keys([], []) for index in range(module.config.layers)}, [], every_anchor(tokens)
    anchors, on = at.shape[1], jnp.ones(at.shape, bool)
    order = None if key is None or share(steps - 1) == 1 else jax.random.uniform(key, at.shape)
    total = shifted(answer, 2)[:, :anchors].sum(1, dtype=jnp.int32)
    fed, out = tokens[:, 1:], given
    for step in range(steps):
        if step and order is not None:
            going = on & rows_at(shifted(answer, 2 + step)[:, :anchors], at)
            places, on = sampled(share(step), step, order, going, total, anchors)
            at, order, out = (rows_at(rows, places) for rows in (at, order, out))
            keys = {index: own.at(places) for index, own in keys.items()}
        if step:
            fed, given = following(rows_at(tokens, at + 1 + step), out)
        out, keys = module(ends, fed, given, at + step, functools.partial(attend, at), keys)
        found.append(Anchored(out, at, on))
    return found


def sampled(
    share: float, step: int, order: Float[Array, "B N"], going: Bool[Array, "B N"], total: Int[Array, "B"], anchors: int
) -> tuple[Int[Array, "B M"], Bool[Array, "B M"]]:
    """Conditional drop-token sampling of P-EAGLE (arXiv 2602.01469): anchors of a step, among those of the one before.

    Args:
      share: of all anchors.
      order: random numbers of the anchors, the same at all steps.
      going: anchors that were sampled so far, and whose token at this step is part of the answer.
      total: tokens of the answer.
      anchors: of the whole text, A.

    Returns:
      Places in `order`, at most share (A - step), and which of them are anchors.
    """
    size = max(1, int((anchors - step) * share))
    places = jnp.argsort(jnp.where(going, order, 2.0), axis=1)[:, :size].astype(jnp.int32)
    count = ((total - step).astype(jnp.float32) * share).astype(jnp.int32)
    rank = jnp.arange(places.shape[1], dtype=jnp.int32)[None]
    return places, rows_at(going, places) & (rank < count[:, None])


def every_anchor(tokens: Int[Array, "B S"]) -> Int[Array, "B A"]:
    """The anchors of texts: all positions but the last."""
    return jnp.broadcast_to(jnp.arange(tokens.shape[1] - 1, dtype=jnp.int32)[None], tokens[:, 1:].shape)


def rows_at(rows: Array, at: Int[Array, "B N"]) -> Array:
    """rows[b, at[b, n]]; the last row where `at` is past the end."""
    return jnp.take_along_axis(rows, at.reshape(*at.shape, *[1] * (rows.ndim - 2)), axis=1, mode="clip")


def shifted(rows: Array, by: int) -> Array:
    """rows[:, i + by], and zeros past the end."""
    width = rows.shape[1]
    padding = [(0, 0), (0, by), *[(0, 0)] * (rows.ndim - 2)]
    return jnp.pad(rows, padding)[:, by : by + width]


def attend_anchored(
    at: Int[Array, "B N"], attn: Any, x: Float[Array, "B N F"], turn: Any, index: int,
    keys: dict[int, Keys], *, window: int | None = None, sinks: int = 0,
) -> tuple[Float[Array, "B N D"], dict[int, Keys]]:  # fmt: skip
    """`heads.eagle.Attend` over the true pairs up to the anchors `at`, and over each anchor's own chain.

    Args:
      window, sinks: of a step, true pairs that it sees: the last `window`, its own included, and the first `sinks`.
    """
    own = Keys([*keys[index].k, attn.keys(x, turn)], [*keys[index].v, attn.values(x)])
    q = attn.queries(x, turn) * attn.head_width**-0.5
    rows, count, heads, width = q.shape
    anchors = own.k[0].shape[1]
    q = q.reshape(rows, count, own.k[0].shape[2], -1, width)
    scores = jnp.einsum("bakgw,bckw->bkgac", q, own.k[0])
    place, step = jnp.arange(anchors, dtype=jnp.int32)[None, None], len(own.k) - 1
    seen = place <= at[..., None]
    if window is not None:
        seen = seen & ((place > at[..., None] + step - window) | (place < sinks))
    scores = [jnp.where(seen[:, None, None], scores, MASKED)]
    scores += [jnp.einsum("bakgw,bakw->bkga", q, k)[..., None] for k in own.k[1:]]
    weights = jax.nn.softmax(jnp.concatenate(scores, -1), axis=-1)
    mixed = jnp.einsum("bkgac,bckw->bakgw", weights[..., :anchors], own.v[0])
    for later, v in enumerate(own.v[1:]):
        mixed = mixed + jnp.moveaxis(weights[..., anchors + later], 3, 1)[..., None] * v[:, :, :, None]
    return attn.o(mixed.reshape(rows, count, heads * width)), keys | {index: own}


def acceptance(
    overlap: list[Float[Array, "B A"]], match: list[Bool[Array, "B A"]], mask: list[Bool[Array, "B A"]]
) -> dict[str, Array]:
    """Simulated acceptance of a chain of as many tokens as there are steps: a pure function of logits.

    Every anchor drafts its chain after true tokens.

    Args:
      overlap: sum_x min(p, q) of target and head, for each step.
      match: whether both have the same most probable token.
      mask: anchors whose drafted token counts.

    Returns:
      `overlap_s` and `match_s`, means at each step; `tokens_per_pass` and `greedy_tokens_per_pass`: one more than the
      expected accepted tokens, from the products along the chains of the anchors that have all steps.
    """
    found: dict[str, Array] = {}
    whole = mask[-1]
    chains = [jnp.ones(whole.shape, jnp.float32)] * 2
    totals = [jnp.ones((), jnp.float32)] * 2
    for step, (shared, same, valid) in enumerate(zip(overlap, match, mask, strict=True)):
        each = shared, same.astype(jnp.float32)
        found[f"overlap_{step}"], found[f"match_{step}"] = (losses.masked_mean(one, valid) for one in each)
        chains = [chain * one for chain, one in zip(chains, each, strict=True)]
        totals = [total + losses.masked_mean(chain, whole) for total, chain in zip(totals, chains, strict=True)]
    return found | {"tokens_per_pass": totals[0], "greedy_tokens_per_pass": totals[1]}
