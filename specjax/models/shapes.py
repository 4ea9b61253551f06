"""Published shapes of all families by name, their memory, and random weights for them."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp

from specjax.models import llama, opt, t5, t5_config
from specjax.models.family import Family
from specjax.models.format import Format
from specjax.programs import memoize
from specjax.types import Params

ALIASES = {"t5-xl": "t5-v1_1-xl", "t5-xxl": "t5-v1_1-xxl"}  # sizes that T5 v1.0 does not have
EXPONENT = -6  # values are in 2^-6..2^-5 on either side of 0, about the deviation of 0.02 of published initializers


def published_shapes() -> dict[str, tuple[Family, Any]]:
    """Family and configuration of every published shape."""
    found = {f"opt-{size}": (opt.FAMILY, config) for size, config in opt.sizes().items()}
    found |= {name: (t5.FAMILY, config) for name, config in t5_config.sizes().items()}
    found |= {name: (llama.FAMILY, config) for name, config in llama.sizes().items()}
    return found | {name: found[same] for name, same in ALIASES.items() if same in found}


@memoize
def weight_bytes(family: Family, config: Any, fmt: Format) -> int:
    """Bytes of the parameters."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(family.abstract(config, fmt)))


@memoize
def step_bytes(family: Family, config: Any, fmt: Format) -> int:
    """Bytes of the parameters that a decoding step reads: no encoder or what reads its output, no untied embedding."""
    params = family.abstract(config, fmt)
    unread = [r"^\['encoder'\]", r"\['cross'\]\['[kv]'\]", *([r"^\['embed'\]"] if "head" in params else [])]
    read = lambda path: not any(re.search(pattern, jax.tree_util.keystr(path)) for pattern in unread)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return sum(leaf.size * leaf.dtype.itemsize for path, leaf in leaves if read(path))


def cache_bytes(family: Family, config: Any, fmt: Format, slots: int) -> int:
    """Bytes of keys and values, of `slots` positions in all rows."""
    layers = getattr(config, family.stacks[-1][1])
    return 2 * layers * config.kv_heads * config.head_width * jnp.dtype(fmt.cache_dtype).itemsize * slots


def random_params(family: Family, config: Any, fmt: Format) -> Params:
    """Random weights, each array computed in place in its own dtype; norms and biases as freshly initialized.

    The same shape always has the same weights.
    """
    return random_like(family.abstract(config, fmt))


def random_like(params: Params) -> Params:
    """`random_params` for the structure, shapes and dtypes of other parameters."""
    paths, structure = jax.tree_util.tree_flatten_with_path(params)

    def made(number: int, name: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if name in ("scale", "bias"):
            return jnp.full(leaf.shape, float(name == "scale"), leaf.dtype)
        return _hashed(jnp.uint32(number), shape=leaf.shape, dtype=leaf.dtype)

    leaves = [made(number, path[-1].key, leaf) for number, (path, leaf) in enumerate(paths)]
    return jax.tree.unflatten(structure, leaves)


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _hashed(seed: jax.Array, *, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Sign and mantissa from a hash of the position, which XLA fuses into one pass without temporary arrays."""
    x = seed * jnp.uint32(0x9E3779B9)
    stride = 1
    for axis in reversed(range(len(shape))):
        x = x + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    for multiplier in (0x7FEB352D, 0x846CA68B):
        x = (x ^ (x >> 16)) * jnp.uint32(multiplier)
    x = x ^ (x >> 16)
    info = jnp.finfo(dtype)
    word = jnp.dtype(f"uint{info.bits}")
    exponent = (info.maxexp - 1 + EXPONENT) << info.nmant
    kept = 1 << (info.bits - 1) | (1 << info.nmant) - 1  # sign and mantissa
    bits = (x >> (32 - info.bits)).astype(word) & word.type(kept) | word.type(exponent)
    return jax.lax.bitcast_convert_type(bits, dtype)
