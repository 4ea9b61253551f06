"""Lossy: the longest path whose every token meets a criterion. What typical acceptance and its kin share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.categorical import draw, uniforms
from specjax.trees import Tree
from specjax.types import Draft, KeyArray, Verdict
from specjax.verify.token import law_after, law_of
from specjax.verify.walk import usable, verdict_at

# (log_p [B,N,V] after every node's parent is left out: laws after nodes; node tokens' log p [B,N-1]; parents) -> met
Meets = Callable[[Float[Array, "B N V"], Float[Array, "B n"], tuple[int, ...]], Bool[Array, "B n"]]
