"""The benchmark measures what it claims: both forms of an operation give the same distribution."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax.bench import vocabulary

V = 300


def test_every_operation_is_timed_in_both_forms():
    rows = list(vocabulary.rows(V, 2, repeats=3, inner=1))
    assert [row["operation"] for row in rows] == ["argmax", "draw", "top-p", "residual draw"]
    for row in rows:
        low, median, high = row["us"]
        assert 0 < low <= median <= high and row["ratio"] == row["usual_us"][1] / median


def test_both_forms_of_deterministic_operations_agree():
    inputs, forms = vocabulary._inputs(V, 2), vocabulary._forms()
    np.testing.assert_array_equal(forms["argmax", "ours"](inputs), forms["argmax", "usual"](inputs))
    ours, usual = (np.exp(forms["top-p", form](inputs)) for form in ("ours", "usual"))
    np.testing.assert_allclose(ours, usual, rtol=1e-5)
    assert 1 < (ours > 0).sum() < ours.size / 2


def test_both_forms_draw_the_only_token_with_mass():
    inputs, forms = vocabulary._inputs(V, 2), vocabulary._forms()
    token = jnp.array([7, V - 1])
    certain = jax.nn.one_hot(token, V)
    inputs = inputs._replace(logits=jnp.log(certain), p=certain, q=certain / 2)
    for operation in ("draw", "residual draw"):
        for form in ("ours", "usual"):
            with jax.debug_key_reuse(False):
                np.testing.assert_array_equal(forms[operation, form](inputs), token)
