"""Microseconds of everything that walks the vocabulary, beside the usual forms of the same operations."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.categorical import argmax, categorical, draw, uniforms
from specjax.sampling import sampling_params, warp
from specjax.verify.token import residual

Form = Callable[["Inputs"], jax.Array]


class Inputs(NamedTuple):
    """What the operations read; nothing of it is a constant of the compiled program."""

    key: jax.Array
    logits: jax.Array
    p: jax.Array
    q: jax.Array
    params: Any


class Spread(NamedTuple):
    """Microseconds a call: median and quartiles."""

    median: float
    low: float
    high: float


class Comparison(NamedTuple):
    """One operation in two forms, timed in turns; `ratio` is usual over ours, by medians."""

    operation: str
    ours: Spread
    usual: Spread
    ratio: float


def measure(vocab_size: int, rows: int, *, repeats: int = 30, inner: int = 3) -> list[Comparison]:
    """Times argmax, a draw, the nucleus and a residual draw against jnp.argmax, gumbel noise and sorting.

    All forms run in turns, `repeats` rounds of `inner` calls, so that other load on the machine falls on both sides
    of a ratio. Single numbers from a loaded machine say little; the quartiles tell.

    Args:
      vocab_size: V. The laws are as peaked as text: about a Zipf law with noise.
      rows: laws at a time.

    Raises:
      ValueError: a size below 1.
    """
    if min(vocab_size, rows, repeats, inner) < 1:
        raise ValueError(f"sizes must be at least 1, got {vocab_size=} {rows=} {repeats=} {inner=}")
    inputs, forms = _inputs(vocab_size, rows), _forms(vocab_size)
    programs = {name: jax.jit(form) for name, form in forms.items()}
    times: dict[tuple[str, str], list[float]] = {name: [] for name in programs}
    with jax.debug_key_reuse(False):  # a timed call draws the same numbers every time, on purpose
        for program in programs.values():
            jax.block_until_ready(program(inputs))
        for _ in range(repeats):
            for name, program in programs.items():
                start = time.perf_counter()
                for _ in range(inner):
                    result = program(inputs)
                jax.block_until_ready(result)
                times[name].append((time.perf_counter() - start) / inner * 1e6)
    spread = {name: _spread(values) for name, values in times.items()}
    operations = dict.fromkeys(operation for operation, _ in forms)
    return [
        Comparison(name, ours, usual, usual.median / ours.median)
        for name in operations
        for ours, usual in [(spread[name, "ours"], spread[name, "usual"])]
    ]


def _inputs(vocab_size: int, rows: int) -> Inputs:
    def logits(key: jax.Array) -> jax.Array:
        noise, order = jax.random.split(key)
        rank = jax.random.permutation(order, jnp.arange(vocab_size, dtype=jnp.float32))
        return 0.7 * jax.random.normal(noise, (rows, vocab_size)) - 1.6 * jnp.log1p(rank)[None]

    target, other, keys = jax.random.split(jax.random.key(0), 3)
    first, second = logits(target), logits(other)
    params, _ = sampling_params(rows, vocab_size, top_p=0.9)
    return Inputs(jax.random.split(keys, rows), first, jax.nn.softmax(first), jax.nn.softmax(second), params)


def _forms(vocab_size: int) -> dict[tuple[str, str], Form]:
    _, nucleus = sampling_params(1, vocab_size, top_p=0.9)
    gumbel = jax.vmap(jax.random.categorical)
    return {
        ("argmax", "ours"): lambda x: argmax(x.logits),
        ("argmax", "usual"): lambda x: jnp.argmax(x.logits, axis=-1),
        ("draw", "ours"): lambda x: categorical(x.key, x.logits),
        ("draw", "usual"): lambda x: gumbel(x.key, x.logits),
        ("top-p", "ours"): lambda x: warp(x.params, nucleus, x.logits[:, None])[:, 0],
        ("top-p", "usual"): lambda x: _sorted_nucleus(x.logits, x.params.top_p),
        ("residual draw", "ours"): lambda x: draw(uniforms(x.key, (2,)), residual(x.p, x.q)),
        ("residual draw", "usual"): lambda x: gumbel(x.key, jnp.log(jnp.maximum(x.p - x.q, 0.0))),
    }


def _sorted_nucleus(logits: jax.Array, top_p: jax.Array) -> jax.Array:
    """Log-probabilities of the nucleus, by sorting."""
    p = jax.nn.softmax(logits)
    descending = -jnp.sort(-p, axis=-1)
    above = jnp.cumsum(descending, axis=-1) - descending
    smallest = jnp.min(jnp.where(above < top_p[:, None], descending, 2.0), axis=-1, keepdims=True)
    return jax.nn.log_softmax(jnp.where(p >= smallest, logits, -jnp.inf))


def _spread(values: list[float]) -> Spread:
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return Spread(median, low, high)


def rows(vocab_size: int, batch: int) -> Iterator[dict[str, Any]]:
    """`measure` as rows of a table."""
    for one in measure(vocab_size, batch):
        yield {
            "bench": "vocabulary", "operation": one.operation, "rows": batch, "us": one.ours.median,
            "usual_us": one.usual.median, "ratio": one.ratio,
        }  # fmt: skip
