"""The warp stack against a plain float64 implementation, row by row, and the validation of options."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.sampling import Stages, has_nan, sampling_params, warp

V = 40
jit_warp = jax.jit(warp, static_argnames="stages")


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
    return jnp.asarray(logits), jnp.asarray(rng.random((size, positions, V)) < 0.3)


def test_every_row_follows_its_own_parameters():
    logits, seen = inputs(0, len(ROWS))
    bias = np.random.default_rng(1).normal(size=(len(ROWS), V)).astype(np.float32)
    params, stages = batch(logit_bias=bias)
    probs = np.exp(np.asarray(jit_warp(params, stages, logits, seen), np.float64))
    for i, row in enumerate(ROWS):
        expected = plain(logits[i], seen[i], bias=bias[i], **row)
        np.testing.assert_array_equal(probs[i] > 0, expected > 0, err_msg=str(row))
        np.testing.assert_allclose(probs[i], expected, rtol=2e-5, err_msg=str(row))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_alone_needs_only_its_stages_and_gives_the_same_result(row):
    logits, seen = inputs(2, 1)
    params, stages = batch((row,))
    greedy = row.get("temperature") == 0
    assert stages == Stages(
        greedy=greedy,
        sampled=not greedy,
        repetition_penalty="repetition_penalty" in row,
        top_k=not greedy and 0 < row.get("top_k", 0) < V,
        top_p=not greedy and "top_p" in row,
        min_p=not greedy and "min_p" in row,
    )
    alone = warp(params, stages, logits, seen)
    np.testing.assert_allclose(np.exp(alone)[0], plain(logits[0], seen[0], **row), rtol=2e-5)
    if greedy:
        assert "exp" not in str(jax.make_jaxpr(lambda x: warp(params, stages, x, seen))(logits))


def test_stages_that_are_traced_but_off_change_nothing():
    logits, seen = inputs(3, 2)
    params, _ = batch(({}, {"temperature": 0.0}))
    every = Stages(repetition_penalty=True, top_k=True, top_p=True, min_p=True)
    np.testing.assert_array_equal(warp(params, every, logits, seen), warp(params, Stages(), logits))


def test_ties_are_kept_together():
    """Ties at the boundary of a filter are all kept; greedy takes the lowest index."""
    mass = np.array([0.125, 0.25, 0.125, 0.25, 0.125, 0.125])
    logits = jnp.asarray(np.broadcast_to(np.log(mass).astype(np.float32), (4, 1, 6)))
    params, stages = sampling_params(4, 6, temperature=[1, 1, 1, 0], top_k=[3, 0, 0, 0], top_p=[1, 0.4, 0.6, 1])
    probs = np.exp(warp(params, stages, logits))[:, 0]
    np.testing.assert_allclose(probs[0], mass, rtol=1e-6)
    np.testing.assert_allclose(probs[1], [0, 0.5, 0, 0.5, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(probs[2], mass, rtol=1e-6)
    np.testing.assert_array_equal(probs[3], [0, 1, 0, 0, 0, 0])


def test_extreme_temperatures_and_logits_give_a_distribution():
    logits = jnp.array([[[3e38, -3e38, 0.0, 2.9e38]]] * 4, jnp.float32)
    params, stages = sampling_params(4, 4, temperature=[1e-30, 1e30, 1e-45, 1.0])
    probs = np.exp(warp(params, stages, logits))[:, 0]
    np.testing.assert_array_equal(probs[[0, 2, 3]], np.eye(4)[[0, 0, 0]])
    np.testing.assert_allclose(probs[1].sum(), 1, rtol=1e-6)


def test_a_banned_token_stays_banned_and_may_change_the_argmax():
    logits, _ = inputs(4, 2)
    best = int(logits[0, 0].argmax())
    params, stages = sampling_params(2, V, temperature=[0.0, 1.0], logit_bias={best: -np.inf})
    log_p = np.asarray(warp(params, stages, logits))
    assert np.all(log_p[..., best] == -np.inf)
    np.testing.assert_array_equal(log_p[0].argmax(-1), np.where(np.arange(V) == best, -np.inf, logits[0]).argmax(-1))


def test_bias_as_mappings_or_arrays():
    arrays = [
        sampling_params(2, 4, logit_bias=bias)[0].logit_bias
        for bias in ({1: 2.0}, [{1: 2.0}, {1: 2.0}], np.array([0, 2.0, 0, 0]), np.array([[0, 2.0, 0, 0]] * 2))
    ]
    for array in arrays:
        np.testing.assert_array_equal(array, [[0, 2, 0, 0]] * 2)
    np.testing.assert_array_equal(
        sampling_params(2, 3, logit_bias=[None, {0: 1.0}])[0].logit_bias, [[0, 0, 0], [1, 0, 0]]
    )


def test_values_change_without_recompilation():
    run = jax.jit(chex.assert_max_traces(lambda p, x: warp(p, Stages(top_k=True), x), n=1))
    logits, _ = inputs(5, 2)
    for top_k in (3, 7):
        run(batch(({"top_k": top_k}, {}))[0], logits)


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


def test_a_stage_without_its_array_raises():
    params, _ = sampling_params(1, 4)
    with pytest.raises(ValueError, match="seen"):
        warp(params, Stages(repetition_penalty=True), jnp.zeros((1, 1, 4)))
    with pytest.raises(ValueError, match="logit_bias"):
        warp(params, Stages(logit_bias=True), jnp.zeros((1, 1, 4)))
