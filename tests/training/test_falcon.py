"""Training of Falcon heads: what is trained is what drafts, and what a glance gives away."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax.drafters.head import draft_logits
from specjax.training import falcon
from specjax.training.eagle import Batch, read_target
from specjax.training.falcon import Glancing
from tests import battery
from tests.drafters.test_falcon import head

TEXT = 13


def batch() -> Batch:
    """Texts whose answers begin and end at different positions."""
    tokens = np.random.default_rng(0).integers(0, battery.VOCAB, (3, TEXT)).astype(np.int32)
    at = np.arange(TEXT)[None]
    answer = (at >= np.array([[2], [4], [3]])) & (at < np.array([[TEXT], [9], [11]]))
    return Batch(tokens, answer, progress=np.asarray(0.5, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_a_block_is_what_a_pass_drafts(size):
    of, texts = head(size, "llama"), batch()

    @jax.jit
    def computed(params, fixed):
        seen, ends = read_target(of, fixed, texts)
        rows = falcon.rows_of(of, seen, texts)
        return rows, falcon.drafted(of, params, ends, rows.tokens, rows.given)[1], seen.features

    rows, logits, features = jax.device_get(computed(of.params, of.target.params))
    for last in (size - 1, 2 * size - 1, 3 * size - 1):  # row of a block
        for row in range(3):
            text = texts.tokens[row, : last + 2].tolist()
            _, wanted = draft_logits(of.target, text, sj.drafters.head(of, gamma=size), steps=size)
            np.testing.assert_allclose(logits[row, last - size + 1 : last + 1], wanted, atol=1e-4)
    scores = np.asarray(of.target.score(texts.tokens))
    for place in range(TEXT - 1):
        at = place + size + 1  # the token that the row drafts
        np.testing.assert_array_equal(rows.mask[:, place], texts.answer[:, at] if at < TEXT else False)
        if at < TEXT:
            np.testing.assert_allclose(rows.wanted.log_p[:, place], jax.nn.log_softmax(scores[:, at - 1]), atol=1e-4)
            np.testing.assert_array_equal(rows.goal[:, place], features[:, at - 1])
            np.testing.assert_array_equal(rows.goal_tokens[:, place], texts.tokens[:, at])


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_fewer_rows_are_glanced_the_better_the_head_and_the_later(size):
    answer = np.ones((4, 31), bool)
    answer[1, :13], answer[3] = False, False

    def counts(wrong, progress, key=0):
        found = np.asarray(
            falcon.glanced(
                Glancing(glance=0.5), size, jnp.asarray(wrong & answer), jnp.asarray(answer), jnp.float32(progress),
                jax.random.key(key),
            )
        )  # fmt: skip
        assert not (found & ~answer).any() and not found[:, size - 1 :: size].any()
        return found

    every = np.ones_like(answer)
    first = counts(every, 0.0)
    assert abs(first[0].sum() - 31 * 0.5) <= size and first[3].sum() == 0
    assert counts(every, 0.5)[0].sum() < first[0].sum() and counts(every, 1.0).sum() == 0
    assert counts(every & (np.arange(31) < 20)[None], 0.0)[0].sum() < first[0].sum()
    assert not np.array_equal(first, counts(every, 0.0, key=1))


@pytest.mark.slow
def test_the_loss_is_that_of_the_second_pass(monkeypatch):
    of, how = head(2, "llama"), dataclasses.replace(Glancing(), noise=0.0)
    swap = jnp.asarray(np.arange(TEXT - 1)[None] % 4 == 0) & jnp.ones((3, 1), bool)
    monkeypatch.setattr(falcon, "glanced", lambda *args: swap)

    @jax.jit
    def computed(params, fixed):
        seen, ends = read_target(of, fixed, batch())
        rows = falcon.rows_of(of, seen, batch())
        tokens = jnp.where(swap, rows.goal_tokens, rows.tokens)
        given = jnp.where(swap[..., None], rows.goal, rows.given)
        return rows, falcon.drafted(of, params, ends, tokens, given)

    rows, (out, logits) = jax.device_get(computed(of.params, of.target.params))
    mask = np.asarray(rows.mask)
    log_p, log_q = (np.asarray(x)[mask] for x in (rows.wanted.log_p, jax.nn.log_softmax(logits)))
    apart = np.abs(out - np.asarray(rows.goal))[mask]
    wanted = (
        np.where(apart < 1, apart**2 / 2, apart - 0.5).mean() + 0.1 * (np.exp(log_p) * (log_p - log_q)).sum(-1).mean()
    )
    loss, measure = (jax.jit(functools.partial(one, of, how)) for one in (falcon.loss, falcon.measure))
    value, nats = loss(of.params, of.target.params, batch(), jax.random.key(0))
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    found, count = measure(of.params, of.target.params, batch())
    np.testing.assert_allclose(found["nats"], nats, rtol=1e-5)
    assert count == np.asarray(rows.mask)[:, ::2].sum() and 1 <= found["tokens_per_pass"] <= 3
