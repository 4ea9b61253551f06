"""Training of heads that draft all positions in one forward pass: what is trained is what drafts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax.drafters.head import writer
from specjax.heads.dflash import DFlashConfig
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.heads.peagle import PEagleConfig
from specjax.models.llama import LlamaConfig
from specjax.training import dflash, peagle
from specjax.training.dflash import Blocks
from specjax.training.eagle import RECIPES, Batch, Unrolling
from tests import battery

WIDTH, TEXT, STEPS, MASK = 16, 12, 3, 3
LAYER = LlamaConfig(vocab_size=battery.VOCAB, width=WIDTH, layers=2, heads=4, kv_heads=2, head_width=4, mlp_width=24)
NORMED = dataclasses.replace(LAYER, qk_norm=True)
TOKENS = np.array([0, 1, 2, 4, 5, 7, 8, 10, 12], np.int32)
CONFIGS = {
    "peagle": PEagleConfig(LAYER, 3 * WIDTH, (0, 1, 2), len(TOKENS), own_embedding=True, mask_token=MASK),
    "dflash": DFlashConfig(NORMED, (0, 1, 2), MASK, 4, (None, None)),
    "dflash window": DFlashConfig(
        NORMED, (1,), MASK, 4, (3, None), causal=True, from_anchor=True, draft_vocab=len(TOKENS)
    ),
}  # fmt: skip


@functools.cache
def head(kind: str, family: str = "llama") -> Head:
    """A random head whose every parameter matters."""
    of, config, numbers = KINDS[kind.split()[0]], CONFIGS[kind], np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: of.init(jax.random.key(0), config, battery.FMT))

    def draw(leaf):
        drawn = numbers.normal(0, 0.3, leaf.shape) if leaf.ndim > 1 else numbers.uniform(0.5, 1.5, leaf.shape)
        return jnp.asarray(drawn, leaf.dtype)

    tokens = TOKENS if config.draft_vocab else None
    return Head("a head", of, config, battery.FMT, jax.tree.map(draw, shapes), battery.target(family), tokens)


def batch() -> Batch:
    """Texts whose answers begin and end at different positions."""
    tokens = np.random.default_rng(0).integers(0, battery.VOCAB, (3, TEXT)).astype(np.int32)
    at = np.arange(TEXT)[None]
    return Batch(tokens, (at >= np.array([[2], [4], [3]])) & (at < np.array([[TEXT], [9], [11]])))


@functools.partial(jax.jit, static_argnames=("kind", "steps"))
def _drafted(params, own_params, text, length, *, kind, steps):
    of = head(kind)
    target, own = of.target, writer(of, steps + 1)
    found = target.variant(capture=of.config.taps).prefill(params, text, length, TEXT + steps + 1)
    memory = own.init(own_params, text, length, TEXT + steps + 1, found)
    logits = own.root(own_params, memory, found.pending)[1].cache.logits
    return jax.nn.log_softmax(logits if of.draft_tokens is None else logits[..., of.draft_tokens])


def drafted(kind: str, read: int, steps: int) -> np.ndarray:
    """Log-probabilities [3, K, N] that the head drafts after the first `read` tokens of each text."""
    of = head(kind)
    loaded, length = sj.drafters.head(of, gamma=steps), jnp.full((3,), read, jnp.int32)
    text = jnp.asarray(batch().tokens)
    return np.asarray(_drafted(of.target.params, loaded.params, text, length, kind=kind, steps=steps))


@functools.partial(jax.jit, static_argnames="how")
def _trained(params, fixed, key, *, how):
    return peagle.run(head("peagle"), how, params, fixed, batch(), key)


def trained(how: Unrolling, key: jax.Array | None) -> list:
    """The head and its target at every depth, as training computes them."""
    of = head("peagle")
    return jax.device_get(_trained(of.params, of.target.params, key, how=how))


def test_a_mask_row_at_an_anchor_is_what_drafting_computes():
    of = head("peagle")
    steps = trained(dataclasses.replace(RECIPES["peagle"], steps=STEPS), None)
    for anchor in (0, 3, 7):
        expected = drafted("peagle", anchor + 2, STEPS)
        for depth, step in enumerate(steps):
            np.testing.assert_allclose(step.log_q[:, anchor], expected[:, depth], atol=2e-5)
            at = anchor + 2 + depth
            logits = of.target.score(batch().tokens)[:, at - 1][:, TOKENS]
            np.testing.assert_allclose(step.log_p[:, anchor], jax.nn.log_softmax(logits), atol=2e-5)
            np.testing.assert_array_equal(step.mask[:, anchor], batch().answer[:, at])


@pytest.mark.slow
def test_deeper_rows_are_a_nested_sample_of_the_anchors():
    """Rows are recognized by what they compute: every one is a row of the run with all anchors."""
    how = dataclasses.replace(RECIPES["peagle"], steps=4, kept=0.8, least=0.3)
    every, some, other = (trained(how, key) for key in (None, jax.random.key(0), jax.random.key(1)))
    answer, chains = batch().answer, [set(range(TEXT - 1))] * 3
    for depth in range(4):
        assert depth == 0 or some[depth].mask.shape[1] < some[depth - 1].mask.shape[1]
        for row in range(3):
            place = [
                int(np.abs(every[depth].log_q[row] - log_q).max(-1).argmin())
                for log_q in some[depth].log_q[row][some[depth].mask[row]]
            ]  # fmt: skip
            total = int(answer[row, 2:].sum())
            wanted = total if depth == 0 else int((total - depth) * max(0.8**depth, 0.3))
            assert len(set(place)) == len(place) == wanted
            assert set(place) <= chains[row] and all(answer[row, anchor + 2 + depth] for anchor in place)
            chains[row] = set(place) if depth else chains[row]
    assert any(not np.array_equal(a.log_q, b.log_q) for a, b in zip(some, other, strict=True))


def test_the_loss_is_the_mean_over_all_rows():
    of = head("peagle")
    how = dataclasses.replace(RECIPES["peagle"], steps=2, kept=1.0, least=1.0)
    steps = trained(how, jax.random.key(0))
    values = [(np.exp(s.log_p) * (s.log_p - s.log_q)).sum(-1)[np.asarray(s.mask)] for s in steps]
    compute = jax.jit(lambda *args: peagle.loss(of, how, *args))
    value, _ = compute(of.params, of.target.params, batch(), jax.random.key(0))
    np.testing.assert_allclose(value, np.concatenate(values).mean(), rtol=1e-5)


@pytest.mark.parametrize("kind", [pytest.param("dflash", marks=pytest.mark.slow), "dflash window"])
def test_a_block_is_what_drafting_computes(kind):
    of = head(kind)
    at, valid = dflash.anchors(Blocks(), batch(), None)
    compute = jax.jit(lambda *args: dflash.run(of, *args))
    steps, labels = jax.device_get(compute(of.params, of.target.params, batch(), at, valid))
    scores = np.asarray(of.target.score(batch().tokens))[..., slice(None) if of.draft_tokens is None else TOKENS]
    for anchor in (1, 6):
        expected = drafted(kind, anchor + 1, of.config.most)
        for number, step in enumerate(steps):
            np.testing.assert_allclose(step.log_q[:, anchor], expected[:, number], atol=2e-5)
            place = anchor + 1 + number
            if place < TEXT:
                np.testing.assert_allclose(step.log_p[:, anchor], jax.nn.log_softmax(scores[:, place - 1]), atol=2e-5)
                np.testing.assert_array_equal(labels[:, anchor, number], batch().tokens[:, place])
            wanted = batch().answer[:, place] if place < TEXT else np.zeros(3, bool)
            np.testing.assert_array_equal(step.mask[:, anchor], wanted & batch().answer[:, anchor + 1])


def test_anchors_are_drawn_among_those_whose_next_token_is_answered():
    answer, seen = batch().answer, set()
    for seed in range(40):
        at, valid = jax.device_get(dflash.anchors(Blocks(share=0.4), batch(), jax.random.key(seed)))
        assert at.shape == (3, round((TEXT - 1) * 0.4)) and valid.all()
        assert all(len(set(row)) == len(row) for row in at.tolist())
        seen |= {(row, int(place)) for row in range(3) for place in at[row]}
    assert seen == {(row, place - 1) for row, place in zip(*np.nonzero(answer), strict=True)}
    at, valid = jax.device_get(dflash.anchors(Blocks(share=1.0), batch(), jax.random.key(0)))
    assert [set(row[ok].tolist()) for row, ok in zip(at, valid, strict=True)] == [
        set((np.flatnonzero(row) - 1).tolist()) for row in answer
    ]  # fmt: skip


@pytest.mark.slow
def test_the_loss_weighs_the_places_of_a_block():
    """Of a head with a draft vocabulary: tokens outside it have no cross-entropy."""
    of, how = head("dflash window"), Blocks(share=1.0, gamma=2.0)
    at, valid = dflash.anchors(how, batch(), None)
    run = jax.jit(lambda *args: dflash.run(of, *args))
    steps, labels = jax.device_get(run(of.params, of.target.params, batch(), at, valid))
    place = {token: index for index, token in enumerate(TOKENS.tolist())}
    total, paced, count = 0.0, 0.0, 0
    for row in range(3):
        for anchor in range(TEXT - 1):
            chain, terms = 1.0, []
            for number, step in enumerate(steps):
                token = int(labels[row, anchor, number])
                if step.mask[row, anchor] and token in place:
                    value = -step.log_q[row, anchor, place[token]]
                    chain *= 0.5 * np.exp(-value) + 0.5
                    terms.append((value, chain))
                    total, count = total + np.exp(-number / 2.0) * value, count + 1
            paced += sum(value * sum(chain for _, chain in terms[index:]) for index, (value, _) in enumerate(terms))
    loss = jax.jit(lambda how, *args: dflash.loss(of, how, *args)[0], static_argnums=0)
    compute = lambda how: loss(how, of.params, of.target.params, batch(), jax.random.key(0))
    np.testing.assert_allclose(compute(how), total / count, rtol=1e-5)
    np.testing.assert_allclose(compute(dataclasses.replace(how, divergence="d-pace")), paced / count, rtol=1e-5)
