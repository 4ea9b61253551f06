"""Medusa: heads that read one feature of the target, each of which drafts the token one place further on.

    feature    f_n-2                       after n committed tokens; the last one, `pending`, has not been read
    head       0       1       ...   K-1
    drafts     t_n     t_n+1   ...   t_n+K-1

No head sees a drafted token. Cai et al. 2024, arXiv 2401.10774, section 2.1.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specjax.models.format import Format
from specjax.models.layers import Linear


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
    """Shape of the heads; hashable, so a static argument.

    Attributes:
      vocab_size: of the target.
      width: of the target's last feature.
      heads: number of heads, K: the most tokens of a chain.
      blocks: residual blocks of each head.
      matrices: output matrices: one for each head; 1, which all heads share; or 0, where they use the target's.
      draft_vocab: rows of an output matrix, the tokens that the heads can draft.
      bias: the residual blocks have a bias.
    """

    vocab_size: int
    width: int
    heads: int
    blocks: int = 1
    matrices: int = 0
    draft_vocab: int = 0
    bias: bool = True
    taps: ClassVar[tuple[int, ...]] = ()

    @property
    def most(self) -> int:
        """Most levels that the heads draft."""
        return self.heads

    @property
    def shared_matrix(self) -> bool:
        """Whether several heads have one output matrix of their own."""
        return self.matrices == 1 < self.heads


class Medusa(nnx.Module):
    """The heads: residual blocks x + silu(W x + b), then an output matrix."""

    def __init__(self, config: MedusaConfig, fmt: Format, *, rngs: nnx.Rngs):
        self.config, self.fmt = config, fmt
        block = lambda: Linear(config.width, config.width, fmt, bias=config.bias, std=0.0, rngs=rngs)
        matrix = lambda: Linear(config.width, config.draft_vocab, fmt, bias=False, std=0.02, rngs=rngs)
        head = lambda: nnx.Dict({str(index): block() for index in range(config.blocks)})
        self.blocks = nnx.Dict({str(index): head() for index in range(config.heads)})
        self.heads = nnx.Dict({str(index): matrix() for index in range(config.matrices)})

    def logits(self, index: int, ends: Any, features: Float[Array, "B S D"]) -> Float[Array, "B S V"]:
        """Logits of one head, over the draft vocabulary.

        Args:
          ends: the target without its layers (`Family.ends`).
        """
        x = features
        for block in range(self.config.blocks):
            x = x + jax.nn.silu(self.blocks[str(index)][str(block)](x))
        if not self.config.matrices:
            return ends.unembed(x)
        return self.heads[str(min(index, self.config.matrices - 1))](x)

    def start(self, features: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """The state before the first stage, from the target's last feature."""
        return features

    def stage(
        self, index: int, ends: Any, state: Float[Array, "B S D"], tokens: Int[Array, "B S"]
    ) -> tuple[Float[Array, "B S D"], Float[Array, "B S V"]]:
        """The states of nodes at one depth and the logits of their children, from the states of their parents."""
        logits = self.logits(index, ends, state[:, :1])  # the state of every node is the feature
        return state, jnp.broadcast_to(logits, (*tokens.shape, logits.shape[-1]))
