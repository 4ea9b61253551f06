"""Falcon: an EAGLE head that drafts k tokens per pass, experimental (Gao et al. 2024, arXiv 2412.12639).

    row         0     1     ...   n-2-k+1 ... n-2      n-1      ...  n-2+k
    feature     f_0   f_1   ...               f_n-2    drafted       drafted    after n committed tokens
    token       t_1   t_2   ...               pending  t_n      ...  t_n+k-1
    drafts                        t_n     ... t_n+k-1  t_n+k    ...  t_n+2k-1
                                  [  first pass  ]    [    second pass    ]

The output of row i imitates the feature f_i+k, so the last k rows draft the next k tokens. Rows of one pass see each
other (relaxed causal attention) and all rows before them.

What the paper does not state follows the code that its authors published (github.com/Bestpay-inc/Falcon): one decoder
layer, and an LSTM of two layers that reads every row from a zero state, since that code does not pass states between
positions.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specjax.heads.eagle import Eagle, EagleConfig
from specjax.models import cache as caches
from specjax.models.format import Format
from specjax.models.layers import Linear


@dataclasses.dataclass(frozen=True)
class FalconConfig(EagleConfig):
    """Shape of a Falcon head; hashable, so a static argument.

    Attributes:
      block: k, tokens that a pass drafts.
    """

    block: int = 2

    def __post_init__(self) -> None:
        if self.layer.layers != 1:
            raise ValueError(f"Falcon heads have one decoder layer, got {self.layer.layers}")


class Cell(nnx.Module):
    """One layer of an LSTM, with the gates in torch's order: input, forget, cell, output."""

    def __init__(self, inputs: int, width: int, fmt: Format, *, rngs: nnx.Rngs):
        std = (3 * width) ** -0.5  # torch draws from U(-1/sqrt(width), 1/sqrt(width))
        self.ih = Linear(inputs, 4 * width, fmt, bias=True, std=std, rngs=rngs)
        self.hh = Linear(width, 4 * width, fmt, bias=True, std=std, rngs=rngs)

    def __call__(self, x: Float[Array, "B S F"]) -> Float[Array, "B S D"]:
        """The output for each row from a zero state, to which neither the kernel of `hh` nor the forget gate adds."""
        assert self.hh.bias is not None
        gates = self.ih(x) + self.hh.bias[...][None, None]
        enter, _, cell, leave = jnp.split(gates, 4, axis=-1)
        return jax.nn.sigmoid(leave) * jnp.tanh(jax.nn.sigmoid(enter) * jnp.tanh(cell))


class LSTM(nnx.Module):
    """Layers of `Cell`."""

    def __init__(self, inputs: int, width: int, fmt: Format, *, layers: int, rngs: nnx.Rngs):
        make = lambda index: Cell(width if index else inputs, width, fmt, rngs=rngs)
        self.cells = nnx.Dict({str(index): make(index) for index in range(layers)})

    def __call__(self, x: Float[Array, "B S F"]) -> Float[Array, "B S D"]:
        for index in range(len(self.cells)):
            x = self.cells[str(index)](x)
        return x


class Falcon(Eagle):
    """EAGLE-1 with an LSTM in the place of the fusing map."""

    def __init__(self, config: FalconConfig, fmt: Format, *, rngs: nnx.Rngs):
        super().__init__(config, fmt, rngs=rngs)
        self.fc: Any = LSTM(config.width + config.features, config.width, fmt, layers=2, rngs=rngs)

    def read_pairs(
        self, ends: Any, tokens: Int[Array, "B S"], given: Float[Array, "B S D"], positions: Int[Array, "B S"],
        layers: Any, start: Int[Array, "B"],
    ) -> Any:  # fmt: skip
        """The caches with keys and values of pairs, which in the only layer depend on no other pair."""
        x, turn, attn = self.enter(ends, tokens, given), self.turn(positions), self.layers["0"].attn
        return caches.write(layers, 0, attn.keys(x, turn), attn.values(x), start)[0]
