"""Products with kernels: their gradients in every orientation and dtype, against einsum in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.layers import dot


@pytest.mark.parametrize("out_in", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 3e-2)])
def test_gradients_of_a_product(out_in, dtype, tolerance):
    keys = jax.random.split(jax.random.key(0), 3)
    x, weight = jax.random.normal(keys[0], (2, 3, 16)), jax.random.normal(keys[1], (16, 24))
    given = jax.random.normal(keys[2], (2, 3, 24))
    kernel = (weight.T if out_in else weight).astype(dtype)
    ours = jax.grad(lambda x, k: (dot(x, k, out_in=out_in, min_rows=8) * given).sum(), (0, 1))(x, kernel)
    usual = jax.grad(lambda x, k: (jnp.einsum("bsd,df->bsf", x, k) * given).sum(), (0, 1))(x, weight)
    assert ours[0].dtype == jnp.float32 and ours[1].dtype == kernel.dtype
    for one, other in zip(ours, (usual[0], usual[1].T if out_in else usual[1]), strict=True):
        scale = float(jnp.abs(other).max())
        np.testing.assert_allclose(one.astype(jnp.float32), other, atol=tolerance * scale)


def test_a_half_precision_gradient_multiplies_in_half_precision():
    """With autodiff's own rule, both products of the backward pass take a float32 operand."""
    kernel = jnp.ones((16, 24), jnp.bfloat16)
    grad = jax.grad(lambda x, k: dot(x, k, out_in=False, min_rows=1).sum(), (0, 1))
    dots = [e for e in jax.make_jaxpr(grad)(jnp.ones((4, 16)), kernel).eqns if e.primitive.name == "dot_general"]
    assert len(dots) >= 2 and all(v.aval.dtype == jnp.bfloat16 for e in dots for v in e.invars)
