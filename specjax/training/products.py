"""Matrix products of training. Kernels are (in, out) on every platform, so that a run moves between platforms."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental.layout import with_layout_constraint
from jaxtyping import Array, Float

from specjax.models.products import ROW_MAJOR, Products, multiply


def accumulated(
    x: Float[Array, "_ _"], y: Float[Array, "_ _"], axes: tuple[int, int], precision
) -> Float[Array, "_ _"]:
    """Product over one axis of each operand, float32.

    XLA's CPU backend multiplies bfloat16 operands as they are, at three times the speed of float32, only if all arrays
    are row-major and the left operand's last axis is summed over; others it widens first. Copies cost less than that.
    """
    plain = lambda x, y: multiply(x, y, (((axes[0],), (axes[1],)), ((), ())), precision)
    if x.dtype == jnp.float32:
        return plain(x, y)

    def copied(x: Array, y: Array) -> Array:
        rows = lambda array: with_layout_constraint(array, ROW_MAJOR)
        left = rows(x if axes[0] == 1 else x.T)
        return rows(multiply(left, rows(y), (((1,), (axes[1],)), ((), ())), precision))

    return jax.lax.platform_dependent(x, y, cpu=copied, default=plain)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(x: Float[Array, "N D"], y: Float[Array, "_ _"], axis: int, precision) -> Float[Array, "N F"]:
    """x times y over an axis of y, float32. Gradients are multiplied in the operands' dtype, accumulated in float32."""
    return accumulated(x, y, (1, axis), precision)


def _forward(x: Array, y: Array, axis: int, precision) -> tuple[Array, tuple[Array, Array]]:
    return product(x, y, axis, precision), (x, y)


def _backward(axis: int, precision, operands: tuple[Array, Array], out: Float[Array, "N F"]) -> tuple[Array, Array]:
    x, y = operands
    out = out.astype(y.dtype)
    left, right = (out, x) if axis else (x, out)
    dx, dy = accumulated(out, y, (1, 1 - axis), precision), accumulated(left, right, (0, 0), precision)
    return dx.astype(x.dtype), dy.astype(y.dtype)


product.defvjp(_forward, _backward)


@dataclasses.dataclass(frozen=True)
class TrainingProducts(Products):
    """Kernels (in, out), and gradients at the speed of the operands' dtype; no forward-mode derivatives."""

    def matrix_product(self, x: Float[Array, "N D"], parts: list, *, out_in: bool, precision) -> Float[Array, "N F"]:
        return product(x, parts[0], int(out_in), precision)
