"""Microseconds of the operations over the vocabulary, beside the usual forms of the same operations."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax import measuring
from specjax.bench.record import Row
from specjax.categorical import argmax, categorical, draw, uniforms
from specjax.sampling import sampling_params, warp
from specjax.verify.token import residual

Form = Callable[["Inputs"], jax.Array]


class Inputs(NamedTuple):
    """Arguments of the operations, none of which is a constant of a compiled program."""

    key: jax.Array
    logits: jax.Array
    p: jax.Array
    q: jax.Array
    params: Any


def rows(vocab_size: int, batch: int, *, repeats: int = 30, inner: int = 3) -> Iterator[Row]:
    """Times argmax, a draw, the nucleus and a residual draw against jnp.argmax, Gumbel noise and sorting.

    All forms are interleaved: `repeats` turns of `inner` calls each.

    Args:
      vocab_size: V. The distributions are as peaked as text: about a Zipf distribution with noise.
      batch: distributions at a time.

    Returns:
      A row for each operation: microseconds per call (smallest, median, largest) of both forms, and usual over ours.
    """
    inputs, forms = _inputs(vocab_size, batch), _forms()

    def program(form: Form) -> Callable[[], jax.Array]:
        run = jax.jit(form)
        return lambda: [run(inputs) for _ in range(inner)][-1]

    with jax.debug_key_reuse(False):  # a timed call draws the same numbers every time
        runs = measuring.interleave({name: program(form) for name, form in forms.items()}, repeats)
    for operation in dict.fromkeys(operation for operation, _ in forms):
        ours, usual = (
            measuring.spread([1e6 * seconds / inner for seconds in runs[operation, form].seconds])
            for form in ("ours", "usual")
        )
        yield {
            "bench": "vocabulary", "operation": operation, "rows": batch, "us": list(ours), "usual_us": list(usual),
            "ratio": usual.median / ours.median,
        }  # fmt: skip


def _inputs(vocab_size: int, rows: int) -> Inputs:
    def logits(key: jax.Array) -> jax.Array:
        noise, order = jax.random.split(key)
        rank = jax.random.permutation(order, jnp.arange(vocab_size, dtype=jnp.float32))
        return 0.7 * jax.random.normal(noise, (rows, vocab_size)) - 1.6 * jnp.log1p(rank)[None]

    target, other, keys = jax.random.split(jax.random.key(0), 3)
    first, second = logits(target), logits(other)
    params = sampling_params(rows, vocab_size, top_p=0.9)
    return Inputs(jax.random.split(keys, rows), first, jax.nn.softmax(first), jax.nn.softmax(second), params)


def _forms() -> dict[tuple[str, str], Form]:
    gumbel = jax.vmap(jax.random.categorical)
    return {
        ("argmax", "ours"): lambda x: argmax(x.logits),
        ("argmax", "usual"): lambda x: jnp.argmax(x.logits, axis=-1),
        ("draw", "ours"): lambda x: categorical(x.key, x.logits),
        ("draw", "usual"): lambda x: gumbel(x.key, x.logits),
        ("top-p", "ours"): lambda x: warp(x.params, x.logits[:, None])[:, 0],
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
