"""Layers by choice: the draft is the target without the others, in both layouts, and its choices are checked."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from specjax import drafters
from specjax.drafters.self_speculation import check_layers, spread
from specjax.models.format import Format
from tests import battery
from tests.models import small

ONE = jnp.ones((1, 1), bool), jnp.zeros((1,), jnp.int32)


@pytest.mark.parametrize(
    ("name", "stacked", "kept"),
    battery.others_slow(itertools.product(["opt", "llama"], [False, True], [0, 1]), [("opt", True, 0)]),
)
def test_one_layer_of_two_is_a_model_of_one_layer(name, stacked, kept):
    """Over the two-layer cache it gives what a one-layer model gives, and leaves the other layer's slots alone."""
    fmt = Format(stacked=stacked)
    built = small.build(name, fmt)
    module, config = small.CONFIGS[name]
    single = dataclasses.replace(config, layers=1)
    layers = built.params["layers"]
    alone = jax.tree.map(lambda a: a[kept : kept + 1], layers) if fmt.stacked else {"0": layers[str(kept)]}
    tokens = jnp.asarray(small.tokens(4, 2, 7))
    chain = jnp.tril(jnp.ones((7, 7), bool)), jnp.arange(7, dtype=jnp.int32)
    empty = built.prefill(built.params, tokens, jnp.ones((2,), jnp.int32), cache_len=12).cache
    empty = empty._replace(layers=jax.tree.map(jnp.zeros_like, empty.layers))
    chosen = module.language_model(config, fmt, chosen=(kept,))
    out, cache = jax.jit(chosen.extend)(built.params, tokens, empty, *chain)
    score = jax.jit(module.score, static_argnums=(1, 2))
    want = score({**built.params, "layers": alone}, single, fmt, tokens)
    small.assert_close(out.logits, want)
    k = [cache.layers.k[i] if fmt.stacked else cache.layers[i].k for i in range(2)]
    before = [empty.layers.k[i] if fmt.stacked else empty.layers[i].k for i in range(2)]
    np.testing.assert_array_equal(k[1 - kept], before[1 - kept])
    assert not np.array_equal(k[kept], before[kept])


@pytest.mark.slow
def test_all_layers_chosen_are_the_model():
    """Through T5, whose decoder alone is chosen from."""
    model = battery.target("t5")
    prefill = jax.jit(model.lm.prefill, static_argnums=3)
    read = prefill(model.params, battery.prompts()[:2], np.asarray([5, 16], np.int32), 8)
    feed = lambda lm: jax.jit(lm.extend)(model.params, read.pending[:, None], read.cache, *ONE)[0].logits
    whole, both, first = (feed(model.variant(chosen=c)) for c in (None, (0, 1), (0,)))
    np.testing.assert_array_equal(whole, both)
    assert not np.allclose(whole, first, atol=1e-2)


def test_default_is_half_the_layers_with_both_ends():
    assert spread(12, 6) == (0, 2, 4, 7, 9, 11)
    assert check_layers(None, 12) == (0, 2, 4, 7, 9, 11)
    assert check_layers(None, 2) == (0,)
    for count in range(2, 40):
        for kept in range(1, count):
            chosen = spread(count, kept)
            assert len(set(chosen)) == kept
            assert kept == 1 or (chosen[0], chosen[-1]) == (0, count - 1)
            assert check_layers(chosen, count) == chosen


@pytest.mark.parametrize(
    ("layers", "name"),
    [
        ([], "layers"),
        ([2], "layers"),
        ([0, 0], "layers"),
        ([1, 0], "layers"),
        ([-1], "layers"),
        ([0, 1], "all 2 layers"),
        ([0.5], "layers"),
        ("01", "layers"),
    ],
)
def test_invalid_layers_raise(layers, name, monkeypatch):
    """Of a wrong kind too: nothing checks a user's annotations, and here nothing does either."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=name):
        drafters.layer_skip(battery.target("opt"), layers=layers)


def test_a_model_of_one_layer_has_none_to_skip():
    with pytest.raises(ValueError, match="1 layer"):
        check_layers(None, 1)
