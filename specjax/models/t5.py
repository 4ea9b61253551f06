"""T5 v1.0, v1.1 and Flan in every published shape (Raffel et al. 2020, arXiv 1910.10683; Chung et al., 2210.11416).

Root-mean-square norms before the sub-layers, no biases, no scaling of the attention scores. Positions enter through a
bias on the self-attention scores alone: one table an encoder and one a decoder, shared by their layers. v1.0 has ReLU
and a head tied to the embedding; v1.1 and Flan have a gated GELU and a head of their own.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax.base import Prefilled
from specjax.models import cache as caches
from specjax.models.attention import attend
from specjax.models.cache import KV, Cache
from specjax.models.family import (
    COLUMNS,
    EMBEDDING_RULE,
    HEAD_RULE,
    VECTOR,
    Family,
    NameTable,
    Rule,
    Rules,
    kernel_rules,
)
from specjax.models.format import Format, default_format
from specjax.models.layers import ACTIVATIONS, ALL, Linear, RMSNorm, Table, make_layers, walk
from specjax.models.relative import block_distance, plain_distance, position_bias
from specjax.models.t5_config import T5Config, from_published, to_published
from specjax.types import Output

ENCODER_BLOCK = 512  # positions; prompts wider than one block are read in blocks
ENCODER_ROOM = 8192  # positions of all rows that are read together


class Memory(NamedTuple):
    """What the decoder reads of the encoder, `Cache.cross`: written once, by prefill.

    Attributes:
      layers: keys and values of the encoder's output, one KV [B,H,P,K] a decoder layer or one stacked KV.
      visible: prompt positions below each row's own length.
    """

    layers: tuple[KV, ...] | KV
    visible: Bool[Array, "B P"]


class Sight(NamedTuple):
    """What the positions of a block see of their own sequence, and the bias on it: the same for every layer."""

    visible: Bool[Array, "B S T"]
    bias: Float[Array, "#B H S T"]


class Attention(nnx.Module):
    """Multi-head attention without biases or scaling."""

    def __init__(self, config: T5Config, fmt: Format, *, rngs: nnx.Rngs):
        width, inner = config.width, config.heads * config.head_width
        make = functools.partial(Linear, fmt=fmt, bias=False, rngs=rngs)
        self.head_width, self.fmt = config.head_width, fmt
        # The missing scale of the scores is folded into the draw of the queries.
        self.q = make(width, inner, std=(width * config.head_width) ** -0.5)
        self.k, self.v = make(width, inner, std=width**-0.5), make(width, inner, std=width**-0.5)
        self.o = make(inner, width, std=inner**-0.5)

    def _split(self, x: Float[Array, "B S F"]) -> Float[Array, "B S H K"]:
        return x.reshape(*x.shape[:2], -1, self.head_width)

    def keys_values(self, x: Float[Array, "B S D"]) -> tuple[Float[Array, "B S H K"], Float[Array, "B S H K"]]:
        return self._split(self.k(x)), self._split(self.v(x))

    def __call__(self, x, kv: KV | caches.Stored | caches.Prefix, visible, bias=None) -> Float[Array, "B S D"]:
        out = attend(self._split(self.q(x)), kv, visible, scale=1.0, fmt=self.fmt, bias=bias)
        return self.o(out)


class MLP(nnx.Module):
    """Up, activation, down; gated, the activation is of the gate and multiplies `up`."""

    def __init__(self, config: T5Config, fmt: Format, *, rngs: nnx.Rngs):
        make = functools.partial(Linear, fmt=fmt, bias=False, rngs=rngs)
        self.activation = ACTIVATIONS[config.activation]
        self.gate = make(config.width, config.mlp_width, std=config.width**-0.5) if config.gated else None
        self.up = make(config.width, config.mlp_width, std=config.width**-0.5)
        # The inputs of `down` can exceed the range of float16: transformers keeps this kernel in float32 too.
        wide = dataclasses.replace(fmt, dtype="float32") if fmt.dtype == "float16" else fmt
        self.down = Linear(config.mlp_width, config.width, wide, bias=False, std=config.mlp_width**-0.5, rngs=rngs)

    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block(nnx.Module):
    """One layer of the encoder, or one of the decoder, which also reads the encoder's output."""

    def __init__(self, config: T5Config, fmt: Format, *, decoder: bool, rngs: nnx.Rngs):
        self.attn_norm = RMSNorm(config.width, config.eps)
        self.attn = Attention(config, fmt, rngs=rngs)
        self.cross_norm = RMSNorm(config.width, config.eps) if decoder else None
        self.cross = Attention(config, fmt, rngs=rngs) if decoder else None
        self.mlp_norm = RMSNorm(config.width, config.eps)
        self.mlp = MLP(config, fmt, rngs=rngs)

    def __call__(self, x, sight: Sight, memory: Memory | None, layers, index, start):
        normed = self.attn_norm(x)
        layers, kv = caches.write(layers, index, *self.attn.keys_values(normed), start)
        x = x + self.attn(normed, kv, sight.visible, sight.bias)
        if self.cross is not None and self.cross_norm is not None and memory is not None:
            seen = jnp.broadcast_to(memory.visible[:, None], (*x.shape[:2], memory.visible.shape[1]))
            # Without a cache, this may be differentiated, and a loop over as many pieces as hold tokens cannot be.
            stored = caches.Stored(memory.layers, index)
            x = x + self.cross(self.cross_norm(x), caches.one_layer(*stored) if layers is None else stored, seen)
        return x + self.mlp(self.mlp_norm(x)), layers


class Stack(nnx.Module):
    """An encoder or a decoder; `T5` adds its layers."""

    layers: Any

    def __init__(self, config: T5Config, *, decoder: bool, rngs: nnx.Rngs):
        self.max_distance, self.decoder = config.max_distance, decoder
        self.relative_bias = Table(config.buckets, config.heads, Format(), std=config.width**-0.5, rngs=rngs)
        self.final_norm = RMSNorm(config.width, config.eps)

    def bias(self, distance: Int[Array, "B S T"]) -> Float[Array, "B H S T"]:
        table, both = self.relative_bias.table[...], not self.decoder
        return position_bias(table, distance, max_distance=self.max_distance, bidirectional=both)


class Embed(nnx.Module):
    """The word table, which encoder and decoder share."""

    def __init__(self, config: T5Config, fmt: Format, *, rngs: nnx.Rngs):
        self.tokens = Table(config.vocab_size, config.width, fmt, std=1.0, rngs=rngs)


def _below(length: Int[Array, "B"], width: int) -> Bool[Array, "B P"]:
    return jnp.arange(width, dtype=jnp.int32)[None] < length[:, None]


def _each_block(length: Int[Array, "B"], body: Callable, carry: Any) -> Any:
    """`body(first position, carry) -> carry` of every block that holds tokens of some row."""
    count = -(-jnp.max(length) // ENCODER_BLOCK)
    return jax.lax.fori_loop(0, count, lambda number, carry: body(number * ENCODER_BLOCK, carry), carry)


class T5(nnx.Module):
    """T5 as a Flax module.

    >>> config = T5Config(50, width=16, head_width=4, heads=2, mlp_width=32, encoder_layers=2, decoder_layers=2)
    >>> model = T5(config, rngs=nnx.Rngs(0))
    >>> model(jnp.asarray([[7, 11, 1]]), jnp.asarray([[0, 5]])).shape
    (1, 2, 50)

    With a cache, a call continues each decoder row; the first one runs the encoder, whose keys and values the cache
    keeps:

    >>> logits, cache = model(jnp.asarray([[7, 11, 1]]), jnp.asarray([[0, 5]]), cache=model.init_cache(1, slots=8))
    >>> logits, cache = model(None, jnp.asarray([[9]]), cache=cache)
    >>> logits.shape, int(cache.length[0])
    ((1, 1, 50), 3)

    Args:
      config: shape of the model.
      fmt: layout of the weights; default: float32 in the layout of the platform.
      rngs: draws the weights from its `params` stream.
    """

    encoder_decoder = True

    def __init__(self, config: T5Config, fmt: Format | None = None, *, rngs: nnx.Rngs):
        fmt = fmt or default_format()
        self.config, self.fmt = config, fmt
        self.embed = Embed(config, fmt, rngs=rngs)
        self.encoder = Stack(config, decoder=False, rngs=rngs)
        self.decoder = Stack(config, decoder=True, rngs=rngs)
        make = functools.partial(Linear, config.width, config.vocab_size, fmt, bias=False, std=config.width**-0.5)
        self.head = None if config.tied else make(rngs=rngs)
        for stack, count in ((self.encoder, config.encoder_layers), (self.decoder, config.decoder_layers)):
            make = functools.partial(Block, config, fmt, decoder=stack.decoder)
            stack.layers = make_layers(lambda rngs, make=make: make(rngs=rngs), rngs, count, fmt.stacked)

    def __call__(
        self, encoder_tokens: Int[Array, "B P"] | None, decoder_tokens: Int[Array, "B S"], *,
        encoder_length: Int[Array, "B"] | None = None, cache: Cache | None = None,
    ) -> Any:  # fmt: skip
        """Next-token logits at every position of left-aligned decoder tokens.

        Args:
          encoder_tokens: [B,P] int32; None: the cache holds those of an earlier call.
          decoder_tokens: [B,S] int32, the start token first.
          encoder_length: [B] encoder tokens of each row before its padding; default: all.
          cache: from `init_cache` or an earlier call: the decoder tokens continue each row there.

        Returns:
          Logits [B,S,V] float32; with a cache, (logits, cache).
        """
        rows, width = decoder_tokens.shape
        memory = None if cache is None else cache.cross
        if encoder_tokens is not None:
            if encoder_length is None:
                encoder_length = jnp.full((rows,), encoder_tokens.shape[1], jnp.int32)
            if cache is None:
                return self.read(encoder_tokens, encoder_length, decoder_tokens).logits
            memory = self.remember(self.encode(encoder_tokens, encoder_length), encoder_length)
        if memory is None or cache is None:
            raise ValueError("encoder_tokens is None, and the cache holds no encoder output: pass the encoder's tokens")
        visible = jnp.broadcast_to(plain_distance(width, width) <= 0, (rows, width, width))
        depth = jnp.arange(width, dtype=jnp.int32)
        out, cache = self.extend(decoder_tokens, cache._replace(cross=self.stored(memory)), visible, depth)
        return out.logits, cache._replace(length=cache.length + width)

    def read(
        self, encoder_tokens: Int[Array, "B P"], encoder_length: Int[Array, "B"], decoder_tokens: Int[Array, "B S"]
    ) -> Output:
        """Logits and features at every position of left-aligned decoder tokens, without a cache."""
        rows, width = decoder_tokens.shape
        distance = plain_distance(width, width)
        visible = jnp.broadcast_to(distance <= 0, (rows, width, width))
        memory = self.remember(self.encode(encoder_tokens, encoder_length), encoder_length)
        return self.decode(decoder_tokens, visible, distance, memory, None, None)[0]

    def encode(self, tokens: Int[Array, "B P"], length: Int[Array, "B"]) -> Float[Array, "B P D"]:
        """The encoder's output; tokens at `length` and after change nothing before it."""
        rows, width = tokens.shape
        visible = jnp.broadcast_to(_below(length, width)[:, None], (rows, width, width))
        sight = Sight(visible, self.encoder.bias(plain_distance(width, width)))

        def step(block, index, x, state):
            return block(x, sight, None, state, index, None)

        x, _, _ = walk(self.encoder.layers, step, self.embed.tokens(tokens), None)
        return self.encoder.final_norm(x)

    def encode_blocks(self, tokens: Int[Array, "B P"], length: Int[Array, "B"]) -> Float[Array, "B P D"]:
        """`encode`, layer by layer in blocks up to the longest row: masks, biases and scores are those of a block, and
        padding past the last block is not computed. P is a multiple of the block; the output at `length` and after is
        undefined.

        Loops whose length depends on the row have no derivative: training calls `encode`.
        """
        size, (rows, width) = ENCODER_BLOCK, tokens.shape
        visible = jnp.broadcast_to(_below(length, width)[:, None], (rows, size, width))

        def step(block: Block, index, x, state):
            del index
            kv = self._keys_values(block.attn, block.attn_norm, x, length)
            seen = caches.Stored((KV(*(a.astype(self.fmt.cache_dtype) for a in kv)),), 0)

            def rest(first, x):
                y = jax.lax.dynamic_slice_in_dim(x, first, size, axis=1)
                bias = self.encoder.bias(plain_distance(size, width) - first)
                y = y + block.attn(block.attn_norm(y), seen, visible, bias)
                y = y + block.mlp(block.mlp_norm(y))
                return jax.lax.dynamic_update_slice_in_dim(x, y, first, axis=1)

            return _each_block(length, rest, x), state

        x, _, _ = walk(self.encoder.layers, step, self.embed.tokens(tokens), None)
        return self.encoder.final_norm(x)

    def _keys_values(self, attention: Attention, norm: Callable, x: Float[Array, "B P D"], length) -> KV:
        """Keys and values [B,H,P,K] of a sequence, computed in blocks up to the longest row."""
        empty = jnp.zeros((len(x), self.config.heads, x.shape[1], self.config.head_width), x.dtype)

        def put(first, kv: KV) -> KV:
            new = attention.keys_values(norm(jax.lax.dynamic_slice_in_dim(x, first, ENCODER_BLOCK, axis=1)))
            return KV(*(
                jax.lax.dynamic_update_slice_in_dim(old, one.transpose(0, 2, 1, 3).astype(old.dtype), first, axis=2)
                for old, one in zip(kv, new, strict=True)
            ))  # fmt: skip

        return _each_block(length, put, KV(empty, empty))

    def read_prompt(self, prompt: Int[Array, "B P"], length: Int[Array, "B"]) -> Memory:
        """Runs the encoder; of wide prompts row by row, and of many narrow ones in groups of rows, so that the
        activations stay small and fit into a CPU's caches."""
        in_blocks = prompt.shape[1] > ENCODER_BLOCK
        if in_blocks:
            prompt = jnp.pad(prompt, ((0, 0), (0, -prompt.shape[1] % ENCODER_BLOCK)))
        rows, width = prompt.shape

        def read(prompt, length) -> Memory:
            if not in_blocks:
                return self.remember(self.encode(prompt, length), length)
            encoded = self.encode_blocks(prompt, length)
            keys_values = lambda cross: self._keys_values(cross, lambda part: part, encoded, length)
            return Memory(self._of_layers(keys_values), _below(length, width))

        group = 1 if self.fmt.reads_apart(rows, width) else max(ENCODER_ROOM // width, 1)
        if self.fmt.apart is None or rows <= group:
            return read(prompt, length)
        spare = ((0, -rows % group),)  # rows
        prompt, length = jnp.pad(prompt, (*spare, (0, 0))), jnp.pad(length, spare, constant_values=1)
        groups = prompt.reshape(-1, group, width), length.reshape(-1, group)
        found = jax.lax.map(lambda given: read(*given), groups)

        def of_all(leaf: Array) -> Array:  # [G,...,R,H,P,K] -> [...,B,H,P,K]
            leaf = jnp.moveaxis(leaf, 0, -5)
            return leaf.reshape(*leaf.shape[:-5], -1, *leaf.shape[-3:])[..., :rows, :, :, :]

        return Memory(jax.tree.map(of_all, found.layers), found.visible.reshape(-1, width)[:rows])

    def remember(self, encoded: Float[Array, "B P D"], length: Int[Array, "B"]) -> Memory:
        """Keys and values of the encoder's output for every decoder layer."""
        keys_values = lambda cross: KV(*(a.transpose(0, 2, 1, 3) for a in cross.keys_values(encoded)))
        return Memory(self._of_layers(keys_values), _below(length, encoded.shape[1]))

    def _of_layers(self, keys_values: Callable[[Any], KV]) -> tuple[KV, ...] | KV:
        """`keys_values(cross-attention)` of every decoder layer."""
        layers = self.decoder.layers
        if isinstance(layers, nnx.Dict):
            return tuple(keys_values(layers[str(index)].cross) for index in range(len(layers)))
        graphdef, params = nnx.split(layers)
        return jax.lax.map(lambda layer: keys_values(nnx.merge(graphdef, layer).cross), params)

    def stored(self, memory: Memory) -> Memory:
        """Keys and values as the caches store them."""
        return memory._replace(layers=jax.tree.map(lambda a: caches.stored(a, self.fmt), memory.layers))

    def decode(
        self, tokens: Int[Array, "B S"], visible, distance, memory: Memory, layers, start, capture=(),
        chosen: tuple[int, ...] | None = None,
    ) -> tuple[Output, Any]:  # fmt: skip
        """One pass of the decoder: the output, and the caches with the block. `chosen`: see `models.layers.walk`."""
        sight = Sight(visible, self.decoder.bias(distance))

        def step(block, index, x, layers):
            return block(x, sight, memory, layers, index, start)

        x = self.embed.tokens(tokens)
        x, layers, hiddens = walk(self.decoder.layers, step, x, layers, capture, chosen)
        features = self.decoder.final_norm(x)
        return Output(self.unembed(features), features, hiddens), layers

    def unembed(self, features: Float[Array, "B S D"], tokens: Int[Array, "N"] | slice = ALL) -> Float[Array, "B S V"]:
        """The scale undoes the embedding's unit variance."""
        if self.config.scales_head:
            features = features * self.config.width**-0.5
        return self.embed.tokens.logits(features, tokens) if self.head is None else self.head(features, tokens)

    def prefill(
        self, prompt: Int[Array, "B P"], length: Int[Array, "B"], cache_len: int, *,
        capture: tuple[int, ...] = (), chosen: tuple[int, ...] | None = None,
    ) -> Prefilled:  # fmt: skip
        """Runs the encoder and stores its keys and values; the decoder starts from an empty cache with the start token
        pending. See `LanguageModel.prefill` and `Family.language_model`."""
        memory = self.stored(self.read_prompt(prompt, length))
        cache = self.init_cache(prompt.shape[0], cache_len)._replace(cross=memory)
        pending = jnp.full(length.shape, self.config.start_token, jnp.int32)
        # Hidden states of the start token; XLA removes this pass where nothing reads them.
        visible = jnp.ones((len(length), 1, 1), bool)
        distance = plain_distance(1, 1)
        out, _ = self.decode(pending[:, None], visible, distance, memory, None, None, capture, chosen)
        return Prefilled(cache, pending, out.features, out.hiddens)

    def extend(
        self, tokens: Int[Array, "B S"], cache: Cache, mask: Bool[Array | np.ndarray, "... S N"],
        depth: Int[Array | np.ndarray, "... S"], offset: int = 0, *,
        capture: tuple[int, ...] = (), chosen: tuple[int, ...] | None = None,
    ) -> tuple[Output, Cache]:  # fmt: skip
        """One pass of the decoder over a block of nodes; see `LanguageModel.extend` and `Family.language_model`."""
        mask, slots = jnp.asarray(mask), caches.slots(cache)
        depth = jnp.broadcast_to(jnp.asarray(depth, jnp.int32), tokens.shape)
        visible = caches.visibility(cache.length, mask, slots, tokens.shape[0])
        distance = block_distance(cache.length, mask, depth, slots, cache.positions)
        start = cache.length + offset
        out, layers = self.decode(tokens, visible, distance, cache.cross, cache.layers, start, capture, chosen)
        return out, cache._replace(layers=layers)

    def init_cache(self, batch: int, slots: int) -> Cache:
        """An empty cache for `batch` decoder rows of at most `slots` tokens."""
        config = self.config
        layers = caches.allocate(batch, config.kv_heads, slots, config.head_width, config.decoder_layers, self.fmt)
        return Cache(layers, jnp.zeros((batch,), jnp.int32))


# --- the record ------------------------------------------------------------------------------------------------------


def _stack_names(stack: str, dense: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The entries of the encoder or the decoder; sub-layers are numbered in order of execution."""
    crossed = stack == "decoder"
    mlp = 2 if crossed else 1
    block, layer = f"{stack}.block.{{i}}.layer", f"{stack}.layers.{{i}}"
    attentions = [("0.SelfAttention", "attn"), *([("1.EncDecAttention", "cross")] if crossed else [])]
    norms = [("0", "attn_norm"), *([("1", "cross_norm")] if crossed else []), (str(mlp), "mlp_norm")]
    return (
        (f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", f"{stack}.relative_bias.table"),
        *((f"{block}.{n}.layer_norm.weight", f"{layer}.{path}.scale") for n, path in norms),
        *((f"{block}.{hf}.{p}.weight", f"{layer}.{path}.{p}.kernel") for hf, path in attentions for p in "qkvo"),
        *((f"{block}.{mlp}.DenseReluDense.{hf}.weight", f"{layer}.mlp.{path}.kernel") for hf, path in dense.items()),
        (f"{stack}.final_layer_norm.weight", f"{stack}.final_norm.scale"),
    )


def names(published: Mapping[str, Any]) -> NameTable:
    """Names of the stored tensors. wi_0 of the gated feed-forward is the input of the activation, `gate` here."""
    gated = str(published.get("feed_forward_proj", "relu")).startswith("gated")
    dense = {"wi_0": "gate", "wi_1": "up", "wo": "down"} if gated else {"wi": "up", "wo": "down"}
    return NameTable(
        entries=(
            ("shared.weight", "embed.tokens.table"),
            *_stack_names("encoder", dense),
            *_stack_names("decoder", dense),
            ("lm_head.weight", "head.kernel"),
        ),
        aliases=(
            ("encoder.embed_tokens.weight", "embed.tokens.table"),
            ("decoder.embed_tokens.weight", "embed.tokens.table"),
            ("lm_head.weight", "embed.tokens.table"),
        ),
        # in the first t5 checkpoints, but not used by the model
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    )


def settle_ties(published: dict[str, Any], names: Collection[str], same: Callable[[str, str], bool]) -> dict[str, Any]:
    """`tie_word_embeddings` and `scale_decoder_outputs` as in the weights.

    transformers 4 writes tie_word_embeddings false for v1.1 and Flan, which also disables the scaling of the tied head.
    transformers 5 writes true for every T5, stores the scaling separately, and unties a stored head that differs from
    the embedding.
    """
    tied = published.get("tie_word_embeddings", True)
    scaled = published.get("scale_decoder_outputs", tied)
    head, table = "lm_head.weight", "shared.weight"
    if head not in names:
        tied = True
    elif tied and table in names:
        tied = same(head, table)
    return {**published, "tie_word_embeddings": tied, "scale_decoder_outputs": scaled}


FAMILY = Family(
    name="t5",
    model=T5,
    model_types=("t5",),
    from_published=from_published,
    to_published=to_published,
    names=names,
    ties=settle_ties,
    stacks=(("encoder.layers", "encoder_layers"), ("decoder.layers", "decoder_layers")),
    rules=Rules(
        (
            EMBEDDING_RULE,
            HEAD_RULE,
            *kernel_rules(r"(encoder|decoder)\.layers", attention="attn|cross", mlp="gate|up"),
            Rule(r"(encoder|decoder)\.layers\.(attn|cross|mlp)_norm\.scale", (VECTOR,)),
            Rule(r"(encoder|decoder)\.relative_bias\.table", (COLUMNS,)),  # [buckets, H]
            Rule(r"(encoder|decoder)\.final_norm\.scale", (VECTOR,)),
        )
    ),
)
