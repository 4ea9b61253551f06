"""What every decoder-only model shares: prefill, extend and score around one walk through its layers."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax.base import LanguageModel, Prefilled
from specjax.models import cache as caches
from specjax.models.cache import Cache, Filling, ReadOnly
from specjax.models.format import Format
from specjax.models.layers import init_layers, of_each, structure, walk
from specjax.types import Output, Params

Make = Callable[[nnx.Rngs], nnx.Module]  # a module of a model whose shape and layout are settled


@dataclasses.dataclass(frozen=True)
class Decoder:
    """A decoder-only model, split once.

    Attributes:
      run: (params, tokens [B,S], positions [B,S], visible [B,S,T], layers, start [B], capture) -> (Output, layers).
        `layers`: see `models.cache.write`.
      queries: (params, hiddens, positions [B,S]) -> queries [B,S,H,D] of every layer, in a tuple or stacked, from the
        streams that enter the layers; before any scale.
      max_positions: hard limit of positions (a table of them, dynamic rope scaling); None: no limit.
    """

    run: Callable
    layers: int
    kv_heads: int
    head_width: int
    vocab_size: int
    fmt: Format
    queries: Callable
    max_positions: int | None = None

    def clamp(self, positions: Int[Array, "B S"]) -> Int[Array, "B S"]:
        """Positions within the table: padding of a prompt and rows that have stopped may be past its end."""
        return positions if self.max_positions is None else jnp.minimum(positions, self.max_positions - 1)


def init(key: jax.Array, trunk: Make, block: Make, *, count: int, fmt: Format) -> Params:
    """Freshly drawn parameters as a nested dict: those of the trunk, and under "layers" those of the blocks."""
    rngs = nnx.Rngs(params=key)
    params = nnx.to_pure_dict(nnx.state(trunk(rngs), nnx.Param))
    return {**params, "layers": init_layers(block, rngs, count, fmt.stacked)}


def split(
    trunk: Make,
    block: Make,
    *,
    count: int,
    chosen: tuple[int, ...] | None = None,
    shared: Callable[[Int[Array, "B S"]], tuple] = lambda positions: (),
) -> tuple[Callable, Callable]:
    """`Decoder.run` and `Decoder.queries` of a model: its structure, split once from its parameters.

    Args:
      trunk: makes a module with `enter(tokens, positions) -> x` and `leave(x) -> (logits, features)`.
      block: makes a layer with `block(x, *shared, visible, layers, index, start) -> (x, layers)` and
        `queries(x, *shared)`.
      count: layers of the model.
      chosen: run these layers alone, over caches of all of them.
      shared: what all layers take of the positions, computed once.
    """
    trunk_def, block_def = structure(trunk), structure(block)

    def run(params, tokens, positions, visible, layers, start, capture) -> tuple[Output, Any]:
        ends: Any = nnx.merge(trunk_def, {name: value for name, value in params.items() if name != "layers"})
        x = ends.enter(tokens, positions)
        given = shared(positions)

        def step(block, index, x, layers):
            return block(x, *given, visible, layers, index, start)

        x, layers, hiddens = walk(block_def, params["layers"], count, step, x, layers, capture, chosen)
        logits, features = ends.leave(x)
        return Output(logits, features, hiddens), layers

    def queries(params, hiddens, positions):
        given = shared(positions)
        return of_each(block_def, params["layers"], lambda block, x: block.queries(x, *given), hiddens)

    return run, queries


def _causal(tokens: Int[Array, "B S"]) -> tuple[Bool[Array, "B S S"], Int[Array, "B S"]]:
    rows, width = tokens.shape
    block = jnp.arange(width, dtype=jnp.int32)
    visible = jnp.broadcast_to(block[None, :, None] >= block[None, None], (rows, width, width))
    return visible, jnp.broadcast_to(block[None], tokens.shape)


def score(decoder: Decoder, params: Params, tokens: Int[Array, "B S"]) -> Float[Array, "B S V"]:
    """Next-token logits at every position of left-aligned tokens, with no cache: for training and scoring."""
    visible, positions = _causal(tokens)
    return decoder.run(params, tokens, positions, visible, None, None, ())[0].logits


def observer(decoder: Decoder) -> Callable:
    """`observe(params, tokens [B,S], cache) -> queries`: those of the last S committed tokens, as `Decoder.queries` but
    scaled, so that products with the keys in the cache are the scores of attention. The cache is read, not written.

    Rows that hold fewer than S tokens get queries that mean nothing.
    """

    def observe(params: Params, tokens: Int[Array, "B S"], cache: Cache):
        block = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        positions = cache.length[:, None] - tokens.shape[1] + block[None]
        visible = jnp.arange(caches.slots(cache), dtype=jnp.int32)[None, None] <= positions[..., None]
        positions = jnp.maximum(positions, 0)
        every = tuple(range(decoder.layers))
        layers = ReadOnly(cache.layers)
        out, _ = decoder.run(params, tokens, positions, visible, layers, None, every)
        queries = decoder.queries(params, out.hiddens, positions)
        return jax.tree.map(lambda q: q * decoder.head_width**-0.5, queries)

    return observe


def read_prompt(
    decoder: Decoder, params: Params, prompt: Int[Array, "B P"], length: Int[Array, "B"], layers, capture
) -> tuple[Any, tuple[Float[Array, "B P D"], tuple[Float[Array, "B P D"], ...]]]:
    """Fills empty caches with a prompt, in blocks of `Format.chunks` positions.

    The number of blocks follows the longest prompt of the batch, on the device: the width of the array only bounds it.

        prompt    t0 ............ | ............ | ..... t_n-1 | padding ......
        blocks    [   largest   ] [   largest   ] [s][s][s][s]                     s: smallest

    Returns:
      The caches; features and captured residual streams of all positions, undefined past the longest prompt.
    """
    rows, width = prompt.shape

    def block(size: int, start, layers) -> tuple[Output, Any]:
        first = jnp.zeros((), jnp.int32) if start is None else start
        tokens = jax.lax.dynamic_slice_in_dim(prompt, first, size, axis=1)
        visible, positions = _causal(tokens)
        positions = decoder.clamp(positions + first)
        out, filled = decoder.run(params, tokens, positions, visible, Filling(layers, start), None, capture)
        return out, filled.layers

    smallest = min(decoder.fmt.chunks)
    if width <= smallest:
        out, layers = block(width, None, layers)
        return layers, (out.features, out.hiddens)

    def step(size: int, carry):
        start, layers, streams = carry
        first = jnp.minimum(start, width - size)  # the last block overlaps the one before
        out, layers = block(size, first, layers)
        put = lambda buffer, new: jax.lax.dynamic_update_slice_in_dim(buffer, new, first, axis=1)
        return start + size, layers, jax.tree.map(put, streams, (out.features, out.hiddens))

    shapes = jax.eval_shape(lambda: block(smallest, jnp.zeros((), jnp.int32), layers)[0])
    empty = lambda leaf: jnp.zeros((rows, width, leaf.shape[-1]), leaf.dtype)
    carry = jnp.zeros((), jnp.int32), layers, jax.tree.map(empty, (shapes.features, shapes.hiddens))
    longest = jnp.max(length)
    for size in sorted((size for size in decoder.fmt.chunks if size <= width), reverse=True):
        # A large block is worth it where it replaces more than half its size in the smallest ones.
        least = 0 if size == smallest else size // 2
        more = lambda carry, least=least: carry[0] + least < longest
        carry = jax.lax.while_loop(more, functools.partial(step, size), carry)
    return carry[1:]


def language_model(decoder: Decoder, *, capture: tuple[int, ...] = ()) -> LanguageModel:
    """The model as pure functions over a nested dict of arrays.

    Args:
      capture: layers whose entering residual stream `prefill` and `extend` return in `hiddens`.
    """

    def prefill(params: Params, prompt: Int[Array, "B P"], length: Int[Array, "B"], cache_len: int) -> Prefilled:
        rows = prompt.shape[0]
        layers = caches.allocate(rows, decoder.kv_heads, cache_len, decoder.head_width, decoder.layers, decoder.fmt)
        layers, streams = read_prompt(decoder, params, prompt, length, layers, capture)
        pending = jnp.take_along_axis(prompt, length[:, None] - 1, axis=1)[:, 0]
        return Prefilled(Cache(layers, length - 1), pending, *streams)

    def extend(
        params: Params,
        tokens: Int[Array, "B S"],
        cache: Cache,
        mask: Bool[Array | np.ndarray, "... S N"],
        depth: Int[Array | np.ndarray, "... S"],
        offset: int = 0,
    ) -> tuple[Output, Cache]:
        visible = caches.visibility(cache.length, jnp.asarray(mask), caches.slots(cache), tokens.shape[0])
        positions = cache.length[:, None] + jnp.broadcast_to(jnp.asarray(depth, jnp.int32), tokens.shape)
        positions = decoder.clamp(positions)
        start = cache.length + offset
        out, layers = decoder.run(params, tokens, positions, visible, cache.layers, start, capture)
        return out, cache._replace(layers=layers)

    return LanguageModel(prefill, extend, caches.keep, decoder.vocab_size, positions=decoder.max_positions)
