"""MLP speculator: a state of the target's last feature, to which each stage adds one drafted token.

    stage     0              1        ...   n-1
    reads     f, pending     t_n      ...
    drafts    t_n            t_n+1    ...

Wertheimer et al. 2024, arXiv 2404.19124, section 2.
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specjax.models.format import Format
from specjax.models.layers import Linear, RMSNorm, Table

EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class MLPConfig:
    """Shape of an MLP speculator; hashable, so a static argument.

    Attributes:
      vocab_size: of the target.
      features: width of the target's last feature.
      inner: width of the state.
      stages: number of stages, n: the most tokens of a chain.
      tied: the stages share their weights, except the projection of the first one.
      scale_input: the feature is normed.
      top_k, candidates: candidates that its authors' code drafts: tokens of each stage, and paths. Not used here.
    """

    vocab_size: int
    features: int
    inner: int
    stages: int
    tied: bool = False
    scale_input: bool = False
    top_k: tuple[int, ...] = ()
    candidates: int = 5
    taps: ClassVar[tuple[int, ...]] = ()

    @property
    def most(self) -> int:
        """Most levels that the stages draft."""
        return self.stages


class ShiftedNorm(RMSNorm):
    """Root-mean-square norm with a scale and a bias, float32."""

    def __init__(self, width: int, eps: float):
        super().__init__(width, eps)
        self.bias = nnx.Param(jnp.zeros((width,), jnp.float32))

    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        return super().__call__(x) + self.bias[...][None, None]


class MLPSpeculator(nnx.Module):
    """The stages: state = gelu(norm(projection of the state + weighted embedding of the token))."""

    def __init__(self, config: MLPConfig, fmt: Format, *, rngs: nnx.Rngs):
        self.config, self.fmt = config, fmt
        inner, vocab, std = config.inner, config.vocab_size, config.inner**-0.5
        every = lambda make, count: nnx.Dict({str(index): make(index) for index in range(count)})
        project = lambda index: Linear(inner if index else config.features, inner, fmt, bias=False, std=std, rngs=rngs)
        own = 1 if config.tied else config.stages
        self.emb = every(lambda _: Table(vocab, inner, fmt, std=std, rngs=rngs), own)
        self.proj = every(project, min(2, config.stages) if config.tied else config.stages)
        self.ln = every(lambda _: ShiftedNorm(inner, EPS), own)
        self.head = every(lambda _: Linear(inner, vocab, fmt, bias=False, std=std, rngs=rngs), own)

    def start(self, features: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        """The state before the first stage, from the target's last feature."""
        if not self.config.scale_input:
            return features
        return features * jax.lax.rsqrt(jnp.square(features).mean(-1, keepdims=True) + EPS) / math.sqrt(2)

    def stage(
        self, index: int, ends: Any, state: Float[Array, "B S D"], tokens: Int[Array, "B S"]
    ) -> tuple[Float[Array, "B S I"], Float[Array, "B S V"]]:
        """The states of nodes at one depth and the logits of their children, from the states of their parents."""
        del ends
        of = lambda modules: modules[str(min(index, len(modules) - 1))]
        # Of the last state's variance, half comes from the feature.
        kept = 0.5 ** (0.5 / self.config.stages)
        added = math.sqrt((1 - kept**2) * self.config.inner / 2)
        state = of(self.proj)(state) + added / kept * of(self.emb)(tokens)
        state = jax.nn.gelu(of(self.ln)(state), approximate=False)
        return state, of(self.head)(state)
