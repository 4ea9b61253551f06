"""The strictness that every other test relies on is in force: each of these raises, or the suite proves less."""

import os
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.errors import KeyReuseError
from jaxtyping import TypeCheckError

from specjax import trees, verify
from specjax.types import Draft
from tests.conftest import FAKE_DEVICES


def test_devices():
    assert jax.default_backend() == os.environ["JAX_PLATFORMS"] == "cpu"
    assert jax.device_count() == FAKE_DEVICES


def test_ranks_are_not_promoted():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.zeros((2, 3)) + jnp.zeros(3)


def test_dtypes_are_not_promoted():
    with pytest.raises(jax.dtypes.TypePromotionError):
        jnp.zeros(3, jnp.float32) + jnp.zeros(3, jnp.bfloat16)


@pytest.mark.checked
def test_keys_are_consumed_once():
    key = jax.random.key(0)
    jax.random.uniform(key)
    with pytest.raises(KeyReuseError):
        jax.random.normal(key)


def test_warnings_are_errors():
    with pytest.raises(UserWarning, match="unheard"):
        warnings.warn("unheard", stacklevel=1)


@pytest.mark.checked
def test_shapes_are_checked():
    draft = Draft(jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2), bool), None)
    log_p = jnp.zeros((1, 2, 5))
    verify.token_level(jax.random.key(0)[None], trees.chain(1), draft, log_p)
    with pytest.raises(TypeCheckError):
        verify.token_level(jax.random.key(0)[None], trees.chain(1), draft, log_p[0])
