"""Weights as int8 with a float32 scale for each output channel; what is not a weight of a matrix product stays.

W[i, o] is stored as round(W[i, o] / s[o]), s[o] = max_i |W[i, o]| / 127, so that no weight moves by more than s / 2.
The scale multiplies the product's output.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8

from specjax import programs
from specjax.models.format import Format
from specjax.models.products import in_order
from specjax.types import Params

LIMIT = 127.0  # symmetric: -128 is not used


def quantize(params: Params, fmt: Format) -> Params:
    """The same tree with every kernel and every word table in int8, a `scale` beside each.

    Norms, biases, learned positions and relative biases stay float32.

    Args:
      params: of a model in `fmt`, stacked or separate layers.
    """

    def walk(node, path: tuple[str, ...]):
        if not isinstance(node, dict):
            return node
        if path[-1:] == ("kernel",):  # in parts
            return jnp.concatenate(in_order(node), axis=-1)
        out = {name: walk(value, (*path, name)) for name, value in node.items()}
        if "kernel" in node:
            out["kernel"], out["scale"] = channels(out["kernel"], axis=-1 if fmt.products.out_in else -2)
        if "table" in node and path[-2:] == ("embed", "tokens"):
            out["table"], out["scale"] = channels(node["table"], axis=-1)
        return out

    return walk(params, ())


def channels(
    weight: Float[Array | np.ndarray, "..."], *, axis: int, xp: Any = jnp
) -> tuple[Int8[Array | np.ndarray, "..."], Float[Array | np.ndarray, "..."]]:
    """int8 weights and the scale of each output channel, `axis` being the one that a product sums over.

    Args:
      xp: the namespace of the arrays, `numpy` on the host.
    """
    weight = weight.astype(xp.float32)
    scale = xp.max(xp.abs(weight), axis=axis) * xp.float32(1 / LIMIT)  # XLA would divide so, numpy would not
    safe = xp.where(scale > 0, scale, xp.float32(1.0))  # a channel of zeros stays one
    whole = xp.round(weight / xp.expand_dims(safe, axis))
    return xp.clip(whole, -LIMIT, LIMIT).astype(xp.int8), scale


quantized = programs.jit(quantize, static=("fmt",))
