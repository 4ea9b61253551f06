"""What Falcon heads draft, computed independently, and their files. That decoding stays exact: test_head.py."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, sharding
from specjax.drafters.head import draft_logits
from specjax.heads import load_head
from specjax.heads.falcon import FalconConfig
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from tests import battery
from tests.drafters.heads import read_again
from tests.drafters.test_head import dot
from tests.drafters.test_one_pass import LAYER, ROUNDS, attention, embedding, log_softmax, stages, with_mlp

GAMMA, WIDTH = 5, 16
ONE = dataclasses.replace(LAYER, layers=1)


@functools.cache
def head(block: int, family: str) -> Head:
    """A random head whose every parameter matters, for the target of the battery."""
    config, numbers = FalconConfig(ONE, WIDTH, block=block, own_embedding=block == 3), np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: KINDS["falcon"].init(jax.random.key(0), config, battery.FMT))

    def draw(leaf):
        drawn = numbers.normal(0, 0.5, leaf.shape) if leaf.ndim > 1 else numbers.uniform(0.5, 1.5, leaf.shape)
        return jnp.asarray(drawn, leaf.dtype)

    params = jax.tree.map(draw, shapes)
    return Head("a falcon head", KINDS["falcon"], config, battery.FMT, params, battery.target(family))


def gated(x: np.ndarray, cell: dict) -> np.ndarray:
    """A layer of an LSTM from a zero state."""
    enter, _, new, leave = np.split(dot(x, cell["ih"]) + np.asarray(cell["hh"]["bias"], np.float64), 4, axis=-1)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    return sigmoid(leave) * np.tanh(sigmoid(enter) * np.tanh(new))


def expected(of: Head, states: np.ndarray, text: list[int], drafted: list[int], count: int) -> np.ndarray:
    """Logits [count, V] behind a text of n tokens and of each drafted one, from its features [n - 1, D]."""
    size, params, found = of.config.block, of.params, []
    tokens, given = text[1:], np.asarray(states, np.float64)
    while len(found) < count:
        x = np.concatenate([embedding(of)[tokens], given], -1)
        for cell in ("0", "1"):
            x = gated(x, params["fc"]["cells"][cell])
        layer = params["layers"]["0"]
        out = with_mlp(x[-size:] + attention(layer["attn"], x[-size:], x, np.ones((size, len(x)), bool)), layer)
        target = of.target.params
        table = np.asarray(target["embed"]["tokens"]["table"], np.float64)
        found += list(dot(out, target["head"]) if "head" in target else out @ table.T)
        tokens, given = [*tokens, *drafted[len(found) - size : len(found)]], np.concatenate([given, out])
    return np.asarray(found[:count])


@pytest.mark.parametrize(("block", "family"), [(2, "opt"), pytest.param(3, "llama", marks=pytest.mark.slow)])
def test_drafts_are_those_of_the_true_features(block, family):
    """Logits within 1e-4: after ragged prompts, ragged rounds, rounds that leave rows alone, and rollbacks."""
    of, numbers, rows = head(block, family), np.random.default_rng(3), battery.ROWS
    loaded = drafters.head(of, gamma=GAMMA)
    new = numbers.integers(0, battery.VOCAB, (rows, 12)).tolist()
    states = read_again(of.target, new, ())
    starts = [row[:n].tolist() for row, n in zip(battery.prompts(), battery.LENGTHS, strict=True)]
    texts = [start + more for start, more in zip(starts, new, strict=True)]
    init, propose, commit, rewind = stages(loaded, of.target)

    def check(memory, length):
        pending = np.array([text[n - 1] for text, n in zip(texts, length, strict=True)], np.int32)
        draft, memory = propose(jax.random.split(jax.random.key(1), rows), memory, pending)
        valid, log_q, tokens = (np.asarray(a) for a in (draft.valid, draft.log_q, draft.tokens))
        for row, n in enumerate(length):
            assert valid[row].tolist() == [True] + [n > block] * GAMMA
            if n > block:
                wanted = expected(of, states[row][: n - 1], texts[row][:n], tokens[row, 1:].tolist(), GAMMA)
                np.testing.assert_allclose(log_q[row, :GAMMA], log_softmax(wanted), atol=1e-4, rtol=0)
        return memory

    length = battery.LENGTHS.copy()
    memory = check(init(battery.prompts(), length), length)
    for counts, back in ROUNDS:
        tokens = np.full((rows, GAMMA + 1), 5, np.int32)
        fed = np.full((rows, GAMMA + 1, WIDTH), 1e3, np.float32)  # undefined past the length
        for row, (n, count) in enumerate(zip(length, counts, strict=True)):
            tokens[row, :count] = texts[row][n : n + count]
            fed[row, :count] = states[row][n - 1 : n - 1 + count]
        memory = commit(memory, tokens, np.array(counts, np.int32), (fed,))
        length = length + counts
        length = np.where(back, length - back + 1, length)
        token = numbers.integers(0, battery.VOCAB, rows).astype(np.int32)
        for row, n in enumerate(length):
            texts[row][n - 1] = int(token[row]) if back[row] else texts[row][n - 1]
        memory = check(rewind(memory, np.array(back, np.int32), token), length)


def test_draft_logits_are_those_of_several_passes():
    of = head(2, "llama")
    text = battery.prompts()[3].tolist()
    tokens, logits = draft_logits(of.target, text, drafters.head(of), steps=5)
    states = read_again(of.target, [[0]] * battery.ROWS, ())[3]
    wanted = expected(of, states[: len(text) - 1], text, tokens.tolist(), 5)
    np.testing.assert_allclose(logits, wanted, atol=1e-4, rtol=0)
    assert tokens.tolist() == wanted.argmax(-1).tolist()


@pytest.mark.parametrize("block", [2, 3])
def test_what_is_written_is_read_back(block, tmp_path):
    whole = head(block, "llama")
    whole.save_pretrained(tmp_path)
    again = load_head(tmp_path, whole.target)
    assert (again.kind, again.config, again.format) == (whole.kind, whole.config, "original")
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), again.params, whole.params))
    placed = sharding.shardings(whole.params, sharding.make_mesh(4, 2), whole.kind.rules, battery.FMT, kv_heads=1)
    assert len(jax.tree.leaves(placed)) == len(jax.tree.leaves(whole.params))


def test_a_head_with_more_layers_is_refused():
    with pytest.raises(ValueError, match="layer"):
        FalconConfig(LAYER, WIDTH)


@pytest.mark.torch
def test_the_lstm_is_torchs_from_a_zero_state():
    """The authors' code passes [1, S, 2D] to an LSTM that takes the positions second: each is a text of its own."""
    import torch

    of = head(2, "llama")
    module, x = of.module().fc, np.random.default_rng(0).normal(size=(1, 7, 2 * WIDTH)).astype(np.float32)
    theirs = torch.nn.LSTM(2 * WIDTH, WIDTH, num_layers=2)
    table = of.kind.table(of.kind.formats[0], of.config)
    with torch.no_grad():
        for name, value in theirs.named_parameters():
            path = dict(table.entries)[f"lstm.{name}"].split(".")
            leaf = functools.reduce(lambda tree, key: tree[key], path, of.params)
            leaf = leaf if leaf.ndim == 1 or battery.FMT.products.out_in else leaf.T
            value.copy_(torch.tensor(np.asarray(leaf)))
        found = theirs(torch.tensor(x))[0].numpy()
    np.testing.assert_allclose(module(jnp.asarray(x)), found, atol=1e-5)
