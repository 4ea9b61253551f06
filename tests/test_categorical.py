"""Blockwise reductions: equal to their plain forms, the right distribution, and robust at the edges."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import categorical
from specjax.planning import program as hlo
from tests.distributions import ALPHA, chi_square, power

SIZES = (1, 11, 256, 257, 1000)  # V around the block, divisible or not
LEADS = ((), (2, 3))
LARGEST_U = np.float32(1) - np.finfo(np.float32).epsneg  # 1 - ulp

argmax, draw, threshold = map(jax.jit, (categorical.argmax, categorical.draw, categorical.threshold))


def rows(seed: int, lead: tuple[int, ...], size: int):
    """Numbers with many ties."""
    return np.random.default_rng(seed).normal(size=(*lead, size)).round(1).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lead", LEADS)
def test_argmax_returns_the_first_of_ties(size, lead):
    x = rows(size, lead, size)
    np.testing.assert_array_equal(argmax(x), np.argmax(x, axis=-1))
    np.testing.assert_array_equal(argmax(np.zeros_like(x)), np.zeros(lead))


@pytest.mark.parametrize("size", (11, 300))
def test_argmax_of_infinities_and_nan_equals_numpy(size):
    x = np.full((4, size), -np.inf, np.float32)
    x[1, size - 1] = -5.0
    x[2, size // 2] = np.inf
    x[3, size - 2] = np.nan
    np.testing.assert_array_equal(argmax(jnp.asarray(x)), np.argmax(x, axis=-1))


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lead", LEADS)
def test_a_token_without_mass_is_never_sampled(size, lead):
    mass = np.exp(rows(size, lead, size))
    mass[..., np.random.default_rng(size).random(size) < 0.7] = 0.0
    mass[..., size // 2] = 1.0
    for edges in itertools.product((0.0, 0.5, LARGEST_U, 1.0), (0.0, LARGEST_U, 1.0)):  # 1 is out of range, by rounding
        uniform = np.broadcast_to(np.array(edges, np.float32), (*lead, 2))
        sampled = np.asarray(draw(uniform, mass))
        assert np.all(np.take_along_axis(mass, sampled[..., None], axis=-1) > 0)


def test_no_token_without_mass_at_any_step_of_a_parallel_cumulative_sum(monkeypatch):
    """Accelerators sum like this: rounding differs by entry, and the sum may increase where there is no mass."""
    monkeypatch.setattr(categorical.jnp, "cumsum", lambda x, axis: jax.lax.associative_scan(jnp.add, x, axis=axis))
    mass = np.random.default_rng(0).random((16, 256)).astype(np.float32)
    mass[:, 1::2] = 0.0
    below = np.array(jax.jit(lambda m: jnp.cumsum(m, axis=1))(mass))
    assert np.any((np.diff(below) > 0)[:, ::2]), "these masses do not exercise the case"
    step = below / below[:, -1:]
    for u in (step, np.nextafter(step, np.float32(0)), np.nextafter(step, np.float32(1))):
        every = np.broadcast_to(mass[:, None], (16, 256, 256))
        uniform = np.stack([np.zeros_like(u), np.minimum(u, LARGEST_U)], axis=-1)
        sampled = np.asarray(jax.jit(lambda *args: categorical.draw(*args))(uniform, every))
        assert np.all(np.take_along_axis(mass, sampled, axis=1) > 0)


@pytest.mark.parametrize("size", (1, 11, 257, 1000))
def test_one_hot_masses_return_their_token_for_every_uniform(size):
    tokens = np.arange(size)
    mass = np.eye(size, dtype=np.float32) * np.float32(1e-20)
    for u in (0.0, LARGEST_U):
        sampled = draw(np.full((size, 2), u, np.float32), mass)
        np.testing.assert_array_equal(sampled, tokens)


@pytest.mark.parametrize("size", (5, 700))
def test_draw_follows_the_masses_over_a_grid_of_uniforms(size):
    """With an n x n grid of uniforms, frequencies equal the masses up to the grid's step at both levels."""
    n = 256
    grid = (np.arange(n) + 0.5) / n
    uniform = jnp.asarray(np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2), jnp.float32)
    mass = np.exp(np.random.default_rng(1).normal(size=size)).astype(np.float32) * 37.0
    sampled = jax.jit(jax.vmap(categorical.draw, in_axes=(0, None)))(uniform, jnp.asarray(mass))
    shares = np.bincount(np.asarray(sampled), minlength=size) / n**2
    np.testing.assert_allclose(shares, mass / mass.sum(), atol=2 / n)


@pytest.mark.parametrize("size", (11, *(pytest.param(size, marks=pytest.mark.slow) for size in (300, 1000))))
def test_categorical_follows_the_distribution_and_a_flatter_one_is_detected(size):
    samples = 200_000
    logits = 1.5 * np.random.default_rng(3).normal(size=size)
    logits[::4] = -np.inf
    probs = np.exp(logits) / np.exp(logits).sum()
    flatter = np.exp(0.95 * logits) / np.exp(0.95 * logits).sum()
    assert power(probs, flatter, samples) > 0.999
    shifted = jnp.asarray(logits + 50.0, jnp.float32)
    sampled = jax.jit(jax.vmap(categorical.categorical, in_axes=(0, None)))
    keys = jax.random.split(jax.random.key(7), samples)
    counts = np.bincount(np.asarray(sampled(keys, shifted)), minlength=size)
    assert chi_square(counts, probs) > ALPHA
    keys = jax.random.split(jax.random.key(8), samples)
    assert chi_square(np.bincount(np.asarray(sampled(keys, 0.95 * shifted)), minlength=size), probs) < ALPHA


@pytest.mark.slow
def test_the_two_levels_are_independent():
    """Blocks of equal mass: the index within a block must not depend on the block, as it does with a shared uniform."""
    samples, size = 50_000, 4 * categorical.BLOCK
    keys = jax.random.split(jax.random.key(0), samples)
    uniform = categorical.uniforms(keys, (2,))
    flat = jax.vmap(lambda u: draw(u, jnp.ones(size)))
    half = categorical.BLOCK // 2
    cells = lambda sampled: np.bincount(np.asarray(sampled) // half, minlength=8)
    assert chi_square(cells(flat(uniform)), np.full(8, 1 / 8)) > ALPHA
    shared = jnp.repeat(uniform[:, :1] * 4 % 1, 2, axis=1)  # block and index from one uniform
    assert chi_square(cells(flat(shared)), np.full(8, 1 / 8)) < ALPHA


def test_a_row_samples_the_same_alone_and_in_a_batch():
    keys = lambda: jax.random.split(jax.random.key(1), 6)
    log_p = jax.random.normal(jax.random.key(2), (6, 3, 400))
    sample = jax.jit(categorical.categorical)
    together = sample(keys(), log_p)
    for row in (5, 0):
        alone = sample(keys()[row : row + 1], log_p[row : row + 1])
        np.testing.assert_array_equal(together[row : row + 1], alone)
    assert len(set(np.asarray(categorical.uniforms(keys(), (3, 2))).ravel().tolist())) == 36


def test_sampling_uses_two_uniforms_for_any_vocabulary():
    draws = jax.make_jaxpr(categorical.categorical)(jax.random.split(jax.random.key(0), 3), jnp.zeros((3, 50_272)))
    text = str(draws)
    assert "random_bits[bit_width=32 shape=(2,)]" in text
    assert text.count("random_bits") == 1


def test_keys_that_do_not_match_raise():
    with pytest.raises(ValueError, match="key"):
        categorical.categorical(jax.random.split(jax.random.key(0), 4), jnp.zeros((3, 2, 5)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lead", LEADS)
def test_threshold_with_unit_weights_is_the_kth_largest(size, lead):
    x = rows(size, lead, size)
    if size >= 500:
        x = np.random.default_rng(size).normal(size=x.shape).astype(np.float32)
    descending = np.sort(x, axis=-1)[..., ::-1]
    for k in {1, (size + 1) // 2, size}:
        t = threshold(x, np.ones_like(x), np.full(lead, k, np.float32), np.ones(lead, bool))
        kept = x >= np.asarray(t)[..., None]
        np.testing.assert_array_equal(kept, x >= descending[..., k - 1 : k])


@pytest.mark.parametrize("size", (1, 11, 257, 1000))
@pytest.mark.parametrize("share", (1e-6, 0.3, 0.9, 0.999))
def test_threshold_is_the_largest_with_enough_mass(size, share):
    """Against a float64 sort; masses are multiples of 2^-10, so that float32 sums are exact."""
    rng = np.random.default_rng(size)
    mass = np.ceil(np.exp(2 * rng.normal(size=(5, size))) * 64).clip(max=2.0**12) / 2**10
    target = np.float32(share * mass.sum(-1))
    t = threshold(
        jnp.asarray(np.log(mass), jnp.float32), jnp.asarray(mass, jnp.float32), jnp.asarray(target), jnp.ones(5, bool)
    )
    for row in range(5):
        levels = np.unique(mass[row])[::-1]
        weight = np.array([mass[row][mass[row] >= level].sum() for level in levels])
        smallest = levels[np.argmax(weight >= target[row])]
        kept = np.float32(np.log(mass[row])) >= t[row]
        np.testing.assert_array_equal(kept, mass[row] >= smallest)


def test_the_threshold_of_an_inactive_row_keeps_all():
    x = jnp.array([[1.0, -3.0, -jnp.inf], [1.0, -3.0, -jnp.inf]])
    t = threshold(x, jnp.ones_like(x), jnp.ones(2), jnp.array([False, True]))
    np.testing.assert_array_equal(x >= t[:, None], [[True, True, True], [True, False, False]])


def test_thresholds_of_wide_rows_equal_those_of_narrow_ones(monkeypatch):
    """Rows whose threshold is among the ranked numbers and rows whose is not, alone and together."""
    size = 3000
    x = jax.random.normal(jax.random.key(0), (4, size)) * jnp.array([[6.0], [1.0], [0.1], [6.0]])
    mass = jnp.exp(x)
    target = jnp.array([0.5, 0.9, 0.9, 0.9]) * mass.sum(-1)
    active = jnp.array([True, True, True, False])
    compiled = lambda: jax.jit(lambda *args: categorical.threshold(*args))  # for the width at which it is traced
    bisected = compiled()(x, mass, target, active)
    monkeypatch.setattr(categorical, "WIDE", 1000)
    kept = lambda t, rows=slice(None): np.asarray(x[rows] >= t[:, None])
    np.testing.assert_array_equal(kept(compiled()(x, mass, target, active)), kept(bisected))
    counts = kept(bisected).sum(-1)
    assert counts[0] < categorical.RANKED < counts[1] and counts[3] == size
    one = slice(0, 1)
    alone = compiled()(x[one], mass[one], target[one], active[one])
    np.testing.assert_array_equal(kept(alone, one), kept(bisected)[one])


@pytest.mark.parametrize("shape, product", [
    ((7,), False), ((3, 7), False), ((1, 50_272), False), ((3, 50_272), True), ((2, 3, 20_001), True),
])  # fmt: skip
def test_total_is_a_sum_or_a_product_for_several_wide_rows(shape, product):
    x = np.random.default_rng(0).random(shape, np.float32)
    run = jax.jit(categorical.total)
    np.testing.assert_allclose(run(x), x.sum(-1, dtype=np.float64), rtol=1e-5)
    opcodes = [one.opcode for one in hlo.program(run.lower(x).compile().as_text())]
    assert ("dot" in opcodes) == product
