"""Losses against the same sums written in numpy, float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.training import losses
from specjax.training.recipe import DIVERGENCES

RNG = np.random.default_rng(0)
P, Q = (RNG.normal(size=(2, 3, 7)).astype(np.float32) for _ in range(2))
LABELS = RNG.integers(0, 7, (2, 3)).astype(np.int32)
MASK = np.array([[True, True, False], [True, False, False]])
A, B, Y, M = (jnp.asarray(x) for x in (P, Q, LABELS, MASK))


def softmax(logits):
    e = np.exp(logits.astype(np.float64))
    return e / e.sum(-1, keepdims=True)


def test_cross_entropy():
    expected = -np.log(np.take_along_axis(softmax(P), LABELS[..., None], -1)[..., 0])[MASK].mean()
    assert float(losses.cross_entropy(A, Y, M)) == pytest.approx(expected, rel=1e-5)


def test_divergence_and_acceptance():
    p, q = softmax(P), softmax(Q)
    log_p, log_q = jax.nn.log_softmax(A), jax.nn.log_softmax(B)
    np.testing.assert_allclose(losses.DIVERGENCES["kl"](log_p, log_q), (p * np.log(p / q)).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(losses.accepted(log_p, log_q), np.minimum(p, q).sum(-1), rtol=1e-5)


def test_an_empty_mask_gives_zero():
    assert float(losses.cross_entropy(A, Y, ~M & M)) == 0.0


def test_options_name_the_divergences():
    assert tuple(losses.DIVERGENCES) == DIVERGENCES
