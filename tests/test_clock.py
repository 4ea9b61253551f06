"""Compiling stands apart from running, and a warm call has none."""

import time

import jax
import jax.numpy as jnp

from specjax.clock import timed

SLOW = 0.6  # seconds that tracing takes, which is a part of compiling; running takes next to none


def test_compiling_is_told_from_running():
    def slow_to_trace(x):
        time.sleep(SLOW)
        return x * 3

    function, x = jax.jit(slow_to_trace), jax.block_until_ready(jnp.ones(7))
    cold = timed(lambda: function(x))
    assert cold.compile >= SLOW > cold.run
    warm = timed(lambda: function(x))
    assert warm.compile == 0.0 and 0 < warm.run < SLOW
    assert warm.value.tolist() == [3.0] * 7


def test_what_is_not_compiling_is_running():
    function, x = jax.jit(lambda x: x + 1), jax.block_until_ready(jnp.ones(3))
    function(x)

    def dispatched_late():
        time.sleep(0.05)
        return function(x)

    found = timed(dispatched_late)
    assert found.compile == 0.0 and found.run >= 0.05
