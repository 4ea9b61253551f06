"""Linear maps, norms, tables and the walk over layers that all model files share.

Activations and the residual stream are float32; a kernel is multiplied in its own dtype with float32 accumulation.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Int8

from specjax.models.format import Format
from specjax.models.products import in_order
from specjax.types import Params, PyTree

ALL = slice(None)  # outputs of a product


def scaled_dot(
    x: Float[Array, "*B D"],
    kernel: Float[Array, "_ _"] | Int8[Array, "_ _"] | Sequence[Float[Array, "_ _"]],
    scale: Float[Array, "F"] | None,
    fmt: Format,
    *,
    out_in: bool,
) -> Float[Array, "*B F"]:
    """`Products.dot`; of int8 weights, with each output channel's scale: the weights are widened on the way into the
    product, for the compiler to fuse where it can."""
    if scale is None:
        return fmt.products.dot(x, kernel, out_in=out_in, precision=fmt.precision)
    y = fmt.products.dot(x, cast(Array, kernel).astype(fmt.dtype), out_in=out_in, precision=fmt.precision)
    return y * scale.reshape((1,) * (y.ndim - 1) + (-1,))


class Linear(nnx.Module):
    """y = x W + b, the kernel in the format's orientation and dtype, bias and scale float32.

    A kernel in parts is a dict of arrays "0", "1", ..., each [out, inputs / parts].
    """

    def __init__(self, d_in: int, d_out: int, fmt: Format, *, bias: bool, std: float, rngs: nnx.Rngs):
        self.fmt = fmt
        drawn = std * jax.random.normal(rngs.params(), (d_in, d_out))  # the same in every format
        kernel = (drawn.T if fmt.products.out_in else drawn).astype(fmt.weight_dtype)
        parts = [nnx.Param(part) for part in jnp.split(kernel, fmt.products.parts(d_in), axis=1)]
        self.kernel = parts[0] if len(parts) == 1 else nnx.Dict({str(i): part for i, part in enumerate(parts)})
        self.scale = nnx.Param(jnp.ones((d_out,), jnp.float32)) if fmt.int8_weights else None
        self.bias = nnx.Param(jnp.zeros((d_out,), jnp.float32)) if bias else None

    def __call__(
        self, x: Float[Array, "B S D"], outputs: Int[Array, "N"] | slice = ALL
    ) -> Float[Array, "B S O"] | Float[Array, "B S N"]:
        scale = None if self.scale is None else self.scale[...][outputs]
        parts = in_order(self.kernel) if isinstance(self.kernel, nnx.Dict) else [self.kernel]
        chosen = [part[...][outputs] if self.fmt.products.out_in else part[...][:, outputs] for part in parts]
        kernel = chosen if len(chosen) > 1 else chosen[0]
        y = scaled_dot(x, kernel, scale, self.fmt, out_in=self.fmt.products.out_in)
        return y if self.bias is None else y + self.bias[...][outputs][None, None]


class LayerNorm(nnx.Module):
    """Layer norm with scale and bias, float32."""

    def __init__(self, width: int, eps: float):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((width,), jnp.float32))

    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        centered = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centered).mean(-1, keepdims=True)
        normed = centered * jax.lax.rsqrt(variance + self.eps)
        return normed * self.scale[...][None, None] + self.bias[...][None, None]


class RMSNorm(nnx.Module):
    """Root-mean-square norm with a scale and no bias, float32 (Llama, T5)."""

    def __init__(self, width: int, eps: float):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), jnp.float32))

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        scale = self.scale[...].reshape((1,) * (x.ndim - 1) + (-1,))
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.eps) * scale


def lookup(table: Float[Array, "V D"], index: Int[Array, "B S"]) -> Float[Array, "B S D"]:
    """Rows of a table, float32."""
    rows = table[index] if table.dtype == jnp.float32 else narrow_rows(table, index)
    return rows.astype(jnp.float32)


@jax.custom_jvp
def narrow_rows(table: Float[Array, "V D"], index: Int[Array, "B S"]) -> Float[Array, "B S D"]:
    """Rows of a half-precision table.

    XLA's CPU backend converts a whole half-precision table to float32 before it gathers: there the rows are gathered as
    integers, which have no derivative of their own. On a TPU that detour would copy the table.
    """

    def as_integers(table, index):
        # Of a table that does not depend on the index, XLA would move the conversion out of a loop of draft steps: as a
        # copy of the whole table in every round.
        table, index = jax.lax.optimization_barrier((table, index))
        return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(table, jnp.uint16)[index], table.dtype)

    return jax.lax.platform_dependent(table, index, cpu=as_integers, default=lambda table, index: table[index])


@narrow_rows.defjvp
def _narrow_rows_jvp(primals, tangents):
    table, index = primals
    return narrow_rows(table, index), tangents[0][index]


class Table(nnx.Module):
    """An embedding table [V, D]: rows by `lookup`, and logits when the head is tied to it."""

    def __init__(self, rows: int, width: int, fmt: Format, *, std: float, rngs: nnx.Rngs):
        self.fmt = fmt
        self.table = nnx.Param((std * jax.random.normal(rngs.params(), (rows, width))).astype(fmt.weight_dtype))
        self.scale = nnx.Param(jnp.ones((rows,), jnp.float32)) if fmt.int8_weights else None

    def __call__(self, index: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        if self.scale is not None:
            return self.table[...][index].astype(jnp.float32) * self.scale[...][index][..., None]
        return lookup(self.table[...], index)

    def logits(
        self, x: Float[Array, "B S D"], tokens: Int[Array, "N"] | slice = ALL
    ) -> Float[Array, "B S V"] | Float[Array, "B S N"]:
        scale = None if self.scale is None else self.scale[...][tokens]
        return scaled_dot(x, self.table[...][tokens], scale, self.fmt, out_in=True)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


def check_activation(name: str) -> None:
    """Raises ValueError where there is no such activation."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is not one of {', '.join(ACTIVATIONS)}")


def make_layers(make: Callable[[nnx.Rngs], nnx.Module], rngs: nnx.Rngs, count: int, stacked: bool) -> nnx.Module:
    """`count` freshly drawn layers: one module whose parameters are [L, ...], or a dict of modules "0", "1", ..."""
    drawn = [make(rngs) for _ in range(count)]
    if not stacked or not drawn:
        return nnx.Dict({str(index): layer for index, layer in enumerate(drawn)})
    states = [nnx.to_pure_dict(nnx.state(layer)) for layer in drawn]
    return nnx.merge(nnx.graphdef(drawn[0]), jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))


def merge_layers(graphdef: Any, params: Params) -> nnx.Module:
    """Layers as in `make_layers`, from the structure of one layer and the parameters of all."""
    if "0" in params:
        return nnx.Dict({name: nnx.merge(graphdef, layer) for name, layer in params.items()})
    return nnx.merge(graphdef, params)


def walk(
    layers: nnx.Module,
    step: Callable[..., tuple[Array, PyTree]],
    x: Float[Array, "B S D"],
    state: PyTree,
    capture: tuple[int, ...] = (),
    chosen: tuple[int, ...] | None = None,
) -> tuple[Float[Array, "B S D"], PyTree, tuple[Array, ...]]:
    """Runs `step(layer, index, x, state) -> (x, state)` over all layers.

    Separate layers are unrolled and `index` is a Python int; stacked ones are scanned and `index` is traced. `state` is
    carried whole (caches are written in place through it).

    Args:
      layers: as in `make_layers`.
      capture: layers whose entering residual stream is returned; L is the stream that leaves the last one.
      chosen: run these layers alone, in this order. Each keeps its index, and so its place in the caches.

    Returns:
      The last x, the last state, and the captured residual streams.
    """
    if isinstance(layers, nnx.Dict):
        taken = {}
        for index in range(len(layers)) if chosen is None else chosen:
            taken[index] = x
            x, state = step(layers[str(index)], index, x, state)
        taken[len(layers)] = x
        return x, state, tuple(taken[i] for i in capture)

    graphdef, params = nnx.split(layers)
    count = jax.tree.leaves(params)[0].shape[0]
    indices = jnp.arange(count) if chosen is None else jnp.asarray(chosen, jnp.int32)
    # Where each layer's entering stream is stored; all that are not captured share the last place.
    place = jnp.asarray([capture.index(i) if i in capture else len(capture) for i in range(count)])

    def body(carry, scanned):
        x, state, taken = carry
        index, layer = scanned
        if layer is None:  # each is sliced out of the stack in its turn, none is copied before
            layer = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, index, keepdims=False), params)
        if capture:
            taken = jax.lax.dynamic_update_index_in_dim(taken, x, place[index], 0)
        x, state = step(nnx.merge(graphdef, layer), index, x, state)
        return (x, state, taken), None

    taken = jnp.zeros((len(capture) + 1, *x.shape), x.dtype) if capture else None
    (last, state, taken), _ = jax.lax.scan(body, (x, state, taken), (indices, params if chosen is None else None))
    if taken is None:
        return last, state, ()
    return last, state, tuple(last if i == count else taken[n] for n, i in enumerate(capture))


def of_each(layers: nnx.Module, one: Callable, xs: tuple[Array, ...]) -> PyTree:
    """`one(layer, x)` of every layer and its own x: in a tuple, or stacked where the layers are."""
    if isinstance(layers, nnx.Dict):
        return tuple(one(layers[str(index)], x) for index, x in enumerate(xs))
    graphdef, params = nnx.split(layers)
    return jax.lax.map(lambda layer: one(nnx.merge(graphdef, layer[0]), layer[1]), (params, jnp.stack(xs)))
