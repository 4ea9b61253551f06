"""int8 weights: how far they move, in every layout; and what a draft step reads."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters
from specjax.drafters import reading
from specjax.models import quantize
from specjax.models.cpu import CPUProducts
from specjax.models.format import Format, default_format
from tests import battery
from tests.models import small


@pytest.mark.slow
@pytest.mark.parametrize("axis", [-1, -2])
def test_no_weight_moves_by_more_than_half_a_step(axis):
    weight = jax.random.normal(jax.random.key(0), (3, 7, 5)) * jnp.asarray([1.0, 30.0, 1e-3])[:, None, None]
    weight = weight.at[0, 2].set(0.0).at[0, :, 1].set(0.0)
    whole, scale = quantize.channels(weight, axis=axis)
    assert whole.dtype == jnp.int8
    step = np.expand_dims(scale, axis)
    assert (np.abs(np.asarray(whole, np.float32) * step - weight) <= 0.5001 * step).all()
    peaks = np.abs(np.asarray(whole, np.int32)).max(axis)
    assert set(peaks.ravel().tolist()) == {127, 0}  # each channel has its own scale; a channel of zeros stays zero


@pytest.mark.parametrize(
    "fmt",
    battery.others_slow(
        [Format(), Format(stacked=True), Format(products=CPUProducts(min_rows=2))], [Format(stacked=True)]
    ),
)
@pytest.mark.parametrize("name", battery.others_slow(["opt-350m", "llama"], ["opt-350m"]))
def test_logits_are_those_of_the_rounded_weights(name, fmt):
    """The same model with its weights rounded in float: same logits, and near those of the unrounded one."""
    built = small.build(name, fmt)
    weights = quantize.quantized(built.params, fmt=fmt)
    tokens = jnp.asarray(small.tokens(3, 2, 9))
    module, _ = small.CONFIGS[name]
    got = jax.jit(module.score, static_argnums=(1, 2))(weights, built.config, fmt.quantized(), tokens)

    def spelled(path, node):
        if isinstance(node, dict) and "scale" in node and ("kernel" in node or "table" in node):
            (key,) = {"kernel", "table"} & set(node)
            axis = -1 if key == "table" or fmt.products.out_in else -2
            spelled_out = node[key].astype(jnp.float32) * jnp.expand_dims(node["scale"], axis)
            return {key: spelled_out, **{n: v for n, v in node.items() if n not in (key, "scale")}}
        return {n: spelled((*path, n), v) for n, v in node.items()} if isinstance(node, dict) else node

    small.assert_close(got, built.score(spelled((), weights), tokens), 1e-4)
    exact = built.score(built.params, tokens)
    difference = np.abs(np.asarray(got - exact)).max() / np.abs(np.asarray(exact)).max()
    assert 1e-5 < difference < 0.1


def test_t5_has_its_decoder_and_its_encoder_quantized():
    loaded = drafters.quantized(battery.target("t5"))
    kinds = {leaf.dtype for leaf in jax.tree.leaves(loaded.params)}
    assert kinds == {jnp.dtype("int8"), jnp.dtype("float32")}
    assert loaded.params["decoder"]["layers"]["0"]["attn"]["q"]["kernel"].dtype == jnp.int8
    assert loaded.params["decoder"]["relative_bias"]["table"].dtype == jnp.float32


def test_int8_is_not_a_loading_format_and_is_not_quantized_twice():
    with pytest.raises(ValueError, match="dtype"):
        default_format("int8")
    with pytest.raises(ValueError, match="int8"):
        Format(cache_dtype="int8")
    target = battery.target("opt")
    with pytest.raises(ValueError, match="int8"):
        drafters.quantized(dataclasses.replace(target, fmt=target.fmt.quantized()))


# --- bytes -------------------------------------------------------------------------------------------------------


def test_bytes_by_hand():
    """OPT of the battery: 2 layers of width 16, 2 heads of 8, feed-forward of 32, 13 tokens; all float32."""
    target = battery.target("opt")
    layer = 4 * (16 * 16 + 16) + (16 * 32 + 32) + (32 * 16 + 16) + 4 * 16
    weights = 4 * (2 * layer + 13 * 16 + 2 * 16)
    slot = 4 * 2 * 2 * 16  # keys and values, two layers, float32
    whole = reading.of_target(target, batch=8, slots=64)
    assert whole == (weights / 8, 64 * slot, 0.0)
    tight = reading.of_small_kv(target, batch=8, slots=64, gamma=3, budget=8, selection=drafters.Sinks(2))
    assert tight == (weights / 8, 11 * slot, 2 * 4 * slot / 3)
    skips = reading.of_layer_skip(target, batch=8, slots=64, layers=(1,))
    assert skips == ((weights - 4 * layer) / 8, 32 * slot, 0.0)
    coarse = reading.of_quantized(target, drafters.quantized(target).params, batch=8, slots=64)
    matrices = 2 * (4 * 16 * 16 + 2 * 16 * 32) + 13 * 16
    scales = 2 * (4 * 16 + 32 + 16) + 13
    assert coarse.weights * 8 == weights - 3 * matrices + 4 * scales


def test_bytes_of_the_choice_are_reported():
    target = battery.target("llama")
    options = {"batch": 8, "slots": 1000, "gamma": 3, "budget": 16}
    sinks = reading.of_small_kv(target, **options, selection=drafters.Sinks(2))
    often = reading.of_small_kv(target, **options, selection=drafters.SnapKV(8, 4, 3, every=4))
    rarely = reading.of_small_kv(target, **options, selection=drafters.SnapKV(8, 4, 3, every=64))
    assert sinks.cache == often.cache == rarely.cache
    assert sinks.upkeep < rarely.upkeep < often.upkeep
    assert sinks.total < 0.1 * reading.of_target(target, batch=8, slots=1000).total


def test_t5_reads_the_encoder_whatever_the_budget():
    target = battery.target("t5")
    short, long = (reading.of_small_kv(target, batch=1, slots=64, budget=8, prompt=p) for p in (16, 160))
    assert long.cache - short.cache == 144 * 2 * 2 * 3 * 4 * 4
