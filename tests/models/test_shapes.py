"""Random weights of published shapes: structure and dtypes of a fresh model, values that decode, bytes as counted."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import t5
from specjax.models.format import default_format
from specjax.models.shapes import _hashed, cache_bytes, published_shapes, random_params, step_bytes, weight_bytes
from tests import battery
from tests.models import small

T5 = t5.T5Config(
    vocab_size=71,
    width=16,
    head_width=8,
    heads=2,
    mlp_width=24,
    encoder_layers=2,
    decoder_layers=3,
    gated=True,
    tied=False,
)
MODELS = small.CONFIGS | {"t5": (t5.FAMILY, T5)}


FORMATS = [("float32", False), ("bfloat16", False), ("float16", True)]
KEPT = [("opt", ("float32", False)), ("llama", ("bfloat16", False)), ("t5", ("float16", True))]


@pytest.mark.parametrize(("name", "layout"), battery.others_slow(itertools.product(MODELS, FORMATS), KEPT))
def test_weights_have_the_types_of_a_fresh_model_and_random_values(name, layout):
    (family, config), fmt = MODELS[name], default_format(layout[0], stacked=layout[1])
    params = random_params(family, config, fmt)
    fresh = family.init(jax.random.key(0), config, fmt)
    types = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    assert types(params) == types(fresh)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(params)) == weight_bytes(family, config, fmt)
    drawn = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        values = np.asarray(leaf, np.float32)
        if path[-1].key in ("scale", "bias"):
            np.testing.assert_array_equal(values, float(path[-1].key == "scale"))
        else:
            assert abs(values).min() >= 2**-6 and abs(values).max() <= 2**-5
            assert abs(values.mean()) < 5 * values.std() / values.size**0.5
            drawn[jax.tree_util.keystr(path)] = values.ravel()[:8].tobytes()
    assert len(set(drawn.values())) == len(drawn)
    again = random_params(family, config, fmt)
    jax.tree.map(np.testing.assert_array_equal, params, again)


def test_values_have_no_pattern():
    table = np.asarray(_hashed(jnp.uint32(3), shape=(4096, 768), dtype=jnp.dtype("float32")))
    for axis in (0, 1):  # neighbors are uncorrelated
        near = np.corrcoef(np.delete(table, -1, axis).ravel(), np.delete(table, 0, axis).ravel())[0, 1]
        assert abs(near) < 0.01
    assert np.linalg.matrix_rank(table[:700].astype(np.float64)) == 700


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_caches_have_the_counted_bytes(name):
    (family, config), fmt = MODELS[name], default_format()
    lm = family.language_model(config, fmt)
    rows, params = 2, family.abstract(config, fmt)
    given = jnp.ones((rows, 8), jnp.int32), jnp.full((rows,), 8, jnp.int32)
    cache = jax.eval_shape(lambda params: lm.prefill(params, *given, 16), params).cache
    found = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache) if leaf.ndim >= 4)
    slots = 16 + (8 if lm.encoder_decoder else 0)
    assert found == cache_bytes(family, config, fmt, rows * slots)


def test_sizes_are_the_published_ones():
    shapes = published_shapes()
    count = lambda name: weight_bytes(*shapes[name], default_format()) / 4e6
    millions = {"opt-125m": 125, "opt-1.3b": 1316, "t5-small": 60.5, "t5-v1_1-small": 77, "t5-large": 738,
                "t5-xxl": 11135, "llama-2-7b": 6738}  # fmt: skip
    assert {name: pytest.approx(value, rel=0.01) for name, value in millions.items()} == {n: count(n) for n in millions}
    assert shapes["t5-xl"] == shapes["t5-v1_1-xl"]


def test_a_step_reads_the_decoder_and_the_head():
    (family, config), fmt = MODELS["t5"], default_format()
    decoder = 3 * ((4 + 2) * 16 * 16 + 3 * 16 * 24)  # self-attention, queries and outputs to the encoder, gated MLP
    rest = 71 * 16 + config.buckets * config.heads + (3 * 3 + 1) * 16  # head, relative positions, norms
    assert step_bytes(family, config, fmt) == 4 * (decoder + rest)
    family, config = MODELS["opt"]
    assert step_bytes(family, config, fmt) == weight_bytes(family, config, fmt)
