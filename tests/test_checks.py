"""Argument checks: names in tables, integers, numbers, rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checks


def test_lookup_suggests_the_closest_name():
    assert checks.lookup("model", {"model": 1}, "drafter") == 1
    with pytest.raises(ValueError, match=r"drafter 'modle'.*'model'"):
        checks.lookup("modle", {"model": 1, "plain": 2}, "drafter")
    with pytest.raises(ValueError, match="model, plain") as caught:
        checks.lookup("zzz", {"model": 1, "plain": 2}, "drafter")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("value", [3, np.int32(3), np.uint8(3)])
def test_integers(value):
    assert checks.integer("gamma", value, least=1) == 3 and type(checks.integer("gamma", value, least=1)) is int


@pytest.mark.parametrize("value", [0, 5, True, 2.0, "2", None, np.bool_(True), [2]])
def test_not_an_integer_in_range(value):
    with pytest.raises(ValueError, match="gamma"):
        checks.integer("gamma", value, least=1, most=4)


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), float("inf"), True, "0.5", None])
def test_not_a_number_in_range(value):
    with pytest.raises(ValueError, match="theta"):
        checks.number("theta", value, least=0, most=1)
    assert checks.number("theta", np.float32(0.5), least=0, most=1) == 0.5


def test_rows():
    assert checks.integer_rows("n", 2, 3, least=1).tolist() == [2, 2, 2]
    for value in ([2, 3], (2, 3), np.array([2, 3]), jnp.array([2, 3])):
        assert checks.integer_rows("n", value, 2, least=1).tolist() == [2, 3]
    for value in ([1], [1, 2.5], "12", np.array(2.0)):
        with pytest.raises(ValueError, match="n "):
            checks.integer_rows("n", value, 2, least=1)


def test_flags():
    assert checks.flag("lossless", np.bool_(True)) is True
    with pytest.raises(ValueError, match="lossless"):
        checks.flag("lossless", 1)
