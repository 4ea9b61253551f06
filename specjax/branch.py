"""A branch that writes in place."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

Carry = TypeVar("Carry")


def where(condition: Bool[Array, ""], run: Callable[[Carry], Carry], carry: Carry) -> Carry:
    """`run(carry)` where the condition holds, else the carry as it is: a loop of at most one turn.

    Around the branches of a conditional XLA copies every cache that one of them writes; a loop writes it in place.
    """
    return jax.lax.while_loop(lambda s: s[0], lambda s: (jnp.zeros((), bool), run(s[1])), (condition, carry))[1]
