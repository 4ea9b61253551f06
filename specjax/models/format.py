"""Layout of weights and caches in memory: private to the models and the loader, chosen by platform."""

import dataclasses
import math

import jax

from specjax.models.cpu import cpu_products
from specjax.models.products import PLAIN, Products, TPUProducts

MAX_DTYPES = ("float32", "bfloat16", "float16")
UNIT = 32  # positions; small blocks are multiples of it
WIDE = 512  # positions; prompts of such arrays are read in large blocks
INT8 = "int8"  # of weights that `quantize.py` made; checkpoints are not loaded so


@dataclasses.dataclass(frozen=True)
class Format:
    """Layout of one model's weights in memory; hashable, so a static argument.

    Attributes:
      dtype: of kernels and embedding tables; norms, biases, positions and relative biases stay float32. Those of INT8
        have a float32 scale for each output channel beside them.
      stacked: layers are stacked to [L, ...] and run by `lax.scan`; else separate and unrolled.
      cache_dtype: of keys and values.
      block: most positions of a prompt that a decoder-only model reads at once.
      fill: a small block has at least so many tokens, of all its rows together.
      apart: rows of prompts at least this wide are read one after another, each at the cost of its own length; None:
        all rows are read together, at the cost of the longest.
      products: how kernels are stored and multiplied.
    """

    dtype: str = "float32"
    stacked: bool = False
    cache_dtype: str = "float32"
    block: int = 512
    fill: int = 128
    apart: int | None = 256
    products: Products = PLAIN

    def __post_init__(self) -> None:
        for name in (self.dtype, self.cache_dtype):
            if name not in MAX_DTYPES and not name == self.dtype == INT8:
                raise ValueError(f"dtype {name!r} is not one of {', '.join(MAX_DTYPES)}")

    def prompt_blocks(self, rows: int, width: int) -> tuple[int, ...]:
        """Positions of the blocks in which `rows` prompts of an array `width` wide are read together; largest first.

        Every size is compiled for each layer: narrow prompts have one.
        """
        small = min(math.ceil(self.fill / rows / UNIT) * UNIT, width)
        large = min(self.block, width // 2)
        return (large, small) if large > small and width >= WIDE else (small,)

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
        fill=256,  # fewer tokens take as long: the time goes to reading the weights
        apart=None if sharded else 2048,  # on a mesh, each device has its own rows
        products=TPUProducts() if platform == "tpu" else PLAIN,
    )
