"""Matrix products of the models, as a strategy that a `Format` names: those of accelerators.

`models/cpu.py` has the strategy for XLA's CPU backend.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

T = TypeVar("T")
ROW_MAJOR = Layout((0, 1))


def in_order(parts: Mapping[str, T]) -> list[T]:
    """The arrays of a kernel in parts, "0", "1", ..., along its inputs."""
    return [parts[str(number)] for number in range(len(parts))]


def multiply(x: Array, y: Array, dims, precision, out=jnp.float32) -> Array:
    """`dot_general`, accumulated in float32."""
    return jax.lax.dot_general(x, y, dims, precision=precision, preferred_element_type=out)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def product(x: Float[Array, "_ _"], y: Float[Array, "_ _"], axes: tuple[int, int], precision) -> Float[Array, "_ _"]:
    """Product over one axis of each operand, in their dtype; its derivatives are multiplied in that dtype too.

    Left to autodiff, the float32 cotangent would pull both products of the backward pass up to float32, at half the
    speed.
    """
    return multiply(x, y, (((axes[0],), (axes[1],)), ((), ())), precision)


@product.defjvp
def _product_jvp(axes, precision, primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    # The output has the operands' dtype, and so has the cotangent that the transposed products take.
    linear = lambda x, y: multiply(x, y, (((axes[0],), (axes[1],)), ((), ())), precision, y.dtype)
    return product(x, y, axes, precision), (linear(dx, y) + linear(x, dy)).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Products:
    """Kernels stored whole as (in, out), and one `dot_general` for each product. Hashable, so a static argument.

    Attributes:
      out_in: kernels are stored (out, in).
    """

    out_in: ClassVar[bool] = False

    def parts(self, inputs: int) -> int:
        """The number of arrays in which a kernel of so many inputs is stored."""
        del inputs
        return 1

    def whole(self) -> "Products":
        """The same strategy for kernels that are stored whole."""
        return self

    def dot(
        self, x: Float[Array, "*B D"], kernel: Float[Array, "_ _"] | Sequence[Float[Array, "_ _"]], *,
        out_in: bool, precision: jax.lax.Precision | None,
    ) -> Float[Array, "*B F"]:  # fmt: skip
        """x times a kernel in the kernel's dtype, accumulated and returned in float32.

        Args:
          kernel: whole, or in parts along its inputs.
          out_in: whether this kernel is stored so; tables always are.
        """
        parts = [kernel] if isinstance(kernel, jax.Array) else list(kernel)
        flat = x.astype(parts[0].dtype).reshape(-1, x.shape[-1])  # leading axes collapsed
        out = self.matrix_product(flat, parts, out_in=out_in, precision=precision)
        return out[: len(flat)].reshape(*x.shape[:-1], out.shape[-1])

    def matrix_product(self, x: Float[Array, "N D"], parts: list, *, out_in: bool, precision) -> Float[Array, "M F"]:
        """x times a kernel; rows after the first N are padding."""
        return product(x, parts[0], (1, int(out_in)), precision)

    def scores(self, q: Float[Array, "B K M D"], k: Float[Array, "B K T D"], precision) -> Float[Array, "B K M T"]:
        """Products of queries and keys, float32."""
        return multiply(q, k, (((3,), (3,)), ((0, 1), (0, 1))), precision)

    def mix(self, w: Float[Array, "B K M T"], v: Float[Array, "B K T D"], precision) -> Float[Array, "B K M D"]:
        """Values weighted by attention, float32."""
        return multiply(w, v, (((3,), (2,)), ((0, 1), (0, 1))), precision)


PLAIN = Products()


@dataclasses.dataclass(frozen=True)
class TPUProducts(Products):
    """Kernels (in, out), as the TPU compiler reads them best.

    Attributes:
      min_rows: a product of fewer rows is padded to this many; one of a single row does not use the matrix unit.
      many: results of at least so many rows are kept row-major. Left to itself, the compiler may transpose stacked
        kernels, all layers before every prompt, to spare a transpose of the result.
    """

    min_rows: int = 2
    many: int = 32

    def matrix_product(self, x: Float[Array, "N D"], parts: list, *, out_in: bool, precision) -> Float[Array, "M F"]:
        out = super().matrix_product(pad_rows(x, self.min_rows), parts, out_in=out_in, precision=precision)
        return with_layout_constraint(out, ROW_MAJOR) if len(x) >= self.many else out


def pad_rows(x: Float[Array, "N D"], rows: int) -> Float[Array, "M D"]:
    """x with rows of zeros at its end, at least `rows` in all."""
    return jnp.pad(x, ((0, rows - len(x)), (0, 0))) if len(x) < rows else x
