"""A branch in place runs once or not at all; that it copies no cache is seen in the loop of test_policies.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import branch


@pytest.mark.parametrize(("condition", "turns"), [(True, 1), (False, 0)])
def test_it_runs_once_or_not_at_all(condition, turns):
    ran = []

    def run(carry):
        jax.debug.callback(lambda: ran.append(1))
        return carry[0] + 1, carry[1].at[2].set(5.0)

    count, buffer = jax.jit(lambda c, x: branch.where(c, run, x))(condition, (jnp.int32(7), jnp.zeros(4)))
    jax.effects_barrier()
    assert len(ran) == turns and int(count) == 7 + turns
    np.testing.assert_array_equal(buffer, [0.0, 0.0, 5.0 * turns, 0.0])
