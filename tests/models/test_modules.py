"""Every family as a Flax module: one tree of parameters, trainable, differentiable, with a cache."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from specjax import models
from specjax.model import Model
from specjax.models import llama, opt, t5
from specjax.models.format import Format, default_format
from tests.models.small import assert_close

VOCAB = 50
FAMILIES = {
    "opt": (opt.FAMILY, models.OPT, models.OPTConfig(VOCAB, width=16, embed_width=16, layers=2, heads=2, mlp_width=32)),
    "llama": (
        llama.FAMILY,
        models.Llama,
        models.LlamaConfig(VOCAB, width=16, layers=2, heads=4, kv_heads=2, head_width=4, mlp_width=32),
    ),
    "t5": (
        t5.FAMILY,
        models.T5,
        models.T5Config(
            VOCAB, width=16, head_width=4, heads=2, mlp_width=32, encoder_layers=2, decoder_layers=2, gated=True
        ),
    ),
}
FORMATS = {"default": None, "stacked": Format(stacked=True), "bfloat16": default_format("bfloat16", platform="cpu")}
each_family = pytest.mark.parametrize("name", list(FAMILIES))
each_format = pytest.mark.parametrize("layout", list(FORMATS))


def tokens(columns: int = 8) -> jax.Array:
    return jax.random.randint(jax.random.key(0), (2, columns), 1, VOCAB)


def inputs(name: str) -> tuple[jax.Array, ...]:
    return (tokens(), tokens(6)) if name == "t5" else (tokens(),)


@each_format
@each_family
def test_the_module_and_the_pure_functions_share_one_tree(name, layout):
    family, cls, config = FAMILIES[name]
    module = cls(config, FORMATS[layout], rngs=nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    chex.assert_trees_all_equal_shapes_and_dtypes(params, family.init(jax.random.key(0), config, module.fmt))
    model = Model(name, family, config, module.fmt, params)
    again = model.module()
    assert nnx.graphdef(again) == nnx.graphdef(module)
    logits = module(*inputs(name))
    chex.assert_trees_all_equal(again(*inputs(name)), logits)
    assert_close(np.asarray(model.score(*inputs(name))), np.asarray(logits), 1e-2 if layout == "bfloat16" else 1e-5)


@each_format
@each_family
def test_an_optimizer_trains_the_module(name, layout):
    _, cls, config = FAMILIES[name]
    model = cls(config, FORMATS[layout], rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    target = inputs(name)[-1]

    @nnx.jit
    def step(model, optimizer):
        def loss(model):
            logits = model(*inputs(name))[:, :-1]
            return optax.softmax_cross_entropy_with_integer_labels(logits, target[:, 1:]).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    with jax.numpy_dtype_promotion("standard"):  # Adam counts its steps in int32
        losses = [float(step(model, optimizer)) for _ in range(5)]
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize("name", ["opt", "llama"])
def test_blocks_through_a_cache_equal_one_pass(name):
    _, cls, config = FAMILIES[name]
    model = cls(config, rngs=nnx.Rngs(0))
    first, cache = model(tokens()[:, :5], cache=model.init_cache(2, 16))
    rest, cache = model(tokens()[:, 5:], cache=cache)
    assert_close(np.asarray(jnp.concatenate([first, rest], 1)), np.asarray(model(tokens())), 1e-5)
    np.testing.assert_array_equal(cache.length, [8, 8])


@each_family
def test_forward_derivatives_equal_reverse_ones(name):
    family, cls, config = FAMILIES[name]
    model = cls(config, rngs=nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(params))))
    direction = jax.tree.map(lambda leaf: jax.random.normal(next(keys), leaf.shape, leaf.dtype), params)
    total = lambda params: jnp.square(family.module(params, config, model.fmt)(*inputs(name))).mean()
    _, forward = jax.jvp(total, (params,), (direction,))
    products = jax.tree.map(lambda a, b: jnp.vdot(a, b), jax.grad(total)(params), direction)
    np.testing.assert_allclose(forward, sum(jax.tree.leaves(products)), rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@each_family
def test_products_of_float32_are_of_the_highest_precision_on_accelerators(name, dtype):
    family, _, config = FAMILIES[name]
    fmt = dataclasses.replace(default_format(dtype, platform="tpu"))
    lm = family.language_model(config, fmt)
    params = jax.eval_shape(lambda: family.init(jax.random.key(0), config, fmt))
    read = lambda params: lm.prefill(params, jnp.ones((1, 8), jnp.int32), jnp.ones((1,), jnp.int32), 16).cache

    def step(params, cache):
        return lm.extend(params, jnp.ones((1, 1), jnp.int32), cache, jnp.ones((1, 1), bool), jnp.zeros((1,), jnp.int32))

    cache = jax.eval_shape(read, params)
    lowered = (jax.jit(read).trace(params), jax.jit(step).trace(params, cache))
    for program in lowered:
        text = program.lower(lowering_platforms=("tpu",)).as_text()
        dots = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
        assert dots
        assert all(("HIGHEST" in line) == (dtype == "float32") for line in dots)
