"""A Falcon head as a writer of trees: k tokens per forward pass, k > 0.

    depth      0      1   ...  k-1    k   ...            of a node's token, counted from the children of the root
    logits of  pass 0 ------------->  pass 1 of the node at depth k-1 ------->
    reads      the last k pairs       the last k tokens of the path, with the outputs of pass 0

Its cache holds pairs of true features and committed tokens. The rows of later passes are written past them:

    slots     0 ........ length-1 | length ..................... | ...
    content   pairs of the target | rows of the passes, k of each |
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax.base import LanguageModel
from specjax.drafters.head_writer import HeadParams, parent_slots, widen
from specjax.drafters.one_pass import no_prefill
from specjax.drafters.writer import Writer
from specjax.heads import head as heads
from specjax.models import cache as caches
from specjax.models.cache import KV, ReadOnly
from specjax.models.family import Family
from specjax.models.format import Format
from specjax.programs import memoize
from specjax.types import Commit, Output


class Passes(NamedTuple):
    """What the passes of a round computed, and the nodes that have been read; P passes, M nodes."""

    logits: Float[Array, "B P K V"]
    out: Float[Array, "B P K D"]
    sees: Bool[Array, "B P P"]  # pass p sees the rows of pass q; those of pass 0 are pairs, which all see
    tokens: Int[Array, "B M"]
    above: Int[Array, "B M"]  # parent of each node; -1: the root
    latest: Int[Array, "B M+1"]  # the pass that drafts the children of the root, and of each node


class Pairs(NamedTuple):
    """Keys and values of the head's layer, what each pair was given, and its token; while drafting, the passes."""

    layers: tuple[KV, ...] | KV
    given: Float[Array, "B 1 T D"]
    tokens: Int[Array, "B T"]
    length: Int[Array, "B"]
    passes: Passes | tuple[()] = ()


class PairMemory(NamedTuple):
    """Memory of the head."""

    cache: Pairs


@memoize
def passes_writer(
    model: type[nnx.Module], config: Any, fmt: Format, nodes: int, target: tuple[Family, Any, Format], restricted: bool
) -> Writer:
    """A head of this module and shape as a writer, with `HeadParams`. It reads level by level: trees, no `chain`.

    Args:
      nodes: most nodes that a round reads below the root.
      target: family, configuration and format of the target.
      restricted: it has a draft vocabulary.
    """
    graph, layer, size = heads.structure(model, config, fmt), config.layer, config.block
    family, target_config, target_fmt = target
    ends_of = family.ends(target_config, target_fmt)
    ahead = jnp.arange(size, dtype=jnp.int32)

    def merged(params: HeadParams) -> tuple[Any, Any]:
        return nnx.merge(graph, params.head), ends_of(params.ends)

    def read(params: HeadParams, cache: Pairs, tokens, given, start) -> Pairs:
        """Writes pairs at `start`."""
        module, ends = merged(params)
        positions = start[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        layers = module.read_pairs(ends, tokens, given, positions, cache.layers, start)
        return cache._replace(
            layers=layers, given=caches.put_windows(cache.given, given[:, None], start),
            tokens=caches.put_rows(cache.tokens, tokens, start, start >= 0),
        )  # fmt: skip

    def at(cache: Pairs, slot: Int[Array, "B S"]) -> tuple[Int[Array, "B S"], Float[Array, "B S D"]]:
        """Tokens of pairs, and what they were given."""
        slot = jnp.maximum(slot, 0)
        given = jnp.take_along_axis(cache.given[:, 0], slot[..., None], axis=1, mode="clip")
        return jnp.take_along_axis(cache.tokens, slot, axis=1, mode="clip"), given.astype(jnp.float32)

    def run(params: HeadParams, tokens, given, positions, visible, layers, start):
        """Logits and outputs of rows, and the caches with them."""
        module, ends = merged(params)
        attend = lambda attn, x, turn, index, layers: attn(x, turn, visible, layers, index, start)
        out, layers = module(ends, tokens, given, positions, attend, layers)
        return widen(module.logits(ends, out), params.places), out, layers

    def init(params: HeadParams, prompt, length, cache_len, prefilled):
        rows, pairs = prompt.shape[0], prompt.shape[1] - 1
        slots = cache_len + size * nodes
        layers = caches.allocate(rows, layer.kv_heads, slots, layer.head_width, layer.layers, fmt)
        given = jnp.zeros((rows, 1, slots, config.width), fmt.cache_dtype)
        cache = Pairs(layers, given, jnp.zeros((rows, slots), prompt.dtype), length - 1)
        if pairs:
            features = prefilled.features[:, :pairs].astype(jnp.float32)
            cache = read(params, cache, prompt[:, 1:], features, jnp.zeros_like(length))
        return PairMemory(cache)

    def root(params: HeadParams, memory: PairMemory, pending):
        cache, rows = memory.cache, pending.shape[0]
        slot = cache.length[:, None] - size + ahead[None]
        known = jnp.arange(cache.tokens.shape[1], dtype=jnp.int32)[None] < cache.length[:, None]
        visible = jnp.broadcast_to(known[:, None], (rows, size, known.shape[1]))
        logits, out, _ = run(params, *at(cache, slot), jnp.maximum(slot, 0), visible, ReadOnly(cache.layers), None)
        none, zero = jnp.zeros((rows, 0), jnp.int32), jnp.zeros((rows, 1), jnp.int32)
        sees = jnp.zeros((rows, 1, 1), bool)
        passes = Passes(logits[:, None], out[:, None], sees, none.astype(pending.dtype), none, zero)
        return logits[:, 0], PairMemory(cache._replace(passes=passes))

    def extend(params: HeadParams, tokens, cache: Pairs, mask, depth, offset=0):
        """Nodes at one depth, which is counted from the children of the root and must be static."""
        passes, below = cache.passes, int(depth[0]) + 1
        assert isinstance(passes, Passes)  # from `root`
        rows, count = tokens.shape
        above = parent_slots(mask, offset, rows)
        latest = jnp.take_along_axis(passes.latest, above + 1, axis=1)
        own = offset + jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32)[None], above.shape)
        join = lambda old, new: jnp.concatenate([old, new], 1)
        passes = passes._replace(tokens=join(passes.tokens, tokens), above=join(passes.above, above))
        if below % size == 0:
            cache, passes, latest = another(params, cache, passes, own, latest, below)
        passes = passes._replace(latest=join(passes.latest, latest))
        pick = lambda rows: jnp.take_along_axis(rows[:, :, below % size], latest[..., None], axis=1)
        return Output(pick(passes.logits), pick(passes.out)), cache._replace(passes=passes)

    def another(params: HeadParams, cache: Pairs, passes: Passes, node, before, below: int):
        """One more pass for each node, behind the passes `before`."""
        rows, count = node.shape
        done, path = passes.out.shape[1], [node]
        for _ in range(size - 1):
            path.insert(0, jnp.take_along_axis(passes.above, path[0], axis=1))
        tokens = jnp.take_along_axis(passes.tokens, jnp.stack(path, -1).reshape(rows, -1), axis=1)
        given = jnp.take_along_axis(passes.out, before[..., None, None], axis=1)
        sees = jnp.take_along_axis(passes.sees, before[..., None], axis=1)
        itself = jnp.broadcast_to(jnp.eye(count, dtype=bool)[None], (rows, count, count))
        sees = jnp.concatenate([sees, itself], -1)
        mask = jnp.repeat(jnp.repeat(sees[:, :, 1:], size, 1), size, 2)
        visible = caches.visibility(cache.length, mask, cache.tokens.shape[1], rows)
        ahead_of = jnp.broadcast_to(ahead[None, None], (rows, count, size)).reshape(rows, -1)
        positions = cache.length[:, None] + below - size + ahead_of
        start = cache.length + (done - 1) * size
        given = given.reshape(rows, -1, config.width)
        logits, out, layers = run(params, tokens, given, positions, visible, cache.layers, start)
        split = lambda x: x.reshape(rows, count, size, -1)
        passes = passes._replace(
            logits=jnp.concatenate([passes.logits, split(logits)], 1),
            out=jnp.concatenate([passes.out, split(out)], 1),
            sees=jnp.concatenate([jnp.pad(passes.sees, ((0, 0), (0, 0), (0, count))), sees], 1),
        )
        new = done + jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32)[None], node.shape)
        return cache._replace(layers=layers), passes, new

    def commit(params: HeadParams, memory: PairMemory, path, read_, advanced, committed: Commit):
        del path, read_, advanced  # nothing that was drafted is kept
        cache = memory.cache._replace(passes=())
        cache = read(params, cache, committed.tokens, committed.features.astype(jnp.float32), cache.length)
        return PairMemory(cache._replace(length=cache.length + committed.length))

    def rewind(params: HeadParams, memory: PairMemory, back, token):
        """The last pair that remains is read again, with its new token."""
        cache = memory.cache
        slot = jnp.maximum(cache.length - jnp.maximum(back, 1), 0)
        old, given = at(cache, slot[:, None])
        cache = read(params, cache, jnp.where(back[:, None] > 0, token[:, None], old), given, slot)
        return PairMemory(cache._replace(length=jnp.where(back > 0, slot + 1, cache.length)))

    def proposable(params, memory: PairMemory, depth):
        """Without k pairs nothing is drafted."""
        del params
        valid = (jnp.asarray(depth)[None] == 0) | (memory.cache.length >= size)[:, None]
        return jnp.broadcast_to(valid, (memory.cache.length.shape[0], len(depth)))

    lm = LanguageModel(no_prefill, extend, no_prefill, target_config.vocab_size)
    return Writer(lm, init, root, commit, rewind, proposable, restricted)
