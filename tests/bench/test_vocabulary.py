"""The benchmark measures what it says: both forms of an operation give the same law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.bench import vocabulary

V = 300


def test_every_operation_is_timed_in_both_forms():
    table = vocabulary.measure(V, 2, repeats=3, inner=1)
    assert [row.operation for row in table] == ["argmax", "draw", "top-p", "residual draw"]
    for row in table:
        assert 0 < row.ours.low <= row.ours.median <= row.ours.high
        assert row.ratio == row.usual.median / row.ours.median


def test_both_forms_agree_where_chance_has_no_part():
    inputs, forms = vocabulary._inputs(V, 2), vocabulary._forms(V)
    np.testing.assert_array_equal(forms["argmax", "ours"](inputs), forms["argmax", "usual"](inputs))
    ours, usual = (np.exp(forms["top-p", form](inputs)) for form in ("ours", "usual"))
    np.testing.assert_allclose(ours, usual, rtol=1e-5)
    assert 1 < (ours > 0).sum() < ours.size / 2


def test_both_forms_of_a_draw_have_certain_laws_right():
    inputs, forms = vocabulary._inputs(V, 2), vocabulary._forms(V)
    token = jnp.array([7, V - 1])
    certain = jax.nn.one_hot(token, V)
    inputs = inputs._replace(logits=jnp.log(certain), p=certain, q=certain / 2)
    for operation in ("draw", "residual draw"):
        for form in ("ours", "usual"):
            with jax.debug_key_reuse(False):
                np.testing.assert_array_equal(forms[operation, form](inputs), token)


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        vocabulary.measure(0, 1)
