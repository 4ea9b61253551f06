"""The measuring kernel: compiling apart from running, interleaved runs, load of other programs."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import measuring
from specjax.measuring import Ticks

SLOW = 0.6  # seconds of tracing, which counts as compiling; running takes next to none


def test_compiling_is_separated_from_running():
    def slow_to_trace(x):
        time.sleep(SLOW)
        return x * 3

    function, x = jax.jit(slow_to_trace), jax.block_until_ready(jnp.ones(7))
    cold = measuring.timed(lambda: function(x))
    assert cold.compile >= SLOW > cold.run
    warm = measuring.timed(lambda: function(x))
    assert warm.compile == 0.0 and 0 < warm.run < SLOW
    assert warm.value.tolist() == [3.0] * 7


def test_without_compiling_all_time_is_running():
    function, x = jax.jit(lambda x: x + 1), jax.block_until_ready(jnp.ones(3))
    function(x)

    def dispatched_late():
        time.sleep(0.05)
        return function(x)

    found = measuring.timed(dispatched_late)
    assert found.compile == 0.0 and found.run >= 0.05


def test_programs_run_in_turns_after_one_warm_up():
    order, progress = [], []
    program = lambda name: lambda: order.append(name) or len(order)
    runs = measuring.interleave(
        {"a": program("a"), "b": program("b")}, 2, progress=lambda done, total: progress.append((done, total))
    )
    assert order == ["a", "b"] * 3 and progress == [(n, 6) for n in range(1, 7)]
    assert (runs["a"].warm_up, runs["a"].values) == (1, (3, 5)) and runs["b"].values == (4, 6)
    assert len(runs["a"].seconds) == 2 and runs["b"].each(float) == (4.0, 6.0)


@pytest.mark.parametrize(("within", "turns"), [(0.06, 3), (0.105, 5), (1.0, 7)])
def test_the_first_turn_tells_how_many_fit(within, turns, monkeypatch):
    """Each turn takes 20 ms."""
    now = iter(np.arange(100) / 50)
    monkeypatch.setattr(measuring, "ticks", lambda: measuring.Ticks(0.0, 0.0, next(now)))
    progress = []
    runs = measuring.interleave({"a": lambda: 1}, 7, within=within, progress=lambda *numbers: progress.append(numbers))
    assert len(runs["a"].values) == turns and progress[-1] == (turns + 1, turns + 1)


def test_an_incomplete_turn_is_discarded():
    calls = []
    programs = {name: lambda name=name: calls.append(name) for name in "ab"}
    runs = measuring.interleave(programs, 5, warm_up=False, stop=lambda: len(calls) == 3)
    assert calls == ["a", "b", "a"] and [len(run.seconds) for run in runs.values()] == [1, 1]
    assert measuring.interleave(programs, 5, stop=lambda: True)["a"].values == ()


def test_results_are_waited_for():
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 2000, lambda _, y: jnp.sin(y), x))
    runs = measuring.interleave({"slow": lambda: slow(jnp.ones(20_000))}, 1)
    waited = time.perf_counter()
    jax.block_until_ready(runs["slow"].values)
    assert time.perf_counter() - waited < runs["slow"].median


def test_ratios_are_taken_within_a_turn():
    """The ratios are 2, 1 and 4; that of the medians would be 4."""
    assert measuring.ratio([2.0, 10.0, 8.0], [1.0, 10.0, 2.0]) == pytest.approx(2.0)
    assert measuring.spread([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)


def test_load_is_the_share_that_other_programs_used(monkeypatch):
    monkeypatch.setattr(measuring.os, "cpu_count", lambda: 4)
    start, end = Ticks(10.0, 1.0, 100.0), Ticks(16.0, 3.0, 102.0)
    assert measuring.load_between(start, end) == pytest.approx((6.0 - 2.0) / (2.0 * 4))
    assert measuring.load_between(start, start) == 0.0
    assert measuring.load_between(start, Ticks(10.5, 3.0, 102.0)) == 0.0  # ticks are coarse: never negative


def test_load_is_counted_over_all_turns_without_the_warm_up(monkeypatch):
    """Each turn is shorter than a tick of the system's clock, which then counts all of it or nothing."""
    busy, wall, counted = 0.0, 0.0, iter([8.0, 0.0, 0.01, 0.0])
    monkeypatch.setattr(measuring, "ticks", lambda: Ticks(busy, 0.0, wall))
    monkeypatch.setattr(measuring.os, "cpu_count", lambda: 2)

    def program():
        nonlocal busy, wall
        busy, wall = busy + next(counted), wall + 0.005

    runs = measuring.interleave({"a": program}, turns=3)
    assert runs["a"].load == pytest.approx(0.01 / (3 * 0.005 * 2))
