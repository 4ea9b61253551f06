"""P-EAGLE: an EAGLE-3 head that drafts all positions in one forward pass (arXiv 2602.01469).

After the pairs of committed tokens it reads rows of a mask token and a learned feature, one for each further position:

    row         0     1     ...   n-2              n-1        n      ...      after n committed tokens
    feature     f_0   f_1   ...   f_n-2            learned    learned
    token       t_1   t_2   ...   t_n-1, pending   mask       mask
    drafts                        t_n              t_n+1      t_n+2

Rows see all rows before them. Mask rows leave nothing in the cache.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from specjax.heads.eagle import Eagle3, EagleConfig
from specjax.models.format import Format


@dataclasses.dataclass(frozen=True)
class PEagleConfig(EagleConfig):
    """Shape of a P-EAGLE head; hashable, so a static argument.

    Attributes:
      mask_token: the token of mask rows.
      tokens: draft tokens per round by default.
    """

    mask_token: int = 0
    tokens: int = 8


class PEagle(Eagle3):
    """EAGLE-3 with a learned feature for positions that the target has not read."""

    def __init__(self, config: PEagleConfig, fmt: Format, *, rngs: nnx.Rngs):
        super().__init__(config, fmt, rngs=rngs)
        self.mask_hidden = nnx.Param(jax.random.normal(rngs.params(), (1, 1, config.features), jnp.float32))

    def mask_given(self) -> Float[Array, "1 1 D"]:
        """What a mask row is given: the learned feature, fused like those of the target."""
        taps = tuple(jnp.split(self.mask_hidden[...], len(self.config.taps), axis=-1))
        return self.fuse(taps[-1], taps)
