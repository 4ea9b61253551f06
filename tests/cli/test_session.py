"""Walltime: compiling stands apart, and overlapping reports of it count once."""

import pytest

from specjax.cli import clock
from specjax.cli.session import without_compiling


def test_overlapping_reports_count_once(monkeypatch):
    monkeypatch.setattr(clock, "_spans", [(1.0, 3.0), (2.0, 4.0), (2.5, 3.5), (6.0, 7.0)])
    assert clock.compile_seconds(0.0, 10.0) == pytest.approx(4.0)
    assert clock.compile_seconds(2.0, 6.5) == pytest.approx(2.5)
    assert clock.compile_seconds(4.0, 6.0) == 0.0


def test_compiling_is_taken_out_of_every_part(monkeypatch):
    """Prefill from 1 to 3, of which 1.5 compiled; rounds of 0.5 (the first), 0.1 and 0.1 seconds."""
    monkeypatch.setattr(clock, "_spans", [(1.0, 2.5)])
    measured = {"prefill": 2.0, "decode": 5.0, "draft": 4.0, "verify": 1.0}
    apart = without_compiling(measured, 3.0, [0.5, 0.1, 0.1])
    assert apart == pytest.approx({"prefill": 0.5, "decode": 0.3, "draft": 0.24, "verify": 0.06})
    assert without_compiling({"prefill": 2.0, "decode": 5.0}, 3.0, [0.5])["decode"] == 0.5


def test_jax_reports_its_compilations():
    import jax
    import jax.numpy as jnp

    clock.listen()
    clock.listen()
    heard = len(clock._spans)
    jax.jit(lambda x: x * 3.25 + 1)(jnp.ones(7))
    spans = len(clock._spans) - heard
    assert spans > 0 and len(set(clock._spans[heard:])) == spans  # heard, and by one listener
