"""Bytes that a draft step of self-speculation reads, and those of plain decoding.

The time of a decoding step is that of its memory reads: every weight once for the whole batch, and every slot of every
row's keys and values, committed or not, because shapes are static. At short contexts these are mostly weights, and a
small cache saves nothing; with long rows and large batches they are mostly caches.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.drafters.loaded import layer_count
from specjax.drafters.select import SINKS, Selection
from specjax.models import cache as caches
from specjax.types import Params

GATHERED = ("embed.positions",)  # a step reads one row per token of these tables
ONCE = ("cross.k.", "cross.v.")  # read by the prefill alone


class BytesRead(NamedTuple):
    """Bytes read for each row and drafted (or decoded) token.

    Attributes:
      weights: a row's share of the weights. cache: keys and values.
      upkeep: a draft's own: what follows the target into a small cache, and what is read to choose its slots.
    """

    weights: float
    cache: float
    upkeep: float = 0.0

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.upkeep


def of_target(target: Any, *, batch: int, slots: int, prompt: int = 1) -> BytesRead:
    """Plain decoding, and one verifying pass of any block, over rows of `slots` slots.

    Args:
      prompt: encoder-decoder: positions of the encoder's output, which every decoder layer reads.
    """
    return BytesRead(weight_bytes(target, target.params) / batch, cache_bytes(target, slots=slots, prompt=prompt))


def of_layer_skip(target: Any, *, batch: int, slots: int, layers: tuple[int, ...], prompt: int = 1) -> BytesRead:
    """A draft step of `drafters.layer_skip`: the weights and the cache of some layers."""
    cache = cache_bytes(target, slots=slots, prompt=prompt) * len(layers) / layer_count(target)
    return BytesRead(weight_bytes(target, target.params, layers) / batch, cache)


def of_quantized(target: Any, weights: Params, *, batch: int, slots: int, prompt: int = 1) -> BytesRead:
    """A draft step of `drafters.quantized`, whose int8 `weights` are `LoadedDrafter.params`."""
    return BytesRead(weight_bytes(target, weights) / batch, cache_bytes(target, slots=slots, prompt=prompt))


def of_small_kv(
    target: Any,
    *,
    batch: int,
    slots: int,
    gamma: int = 4,
    budget: int = 256,
    selection: Selection = SINKS,
    prompt: int = 1,
) -> BytesRead:
    """A draft step of `drafters.small_kv`, with its share of the upkeep.

    Each round copies gamma + 1 slots from the target's cache (read, and written). A row that commits gamma + 1 tokens
    per round, the maximum, chooses its slots again after `selection.every` tokens: the target's weights, keys and
    values are then read once more, the keys twice, and the chosen slots are copied.
    """
    whole = cache_bytes(target, slots=slots, prompt=prompt)
    own = cache_bytes(target, slots=slots, prompt=0)
    slot = own / slots
    weights = weight_bytes(target, target.params) / batch
    upkeep = 2 * (gamma + 1) * slot
    kept = selection.kept(budget)
    choice = selection.choice(target, kept)
    if choice is not None:
        upkeep += (gamma + 1) / choice.every * (weights + whole + own / 2 + 2 * kept * slot)
    return BytesRead(weights, (budget + gamma) * slot + whole - own, upkeep / gamma)


def weight_bytes(target: Any, params: Params, layers: tuple[int, ...] | None = None) -> int:
    """Bytes of the weights that one step reads; `layers`: of these layers alone.

    Tables that are only looked up, the encoder, and what only the prefill reads do not count.
    """
    total = 0
    body = "decoder.layers" if target.encoder_decoder else "layers"
    looked_up = (*GATHERED, "embed.tokens") if "head" in params else GATHERED
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator=".") + "."
        if name.startswith(("encoder.", *looked_up)) or any(part in name for part in ONCE):
            continue
        share = 1.0
        if layers is not None and name.startswith(body + "."):
            index = name.removeprefix(body + ".").split(".")[0]
            share = float(int(index) in layers) if index.isdigit() else len(layers) / layer_count(target)
        total += int(leaf.size * jnp.dtype(leaf.dtype).itemsize * share)
    return total


def cache_bytes(target: Any, *, slots: int, prompt: int = 1) -> int:
    """Bytes of one row's keys and values, with `prompt` positions of the encoder's output if there is an encoder."""
    one = jax.ShapeDtypeStruct((1,), jnp.int32)
    text = jax.ShapeDtypeStruct((1, max(prompt, 1)), jnp.int32)
    cache = jax.eval_shape(lambda p, t, n: target.lm.prefill(p, t, n, slots).cache, target.params, text, one)
    across = caches.size_in_bytes(cache.cross.layers) if target.encoder_decoder and prompt else 0
    return caches.size_in_bytes(cache.layers) + across
