"""Matrix products on XLA's CPU backend: what was measured there, and the strategy that follows from it.

A dot packs its right operand on every call and reads its left one as it is stored, so kernels belong on the left,
stored (out, in): of several rows a float32 dot takes half the time then, and one of eight little more than one of one.
Of five to seven rows it takes a third longer than of eight, and so on: those are padded. A bfloat16 dot packs its rows
at little cost: on the left it takes as long of 2 rows as of 16, and wins from 7 to 12 rows of kernels of 768 inputs and
more, depending on the processor. A one-row bfloat16 dot converts the whole weight on every call, so one row is padded
to two. A bfloat16 dot that sums over many inputs is slower than several that sum over fewer. Of a three-dimensional dot
with an (out, in) kernel the backend makes a transposed copy of the weight, so leading axes are collapsed.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.experimental.layout import with_layout_constraint
from jaxtyping import Array, Float

from specjax.models.products import ROW_MAJOR, Products, multiply, pad_rows, product

LEFT_BLOCKS = ((5, 8), (9, 16), (25, 32), (49, 64))  # rows; float32, measured on kernels of 80 to 4,096 inputs
PART = 1024  # inputs; of 512 to 2,048, measured on shapes of 125m to 1.3b
MANY = 256  # rows
FEW = 64  # queries; the keys are the left operand of the products with fewer


@dataclasses.dataclass(frozen=True)
class CPUProducts(Products):
    """Kernels (out, in).

    Attributes:
      min_rows: a product of fewer rows is padded to this many.
      part: most inputs that one array of a kernel sums over; one of more is stored as several arrays, where they
        divide it. 0: no bound. For separate layers.
      left: (inputs, rows): a kernel that sums over at least so many inputs is the left operand of a dot of at least so
        many rows, and of fewer than `MANY`. The product comes out transposed, and of few inputs or many rows
        transposing it costs more than is won. None: no kernel is.
      flat_heads: batch and heads are collapsed in the attention dots; off under a mesh, where both are sharded.
    """

    min_rows: int = 1
    part: int = 0
    left: tuple[int, int] | None = None
    flat_heads: bool = True
    out_in: ClassVar[bool] = True

    def parts(self, inputs: int) -> int:
        """The fewest that divide the inputs evenly; 1 if only many more than needed would."""
        if not self.part:
            return 1
        least = -(-inputs // self.part)
        return next((count for count in range(least, 2 * least + 1) if inputs % count == 0), 1)

    def whole(self) -> "CPUProducts":
        return dataclasses.replace(self, part=0)

    def some_on_left(self, rows: int) -> bool:
        """Whether kernels of enough inputs are the left operand of a dot of so many rows."""
        return self.left is not None and self.left[1] <= max(rows, self.min_rows) < MANY

    def on_left(self, rows: int, inputs: int) -> bool:
        """Whether a kernel of so many inputs is."""
        return self.some_on_left(rows) and self.left is not None and inputs >= self.left[0]

    def matrix_product(self, x: Float[Array, "N D"], parts: list, *, out_in: bool, precision) -> Float[Array, "M F"]:
        rows = max(len(x), self.min_rows)
        left = out_in and self.on_left(rows, parts[0].shape[1])
        if left and parts[0].dtype == jnp.float32:
            rows = next((whole for least, whole in LEFT_BLOCKS if least <= rows <= whole), rows)
        some_left = self.some_on_left(len(x))
        x = pad_rows(x, rows)
        if out_in and not left and some_left:
            # x may come of another product's transposed result, which XLA would fold into this product through norms
            # and activations: of a half-precision kernel it then widens all of it, or has no such product at all.
            x = with_layout_constraint(x, ROW_MAJOR)
        each = jnp.split(x, len(parts), axis=1) if len(parts) > 1 else [x]
        pairs = zip(each, parts, strict=True)
        if not left:
            return functools.reduce(jnp.add, (product(x, part, (1, int(out_in)), precision) for x, part in pairs))
        out = functools.reduce(jnp.add, (product(part, x, (1, 1), precision) for x, part in pairs))
        # Without the barrier XLA folds the transpose into the product, and the kernel is the right operand again.
        return jax.lax.optimization_barrier(out).T

    def scores(self, q: Float[Array, "B K M D"], k: Float[Array, "B K T D"], precision) -> Float[Array, "B K M T"]:
        if not self.flat_heads:
            return super().scores(q, k, precision)
        q3, k3 = (a.reshape(-1, *a.shape[2:]) for a in (q, k))
        dims = (((2,), (2,)), ((0,), (0,)))
        if q.shape[2] < FEW:
            # Keys are read as they are stored, without packing. Without the barrier XLA would swap the operands.
            out = jax.lax.optimization_barrier(multiply(k3, q3, dims, precision)).swapaxes(1, 2)
        else:
            out = multiply(q3, k3, dims, precision)
        return out.reshape(*q.shape[:3], -1)

    def mix(self, w: Float[Array, "B K M T"], v: Float[Array, "B K T D"], precision) -> Float[Array, "B K M D"]:
        if not self.flat_heads:
            return super().mix(w, v, precision)
        w3, v3 = (a.reshape(-1, *a.shape[2:]) for a in (w, v))
        return multiply(w3, v3, (((2,), (1,)), ((0,), (0,))), precision).reshape(*w.shape[:3], -1)


def cpu_products(dtype: str, *, stacked: bool, sharded: bool) -> CPUProducts:
    """The strategy for weights of `dtype`; `sharded`: on a mesh."""
    half = dtype != "float32"
    # Kernels on the right determine a layout of what comes of the left, and a mesh's partitioner gathers for that.
    left = None if sharded else (768, 9) if half else (64, 2)
    return CPUProducts(
        min_rows=2 if half else 1,
        part=PART if half and not stacked and not sharded else 0,
        left=left,
        flat_heads=not sharded,
    )
