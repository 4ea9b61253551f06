"""Base of the decoder-only models: one walk through the layers, and prefill, extend and scores around it."""

import abc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax.base import Known, Prefilled
from specjax.models import cache as caches
from specjax.models.cache import Cache, Filling, ReadOnly
from specjax.models.format import Format
from specjax.models.layers import ALL, of_each, walk
from specjax.types import Output, PyTree


class CausalLM(nnx.Module):
    """Base of the decoder-only models: a subclass has `enter`, `leave`, `unembed`, layers, and what its layers share.

    Parameters have the paths of the nested dict that the pure functions take: `nnx.state(model)` and `Model.params`
    are the same tree.
    """

    encoder_decoder = False
    config: Any
    fmt: Format
    layers: Any

    @abc.abstractmethod
    def enter(self, tokens: Int[Array, "B S"], positions: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        """Embeddings of tokens."""

    @abc.abstractmethod
    def leave(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """The features that the head reads: the stream that leaves the last layer, after the final norm."""

    @abc.abstractmethod
    def unembed(self, features: Float[Array, "B S D"], tokens: Int[Array, "N"] | slice = ALL) -> Float[Array, "B S V"]:
        """Logits of features; of some tokens alone, [B, S, N], if they are given."""

    def shared(self, positions: Int[Array, "B S"]) -> tuple:
        """What all layers compute from the positions alone."""
        del positions
        return ()

    def __call__(self, tokens: Int[Array, "B S"], *, cache: Cache | None = None) -> Any:
        """Next-token logits at every position of left-aligned tokens.

        Args:
          tokens: [B,S] int32.
          cache: from `init_cache` or an earlier call: the tokens continue each row there.

        Returns:
          Logits [B,S,V] float32; with a cache, (logits, cache).
        """
        if cache is None:
            return self.read(tokens).logits
        visible, positions = causal(tokens)
        positions = cache.length[:, None] + positions
        visible = caches.visibility(cache.length, visible, caches.slots(cache), tokens.shape[0])
        out, layers = self.run(tokens, positions, visible, cache.layers, cache.length)
        return out.logits, cache._replace(layers=layers, length=cache.length + tokens.shape[1])

    def read(self, tokens: Int[Array, "B S"], capture: tuple[int, ...] = ()) -> Output:
        """Logits, features and captured residual streams at every position of left-aligned tokens, without a cache."""
        visible, positions = causal(tokens)
        return self.run(tokens, positions, visible, None, None, capture)[0]

    def init_cache(self, batch: int, slots: int) -> Cache:
        """An empty cache for `batch` rows of at most `slots` tokens."""
        config = self.config
        layers = caches.allocate(batch, config.kv_heads, slots, config.head_width, config.layers, self.fmt)
        return Cache(layers, jnp.zeros((batch,), jnp.int32))

    def run(
        self, tokens: Int[Array, "B S"], positions: Int[Array, "B S"], visible: Bool[Array, "B S T"], layers: Any,
        start: Int[Array, "B"] | None, capture: tuple[int, ...] = (), chosen: tuple[int, ...] | None = None,
    ) -> tuple[Output, Any]:  # fmt: skip
        """One pass: the output, and the caches with the block. See `models.cache.write` and `models.layers.walk`."""
        shared = self.shared(positions)

        def step(block, index, x, layers):
            return block(x, *shared, visible, layers, index, start)

        x, layers, hiddens = walk(self.layers, step, self.enter(tokens, positions), layers, capture, chosen)
        features = self.leave(x)
        return Output(self.unembed(features), features, hiddens), layers

    def queries(self, hiddens: tuple[Float[Array, "B S D"], ...], positions: Int[Array, "B S"]) -> Any:
        """Queries [B,S,H,D] of every layer, in a tuple or stacked, from the streams that enter the layers; unscaled."""
        shared = self.shared(positions)
        return of_each(self.layers, lambda block, x: block.queries(x, *shared), hiddens)

    def clamp(self, positions: Int[Array, "B S"]) -> Int[Array, "B S"]:
        """Positions within the table: padding of a prompt and rows that have stopped may be past its end."""
        return positions if self.config.positions is None else jnp.minimum(positions, self.config.positions - 1)

    def prefill(
        self, prompt: Int[Array, "B P"], length: Int[Array, "B"], cache_len: int, *,
        capture: tuple[int, ...] = (), chosen: tuple[int, ...] | None = None, known: Known | None = None,
    ) -> Prefilled:  # fmt: skip
        """Reads left-aligned prompts into an empty cache; see `LanguageModel.prefill` and `Family.language_model`."""
        layers = self.init_cache(prompt.shape[0], cache_len).layers
        layers, streams = self.read_prompt(prompt, length, layers, capture, chosen, known)
        pending = jnp.take_along_axis(prompt, length[:, None] - 1, axis=1)[:, 0]
        return Prefilled(Cache(layers, length - 1), pending, *streams)

    def extend(
        self, tokens: Int[Array, "B S"], cache: Cache, mask: Bool[Array | np.ndarray, "... S N"],
        depth: Int[Array | np.ndarray, "... S"], offset: int = 0, *,
        capture: tuple[int, ...] = (), chosen: tuple[int, ...] | None = None,
    ) -> tuple[Output, Cache]:  # fmt: skip
        """One pass over a block of nodes; see `LanguageModel.extend` and `Family.language_model`."""
        visible = caches.visibility(cache.length, jnp.asarray(mask), caches.slots(cache), tokens.shape[0])
        positions = cache.length[:, None] + jnp.broadcast_to(jnp.asarray(depth, jnp.int32), tokens.shape)
        start = cache.length + offset
        out, layers = self.run(tokens, self.clamp(positions), visible, cache.layers, start, capture, chosen)
        return out, cache._replace(layers=layers)

    def observe(self, tokens: Int[Array, "B S"], cache: Cache) -> Any:
        """Queries of the last S committed tokens, as `queries` but scaled, so that products with the keys in the cache
        are the scores of attention. The cache is read, not written.

        Rows that hold fewer than S tokens get queries that mean nothing.
        """
        block = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        positions = cache.length[:, None] - tokens.shape[1] + block[None]
        visible = jnp.arange(caches.slots(cache), dtype=jnp.int32)[None, None] <= positions[..., None]
        positions = jnp.maximum(positions, 0)
        every = tuple(range(self.config.layers))
        out, _ = self.run(tokens, positions, visible, ReadOnly(cache.layers), None, every)
        return jax.tree.map(lambda q: q * self.config.head_width**-0.5, self.queries(out.hiddens, positions))

    def read_prompt(
        self, prompt: Int[Array, "B P"], length: Int[Array, "B"], layers, capture, chosen, known: Known | None
    ) -> tuple[Any, tuple[Float[Array, "B P D"], tuple[Float[Array, "B P D"], ...]]]:
        """Fills empty caches with a prompt; see `in_blocks`.

        Returns:
          The caches; features and captured residual streams of all positions, undefined past the longest prompt.
        """

        def block(row, start, shape: tuple[int, int], layers) -> tuple[Any, Any]:
            first = jnp.zeros((), jnp.int32) if start is None else start
            tokens = jax.lax.dynamic_slice(prompt, (row, first), shape)
            visible, positions = causal(tokens)
            positions = self.clamp(positions + first)
            out, filled = self.run(tokens, positions, visible, Filling(layers, start, row), None, capture, chosen)
            return (out.features, out.hiddens), filled.layers

        rows, width = prompt.shape
        done = None
        if known is not None:
            prefix, slots = known.read, caches.slot_count(layers)
            first = jax.tree.map(lambda a: a[..., :slots, :], prefix.cache.layers)
            layers = caches.put_front(layers, first, jnp.ones_like(length, bool))
            done = known.count, (prefix.features, prefix.hiddens)
        return in_blocks(self.fmt, (rows, width), length, layers, block, done)


def in_blocks(
    fmt: Format, shape: tuple[int, int], length: Int[Array, "B"], layers: Any, block: Callable[..., tuple[PyTree, Any]],
    done: tuple[Int[Array, ""], PyTree] | None = None,
) -> tuple[Any, PyTree]:  # fmt: skip
    """Fills caches with texts, in blocks of `Format.prompt_blocks` positions.

    The number of blocks follows the length of the texts, on the device: the width of the array only bounds it. Wide
    texts are read row by row (`Format.apart`).

        text      t0 ........ | .......... | .. t_n-1 .. | padding ......
        blocks    [  large   ] [  large   ] [small][small]

    Args:
      shape: rows and width of the array.
      length: positions to read of each row.
      layers: of the caches.
      block: (first row, first position or None if all are read at once, rows and positions, layers) -> its outputs,
        arrays [rows, positions, _], and the layers.
      done: number of positions that the layers already hold, and the outputs there.

    Returns:
      The layers; the outputs at all positions, undefined past the longest text.
    """
    rows, width = shape
    apart = fmt.reads_apart(rows, width)
    together = 1 if apart else rows
    blocks = fmt.prompt_blocks(together, width)
    zero = jnp.zeros((), jnp.int32)
    if blocks == ((width, 0),) and not apart and done is None:
        streams, layers = block(zero, None, shape, layers)
        return layers, streams

    longest = length.reshape(-1, together).max(1)  # of rows that are read together

    def read(size: int, least: int, carry):
        """Blocks of `size` while more than `least` positions of a row are left."""
        more = lambda read: read + least < longest

        def step(carry):
            read, layers, streams = carry
            group = jnp.argmax(more(read))
            row, first = group * together, jnp.minimum(read[group], width - size)  # the last may overlap
            out, layers = block(row, first, (together, size), layers)
            put = lambda buffer, new: jax.lax.dynamic_update_slice(buffer, new, (row, first, zero))
            return read.at[group].add(size), layers, jax.tree.map(put, streams, out)

        return jax.lax.while_loop(lambda carry: more(carry[0]).any(), step, carry)

    shapes = jax.eval_shape(lambda: block(zero, zero, (together, blocks[-1][0]), layers)[0])
    streams = jax.tree.map(lambda leaf: jnp.zeros((rows, width, leaf.shape[-1]), leaf.dtype), shapes)
    count = jnp.zeros_like(longest)
    if done is not None:
        held = lambda buffer, new: buffer.at[:, : new.shape[1]].set(new[:, :width])
        count, streams = jnp.full_like(longest, done[0]), jax.tree.map(held, streams, done[1])
    carry = count, layers, streams
    for size, least in blocks:
        carry = read(size, least, carry)
    return carry[1:]


def causal(tokens: Int[Array, "B S"]) -> tuple[Bool[Array, "B S S"], Int[Array, "B S"]]:
    """Visibility within left-aligned rows, and their positions."""
    rows, width = tokens.shape
    block = jnp.arange(width, dtype=jnp.int32)
    visible = jnp.broadcast_to(block[None, :, None] >= block[None, None], (rows, width, width))
    return visible, jnp.broadcast_to(block[None], tokens.shape)
