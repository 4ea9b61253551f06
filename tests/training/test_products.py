"""Products of training: gradients, and what XLA's CPU backend makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.planning import program as hlo
from specjax.training.products import TrainingProducts

ROWS, INPUTS, OUTPUTS = 64, 32, 48


def gradients(out_in: bool, dtype: str):
    """A compiled function of (x, kernel, weights of the outputs): the gradients of the first two."""
    value = lambda x, kernel, given: (TrainingProducts().dot(x, kernel, out_in=out_in, precision=None) * given).sum()
    shapes = (ROWS, INPUTS), (OUTPUTS, INPUTS) if out_in else (INPUTS, OUTPUTS), (ROWS, OUTPUTS)
    keys = jax.random.split(jax.random.key(0), 3)
    x, kernel, given = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    args = x, kernel.astype(dtype), given
    return jax.jit(jax.grad(value, (0, 1))).lower(*args).compile(), args


@pytest.mark.parametrize("out_in", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_gradients(out_in, dtype, tolerance):
    compiled, (x, kernel, given) = gradients(out_in, dtype)
    weight = np.asarray(kernel.astype(jnp.float32))
    of_kernel = np.asarray(x).T @ np.asarray(given)
    expected = np.asarray(given) @ (weight if out_in else weight.T), of_kernel.T if out_in else of_kernel
    for one, other, like in zip(compiled(x, kernel, given), expected, (x, kernel), strict=True):
        assert one.dtype == like.dtype
        np.testing.assert_allclose(one.astype(jnp.float32), other, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize("out_in", [False, True])
def test_half_precision_is_not_widened(out_in):
    """Widened operands would be multiplied in float32, at a third of the speed."""
    body = hlo.program(gradients(out_in, "bfloat16")[0].as_text())
    dtypes = {i.name: i.dtype for i in body}
    dots = [i for i in body if i.opcode == "dot"]
    assert len(dots) == 2 and {dtypes[name] for dot in dots for name in dot.operands} == {"bf16"}
