"""Layout of weights and caches in memory: private to the models and the loader, chosen by platform."""

import dataclasses

import jax

from specjax.models.cpu import cpu_products
from specjax.models.products import PLAIN, Products, TPUProducts

MAX_DTYPES = ("float32", "bfloat16", "float16")
INT8 = "int8"  # of weights that `quantize.py` made; checkpoints are not loaded so


@dataclasses.dataclass(frozen=True)
class Format:
    """Layout of one model's weights in memory; hashable, so a static argument.

    Attributes:
      dtype: of kernels and embedding tables; norms, biases, positions and relative biases stay float32. Those of INT8
        have a float32 scale for each output channel beside them.
      stacked: layers are stacked to [L, ...] and run by `lax.scan`; else separate and unrolled.
      cache_dtype: of keys and values.
      chunks: block sizes, in positions, in which a decoder-only model reads a prompt; any order.
      products: how kernels are stored and multiplied.
    """

    dtype: str = "float32"
    stacked: bool = False
    cache_dtype: str = "float32"
    chunks: tuple[int, ...] = (32,)
    products: Products = PLAIN

    def __post_init__(self) -> None:
        for name in (self.dtype, self.cache_dtype):
            if name not in MAX_DTYPES and not name == self.dtype == INT8:
                raise ValueError(f"dtype {name!r} is not one of {', '.join(MAX_DTYPES)}")

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
        return Format(dtype, stacked, products=cpu_products(dtype, stacked=stacked, sharded=sharded))
    return Format(
        dtype,
        stacked=True if stacked is None else stacked,
        cache_dtype=dtype,
        chunks=(32, 256),  # on a CPU large blocks are no faster, and another size is compiled for each layer
        products=TPUProducts() if platform == "tpu" else PLAIN,
    )
