"""Layout of weights and caches in memory: private to the models and the loader, chosen by platform."""

import dataclasses
import math

import jax

from specjax.models.cpu import cpu_products
from specjax.models.kernels import Kernel, Split, prompt_kernel
from specjax.models.products import PLAIN, Products, TPUProducts

DTYPES = ("float32", "bfloat16", "float16")
NARROW = 256  # positions; arrays of prompts at most this wide are read in other blocks than wider ones
INT8 = "int8"


@dataclasses.dataclass(frozen=True)
class Format:
    """Layout of one model's weights in memory; hashable, so a static argument.

    Attributes:
      dtype: of kernels and embedding tables in products; norms, biases, positions and relative biases stay float32.
      stacked: layers are stacked to [L, ...] and run by `lax.scan`; else separate and unrolled.
      cache_dtype: of keys and values in products.
      int8_weights: kernels and embedding tables are stored in int8, with a float32 scale for each output channel.
      int8_cache: keys and values are stored in int8, with a scale for each head and slot.
      narrow: positions of the blocks in which a decoder-only model reads narrow prompts, largest first. Each size is
        compiled for every layer.
      wide: those of prompts wider than `NARROW`.
      fill: a pass over fewer tokens takes as long as one over so many: the time goes to reading the weights.
      apart: rows of prompts at least this wide are read one after another, each at the cost of its own length; None:
        all rows are read together, at the cost of the longest.
      products: how kernels are stored and multiplied.
      kernel: attention of the blocks of prompts; None: by the reference (`models/attention.py`).
    """

    dtype: str = "float32"
    stacked: bool = False
    cache_dtype: str = "float32"
    int8_weights: bool = False
    int8_cache: bool = False
    narrow: tuple[int, ...] = (32,)
    wide: tuple[int, ...] = (512, 128)
    fill: int = 32
    apart: int | None = NARROW + 1
    products: Products = PLAIN
    kernel: Kernel | None = None

    def __post_init__(self) -> None:
        for name in (self.dtype, self.cache_dtype):
            if name not in DTYPES:
                raise ValueError(f"dtype {name!r} is not one of {', '.join(DTYPES)}")

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

    def quantized(self) -> "Format":
        """The same with int8 weights, whose kernels are stored whole."""
        return dataclasses.replace(self, int8_weights=True, products=self.products.whole())

    @property
    def weight_dtype(self) -> str:
        """Of stored kernels and tables."""
        return INT8 if self.int8_weights else self.dtype

    @property
    def label(self) -> str:
        """The number formats, for reports: "bfloat16", "float32, int8 cache"."""
        parts = [self.dtype, *(["int8 weights"] if self.int8_weights else [])]
        return ", ".join([*parts, *(["int8 cache"] if self.int8_cache else [])])

    @property
    def precision(self) -> jax.lax.Precision | None:
        """Of products: by default, those of float32 are products of bfloat16 on TPUs and of TF32 on GPUs."""
        return jax.lax.Precision.HIGHEST if self.dtype == "float32" else None


def default_format(
    dtype: str = "float32",
    *,
    weights: str | None = None,
    cache_dtype: str | None = None,
    platform: str | None = None,
    sharded: bool = False,
    stacked: bool | None = None,
    split: Split | None = None,
) -> Format:
    """The fastest layout on `platform` (default: the platform that JAX runs on).

    Args:
      dtype: "float32", "bfloat16" or "float16" for kernels and tables.
      weights: "int8": kernels and tables are stored so, and multiplied in `dtype`. None: stored in `dtype`.
      cache_dtype: of keys and values: one of those of `dtype`, or "int8". None: that of the platform.
      platform: "cpu", "gpu" or "tpu".
      sharded: whether the weights will be laid over a mesh.
      stacked: overrides the platform's choice between scanned and unrolled layers.
      split: of weights laid over a mesh; None: attention without a kernel there.
    """
    platform = platform or jax.default_backend()
    caches = (None, *DTYPES, INT8)
    given = {"dtype": (dtype, DTYPES), "weights": (weights, (None, INT8)), "cache_dtype": (cache_dtype, caches)}
    for name, (value, known) in given.items():
        if value not in known:
            raise ValueError(f"{name} {value!r} is not one of {', '.join(str(one) for one in known)}")
    int8_cache = cache_dtype == INT8
    chosen = None if int8_cache else cache_dtype
    if platform == "cpu":  # a scan copies every weight of the stack there, so layers are unrolled
        stacked = bool(stacked)
        products = cpu_products(dtype, stacked=stacked, sharded=sharded)
        fmt = Format(dtype, stacked, chosen or "float32", products=products, apart=None if sharded else Format.apart)
    else:
        fmt = Format(
            dtype,
            stacked=True if stacked is None else stacked,
            cache_dtype=chosen or dtype,
            narrow=(256, 32),
            wide=(256, 32),
            fill=256,
            apart=None if sharded else 2048,  # on a mesh, each device has its own rows
            products=TPUProducts() if platform == "tpu" else PLAIN,
            kernel=None if sharded and split is None else prompt_kernel(platform, chosen or dtype, split),
        )
    return dataclasses.replace(fmt.quantized() if weights == INT8 else fmt, int8_cache=int8_cache)
