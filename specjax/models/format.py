"""Layout of weights and caches in memory: private to the models and the loader, chosen by platform."""

import dataclasses
import math

import jax

from specjax.models.cpu import cpu_products
from specjax.models.products import PLAIN, Products, TPUProducts

MAX_DTYPES = ("float32", "bfloat16", "float16")
NARROW = 256  # positions; arrays of prompts at most this wide are read in other blocks than wider ones
INT8 = "int8"  # of weights that `quantize.py` made; checkpoints are not loaded so


@dataclasses.dataclass(frozen=True)
class Format:
    """Layout of one model's weights in memory; hashable, so a static argument.

    Attributes:
      dtype: of kernels and embedding tables; norms, biases, positions and relative biases stay float32. Those of INT8
        have a float32 scale for each output channel beside them.
      stacked: layers are stacked to [L, ...] and run by `lax.scan`; else separate and unrolled.
      cache_dtype: of keys and values.
      narrow: positions of the blocks in which a decoder-only model reads narrow prompts, largest first. Each size is
        compiled for every layer.
      wide: those of prompts wider than `NARROW`.
      fill: a pass over fewer tokens takes as long as one over so many: the time goes to reading the weights.
      apart: rows of prompts at least this wide are read one after another, each at the cost of its own length; None:
        all rows are read together, at the cost of the longest.
      products: how kernels are stored and multiplied.
    """

    dtype: str = "float32"
    stacked: bool = False
    cache_dtype: str = "float32"
    narrow: tuple[int, ...] = (32,)
    wide: tuple[int, ...] = (512, 128)
    fill: int = 32
    apart: int | None = NARROW + 1
    products: Products = PLAIN

    def __post_init__(self) -> None:
        for name in (self.dtype, self.cache_dtype):
            if name not in MAX_DTYPES and not name == self.dtype == INT8:
                raise ValueError(f"dtype {name!r} is not one of {', '.join(MAX_DTYPES)}")

    def reads_apart(self, rows: int, width: int) -> bool:
        """Whether prompts in an array [rows, width] are read one after another."""
        return rows > 1 and self.apart is not None and width >= self.apart

    def prompt_blocks(self, rows: int, width: int) -> tuple[tuple[int, int], ...]:
        """Blocks in which `rows` prompts of an array `width` wide are read together, largest first.

        Returns:
          Pairs: positions of a block, and the number of positions still to be read above which it is used: those for
          which smaller blocks would take longer.
        """
        sizes = [size for size in (self.narrow if width <= NARROW else self.wide) if size <= width] or [width]
        small = sizes[-1]
        fewer = lambda size: math.ceil(size * rows / max(small * rows, self.fill)) - 1  # small blocks that are faster
        return (*((size, fewer(size) * small) for size in sizes[:-1]), (small, 0))

    @property
    def precision(self) -> jax.lax.Precision | None:
        """Of products: by default, those of float32 are products of bfloat16 on TPUs and of TF32 on GPUs."""
        return jax.lax.Precision.HIGHEST if self.dtype == "float32" else None


def default_format(
    dtype: str = "float32", *, platform: str | None = None, sharded: bool = False, stacked: bool | None = None
) -> Format:
    """The fastest layout on `platform` (default: the platform that JAX runs on).

    Args:
      dtype: "float32", "bfloat16" or "float16" for kernels and tables.
      platform: "cpu", "gpu" or "tpu".
      sharded: whether the weights will be laid over a mesh.
      stacked: overrides the platform's choice between scanned and unrolled layers.
    """
    platform = platform or jax.default_backend()
    if dtype not in MAX_DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(MAX_DTYPES)}")
    if platform == "cpu":  # a scan copies every weight of the stack there, so layers are unrolled
        stacked = bool(stacked)
        products = cpu_products(dtype, stacked=stacked, sharded=sharded)
        return Format(dtype, stacked, products=products, apart=None if sharded else Format.apart)
    return Format(
        dtype,
        stacked=True if stacked is None else stacked,
        cache_dtype=dtype,
        narrow=(256, 32),
        wide=(256, 32),
        fill=256,
        apart=None if sharded else 2048,  # on a mesh, each device has its own rows
        products=TPUProducts() if platform == "tpu" else PLAIN,
    )
