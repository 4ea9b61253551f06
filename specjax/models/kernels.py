"""Attention of a block of a prompt by the kernels that ship with JAX, as a strategy that a `Format` names.

`models/attention.py` is the reference, and the only reader of everything else: decoding, trees, biases, training.

Decoding has no kernel, because none of those that ship fits it. Compiled ahead of time for v5e, v5p and v6e with
jax 0.10.2: `ragged_paged_attention` is causal only (no mask of a tree), stores keys and values interleaved, and rejects
heads of 64 (an assertion), 10 key-value heads a chip ("can not be XLA fully tiled") and a call without block sizes;
`paged_attention` has one query for each row and rejects heads of 64. Neither takes a mask or returns the normalizer
that parts of a softmax are merged by. The reference reads each live slot once, fused into the products.
"""

import abc
import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float

KEYS = 512  # slots that a step of the TPU kernel reads


class Split(NamedTuple):
    """How attention is laid over a mesh: XLA cannot partition a kernel by itself.

    Attributes:
      rows: the axis over which the rows of a batch are split.
      heads: that of query heads and key-value heads, or those; None: every device has all heads.
    """

    mesh: Any
    rows: str
    heads: str | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Kernel(abc.ABC):
    """Softmax attention under a mask that all rows and heads share. Hashable, so a static argument.

    Attributes:
      split: on a mesh; None: on one device.
    """

    split: Split | None = None

    @abc.abstractmethod
    def takes(self, block: int, width: int) -> bool:
        """Whether it reads blocks of so many queries with heads of this width; the reference reads all others."""

    @abc.abstractmethod
    def local(
        self,
        q: Float[Array, "B S H D"],
        k: Float[Array, "B K N D"],
        v: Float[Array, "B K N D"],
        seen: Bool[Array, "S N"],
    ) -> Float[Array, "B S H D"]:
        """Attention of the rows and heads of one device, in one dtype."""

    def attend(
        self,
        q: Float[Array, "B S H D"],
        k: Float[Array, "B K N D"],
        v: Float[Array, "B K N D"],
        seen: Bool[Array, "S N"],
    ) -> Float[Array, "B S H D"]:
        """Attention of scaled queries, accumulated in float32.

        Args:
          q: scaled; multiplied in the dtype of the keys. H query heads share K key-value heads in groups of H / K.
          seen: slots that each query sees, at least one.
        """
        run = self.local
        if self.split is not None:
            mesh, rows, heads = self.split
            queries, slots = P(rows, None, heads), P(rows, heads)
            run = jax.shard_map(
                run, mesh=mesh, in_specs=(queries, slots, slots, P()), out_specs=queries, check_vma=False
            )
        return run(q.astype(k.dtype), k, v, seen).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Splash(Kernel):
    """Splash attention, a Pallas kernel for TPUs: blocks that the mask empties are neither read nor computed.

    Attributes:
      interpret: runs on any platform, slowly.
    """

    interpret: bool = False

    def takes(self, block: int, width: int) -> bool:
        del width  # 64, 80 and 128 were compiled for v5e, v5p and v6e
        return block % 128 == 0

    def local(self, q, k, v, seen):
        from jax.experimental.pallas.ops.tpu import splash_attention  # only TPUs import Pallas

        size = min(KEYS, math.ceil(k.shape[2] / 128) * 128)
        pad = -k.shape[2] % size
        k, v = (jnp.pad(a, ((0, 0), (0, 0), (0, pad), (0, 0))) for a in (k, v))
        kernel: Any = splash_attention.make_splash_mha(
            jnp.pad(seen, ((0, 0), (0, pad)))[None],
            block_sizes=splash_attention.BlockSizes(block_q=math.gcd(q.shape[1], KEYS), block_kv=size),
            head_shards=1,
            q_seq_shards=1,
            interpret=self.interpret,
        )
        # Under jit, `make_splash_mha` makes a traced array of this Python bool, which the kernel then branches on.
        kernel.fwd_mask_info = kernel.fwd_mask_info._replace(is_dynamic_mask=True)
        return jax.vmap(kernel)(q.transpose(0, 2, 1, 3), k, v).transpose(0, 2, 1, 3)


@dataclasses.dataclass(frozen=True)
class CuDNN(Kernel):
    """cuDNN's flash attention through `jax.nn.dot_product_attention`, for GPUs.

    Its logsumexp comes rounded to the dtype of the keys, too coarse in bfloat16 to merge parts of a softmax by: another
    reason why a kernel reads all slots of a block at once.

    Attributes:
      implementation: of `jax.nn.dot_product_attention`; "xla" runs on any platform.
    """

    implementation: Any = "cudnn"

    def takes(self, block: int, width: int) -> bool:
        return block % 128 == 0 and width <= 128 and width % 8 == 0

    def local(self, q, k, v, seen):
        k, v = (a.transpose(0, 2, 1, 3) for a in (k, v))
        return jax.nn.dot_product_attention(
            q, k, v, mask=seen[None, None], scale=1.0, implementation=self.implementation
        )


def prompt_kernel(platform: str, dtype: str, split: Split | None = None) -> Kernel | None:
    """The kernel that reads the blocks of prompts on a platform; None: the reference does.

    Args:
      platform: "cpu", "gpu" or "tpu".
      dtype: of keys and values in products. float32 is left to the reference, which multiplies it exactly.
    """
    if platform == "tpu" and dtype == "bfloat16":
        return Splash(split)
    if platform == "gpu" and dtype in ("bfloat16", "float16"):
        here = jax.default_backend() == "gpu"  # elsewhere a program is only compiled
        return CuDNN(split) if not here or has_flash_attention(jax.devices()[0]) else None
    return None


def has_flash_attention(gpu: Any) -> bool:
    """Whether cuDNN has flash attention on a GPU: on those of NVIDIA, from compute capability 8.0 on."""
    if "cuda" not in gpu.client.platform_version:
        return False
    return tuple(map(int, gpu.compute_capability.split("."))) >= (8, 0)
