"""Products with kernels: gradients in every orientation and dtype, against einsum in float32; kernels in parts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import quantize
from specjax.models.cpu import MANY, CPUProducts
from specjax.models.format import Format, default_format
from specjax.models.layers import lookup
from specjax.models.products import Products, TPUProducts
from specjax.planning import program as hlo
from tests import battery
from tests.models import small


def dot(products: Products, x, kernel, *, out_in: bool = True):
    return products.dot(x, kernel, out_in=out_in, precision=None)


@pytest.mark.slow
@pytest.mark.parametrize("out_in, left", [(False, None), (True, None), (True, (16, 8))])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 3e-2)])
def test_gradients_of_a_product(out_in, left, dtype, tolerance):
    keys = jax.random.split(jax.random.key(0), 3)
    x, weight = jax.random.normal(keys[0], (2, 3, 16)), jax.random.normal(keys[1], (16, 24))
    given = jax.random.normal(keys[2], (2, 3, 24))
    kernel = (weight.T if out_in else weight).astype(dtype)
    products = CPUProducts(min_rows=8, left=left) if out_in else TPUProducts(min_rows=8, many=4)
    ours = jax.grad(lambda x, k: (dot(products, x, k, out_in=out_in) * given).sum(), (0, 1))(x, kernel)
    usual = jax.grad(lambda x, k: (jnp.einsum("bsd,df->bsf", x, k) * given).sum(), (0, 1))(x, weight)
    assert ours[0].dtype == jnp.float32 and ours[1].dtype == kernel.dtype
    for one, other in zip(ours, (usual[0], usual[1].T if out_in else usual[1]), strict=True):
        scale = float(jnp.abs(other).max())
        np.testing.assert_allclose(one.astype(jnp.float32), other, atol=tolerance * scale)


def test_a_half_precision_gradient_multiplies_in_half_precision():
    """With autodiff's own rule, both products of the backward pass take a float32 operand."""
    kernel = jnp.ones((16, 24), jnp.bfloat16)
    grad = jax.grad(lambda x, k: dot(Products(), x, k, out_in=False).sum(), (0, 1))
    dots = [e for e in jax.make_jaxpr(grad)(jnp.ones((4, 16)), kernel).eqns if e.primitive.name == "dot_general"]
    assert len(dots) >= 2 and all(v.aval.dtype == jnp.bfloat16 for e in dots for v in e.invars)


@pytest.mark.parametrize(
    "rows, columns",
    battery.others_slow(
        [(1, 0), (2, 2), (4, 4), (5, 8), (9, 16), (17, 17), (49, 64), (65, 65)], [(1, 0), (4, 4), (9, 16), (65, 65)]
    ),
)
@pytest.mark.parametrize("parts", [1, 2])
def test_of_several_rows_the_kernel_is_the_left_operand_and_stays_there(rows, columns, parts):
    """In the compiled program: without a barrier XLA turns the product around again, and packs the kernel each time.
    Rows that take longer than a whole block of them are padded to it."""
    shapes = [(rows, 320), *[(240, 320 // parts)] * parts]
    products = default_format("float32", platform="cpu").products
    run = jax.jit(lambda x, *kernel: dot(products, x, kernel) @ jnp.ones((240, 3)))
    text = run.lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile().as_text()
    dots = [one for one in hlo.program(text) if one.opcode == "dot" and 240 in one.shape]
    assert len(dots) == parts
    assert {one.shape for one in dots} == {(240, columns) if columns else (rows, 240)}
    assert hlo.copies(hlo.program(text), 240 * 320 // parts) == []
    x, *kernel = (jax.random.normal(jax.random.key(number), shape) for number, shape in enumerate(shapes))
    small.assert_close(dot(products, x, kernel), x @ jnp.concatenate(kernel, 1).T, 1e-6)


def _normed(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True))


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("between", [lambda x: x, lambda x: x + 1.0, jax.nn.relu, _normed])
def test_a_kernel_of_few_inputs_stays_on_the_right(dtype, tolerance, between):
    """After one on the left, whose transposed result XLA would fold into its product, whatever is between: of a
    bfloat16 kernel it then widens all of it, or fails for want of such a product."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(4, 48), (40, 48), (24, 40)]
    x, wide, narrow = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    kernels = wide.astype(dtype), narrow.astype(dtype)

    products = CPUProducts(min_rows=2, left=(48, 2))

    @jax.jit
    def run(x, wide, narrow):
        of = functools.partial(dot, products)
        return of(between(of(x, wide)), narrow)

    program = hlo.program(run.lower(x, *kernels).compile().as_text())
    assert {one.shape for one in program if one.opcode == "dot"} == {(40, 4), (4, 24)}
    kept = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    assert {one.dtype for one in program if one.shape in ((40, 48), (24, 40))} == {kept}
    small.assert_close(run(x, *kernels), between(x @ wide.T) @ narrow.T, tolerance)


@pytest.mark.parametrize("inputs, least", [(47, None), (48, 9), (640, 9)])
def test_from_how_many_rows_a_kernel_is_on_the_left_goes_by_its_inputs(inputs, least):
    products = CPUProducts(left=(48, 9))
    assert [rows for rows in range(1, 300) if products.on_left(rows, inputs)] == list(range(least or MANY, MANY))
    assert [rows for rows in range(1, 300) if products.some_on_left(rows)] == list(range(9, MANY))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_accelerators_and_meshes_keep_kernels_on_the_right(dtype):
    assert default_format(dtype, platform="gpu").products == Products()
    assert default_format(dtype, platform="tpu").products == TPUProducts()
    choice = lambda sharded: default_format(dtype, platform="cpu", sharded=sharded).products
    assert choice(False).left and not choice(True).left and not choice(True).flat_heads


def test_a_product_of_an_accelerator_is_one_dot_general():
    x, kernel = jnp.ones((2, 3, 16)), jnp.ones((16, 24))
    traced = jax.make_jaxpr(lambda x, k: dot(Products(), x, k, out_in=False))(x, kernel)
    names = [e.primitive.name for e in traced.eqns]
    assert names.count("custom_jvp_call") == 1 and set(names) <= {"custom_jvp_call", "reshape", "slice"}


def test_one_seed_draws_one_model_in_every_format():
    module, config = small.CONFIGS["opt-350m"]
    drawn, other = (module.init(jax.random.key(0), config, fmt) for fmt in (Format(), small.FLOAT32))
    jax.tree.map(np.testing.assert_array_equal, small.laid_out(drawn, small.FLOAT32), other)


PARTS = Format(dtype="bfloat16", products=CPUProducts(min_rows=2, left=(0, 3), part=24))


@pytest.mark.parametrize("inputs, count", [(16, 1), (24, 1), (25, 1), (32, 2), (75, 5), (96, 4), (97, 1), (100, 5)])
def test_a_kernel_is_cut_evenly_into_as_few_parts_as_will_do(inputs, count):
    assert PARTS.products.parts(inputs) == count and Products().parts(inputs) == 1


def test_only_half_precision_on_a_cpu_is_cut():
    parts = lambda **options: default_format(**options).products.parts(4096)
    assert parts(dtype="bfloat16", platform="cpu") > 1
    for other in ({"dtype": "float32"}, {"sharded": True}, {"stacked": True}, {"platform": "tpu"}, {"platform": "gpu"}):
        assert parts(**{"dtype": "bfloat16", "platform": "cpu"} | other) == 1


@pytest.mark.parametrize("name", ["opt-350m", pytest.param("llama", marks=pytest.mark.slow)])
def test_parts_make_the_same_model(name):
    """The very numbers, summed in another order; of the parts' int8 weights not even that."""
    whole = small.build(name, dataclasses.replace(PARTS, products=PARTS.products.whole()))
    cut = small.build(name, PARTS)
    assert jax.tree.structure(cut.params) != jax.tree.structure(whole.params)
    tokens = jnp.asarray(small.tokens(3, 2, 9))
    small.assert_close(cut.score(cut.params, tokens), whole.score(whole.params, tokens), 2e-2)
    own, other = (quantize.quantized(built.params, fmt=built.fmt) for built in (cut, whole))
    assert jax.tree.structure(own) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, own, other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_a_table_have_a_gradient(dtype):
    table = jnp.arange(12, dtype=dtype).reshape(4, 3)
    index = jnp.array([[1, 3, 1]], jnp.int32)
    grad = jax.grad(lambda table: jnp.square(lookup(table, index)).sum())(table)
    assert grad.dtype == table.dtype
    np.testing.assert_array_equal(grad, 2 * table * jnp.array([0, 2, 0, 1], dtype)[:, None])


def test_a_loop_that_reads_rows_carries_no_copy_of_the_table():
    def walk(table, index):
        step = lambda at, _: (lookup(table, at[None, None]).sum().astype(jnp.int32) % 7, None)
        return jax.lax.scan(step, index, length=5)[0]

    table = jnp.arange(4096 * 8, dtype=jnp.bfloat16).reshape(4096, 8)
    program = hlo.program(jax.jit(walk).lower(table, jnp.int32(3)).compile().as_text())
    carried = [one.dtype for one in program if one.opcode == "get-tuple-element" and one.shape == (4096, 8)]
    assert set(carried) == {"bf16"}
