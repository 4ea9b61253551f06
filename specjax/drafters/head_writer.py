"""An EAGLE head as a writer of chains and trees.

Its cache holds pairs of true features and committed tokens only, besides what it is drafting:

    slots     0 ........ length-1 | length ........ | ...
    content   pairs of the target | drafted tokens, each given its parent's output
    a round   1. `root` reads the pairs that the last round committed; the last one holds `pending`
              2. the draft is written past them
              3. `commit` drops it, and takes the target's features of all that was accepted

A head with a window holds no more slots than it can see: at the start of a round the oldest pairs behind the sinks are
dropped where there is no room for the next ones.

    slots     0 .. sinks-1 | sinks ........ length-1 | free
    position  0 .. sinks-1 | sinks+dropped ....      |

A P-EAGLE head reads its mask rows in step 1, right after the pairs, and skips step 2:

    block     pair  pair  (free)  mask  mask  mask       of a row with two new pairs, where a round may commit three
    position  n-3   n-2           n-1   n     n+1
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from specjax.base import LanguageModel
from specjax.drafters.one_pass import Reader, no_prefill, one_pass
from specjax.drafters.writer import Writer
from specjax.heads import head as heads
from specjax.heads.peagle import PEagleConfig
from specjax.models import cache as caches
from specjax.models.cache import KV, Filling
from specjax.models.decoder import causal, in_blocks
from specjax.models.family import Family
from specjax.models.format import Format
from specjax.programs import memoize
from specjax.types import Commit, Output, Params


class HeadParams(NamedTuple):
    """Parameters of a drafting head.

    Attributes:
      head: of its module.
      ends: the target's, without its layers (`Family.without_layers`).
      places: target token -> its place in the draft vocabulary, or -1; None: the head drafts all tokens.
    """

    head: Params
    ends: Params
    places: Int[Array, "V"] | None = None


class HeadCache(NamedTuple):
    """Keys and values of the head's layers; what each pair was given, and the head's output for it.

    Attributes:
      given: stored for the target's pairs only; `rewind` reads one of them.
      length: slots in use.
      dropped: pairs that a window has left behind; their slots are those of later pairs.
    """

    layers: tuple[KV, ...] | KV
    given: Float[Array, "B 1 T D"]
    out: Float[Array, "B 1 T D"]
    length: Int[Array, "B"]
    dropped: Int[Array, "B"]


class HeadMemory(NamedTuple):
    """Memory of a head: its cache, and the pairs that the last round committed, which it has not read."""

    cache: HeadCache
    given: Float[Array, "B W D"]
    tokens: Int[Array, "B W"]
    count: Int[Array, "B"]


def widen(logits: Float[Array, "B S N"], places: Int[Array, "V"] | None) -> Float[Array, "B S V"]:
    """Logits over the target's vocabulary: -inf for tokens that the head does not draft."""
    if places is None:
        return logits
    return jnp.where(places >= 0, logits[..., jnp.maximum(places, 0)], -jnp.inf)


def parent_slots(mask: Bool[Array, "*B S T"] | np.ndarray, offset: int, rows: int) -> Int[Array, "B S"]:
    """The last slot that each token of a block sees before itself, from where the block began; -1 for the root."""
    mask = jnp.broadcast_to(jnp.asarray(mask), (rows, *mask.shape[-2:]))
    slot = jnp.arange(mask.shape[2], dtype=jnp.int32)[None, None]
    itself = offset + jnp.arange(mask.shape[1], dtype=jnp.int32)[None, :, None]
    return jnp.max(jnp.where(mask & (slot < itself), slot, -1), axis=-1)


@memoize
def head_writer(
    model: type[nnx.Module], config: Any, fmt: Format, width: int, nodes: int, target: tuple[Family, Any, Format],
    restricted: bool,
) -> Writer:  # fmt: skip
    """A head of this module and shape as a writer, with `HeadParams`.

    Args:
      width: W, the most tokens that a round commits.
      nodes: most tokens that a round drafts.
      target: family, configuration and format of the target.
      restricted: it has a draft vocabulary.
    """
    graph = heads.structure(model, config, fmt)
    family, target_config, target_fmt = target
    ends_of, layer = family.ends(target_config, target_fmt), config.layer
    parallel = isinstance(config, PEagleConfig)
    masks = width - 2 if parallel else 0  # rows of a mask token behind the last pair
    # Slots that are enough for a window: it is whole too after a round that is taken back (`rewind`).
    bound = None if config.window is None else config.sinks + config.window + 2 * width + nodes + masks

    def run(params: HeadParams, tokens, given, positions, visible, layers, start):
        attend = lambda attn, x, turn, index, layers: attn(x, turn, visible, layers, index, start)
        return nnx.merge(graph, params.head)(ends_of(params.ends), tokens, given, positions, attend, layers)

    def logits(params: HeadParams, out):
        return widen(nnx.merge(graph, params.head).logits(ends_of(params.ends), out), params.places)

    def stored(buffer: Float[Array, "B 1 T D"], new: Float[Array, "B S D"], start) -> Float[Array, "B 1 T D"]:
        return caches.put_windows(buffer, new[:, None], start)

    def put(cache: HeadCache, layers, out, start) -> HeadCache:
        return cache._replace(layers=layers, out=stored(cache.out, out, start))

    def at(buffer: Float[Array, "B 1 T D"], slot: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        found = jnp.take_along_axis(buffer[:, 0], jnp.maximum(slot, 0)[..., None], axis=1, mode="clip")
        return found.astype(jnp.float32)

    def read(params: HeadParams, cache: HeadCache, tokens, given, mask, depth, offset, pairs: Any = 0):
        """The outputs of a block, and the cache with it. A window does not hide slots past the first `pairs` [B]."""
        visible = caches.visibility(cache.length, jnp.asarray(mask), cache.out.shape[2], tokens.shape[0])
        positions = cache.length[:, None] + jnp.broadcast_to(jnp.asarray(depth, jnp.int32), tokens.shape)
        if config.window is not None:
            slot = jnp.arange(cache.out.shape[2], dtype=jnp.int32)[None, None]
            near = slot > positions[..., None] - config.window
            visible = visible & (near | (slot < config.sinks) | (slot >= (cache.length + pairs)[:, None, None]))
            positions = positions + cache.dropped[:, None]
        start = cache.length + offset
        out, layers = run(params, tokens, given, positions, visible, cache.layers, start)
        return out, put(cache, layers, out, start)

    def extend(params: HeadParams, tokens, cache: HeadCache, mask, depth, offset=0):
        """Drafted tokens: each is given the output of its parent, the last slot that it sees before itself."""
        module = nnx.merge(graph, params.head)
        given = module.next_given(at(cache.out, cache.length[:, None] + parent_slots(mask, offset, tokens.shape[0])))
        out, cache = read(params, cache, tokens, given, mask, depth, offset)
        return Output(logits(params, out), out), cache

    def moved(cache: HeadCache, drop: Int[Array, "B"], slots: int) -> HeadCache:
        """A cache of `slots` slots, without the first `drop` pairs behind the sinks."""
        slot = jnp.arange(slots, dtype=jnp.int32)[None]
        old = jnp.where(slot < config.sinks, slot, slot + drop[:, None])[:, None, :, None]
        take = lambda buffer: jnp.take_along_axis(buffer, old, axis=2, mode="clip")
        layers, given, out = jax.tree.map(take, (cache.layers, cache.given, cache.out))
        return HeadCache(layers, given, out, cache.length - drop, cache.dropped + drop)

    def room(cache: HeadCache, slots: int) -> HeadCache:
        """The cache with room for the next round."""
        if bound is None or slots < bound:
            return cache
        return moved(cache, jnp.maximum(0, cache.length - (bound - nodes - masks - width)), bound)

    def keep(cache: HeadCache, path, n):
        assert path is None  # nothing that was drafted is kept
        return cache._replace(length=cache.length + n)

    def init(params: HeadParams, prompt, length, cache_len, prefilled):
        rows, pairs = prompt.shape[0], prompt.shape[1] - 1
        slots = cache_len + masks
        empty = jnp.zeros((rows, 1, slots, config.width), fmt.cache_dtype)
        layers = caches.allocate(rows, layer.kv_heads, slots, layer.head_width, layer.layers, fmt)
        cache = HeadCache(layers, empty, empty, length - 1, jnp.zeros_like(length))
        if pairs:
            module = nnx.merge(graph, params.head)

            def block(row, start, shape, layers):
                first = jnp.zeros((), jnp.int32) if start is None else start
                cut = lambda array: jax.lax.dynamic_slice(
                    array, (row, first, *(0,) * (array.ndim - 2)), (*shape, *array.shape[2:])
                )
                tokens = cut(prompt[:, 1:])
                visible, positions = causal(tokens)
                if config.window is not None:
                    near = positions[:, None] > positions[..., None] - config.window
                    visible = visible & (near | (positions[:, None] < config.sinks))
                given = module.fuse(cut(prefilled.features), jax.tree.map(cut, prefilled.hiddens))
                out, filled = run(params, tokens, given, positions + first, visible, Filling(layers, start, row), None)
                return (given, out), filled.layers

            whole, start = (rows, pairs), jnp.zeros_like(length)
            if config.window is None:
                layers, (given, out) = in_blocks(fmt, whole, length - 1, layers, block)
            else:
                (given, out), layers = block(0, None, whole, layers)
            cache = put(cache._replace(given=stored(cache.given, given, start)), layers, out, start)
        cache = room(cache, slots)
        unread = jnp.zeros((rows, width, config.width), jnp.float32)
        return HeadMemory(cache, unread, jnp.zeros((rows, width), prompt.dtype), jnp.zeros_like(length))

    def with_masks(params: HeadParams, memory: HeadMemory):
        """The block of unread pairs and mask rows: tokens, what they are given, mask and depth."""
        slot, rows = jnp.arange(width + masks, dtype=jnp.int32), len(memory.count)
        learned = nnx.merge(graph, params.head).mask_given()
        tokens = jnp.full((rows, masks), config.mask_token, memory.tokens.dtype)
        given = jnp.broadcast_to(learned, (rows, masks, config.width)).astype(memory.given.dtype)
        behind = slot[None] >= width
        there = behind | (slot[None] < memory.count[:, None])
        depth = jnp.where(behind, memory.count[:, None] + slot[None] - width, slot[None])
        join = lambda old, new: jnp.concatenate([old, new], 1)
        mask = (slot[:, None] >= slot[None])[None] & there[:, None]
        return join(memory.tokens, tokens), join(memory.given, given), mask, depth

    def draft(params: HeadParams, memory: HeadMemory, pending):
        """Logits after the last pair, and those of the mask rows behind it."""
        del pending  # the last pair holds it
        block = jnp.arange(width, dtype=jnp.int32)
        unread = memory.tokens, memory.given, block[:, None] >= block[None], block
        unread = with_masks(params, memory) if masks else unread
        cache = room(memory.cache, memory.cache.out.shape[2])
        pairs = stored(cache.given, unread[1], cache.length)
        out, cache = read(params, cache, *unread, 0, memory.count - 1)  # mask rows always see the last pair
        cache = cache._replace(given=pairs, length=cache.length + memory.count)
        last = at(cache.out, cache.length[:, None] - 1)
        drafted = jnp.concatenate([last, out[:, width:]], 1) if masks else last
        return logits(params, drafted), memory._replace(cache=cache, count=jnp.zeros_like(memory.count))

    def root(params: HeadParams, memory: HeadMemory, pending):
        first, memory = draft(params, memory, pending)
        return first[:, 0], memory

    def commit(params: HeadParams, memory: HeadMemory, path, read, advanced, committed: Commit):
        del path, read
        given = nnx.merge(graph, params.head).fuse(committed.features, committed.hiddens)
        return HeadMemory(keep(memory.cache, None, -advanced), given, committed.tokens, committed.length)

    def rewind(params: HeadParams, memory: HeadMemory, back, token):
        del params
        place = memory.count - back  # of the pair whose token is replaced, among the pairs not read
        slot = memory.cache.length + jnp.minimum(place, 0)
        first = jnp.arange(width, dtype=jnp.int32)[None] == 0
        again = first & (place < 0)[:, None]  # the pair has been read: it is read again with the new token
        given = jnp.where(again[..., None], at(memory.cache.given, slot[:, None]), memory.given)
        here = jnp.arange(width, dtype=jnp.int32)[None] == jnp.maximum(place, 0)[:, None]
        rolled = back > 0
        tokens = jnp.where(here & rolled[:, None], token[:, None], memory.tokens)
        length = jnp.where(rolled, slot, memory.cache.length)
        count = jnp.where(rolled, jnp.maximum(place, 0) + 1, memory.count)
        given = jnp.where(rolled[:, None, None], given, memory.given)
        return HeadMemory(memory.cache._replace(length=length), given, tokens, count)

    def proposable(params, memory: HeadMemory, depth):
        """A prompt of one token has no feature before it: nothing is drafted in its first round."""
        del params
        valid = (jnp.asarray(depth)[None] == 0) | (memory.cache.length > 0)[:, None]
        return jnp.broadcast_to(valid, (memory.count.shape[0], len(depth)))

    if parallel:
        take = lambda params, memory, committed: commit(params, memory, None, None, 0, committed)
        return one_pass(Reader(init, draft, take, rewind, proposable), target_config.vocab_size, restricted=restricted)
    lm = LanguageModel(no_prefill, extend, keep, target_config.vocab_size)
    return Writer(lm, init, root, commit, rewind, proposable, restricted)
