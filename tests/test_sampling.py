"""The warp stack against a plain float64 implementation, row by row, and the validation of options."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.sampling import has_nan, sampling_params, warp

V = 40
jit_warp = jax.jit(warp)


def plain(
    logits, seen=None, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, bias=0.0
) -> np.ndarray:
    """One row's probabilities [S, V] in float64, with sorts."""
    x = np.asarray(logits, np.float64) + bias
    if seen is not None:
        x = np.where(seen, np.where(x < 0, x * repetition_penalty, x / repetition_penalty), x)
    if temperature == 0:
        return np.eye(x.shape[-1])[np.argmax(x, axis=-1)]
    x = x / temperature
    out = np.zeros_like(x)
    for s, row in enumerate(x):
        mass = np.exp(row - row.max())
        if top_k:
            mass[row < np.sort(row)[::-1][min(top_k, row.size) - 1]] = 0
        mass /= mass.sum()
        if top_p < 1:
            above = np.array([mass[mass > m].sum() for m in mass])
            mass = np.where(above < top_p, mass, 0)
        mass = np.where(mass >= min_p * mass.max(), mass, 0)
        out[s] = mass / mass.sum()
    return out


ROWS = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.0, "top_k": 5, "top_p": 0.5, "min_p": 0.2, "repetition_penalty": 1.3},
    {"temperature": 0.7},
    {"temperature": 1.7, "top_k": 5},
    {"top_k": 1},
    {"top_k": V + 3},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.8},
    {"min_p": 0.1},
    {"temperature": 0.5, "top_k": 30, "top_p": 0.97, "min_p": 0.02, "repetition_penalty": 1.4},
    {"repetition_penalty": 0.8},
)
DEFAULTS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def batch(rows=ROWS, **more):
    columns = {name: [row.get(name, default) for row in rows] for name, default in DEFAULTS.items()}
    return sampling_params(len(rows), V, **columns, **more)


def inputs(seed: int, size: int, positions: int = 3):
    rng = np.random.default_rng(seed)
    logits = (2.5 * rng.normal(size=(size, positions, V))).astype(np.float32)
    seen, ancestors = rng.random((size, V)) < 0.2, rng.integers(0, V, (size, positions, 5))
    return jnp.asarray(logits), jnp.asarray(seen), jnp.asarray(ancestors, jnp.int32)


def present(seen, ancestors) -> np.ndarray:
    """[B, S, V] bool: the tokens that precede each position."""
    found = np.repeat(np.asarray(seen)[:, None], ancestors.shape[1], axis=1)
    np.put_along_axis(found, np.asarray(ancestors), True, axis=-1)
    return found


def test_every_row_follows_its_own_parameters():
    logits, seen, ancestors = inputs(0, len(ROWS))
    bias = np.random.default_rng(1).normal(size=(len(ROWS), V)).astype(np.float32)
    params = batch(logit_bias=bias)
    probs = np.exp(np.asarray(jit_warp(params, logits, seen, ancestors), np.float64))
    before = present(seen, ancestors)
    for i, row in enumerate(ROWS):
        expected = plain(logits[i], before[i], bias=bias[i], **row)
        np.testing.assert_array_equal(probs[i] > 0, expected > 0, err_msg=str(row))
        np.testing.assert_allclose(probs[i], expected, rtol=2e-5, err_msg=str(row))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_alone_skips_the_stages_that_it_does_not_need(row):
    logits, seen, ancestors = inputs(2, 1)
    params = batch((row,))
    others = row.keys() - {"temperature"}
    cold = row.get("temperature") == 0
    assert (params.temperature is None) == (cold and "repetition_penalty" not in row)
    assert params.processed == bool(cold or others - {"top_k"} or 0 < row.get("top_k", 0) < V)
    alone = jit_warp(params, logits, seen, ancestors)
    np.testing.assert_allclose(np.exp(alone)[0], plain(logits[0], present(seen, ancestors)[0], **row), rtol=2e-5)
    if params.temperature is None:
        assert "exp" not in str(jax.make_jaxpr(lambda x: warp(params, x, seen))(logits))


@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_stages_that_no_row_needs_change_nothing(temperature):
    logits, seen, ancestors = inputs(3, 2)
    params = batch(({"temperature": temperature},) * 2)
    every = params._replace(temperature=jnp.full((2,), temperature), processed=jnp.array(True))
    np.testing.assert_array_equal(*(jit_warp(given, logits, seen, ancestors) for given in (params, every)))


def test_ties_are_kept_together():
    """Ties at the boundary of a filter are all kept; greedy takes the lowest index."""
    mass = np.array([0.125, 0.25, 0.125, 0.25, 0.125, 0.125])
    logits = jnp.asarray(np.broadcast_to(np.log(mass).astype(np.float32), (4, 1, 6)))
    params = sampling_params(4, 6, temperature=[1, 1, 1, 0], top_k=[3, 0, 0, 0], top_p=[1, 0.4, 0.6, 1])
    probs = np.exp(warp(params, logits))[:, 0]
    np.testing.assert_allclose(probs[0], mass, rtol=1e-6)
    np.testing.assert_allclose(probs[1], [0, 0.5, 0, 0.5, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(probs[2], mass, rtol=1e-6)
    np.testing.assert_array_equal(probs[3], [0, 1, 0, 0, 0, 0])


def test_extreme_temperatures_and_logits_give_a_distribution():
    logits = jnp.array([[[3e38, -3e38, 0.0, 2.9e38]]] * 4, jnp.float32)
    params = sampling_params(4, 4, temperature=[1e-30, 1e30, 1e-45, 1.0])
    probs = np.exp(warp(params, logits))[:, 0]
    np.testing.assert_array_equal(probs[[0, 2, 3]], np.eye(4)[[0, 0, 0]])
    np.testing.assert_allclose(probs[1].sum(), 1, rtol=1e-6)


def test_a_banned_token_stays_banned_and_may_change_the_argmax():
    logits, *_ = inputs(4, 2)
    best = int(logits[0, 0].argmax())
    params = sampling_params(2, V, temperature=[0.0, 1.0], logit_bias={best: -np.inf})
    log_p = np.asarray(warp(params, logits))
    assert np.all(log_p[..., best] == -np.inf)
    np.testing.assert_array_equal(log_p[0].argmax(-1), np.where(np.arange(V) == best, -np.inf, logits[0]).argmax(-1))


def test_bias_as_mappings_or_arrays():
    arrays = [
        sampling_params(2, 4, logit_bias=bias).logit_bias
        for bias in ({1: 2.0}, [{1: 2.0}, {1: 2.0}], np.array([0, 2.0, 0, 0]), np.array([[0, 2.0, 0, 0]] * 2))
    ]
    for array in arrays:
        np.testing.assert_array_equal(array, [[0, 2, 0, 0]] * 2)
    np.testing.assert_array_equal(sampling_params(2, 3, logit_bias=[None, {0: 1.0}]).logit_bias, [[0, 0, 0], [1, 0, 0]])


def test_values_change_without_recompilation():
    run = jax.jit(chex.assert_max_traces(warp, n=1))
    logits, seen, ancestors = inputs(5, 1)
    for row in ROWS:
        params = batch((row,))
        if params.temperature is not None:
            run(params, logits, seen, ancestors)


def test_rows_without_a_distribution_are_detected():
    logits = np.zeros((6, 3, V), np.float32)
    logits[1, 2, V - 1] = np.nan
    logits[2, 0, 5] = np.inf
    logits[3, 1, :] = -np.inf
    logits[4, 1, 1:] = -np.inf
    np.testing.assert_array_equal(has_nan(jnp.asarray(logits)), [False, True, True, True, False, False])
    np.testing.assert_array_equal(has_nan(jnp.asarray(logits[:, 2])), [False, True, False, False, False, False])


@pytest.mark.parametrize(
    ("choice", "argument"),
    (
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": [1.0, float("nan")]}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": [0.5, 1.5]}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": np.array([1.5, 2])}, "top_k"),
        ({"min_p": 1.0}, "min_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"temperature": [1.0, 1.0, 1.0]}, "temperature"),
        ({"logit_bias": {9: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias"),
        ({"logit_bias": np.zeros(5)}, "logit_bias"),
        ({"logit_bias": [{1: 1.0}]}, "logit_bias"),
        ({"logit_bias": np.full(8, -np.inf)}, "logit_bias"),
    ),
    ids=str,
)
def test_invalid_options_raise(choice, argument):
    with pytest.raises(ValueError, match=argument):
        sampling_params(2, 8, **choice)
