"""Weights as int8 with a float32 scale for each output channel; what is not a weight of a matrix product stays.

W[i, o] is stored as round(W[i, o] / s[o]), s[o] = max_i |W[i, o]| / 127, so that no weight moves by more than s / 2.
The scale multiplies the product's output: the weights are never spelled out in float. Activations stay float32.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int8

from specjax import programs
from specjax.models.format import INT8, Format
from specjax.models.products import in_order
from specjax.types import Params

LIMIT = 127.0  # symmetric: -128 is not used


def format_of(fmt: Format) -> Format:
    """The format of the quantized weights: layouts and caches are those of the format that they came from."""
    return dataclasses.replace(fmt, dtype=INT8, products=fmt.products.whole())


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


def channels(weight: Float[Array, "..."], *, axis: int) -> tuple[Int8[Array, "..."], Float[Array, "..."]]:
    """int8 weights and the scale of each output channel, `axis` being the one that a product sums over."""
    weight = weight.astype(jnp.float32)
    scale = jnp.max(jnp.abs(weight), axis=axis) / LIMIT
    safe = jnp.where(scale > 0, scale, 1.0)  # a channel of zeros stays one
    whole = jnp.round(weight / jnp.expand_dims(safe, axis))
    return jnp.clip(whole, -LIMIT, LIMIT).astype(jnp.int8), scale


quantized = programs.jit(quantize, static=("fmt",))
