"""Rotary positions (Su et al. 2021, arXiv 2104.09864) and the ways of stretching them past the trained length.

Halves are rotated against each other, as in checkpoints of Hugging Face: channel i turns with channel i + width / 2.
(GGUF files of Llama interleave: their q and k rows are permuted when they are read.) Angles are computed in float32
from traced positions; frequencies are numpy, known at trace time, so no table of positions is kept in memory.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.models.published import Published


def base_frequencies(theta: float, width: int) -> np.ndarray:
    """[width / 2] float32: theta^(-2i / width), every step in float32, because so were the checkpoints trained."""
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return (np.float32(1.0) / np.float32(theta) ** exponent).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How frequencies are stretched; this one leaves them as they are. Hashable, so a static argument."""

    def frequencies(self, theta: float, width: int) -> np.ndarray:
        """[width / 2] float32 radians a position."""
        return base_frequencies(theta, width)

    @property
    def published(self) -> dict[str, Any]:
        """The entries of `rope_parameters` in a config.json: the inverse of `read_scaling`."""
        return {"rope_type": "default"}

    @property
    def magnitude(self) -> float:
        """Multiplies cos and sin."""
        return 1.0

    @property
    def positions(self) -> int | None:
        """Positions that these frequencies are defined for; None: any number."""
        return None


UNSCALED = RopeScaling()


@dataclasses.dataclass(frozen=True)
class LinearScaling(RopeScaling):
    """Positions divided by `factor` (Chen et al. 2023, arXiv 2306.15595)."""

    factor: float

    @property
    def published(self) -> dict[str, Any]:
        return {"rope_type": "linear", "factor": self.factor}

    def frequencies(self, theta: float, width: int) -> np.ndarray:
        return base_frequencies(theta, width) / np.float32(self.factor)


@dataclasses.dataclass(frozen=True)
class DynamicScaling(RopeScaling):
    """NTK-aware base, fixed at a static length.

    `transformers` derives the base anew from the longest row of the batch once it passes `trained`; keys that were
    cached before keep the old base, so a row's text depends on its neighbors and on how it was cut into blocks. Here
    the base is the one for `length` tokens, from the first token on. With `length` <= `trained`, the default, nothing
    is stretched, which is exactly what `transformers` computes up to `trained` positions.

    Attributes:
      factor: of the published configuration.
      trained: positions that the model was trained on.
      length: tokens that the base is made for.
    """

    factor: float
    trained: int
    length: int = 0

    @property
    def published(self) -> dict[str, Any]:
        return {"rope_type": "dynamic", "factor": self.factor}

    def frequencies(self, theta: float, width: int) -> np.ndarray:
        stretch = self.factor * max(self.length, self.trained) / self.trained - (self.factor - 1)
        return base_frequencies(theta * stretch ** (width / (width - 2)), width)

    @property
    def positions(self) -> int:
        return max(self.length, self.trained)


@dataclasses.dataclass(frozen=True)
class Llama3Scaling(RopeScaling):
    """Llama 3.1: slow channels divided by `factor`, fast ones left, a smooth passage between (arXiv 2407.21783)."""

    factor: float
    low: float
    high: float
    trained: int

    @property
    def published(self) -> dict[str, Any]:
        return {
            "rope_type": "llama3", "factor": self.factor, "low_freq_factor": self.low, "high_freq_factor": self.high,
            "original_max_position_embeddings": self.trained,
        }  # fmt: skip

    def frequencies(self, theta: float, width: int) -> np.ndarray:
        plain = base_frequencies(theta, width)
        turns = np.float32(self.trained) * plain / np.float32(2 * math.pi)  # full turns within the trained length
        smooth = np.clip((turns - np.float32(self.low)) / np.float32(self.high - self.low), 0, 1)
        return ((1 - smooth) * plain / np.float32(self.factor) + smooth * plain).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class YarnScaling(RopeScaling):
    """YaRN (Peng et al. 2023, arXiv 2309.00071): interpolation by channel, and a temperature on the attention.

    Attributes:
      factor: stretch of the context. trained: positions that the model was trained on.
      beta_fast, beta_slow: full turns within `trained` above which a channel is left, below which it is divided.
      attention_factor: the magnitude of cos and sin; None derives it from `factor` and the two mscales.
      truncate: round the passage's ends to whole channels.
    """

    factor: float
    trained: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def published(self) -> dict[str, Any]:
        entries = dataclasses.asdict(self) | {"rope_type": "yarn", "original_max_position_embeddings": self.trained}
        return {name: value for name, value in entries.items() if value is not None and name != "trained"}

    def frequencies(self, theta: float, width: int) -> np.ndarray:
        def channel(turns: float) -> float:
            return width * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = channel(self.beta_fast), channel(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        if low == high:
            high += 0.001  # a passage of no width would divide by zero
        plain = base_frequencies(theta, width)
        ramp = np.clip((np.arange(width // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
        return (plain / np.float32(self.factor) * ramp + plain * (1 - ramp)).astype(np.float32)

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return _temperature(self.factor, self.mscale) / _temperature(self.factor, self.mscale_all_dim)
        return _temperature(self.factor, 1.0)


def _temperature(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


class Rotation(NamedTuple):
    """cos and sin of every position's angles; one for all layers."""

    cos: Float[Array, "B S R"]
    sin: Float[Array, "B S R"]


def rotation(positions: Int[Array, "B S"], *, theta: float, width: int, scaling: RopeScaling) -> Rotation:
    """cos and sin for positions [B,S] and heads of `width`: [B,S,width/2] each, float32."""
    frequencies = jnp.asarray(scaling.frequencies(theta, width))
    angles = positions.astype(jnp.float32)[..., None] * frequencies[None, None]
    return Rotation(jnp.cos(angles) * scaling.magnitude, jnp.sin(angles) * scaling.magnitude)


def rotate(x: Float[Array, "B S H D"], turn: Rotation) -> Float[Array, "B S H D"]:
    """Turns each head's first half against its second half."""
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = turn.cos[:, :, None], turn.sin[:, :, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def read_scaling(published: Mapping[str, Any] | Published | None, max_positions: int) -> RopeScaling:
    """The record for `rope_scaling` (or `rope_parameters`) of a published configuration.

    Args:
      published: that part of the configuration, or None.
      max_positions: its `max_position_embeddings`.

    Raises:
      ValueError: a kind that is not implemented, a partial rotation, a missing or wrong entry.
    """
    given = published if isinstance(published, Published) else Published(published or {}, "rope_scaling")
    kind = given.word("rope_type", given.word("type", "default"))
    if kind not in READERS:
        raise ValueError(f"rope scaling {kind!r} is not implemented; known are {', '.join(READERS)}")
    if given.real("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor {given.real('partial_rotary_factor')} is not implemented; only 1.0 is")
    return READERS[kind](given, max_positions)


def _read_llama3(given: Published, max_positions: int) -> RopeScaling:
    trained = given.whole("original_max_position_embeddings", max_positions)
    low, high = given.real("low_freq_factor"), given.real("high_freq_factor")
    if low >= high:
        raise ValueError(f"low_freq_factor {low:g} in {given.kind} must be below high_freq_factor {high:g}")
    return Llama3Scaling(given.real("factor"), low, high, trained)


def _read_yarn(given: Published, max_positions: int) -> RopeScaling:
    given = Published({n: v for n, v in given.entries.items() if v or n not in ZERO_IS_ABSENT}, given.kind)
    trained = given.whole("original_max_position_embeddings", max_positions)
    return YarnScaling(
        factor=given.real("factor", max_positions / trained),
        trained=trained,
        beta_fast=given.real("beta_fast", 32.0),
        beta_slow=given.real("beta_slow", 1.0),
        attention_factor=given.real_or_none("attention_factor"),
        mscale=given.real_or_none("mscale"),
        mscale_all_dim=given.real_or_none("mscale_all_dim"),
        truncate=given.flag("truncate", True),
    )


ZERO_IS_ABSENT = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # of yarn, as transformers takes them
READERS: dict[str, Callable[[Published, int], RopeScaling]] = {
    "default": lambda given, max_positions: UNSCALED,
    "linear": lambda given, max_positions: LinearScaling(given.real("factor")),
    "dynamic": lambda given, max_positions: DynamicScaling(given.real("factor"), trained=max_positions),
    "llama3": _read_llama3,
    "yarn": _read_yarn,
}
