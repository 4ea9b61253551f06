"""Two small drafters that read hidden states of the target, as trained heads do.

last_feature    linear maps of the last feature to the next gamma tokens, as Medusa does
three_streams   the same of three residual streams, fused, and of their mean over the whole text, as EAGLE-3 fuses them
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.base import Drafter
from specjax.categorical import draw, largest, uniforms
from specjax.drafters import LoadedDrafter
from specjax.trees import Tree
from specjax.types import Commit, Draft, Siblings
from tests import battery

STREAMS = (0, 1, 2)  # of a model of two layers: the embedding, the middle, and what leaves the last layer


class Seen(NamedTuple):
    """Hidden states of every committed token but `pending`, left-aligned."""

    rows: Float[Array, "B T F"]
    length: Int[Array, "B"]


def fused(features: Array, hiddens: tuple[Array, ...]) -> Array:
    """What a head keeps of each position: the residual streams if there are any, else the feature."""
    return jnp.concatenate(hiddens, -1) if hiddens else features


def summary(state: Seen, *, whole: bool) -> Float[Array, "B F"]:
    """The last position's row, zeros before there is one; with `whole`, beside the mean of all of them."""
    at = jnp.arange(state.rows.shape[1], dtype=jnp.int32)[None]
    last = jnp.where((at == state.length[:, None] - 1)[..., None], state.rows, 0.0).sum(1)
    if not whole:
        return last
    mean = jnp.where((at < state.length[:, None])[..., None], state.rows, 0.0).sum(1)
    return jnp.concatenate([last, mean / jnp.maximum(state.length, 1)[:, None].astype(jnp.float32)], 1)


@functools.cache
def head(
    tree: Tree,
    vocab_size: int,
    *,
    capture: tuple[int, ...] = (),
    points: bool = False,
    buckets: tuple[int, ...] = (),
) -> Drafter:
    """A chain of drawn tokens, or a tree of the most probable ones; its params are [depth, F, V].

    Args:
      buckets: see `Drafter.buckets`; rows of an even length then propose nothing.
    """
    ranks = [0] + [int(np.flatnonzero(tree.children[tree.parents[n]] == n)[0]) for n in range(1, tree.size)]

    def init(params, prompt, length, cache_len, prefilled):
        del params, prompt, length
        rows = fused(prefilled.features, prefilled.hiddens).astype(jnp.float32)
        rows = jnp.pad(rows, ((0, 0), (0, cache_len), (0, 0)))
        return Seen(rows, prefilled.cache.length)  # of all that was committed before `pending`

    def propose(params, key, state: Seen, pending, warp):
        logits = jnp.einsum("bf,kfv->bkv", summary(state, whole=bool(capture)), params)
        valid = jnp.ones((pending.shape[0], tree.size), bool)
        if buckets:
            valid = valid & ((state.length[:, None] % 2 == 1) | (jnp.arange(tree.size)[None] == 0))
        if points:
            best = largest(logits, tree.children.shape[1])[1].astype(jnp.int32)
            below = [best[:, int(tree.depth[n]) - 1, ranks[n]] for n in range(1, tree.size)]
            return Draft(jnp.stack([pending, *below], 1), valid, None), state
        numbers, tokens, log_q = uniforms(key, (tree.size - 1, 2)), [pending], []
        for depth in range(tree.size - 1):
            log_q.append(warp(logits[:, depth, None], jnp.stack(tokens, 1)[:, None])[:, 0])
            tokens.append(draw(numbers[:, depth], jnp.exp(log_q[-1])))
        log_q.append(jnp.zeros_like(log_q[-1]))
        return Draft(jnp.stack(tokens, 1), valid, jnp.stack(log_q, 1)), state

    def commit(params, state: Seen, committed: Commit):
        del params
        new = fused(committed.features, committed.hiddens).astype(jnp.float32)
        put = jax.vmap(lambda rows, new, at: jax.lax.dynamic_update_slice_in_dim(rows, new, at, 0))
        return Seen(put(state.rows, new, state.length), state.length + committed.length)

    def rewind(params, state: Seen, back, token):
        del params, token
        return state._replace(length=state.length - jnp.maximum(back - 1, 0))

    return Drafter(
        tree, init, propose, commit, None if points else vocab_size,
        Siblings.POINTS if points else Siblings.WITH_REPLACEMENT, rewind=rewind, buckets=buckets, capture=capture,
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames="lm")
def _read(params, first, count, text, *, lm):
    read = lm.prefill(params, first, count, text.shape[1])
    width = text.shape[1]
    mask, depth = jnp.tril(jnp.ones((width, width), bool)), jnp.arange(width, dtype=jnp.int32)
    out, _ = lm.extend(params, text, read.cache, mask, depth)
    return fused(out.features, out.hiddens)


def all_texts(model, rows: list[list[int]]) -> list[list[int]]:
    """What the decoder has read and written of each row of `battery.prompts()`."""
    prompts = zip(battery.prompts().tolist(), battery.LENGTHS, strict=True)
    heads = [[model.config.start_token] if model.encoder_decoder else p[:n] for p, n in prompts]
    return [[*head, *new] for head, new in zip(heads, rows, strict=True)]


def read_again(model, rows: list[list[int]], capture: tuple[int, ...]) -> list[np.ndarray]:
    """[n, F] of each row: `fused` of every token but the last, from one forward pass over the texts."""
    prompts, counts = battery.prompts(), battery.LENGTHS
    if not model.encoder_decoder:
        prompts, counts = prompts[:, :1], np.ones_like(counts)
    texts = [text[:-1] for text in all_texts(model, rows)]
    text = np.zeros((len(texts), battery.WIDTH), np.int32)
    for at, row in enumerate(texts):
        text[at, : len(row)] = row
    out = _read(model.params, prompts, counts, text, lm=model.variant(capture=capture))
    return [row[: len(read)] for row, read in zip(np.asarray(out, np.float32), texts, strict=True)]


@functools.cache
def fitted(family: str, depth: int, capture: tuple[int, ...], *, noise: float = 0.0) -> Float[Array, "depth F V"]:
    """Least squares from the hidden states of greedy texts to the tokens 2, 3, ... places on: often right on them."""
    model, plain = battery.target(family), battery.plain(family)
    inputs, tokens = [], []
    for text, rows, new in zip(all_texts(model, plain), read_again(model, plain, capture), plain, strict=True):
        for at in range(len(text) - len(new), len(rows) - depth):
            mean = [rows[:at].sum(0) / max(at, 1)] if capture else []
            inputs.append(np.concatenate([rows[at - 1] if at else np.zeros_like(rows[0]), *mean]))  # as `summary`
            tokens.append(text[at + 1 : at + 1 + depth])
    one_hot = np.eye(battery.VOCAB, dtype=np.float32)[np.asarray(tokens)]
    found = [np.linalg.lstsq(np.asarray(inputs), one_hot[:, k], rcond=1e-3)[0] for k in range(depth)]
    found = np.stack(found) + noise * np.random.default_rng(0).normal(size=(depth, *found[0].shape))
    return jnp.asarray(4 * found, jnp.float32)


def loaded(family: str, tree: Tree, **options) -> LoadedDrafter:
    """A head for the target of the battery, fitted to its greedy texts."""
    params = fitted(family, tree.width - 1, options.get("capture", ()))
    return LoadedDrafter("head", head(tree, battery.VOCAB, **options), params)
