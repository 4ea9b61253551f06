"""Products with kernels: gradients in every orientation and dtype, against einsum in float32; kernels in parts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import quantise
from specjax.models.format import Format, default_format
from specjax.models.layers import dot
from tests.models import small


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


PARTS = Format(dtype="bfloat16", out_in=True, min_rows=2, part=24)


@pytest.mark.parametrize("inputs, count", [(16, 1), (24, 1), (25, 1), (32, 2), (75, 5), (96, 4), (97, 1), (100, 5)])
def test_a_kernel_is_cut_evenly_into_as_few_parts_as_will_do(inputs, count):
    assert PARTS.parts(inputs) == count and Format().parts(inputs) == 1


@pytest.mark.parametrize("wrong", [{"part": -1}, {"part": 8}, {"part": 8, "out_in": True, "stacked": True}])
def test_parts_are_of_separate_out_in_kernels(wrong):
    with pytest.raises(ValueError, match=f"part={wrong['part']} is for"):
        Format(**wrong)


def test_only_half_precision_on_a_cpu_is_cut():
    assert default_format("bfloat16", platform="cpu").part > 0
    for other in ({"dtype": "float32"}, {"sharded": True}, {"stacked": True}, {"platform": "tpu"}, {"platform": "gpu"}):
        assert default_format(**{"dtype": "bfloat16", "platform": "cpu"} | other).part == 0


@pytest.mark.parametrize("name", ["opt-350m", "llama"])
def test_parts_make_the_same_model(name):
    """The very numbers, summed in another order; of the parts' int8 weights not even that."""
    whole = small.build(name, dataclasses.replace(PARTS, part=0))
    cut = small.build(name, PARTS)
    assert jax.tree.structure(cut.params) != jax.tree.structure(whole.params)
    tokens = jnp.asarray(small.tokens(3, 2, 9))
    small.assert_close(cut.score(cut.params, tokens), whole.score(whole.params, tokens), 2e-2)
    own, other = (quantise.quantised(built.params, fmt=built.fmt) for built in (cut, whole))
    assert jax.tree.structure(own) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, own, other)
