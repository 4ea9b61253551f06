"""How weights and caches lie in memory: a private matter of the models and of the loader, chosen by platform.

What was measured on XLA's CPU backend, and why the choices below are what they are: a dot packs its right operand on
every call and reads its left one as it lies, so that kernels belong on the left, stored (out, in): of several rows a
float32 dot takes half the time then, and one of eight little more than one of one. Of five to seven rows it takes a
third longer than of eight, and so on: those are padded. A bfloat16 dot packs its rows at little cost: on the left it
takes as long of 2 rows as of 16, and wins from about 7 of kernels of 1,024 inputs, from 9 of 768. A one-row bfloat16
dot converts the whole weight on every call, so one row is padded to two. A scan over stacked layers copies every weight
of the stack, so layers are unrolled there; a bfloat16 dot that sums over many inputs is slower than several that sum
over fewer.
"""

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")
MAX_DTYPES = ("float32", "bfloat16", "float16")
LEFT_BLOCKS = ((5, 8), (9, 16), (25, 32), (49, 64))  # rows; float32, measured on kernels of 80 to 4,096 inputs
PART = 1024  # inputs; of 512 to 2,048, measured on shapes of 125m to 1.3b
INT8 = "int8"  # of weights that `quantize.py` made; checkpoints are not loaded so


def in_order(parts: Mapping[str, T]) -> list[T]:
    """The arrays of a kernel in parts, "0", "1", ..., along its inputs."""
    return [parts[str(number)] for number in range(len(parts))]


@dataclasses.dataclass(frozen=True)
class Format:
    """Layout of one model's weights in memory; hashable, so a static argument.

    Attributes:
      dtype: of kernels and embedding tables; norms, biases, positions and relative biases stay float32. Those of INT8
        have a float32 scale for each output channel beside them.
      out_in: kernels are stored (out, in), not (in, out).
      stacked: layers are stacked to [L, ...] and run by `lax.scan`; else separate and unrolled.
      part: most inputs that one array of a kernel sums over; one of more is stored as several arrays, where they
        divide it. 0: no bound. For (out, in) kernels of separate layers.
      min_rows: a dot of fewer rows is padded to this many.
      left: (inputs, rows), rising in inputs: an (out, in) kernel that sums over at least so many inputs is the left
        operand of a dot of at least so many rows, by the last pair whose inputs it has. The product comes out
        transposed, and of few inputs turning it round again costs more than is won. (): none is.
      flat_heads: batch and heads are collapsed in the attention dots; off under a mesh, where both are sharded.
      cache_dtype: of keys and values.
      chunks: block sizes, in positions, in which a decoder-only model reads a prompt; any order.
    """

    dtype: str = "float32"
    out_in: bool = False
    stacked: bool = False
    part: int = 0
    min_rows: int = 1
    left: tuple[tuple[int, int], ...] = ()
    flat_heads: bool = True
    cache_dtype: str = "float32"
    chunks: tuple[int, ...] = (32,)

    def __post_init__(self) -> None:
        for name in (self.dtype, self.cache_dtype):
            if name not in MAX_DTYPES and not name == self.dtype == INT8:
                raise ValueError(f"dtype {name!r} is not one of {', '.join(MAX_DTYPES)}")
        if self.left and not self.out_in:
            raise ValueError(f"left={self.left} is for (out, in) kernels")
        if self.part < 0 or (self.part and (self.stacked or not self.out_in)):
            raise ValueError(f"part={self.part} is for (out, in) kernels of separate layers, and at least 0")

    def parts(self, inputs: int) -> int:
        """How many arrays a kernel of so many inputs is stored in: the least that divide it evenly; 1 where only many
        more than are needed would."""
        if not self.part:
            return 1
        least = -(-inputs // self.part)
        return next((count for count in range(least, 2 * least + 1) if inputs % count == 0), 1)

    def on_left(self, rows: int, inputs: int) -> bool:
        """Whether an (out, in) kernel is the left operand of a dot of so many rows."""
        least = [least for bound, least in self.left if inputs >= bound]
        return bool(least) and max(rows, self.min_rows) >= least[-1]

    def some_on_left(self, rows: int) -> bool:
        """Whether some kernel is, in a dot of so many rows."""
        return any(max(rows, self.min_rows) >= least for _, least in self.left)

    def padded(self, rows: int, *, left: bool) -> int:
        """How many rows a dot of so many rows has; `left`: with a float32 kernel as its left operand."""
        rows = max(rows, self.min_rows)
        return next((whole for least, whole in LEFT_BLOCKS if left and least <= rows <= whole), rows)

    @property
    def precision(self) -> jax.lax.Precision | None:
        """Of products: by default, those of float32 are products of bfloat16 on TPUs and of TF32 on GPUs."""
        return jax.lax.Precision.HIGHEST if self.dtype == "float32" else None

    @property
    def np_dtype(self) -> np.dtype:
        return np.dtype(jnp.dtype(self.dtype))


def default_format(
    dtype: str = "float32", *, platform: str | None = None, sharded: bool = False, stacked: bool | None = None
) -> Format:
    """The layout that pays on `platform` (default: the platform that jax runs on).

    Args:
      dtype: "float32", "bfloat16" or "float16" for kernels and tables.
      platform: "cpu", "gpu" or "tpu".
      sharded: whether the weights will be laid over a mesh.
      stacked: overrides the platform's choice between scanned and unrolled layers.
    """
    platform = platform or jax.default_backend()
    if dtype not in MAX_DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(MAX_DTYPES)}")
    if platform == "cpu":
        half = dtype != "float32"
        return Format(
            dtype=dtype,
            out_in=True,
            stacked=bool(stacked),
            part=PART if half and not stacked and not sharded else 0,
            min_rows=2 if half else 1,
            # Kernels on the right ask a layout of what comes of the left, and a mesh's partitioner gathers for that.
            left=() if sharded else (((768, 9), (1024, 7)) if half else ((64, 2),)),
            flat_heads=not sharded,
            cache_dtype="float32",
        )
    return Format(
        dtype=dtype,
        stacked=True if stacked is None else stacked,
        min_rows=2 if platform == "tpu" else 1,
        flat_heads=False,
        cache_dtype=dtype,
        chunks=(32, 256),  # on a CPU large blocks are no faster, and another size is compiled for each layer
    )
