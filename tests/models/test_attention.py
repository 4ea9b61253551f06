"""Attention of a block: against the plain formula, in both forms of its dots, and in chunks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import attention
from specjax.models.cache import KV, Stored
from specjax.models.cpu import CPUProducts
from specjax.models.format import Format
from specjax.models.products import Products
from specjax.planning import program as hlo
from tests import battery
from tests.models import small

HEADS, WIDTH, SLOTS = 4, 8, 13
FMT = Format(products=CPUProducts())


def drawn(rows: int, block: int, kv_heads: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(rows, block, HEADS, WIDTH)).astype(np.float32)
    k, v = (rng.normal(size=(rows, kv_heads, SLOTS, WIDTH)).astype(np.float32) for _ in range(2))
    visible = rng.random((rows, block, SLOTS)) < 0.5
    visible[..., 0] = True
    bias = rng.normal(size=(1, HEADS, block, SLOTS)).astype(np.float32)
    return q, KV(jnp.asarray(k), jnp.asarray(v)), visible, bias


def plainly(q, kv, visible, bias, scale) -> np.ndarray:
    """One query head after the other, in float64."""
    rows, block = q.shape[:2]
    k, v = np.asarray(kv.k, np.float64), np.asarray(kv.v, np.float64)
    out = np.zeros((rows, block, HEADS, WIDTH))
    for row in range(rows):
        for head in range(HEADS):
            shared = head // (HEADS // k.shape[1])
            scores = scale * q[row, :, head] @ k[row, shared].T
            if bias is not None:
                scores = scores + bias[0, head]
            weights = np.where(visible[row], np.exp(scores - scores.max(-1, keepdims=True)), 0)
            out[row, :, head] = weights / weights.sum(-1, keepdims=True) @ v[row, shared]
    return out.reshape(rows, block, -1)


def attend(q, kv, visible, bias=None, *, fmt=FMT):
    """One program, compiled anew in every call: tests change its constants."""
    run = jax.jit(lambda q, kv, visible, bias: attention.attend(q, kv, visible, scale=0.3, fmt=fmt, bias=bias))
    return run(q, kv, visible, bias)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("products", [CPUProducts(), Products()])
@pytest.mark.parametrize("biased", [True, False])
def test_equals_the_plain_formula(kv_heads, products, biased):
    q, kv, visible, bias = drawn(3, 5, kv_heads)
    bias = bias if biased else None
    got = attend(q, kv, visible, bias, fmt=Format(products=products))
    small.assert_close(got, plainly(q, kv, visible, bias, 0.3))


def test_a_query_that_sees_nothing_is_finite():
    q, kv, visible, _ = drawn(2, 3, 2)
    visible[1, 2] = False
    got = attend(q, kv, visible)
    assert np.isfinite(np.asarray(got)).all()


@pytest.mark.parametrize("block, first", [(1, True), (5, True), (31, True), (32, False)])
def test_of_few_queries_the_keys_are_the_left_operand_and_stay_there(block, first):
    """In the compiled program: XLA packs the right operand of a product on every call."""
    q, kv, visible, _ = drawn(3, block, 2)  # a head of keys serves two of queries
    queries = 2 * block
    run = jax.jit(functools.partial(attention.attend, scale=0.3, fmt=FMT))
    text = run.lower(jnp.asarray(q), kv, jnp.asarray(visible)).compile().as_text()
    shapes = [one.shape for one in hlo.program(text) if one.opcode == "dot" and SLOTS in one.shape]
    assert shapes == [(6, SLOTS, queries) if first else (6, queries, SLOTS)]


@pytest.mark.slow
@pytest.mark.parametrize("block", [7, 8, 9])
@pytest.mark.parametrize("biased", [True, False])
def test_chunks_change_nothing(monkeypatch, block, biased):
    q, kv, visible, bias = drawn(2, block, 2)
    bias = bias if biased else None
    whole = attend(q, kv, visible, bias)
    monkeypatch.setattr(attention, "QUERY_CHUNK", 4)
    called = []
    inner = attention._in_chunks
    monkeypatch.setattr(attention, "_in_chunks", lambda *a, **k: called.append(1) or inner(*a, **k))
    pieces = attend(q, kv, visible, bias)
    assert called
    small.assert_close(pieces, whole, 1e-6)


@pytest.mark.parametrize("name", [pytest.param("opt", marks=pytest.mark.slow), "llama"])
def test_a_long_prompt_in_chunks_equals_the_whole(monkeypatch, name):
    built = small.build(name)
    prompt, lengths = jnp.asarray(small.tokens(20, 2, 11)), jnp.asarray([11, 6], jnp.int32)
    prefill = lambda: jax.jit(lambda *given: built.model.prefill(*given, 16))(built.params, prompt, lengths)
    whole = prefill()
    monkeypatch.setattr(attention, "QUERY_CHUNK", 4)
    pieces = prefill()
    small.assert_close(pieces.features, whole.features)
    small.assert_close(pieces.cache.layers[1].k, whole.cache.layers[1].k)


@pytest.mark.parametrize("live", battery.others_slow([1, 3, 4, 5, 6, 7, 8, 12, 13, 24], [3, 4, 8, 13]))
@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("rows, biased", [(1, False), (2, True), (3, False)])
def test_slots_past_the_last_visible_piece_are_not_read(monkeypatch, live, stacked, rows, biased):
    """A cache of 24 slots: 4 of them and those of a block, then pieces of 3; of a single row, from 13 live slots on
    all of it."""
    for name, slots in {"WHOLE": 8, "FIRST": 4, "ALIGN": 1, "PIECE": 3}.items():
        monkeypatch.setattr(attention, name, slots)
    rng, total, block = np.random.default_rng(live), 24, 3
    q = rng.normal(size=(rows, block, HEADS, WIDTH)).astype(np.float32)
    layers = rng.normal(size=(2, 2, rows, 2, total, WIDTH)).astype(np.float32)  # of two layers; keys, values
    bias = jnp.asarray(rng.normal(size=(1, HEADS, block, total)), jnp.float32) if biased else None
    visible = rng.random((rows, block, total)) < 0.6
    visible[..., 0] = True
    visible[..., live:] = False
    visible[1:, :, max(1, live // 2) :] = False  # shorter rows
    visible[0, :, live - 1] = True
    first = 4 + block - 1
    read = total if rows == 1 and live > total // 2 else first + -(-max(live - first, 0) // 3) * 3
    layers[..., read:, :] = np.nan
    caches = [KV(*map(jnp.asarray, one)) for one in layers]
    kv = Stored(KV(*(jnp.stack(side) for side in zip(*caches, strict=True))) if stacked else tuple(caches), 1)
    run = jax.jit(lambda q, layers, visible: attention.attend(
        q, Stored(layers, jnp.int32(1) if stacked else 1), visible, scale=0.3, fmt=FMT, bias=bias
    ))  # fmt: skip
    expected = plainly(q, KV(*np.nan_to_num(layers[1])), visible, bias, 0.3)
    got = run(q, kv.layers, visible)
    small.assert_close(got, expected)
    if rows > 1 and live > 2:  # to the last bit
        visible[0] = visible[1]
        np.testing.assert_array_equal(run(q, kv.layers, visible)[1:], got[1:])


@pytest.mark.parametrize("rows", [1, 2])
def test_a_cache_read_in_pieces_is_not_copied(monkeypatch, rows):
    """Of the compiled program: the largest copy is that of a piece."""
    for name, slots in {"WHOLE": 8, "FIRST": 4, "PIECE": 6}.items():
        monkeypatch.setattr(attention, name, slots)
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
    layers = (KV(shape(rows, 2, 64, WIDTH), shape(rows, 2, 64, WIDTH)),)
    run = jax.jit(lambda q, layers, visible: attention.attend(q, Stored(layers, 0), visible, scale=0.3, fmt=FMT))
    visible = jax.ShapeDtypeStruct((rows, 1, 64), jnp.bool_)
    program = hlo.program(run.lower(shape(rows, 1, HEADS, WIDTH), layers, visible).compile().as_text())
    assert [one for one in program if one.opcode == "while"]
    assert hlo.copies(program, rows * 2 * 64 * WIDTH) == []


def test_masks_are_not_widened_in_a_loop(monkeypatch):
    """Inside a loop, XLA keeps the numbers of the slots apart for each layer, so that what combines them with the mask
    of a block would be computed once for each layer, over the allocated cache."""
    for name, slots in {"WHOLE": 8, "FIRST": 4, "PIECE": 6}.items():
        monkeypatch.setattr(attention, name, slots)
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
    kv = tuple(KV(shape(2, 2, 64, WIDTH), shape(2, 2, 64, WIDTH)) for _ in range(3))

    def step(q, layers, length):
        visible = jnp.broadcast_to(jnp.arange(64)[None, None] < length[:, None, None], (2, 5, 64))
        for index in range(3):
            q = attention.attend(q, Stored(layers, index), visible, scale=0.3, fmt=FMT).reshape(q.shape)
        return q, length + 1

    def run(q, layers, length):
        going = lambda carry: carry[1].max() < 60
        return jax.lax.while_loop(going, lambda carry: step(carry[0], layers, carry[1]), (q, length))

    lowered = jax.jit(run).lower(shape(2, 5, HEADS, WIDTH), kv, jax.ShapeDtypeStruct((2,), jnp.int32))
    program = hlo.program(lowered.compile().as_text())
    assert {one.dtype for one in program if one.shape == (2, 5, 64)} <= {"pred"}
