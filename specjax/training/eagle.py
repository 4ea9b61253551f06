"""Losses of EAGLE heads, on text that the target wrote: EAGLE-1, HASS and EAGLE-3; and of SPIRe and P-EAGLE."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.heads.eagle import EagleConfig
from specjax.heads.eagle_formats import check_taps, default_taps
from specjax.heads.head import Head
from specjax.model import Model
from specjax.models.llama import LlamaConfig
from specjax.training import losses
from specjax.training.lm import FORMAT
from specjax.training.unrolled import acceptance, rows_at, shifted, unrolled
from specjax.types import Output, Params


@dataclasses.dataclass(frozen=True)
class Unrolling:
    """How a head is trained; the defaults are those of EAGLE-3.

    Attributes:
      steps: drafted tokens that are trained at each position.
      decay: weight of each step relative to the one before it.
      divergence: from the target's distribution, a name of `losses.DIVERGENCES`.
      features: weight of the loss between drafted and true features; 0: none.
      tokens: weight of the divergence.
      top: weight of the cross-entropy over the target's ten most probable tokens (HASS).
      detached: no gradient flows from a step to the one before it (HASS).
      noise: half of the width of uniform noise on the features, at 512 positions (EAGLE-1).
      kept, least: step s trains max(kept**s, least) of the anchors, as P-EAGLE does.
    """

    steps: int = 7
    decay: float = 0.8
    divergence: str = "ce"
    features: float = 0.0
    tokens: float = 1.0
    top: float = 0.0
    detached: bool = False
    noise: float = 0.0
    kept: float = 1.0
    least: float = 0.0

    def share(self, step: int) -> float:
        """Of the anchors that a step trains."""
        return max(self.kept**step, self.least)


RECIPES = {
    "eagle": Unrolling(steps=1, features=1.0, tokens=0.1, noise=0.1),
    "hass": Unrolling(steps=3, decay=1.0, features=1.0, tokens=0.1, top=1.0, detached=True, noise=0.1),
    "eagle3": Unrolling(),
    "spire": Unrolling(steps=4, decay=1.0, divergence="ce-tv"),
    "peagle": Unrolling(steps=8, divergence="kl", kept=0.7, least=0.2),  # of the package `speculators`
}
TOP = 10  # of HASS


class Batch(NamedTuple):
    """Texts, padded at the end, and which tokens are the target's answer.

    The texts of an encoder-decoder begin with its start token; `source` and `length` are what its encoder reads.
    `progress` is the share of the training that is done. `stored` is what the target computes on the texts, if that is
    on disk: see `features.kept`.
    """

    tokens: Int[Array | np.ndarray, "B S"]
    answer: Bool[Array | np.ndarray, "B S"]
    source: Int[Array | np.ndarray, "B P"] | tuple[()] = ()
    length: Int[Array | np.ndarray, "B"] | tuple[()] = ()
    progress: Float[Array | np.ndarray, ""] | tuple[()] = ()
    stored: "Stored | tuple[()]" = ()


class Stored(NamedTuple):
    """What a target computed on texts.

    Attributes:
      streams: features after the final norm, then the streams that enter the tapped layers.
      best: the most probable token.
      total: logsumexp of the logits.
    """

    streams: Float[Array | np.ndarray, "B S N D"]
    best: Int[Array | np.ndarray, "B S"]
    total: Float[Array | np.ndarray, "B S"]


class Restricted(NamedTuple):
    """Logits of the target over a draft vocabulary, and of all others what a head is compared with."""

    known: Float[Array, "B S N"]
    best: Int[Array, "B S"]
    total: Float[Array, "B S"]


class Wanted(NamedTuple):
    """The target's distributions, as far as a head can draft from them.

    Attributes:
      log_p: over the draft vocabulary, renormalized.
      log_mass: of the draft vocabulary in the whole distribution.
      best: the most probable token.
    """

    log_p: Float[Array, "B S N"]
    log_mass: Float[Array, "B S"]
    best: Int[Array, "B S"]


class Step(NamedTuple):
    """Target and head at one step of every anchor."""

    log_p: Float[Array, "B A N"]  # as in `Wanted`
    log_q: Float[Array, "B A N"]
    overlap: Float[Array, "B A"]  # of the whole distributions
    match: Bool[Array, "B A"]
    drafted: Bool[Array, "B A"]  # the target's most probable token is in the draft vocabulary
    mask: Bool[Array, "B A"]  # the drafted token is part of the answer


def drafted(module: Any, tokens: Int[Array, "B N"], out: Float[Array, "B N D"]) -> tuple[Array, Array]:
    """The pairs of a later step: tokens of the text, and what the step before drafted."""
    return tokens, module.next_given(out)


def run(
    head: Head, params: Params, fixed: Params, batch: Batch, how: Unrolling, key: jax.Array | None,
    following: Callable[[Any, Array, Array], tuple[Array, Array]] = drafted,
) -> tuple:  # fmt: skip
    """(steps, `Anchored` outputs, features of the target): the head unrolled over a batch.

    Args:
      head: its kind, shape and target; its own parameters are not used.
      fixed: the target's parameters.
      key: of the noise and the anchors; None: no noise, and all anchors.
      following: (module, tokens of the text, output of the step before) -> the pairs of a step.
    """
    module, tokens, answer = head.module(params), jnp.asarray(batch.tokens), jnp.asarray(batch.answer)
    seen, ends = read_target(head, fixed, batch)
    anchors = tokens.shape[1] - 1
    features = seen.features[:, :anchors]
    if key is not None and how.noise:
        features = noisy(features, how.noise, key)
    given = module.fuse(features, tuple(hidden[:, :anchors] for hidden in seen.hiddens))

    def pairs(tokens, out):
        return following(module, tokens, jax.lax.stop_gradient(out) if how.detached else out)

    chosen = None if key is None else jax.random.fold_in(key, 1)
    outs = unrolled(module, ends, tokens, answer, given, how.steps, pairs, share=how.share, key=chosen)
    every, steps = wanted(head, seen.logits), []
    for step, one in enumerate(outs):
        ahead = jax.tree.map(lambda rows, at=one.at + 1 + step: rows_at(rows, at), every)
        mask = one.on & rows_at(shifted(answer, 2 + step)[:, :anchors], one.at)
        steps.append(compare(head, ahead, module.logits(ends, one.out), mask))
    return steps, outs, seen.features


def noisy(features: Float[Array, "B A D"], noise: float, key: jax.Array) -> Float[Array, "B A D"]:
    """Features with uniform noise, the less the longer the text: EAGLE-1's."""
    scale = noise * 512 / (features.shape[1] + 1)
    return features + jax.random.uniform(key, features.shape, minval=-scale, maxval=scale)


def read_target(head: Head, fixed: Params, batch: Batch) -> tuple[Output, Any]:
    """What the target computes on the texts, without a gradient, and the target without its layers."""
    seen, ends = of_target(head, fixed, batch)
    return jax.lax.stop_gradient(seen), ends


def of_target(head: Head, params: Params, batch: Batch) -> tuple[Output, Any]:
    """The same with a gradient, for other parameters of the target."""
    target = head.target
    ends = target.family.ends(target.config, target.fmt)(target.family.without_layers(params))
    if isinstance(batch.stored, Stored):
        features, *hiddens = jnp.moveaxis(jnp.asarray(batch.stored.streams, jnp.float32), 2, 0)
        if head.draft_tokens is None:
            return Output(ends.unembed(features), features, tuple(hiddens)), ends
        known = ends.unembed(features, jnp.asarray(head.draft_tokens))
        logits = Restricted(known, jnp.asarray(batch.stored.best), jnp.asarray(batch.stored.total))
        return Output(logits, features, tuple(hiddens)), ends  # pyright: ignore[reportArgumentType]
    module = target.family.module(params, target.config, target.fmt)
    if target.encoder_decoder:
        return module.read(*map(jnp.asarray, (batch.source, batch.length, batch.tokens))), ends
    return module.read(jnp.asarray(batch.tokens), head.config.taps), ends


def wanted(head: Head, logits: Float[Array, "B S V"] | Restricted) -> Wanted:
    """What a head is compared with, from the target's logits: once for all steps, which read it at other positions."""
    if not isinstance(logits, Restricted):
        best = logits.argmax(-1)
        if head.draft_tokens is None:
            return Wanted(jax.nn.log_softmax(logits), jnp.zeros(best.shape, logits.dtype), best)
        known = logits[..., jnp.asarray(head.draft_tokens)]
        logits = Restricted(known, best, jax.nn.logsumexp(logits, axis=-1))
    mass = jax.nn.logsumexp(logits.known, axis=-1)
    return Wanted(logits.known - mass[..., None], mass - logits.total, logits.best)


def compare(head: Head, target: Wanted, drafted: Float[Array, "B A N"], mask: Bool[Array, "B A"]) -> Step:
    """Target and head over the draft vocabulary."""
    log_q, first = jax.nn.log_softmax(drafted), drafted.argmax(-1)
    if head.draft_tokens is None:
        known = jnp.ones(mask.shape, bool)
    else:
        members = np.isin(np.arange(head.target.vocab_size), head.draft_tokens)
        known, first = jnp.asarray(members)[target.best], jnp.asarray(head.draft_tokens)[first]
    overlap = losses.accepted(target.log_p + target.log_mass[..., None], log_q)
    return Step(target.log_p, log_q, overlap, first == target.best, known, mask)


def of_text(head: Head, step: Step, token: Int[Array, "B N"]) -> tuple[Float[Array, "B N"], Bool[Array, "B N"]]:
    """-log q of the tokens of the text, and where they are among those that the head drafts."""
    if head.draft_tokens is None:
        place, known = token, jnp.ones(token.shape, bool)
    else:
        places = np.full((head.target.vocab_size,), -1, np.int32)
        places[head.draft_tokens] = np.arange(len(head.draft_tokens))
        place = jnp.asarray(places)[token]
        place, known = jnp.maximum(place, 0), place >= 0
    return -jnp.take_along_axis(step.log_q, place[..., None], axis=-1)[..., 0], known


def loss(head: Head, how: Unrolling, params: Params, fixed: Params, batch: Batch, key: jax.Array) -> tuple:
    """`TrainingTask.loss`: the sum over the steps, and the cross-entropy with the target at the first one."""
    steps, outs, features = run(head, params, fixed, batch, how, key)
    total = jnp.zeros((), jnp.float32)
    for number, (step, (out, at, _)) in enumerate(zip(steps, outs, strict=True)):
        mask = step.mask & step.drafted
        value = how.tokens * losses.masked_mean(losses.DIVERGENCES[how.divergence](step.log_p, step.log_q), mask)
        if how.features:
            goal = rows_at(features, at + 1 + number)
            value = value + how.features * losses.masked_mean(losses.smooth_l1(out, goal), step.mask)
        if how.top:
            log_p, places = jax.lax.top_k(step.log_p, min(TOP, step.log_p.shape[-1]))
            log_q = jnp.take_along_axis(step.log_q, places, axis=-1)
            value = value + how.top * losses.masked_mean(-(jnp.exp(log_p) * log_q).sum(-1), mask)
        total = total + how.decay**number * value
    return total, first_nats(steps)


def measure(head: Head, how: Unrolling, params: Params, fixed: Params, batch: Batch) -> tuple[dict[str, Array], Array]:
    """`TrainingTask.measure`: acceptance by position, and simulated tokens per target pass."""
    return measured(run(head, params, fixed, batch, how, None)[0])


def measured(steps: list[Step]) -> tuple[dict[str, Array], Array]:
    """What `measure` returns, from the steps."""
    found = acceptance([s.overlap for s in steps], [s.match for s in steps], [s.mask for s in steps])
    return {"nats": first_nats(steps)} | found, steps[0].mask.sum()


def first_nats(steps: list[Step]) -> Float[Array, ""]:
    """Cross-entropy with the target's distribution over the draft vocabulary, at the first step."""
    first = steps[0]
    return losses.masked_mean(losses.DIVERGENCES["ce"](first.log_p, first.log_q), first.mask & first.drafted)


def with_draft_tokens(counts: np.ndarray, size: int, vocab_size: int) -> np.ndarray | None:
    """The draft vocabulary: the `size` most frequent tokens of the answers, ascending; None: all tokens."""
    if size >= vocab_size:
        return None
    return np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int32)


def new_layers(target: Model, layers: int, mlp_width: int, kv_heads: int, width: int) -> LlamaConfig:
    """Decoder layers of a new head, with the target's rotary base and width of an attention head.

    Args:
      kv_heads: 0: the target's; of a narrower head, the number of its attention heads.
      width: a narrower head has as many attention heads as fit.
    """
    config = target.config
    own = width != config.width
    heads = width // config.head_width if own else config.heads
    return LlamaConfig(
        vocab_size=target.vocab_size, width=width, layers=layers, heads=heads,
        kv_heads=kv_heads or (heads if own else config.kv_heads), head_width=config.head_width,
        mlp_width=mlp_width, max_positions=getattr(config, "max_positions", 2048), activation="silu",
        rope_theta=getattr(config, "rope_theta", 10000.0), eps=getattr(config, "eps", 1e-5),
    )  # fmt: skip


def output_rows(head: Head) -> Float[Array, "N D"]:
    """The target's output matrix, a row per token; of the draft vocabulary if there is one."""
    target = head.target
    ends = target.family.ends(target.config, target.fmt)(target.family.without_layers(target.params))
    rows = ends.unembed(jnp.eye(target.config.width, dtype=jnp.float32)[None])[0].astype(jnp.float32).T
    return rows if head.draft_tokens is None else rows[head.draft_tokens]


def kernel(rows: Float[Array, "N D"]) -> Float[Array, "_ _"]:
    """The kernel of a `Linear` from D to N, in the layout of `FORMAT`."""
    return rows if FORMAT.products.out_in else rows.T


def new_config(
    kind: str, layers: LlamaConfig, target: Model, *, draft_vocab: int, taps: tuple[int, ...]
) -> EagleConfig:
    """The shape of a new head of these layers.

    Args:
      taps: streams that EAGLE-3 reads; (): low, middle and high, as the published heads.

    Raises:
      ValueError: streams that the target lacks, or not in ascending order.
    """
    if kind != "eagle3":
        return EagleConfig(layers, layers.width)
    taps = check_taps(taps or default_taps(target.config.layers), target)
    width = target.config.width
    return EagleConfig(layers, len(taps) * width, taps, draft_vocab, own_embedding=layers.width != width)
