"""Every family as a Flax module: one tree of parameters, trainable, differentiable, with a cache."""

import dataclasses
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import specjax as sj
from specjax import drafters, models
from specjax.model import Model
from specjax.models import attention, llama, opt, t5
from specjax.models.format import Format, default_format
from tests import battery
from tests.models.small import assert_close, noisy

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
called = nnx.jit(lambda module, *tokens, **options: module(*tokens, **options))


def each(*keep: tuple[str, str]):
    """Every family in every layout; those outside `keep` are slow."""
    return pytest.mark.parametrize(
        ("name", "layout"), battery.others_slow(list(itertools.product(FAMILIES, FORMATS)), keep)
    )


def tokens(columns: int = 8) -> jax.Array:
    return jax.random.randint(jax.random.key(0), (2, columns), 1, VOCAB)


def inputs(name: str) -> tuple[jax.Array, ...]:
    return (tokens(), tokens(6)) if name == "t5" else (tokens(),)


@pytest.mark.slow
@each(*((name, "default") for name in FAMILIES), ("llama", "stacked"))
def test_the_module_and_the_pure_functions_share_one_tree(name, layout):
    family, cls, config = FAMILIES[name]
    module = cls(config, FORMATS[layout], rngs=nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    chex.assert_trees_all_equal_shapes_and_dtypes(params, family.init(jax.random.key(0), config, module.fmt))
    model = Model(name, family, config, module.fmt, params)
    again = model.module()
    assert nnx.graphdef(again) == nnx.graphdef(module)
    chex.assert_trees_all_equal(model.with_module(again).params, params)
    logits = called(module, *inputs(name))
    chex.assert_trees_all_equal(called(again, *inputs(name)), logits)
    assert_close(np.asarray(model.score(*inputs(name))), np.asarray(logits), 1e-2 if layout == "bfloat16" else 1e-5)


@each_family
def test_parameters_of_another_shape_are_refused(name):
    family, cls, config = FAMILIES[name]
    model = Model(name, family, config, Format(), family.init(jax.random.key(0), config, Format()))
    wider = cls(dataclasses.replace(config, vocab_size=config.vocab_size + 1), Format(), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="embed"):
        model.with_module(wider)


@pytest.mark.slow
@each(("llama", "stacked"))
def test_an_optimizer_trains_the_module(monkeypatch, name, layout):
    """Also where a cache of as many slots would be read in pieces, by a loop that has no reverse derivative."""
    for constant, slots in {"WHOLE": 4, "FIRST": 2, "PIECE": 2}.items():
        monkeypatch.setattr(attention, constant, slots)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opt", "llama"])
def test_blocks_through_a_cache_equal_one_pass(name):
    _, cls, config = FAMILIES[name]
    model = cls(config, rngs=nnx.Rngs(0))
    first, cache = called(model, tokens()[:, :5], cache=model.init_cache(2, 16))
    rest, cache = called(model, tokens()[:, 5:], cache=cache)
    assert_close(np.concatenate([first, rest], 1), called(model, tokens()), 1e-5)
    np.testing.assert_array_equal(cache.length, [8, 8])


@pytest.mark.parametrize("layout", battery.others_slow(FORMATS, ["stacked"]))
def test_decoder_blocks_of_t5_through_a_cache_equal_one_pass(layout):
    model = models.T5(FAMILIES["t5"][2], FORMATS[layout], rngs=nnx.Rngs(0))
    encoder, decoder = inputs("t5")
    length = jnp.asarray([8, 3], jnp.int32)
    whole = called(model, encoder, decoder, encoder_length=length)
    first, cache = called(model, encoder, decoder[:, :4], encoder_length=length, cache=model.init_cache(2, 16))
    rest, cache = called(model, None, decoder[:, 4:], cache=cache)
    bound = 2e-2 if layout == "bfloat16" else 1e-5
    assert_close(np.concatenate([first, rest], 1), whole, bound)
    np.testing.assert_array_equal(cache.length, [6, 6])
    assert np.abs(np.asarray(whole - called(model, encoder, decoder))[1]).max() > 10 * bound  # the length is read
    with pytest.raises(ValueError, match="encoder_tokens"):
        model(None, decoder, cache=model.init_cache(2, 16))


LAYOUTS = {"cpu": default_format("float16", platform="cpu"), "gpu": default_format("float16", platform="gpu")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout"),
    battery.others_slow(list(itertools.product(FAMILIES, LAYOUTS)), [("t5", "cpu")]),
)
def test_speculative_text_equals_plain_text_in_float16(name, layout):
    family, fmt = FAMILIES[name][0], LAYOUTS[layout]
    config = battery.FAMILIES[name][1]
    params = noisy(family.init(jax.random.key(0), config, fmt), 1, lambda leaf: 0.6)
    target = Model(name, family, config, fmt, params)
    draft = Model(name, family, config, fmt, noisy(params, 2, lambda leaf: 0.05))
    prompts = [row[:length].tolist() for row, length in zip(battery.prompts(), battery.LENGTHS, strict=True)]
    plain = sj.generate(target, prompts, max_new_tokens=24, temperature=0.0)
    out = sj.generate(target, prompts, drafter=drafters.model(draft, gamma=3), max_new_tokens=24, temperature=0.0)
    assert out.tokens == plain.tokens
    assert out.stats.accepted > 0 and len({tuple(row) for row in out.tokens}) > 1
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float16", "float32"}


@pytest.mark.slow
def test_activations_of_t5_past_the_range_of_float16_are_finite():
    """`down` alone reads activations that no norm bounds: its kernel is float32 there, as in transformers."""
    family, _, config = FAMILIES["t5"]
    params = family.init(jax.random.key(0), config, Format())
    for stack in ("encoder", "decoder"):
        for layer in params[stack]["layers"].values():
            layer["mlp"] |= {part: {"kernel": layer["mlp"][part]["kernel"] * 1e3} for part in ("gate", "up")}
    jitted = jax.jit(family.score, static_argnums=(1, 2))
    score = lambda params, fmt: np.asarray(jitted(params, config, fmt, *inputs("t5")))
    fmt = Format("float16")
    half = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), params, family.abstract(config, fmt))
    assert_close(score(half, fmt), score(params, Format()), 2e-2)
    for layer in half["encoder"]["layers"].values():
        layer["mlp"]["down"] = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), layer["mlp"]["down"])
    assert not np.isfinite(score(half, fmt)).all()  # a negative control


@pytest.mark.parametrize("name", battery.others_slow(FAMILIES, ["llama"]))
def test_forward_derivatives_equal_reverse_ones(name):
    family, cls, config = FAMILIES[name]
    model = cls(config, rngs=nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    direction = noisy(jax.tree.map(jnp.zeros_like, params), 1, lambda leaf: 1.0)

    @jax.jit
    def derivatives(params, direction):
        total = lambda params: jnp.square(family.module(params, config, model.fmt)(*inputs(name))).mean()
        _, forward = jax.jvp(total, (params,), (direction,))
        products = jax.tree.map(jnp.vdot, jax.grad(total)(params), direction)
        return forward, sum(jax.tree.leaves(products))

    np.testing.assert_allclose(*derivatives(params, direction), rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
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
