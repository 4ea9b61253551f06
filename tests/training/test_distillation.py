"""DistillSpec: who writes the texts, which of their tokens count, and every divergence falls in training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax.models import llama, opt, t5
from specjax.training import lm, losses, rollout, tasks
from specjax.training.data import Pairs
from specjax.training.recipe import DIVERGENCES, TEXTS, Distillation, Recipe
from tests import battery, distributions

SHAPE = {"vocab_size": 11, "width": 8, "embed_width": 8, "layers": 1, "heads": 1, "mlp_width": 16}
CONFIG = opt.OPTConfig(max_positions=32, **SHAPE)
PACKED = np.tile(np.arange(10, dtype=np.uint16), 30)
T5 = t5.T5Config(vocab_size=11, width=8, head_width=8, heads=1, mlp_width=16, encoder_layers=1, decoder_layers=1)
PAIRS = Pairs(*[np.tile(np.array([4, 5, 6, 1, 0, 0], np.uint16), (8, 1))] * 2)


def peaked(family, config, seed: int):
    """Random parameters with distributions far from uniform."""
    params = family.init(jax.random.key(seed), config, lm.FORMAT)
    return jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim > 1 else leaf, params)


def teacher(family, config) -> sj.Model:
    return sj.Model("teacher", family, config, lm.FORMAT, peaked(family, config, 1))


def sampled(family, config, params, *read, new: int, seed: int = 0):
    """Tokens that a model writes after prompts."""
    model = family.language_model(config, lm.FORMAT)
    write = jax.jit(lambda params, *read: rollout.sample(model, params, *read, new, jax.random.key(seed)))
    return write(params, *map(jnp.asarray, read))


def text_task(**how):
    return tasks.text_task(
        opt.FAMILY, CONFIG, PACKED, PACKED, rows=4, length=8, evaluations=1, teacher=teacher(opt.FAMILY, CONFIG),
        how=Distillation(**how),
    )  # fmt: skip


@pytest.mark.slow
def test_samples_follow_the_joint_distribution():
    params, rows = peaked(opt.FAMILY, CONFIG, 0), 4000
    prompt = np.tile(np.array([[3, 4]], np.int32), (rows, 1))
    found = np.asarray(sampled(opt.FAMILY, CONFIG, params, prompt, np.full((rows,), 2, np.int32), new=2))
    after = np.array([[3, 4, token] for token in range(11)], np.int32)
    logits = jax.jit(lambda p: opt.FAMILY.score(p, CONFIG, lm.FORMAT, jnp.asarray(after)))(params)
    p = np.asarray(jax.nn.softmax(logits), np.float64)
    joint = (p[0, 1][:, None] * p[:, 2]).ravel()
    counts = np.bincount(found[:, 0] * 11 + found[:, 1], minlength=121)
    assert distributions.chi_square(counts, joint) > distributions.ALPHA
    assert distributions.chi_square(counts, np.roll(joint, 1)) < distributions.ALPHA  # the test can fail


@pytest.mark.parametrize("texts", battery.others_slow(["student", "target", "mixed"], ["mixed"]))
def test_the_loss_is_the_divergence_on_the_written_tokens(texts):
    task, params = text_task(texts=texts, divergence="tv"), peaked(opt.FAMILY, CONFIG, 0)
    batch = jnp.asarray(task.batch(0))
    writer = params if texts != "target" else task.fixed
    new = sampled(opt.FAMILY, CONFIG, writer, batch[:, :2], np.full((4,), 2, np.int32), new=7, seed=2)
    whole = jnp.concatenate([batch[:, :2], new], 1)
    mask = np.broadcast_to(np.arange(8) >= 1, (4, 8))
    if texts == "mixed":
        own = np.arange(4)[:, None] % 2 == 0
        whole, mask = jnp.where(own, whole, batch), np.where(own, mask, True)
    score = jax.jit(lambda p: jax.nn.log_softmax(opt.FAMILY.score(p, CONFIG, lm.FORMAT, whole[:, :-1])))
    log_p, log_q = score(task.fixed), score(params)
    expected = (1 - losses.accepted(log_p, log_q))[mask].mean()
    value, _ = jax.jit(task.loss)(params, task.fixed, batch, jax.random.key(2))
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("texts", ["data", "target"])
def test_a_teacher_of_another_family_writes_and_is_compared(texts):
    shape = llama.LlamaConfig(
        vocab_size=11, width=8, layers=1, heads=2, kv_heads=1, head_width=4, mlp_width=16, max_positions=32
    )
    theirs, params = teacher(llama.FAMILY, shape), peaked(opt.FAMILY, CONFIG, 0)
    task = tasks.text_task(
        opt.FAMILY, CONFIG, PACKED, PACKED, rows=4, length=8, teacher=theirs,
        how=Distillation(distill=1.0, texts=texts, divergence="tv"),
    )  # fmt: skip
    whole, mask = jnp.asarray(task.batch(0)), np.ones((4, 8), bool)
    if texts == "target":
        new = sampled(llama.FAMILY, shape, theirs.params, whole[:, :2], np.full((4,), 2, np.int32), new=7, seed=2)
        whole, mask = jnp.concatenate([whole[:, :2], new], 1), np.broadcast_to(np.arange(8) >= 1, (4, 8))
    score = lambda family, config, p: jax.nn.log_softmax(family.score(p, config, lm.FORMAT, whole[:, :-1]))
    log_p, log_q = score(llama.FAMILY, shape, theirs.params), score(opt.FAMILY, CONFIG, params)
    value, _ = jax.jit(task.loss)(params, task.fixed, jnp.asarray(task.batch(0)), jax.random.key(2))
    np.testing.assert_allclose(value, (1 - losses.accepted(log_p, log_q))[mask].mean(), rtol=1e-5)


@pytest.mark.slow
def test_written_outputs_of_t5_end_with_their_first_end_token():
    task = tasks.pair_task(
        T5, PAIRS, PAIRS, tokens=24, teacher=teacher(t5.FAMILY, T5), how=Distillation(texts="student", divergence="tv")
    )
    params, batch = t5.FAMILY.init(jax.random.key(0), T5, lm.FORMAT), jax.tree.map(jnp.asarray, task.batch(0))
    new = np.asarray(sampled(t5.FAMILY, T5, params, batch.source, batch.length, new=6, seed=2))
    mask = np.array([[1 not in row[:place].tolist() for place in range(6)] for row in new])
    assert not mask.all()
    inputs = jnp.pad(jnp.where(mask, new, 0), ((0, 0), (1, 0)))[:, :-1]
    score = jax.jit(lambda p: t5.FAMILY.score(p, T5, lm.FORMAT, batch.source, inputs, encoder_length=batch.length))
    log_p, log_q = (jax.nn.log_softmax(score(p)) for p in (task.fixed, params))
    expected = (1 - losses.accepted(log_p, log_q))[mask].mean()
    value, _ = jax.jit(task.loss)(params, task.fixed, batch, jax.random.key(2))
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "divergence"), [*((texts, "kl") for texts in TEXTS), *(("student", name) for name in DIVERGENCES)]
)
def test_the_student_approaches_the_teacher(texts, divergence):
    task = text_task(texts=texts, divergence=divergence, distill=1.0)
    recipe = Recipe(steps=120, rate=1e-2, warmup=5, weight_decay=0.0)
    step, evaluate = lm.make_step(task, recipe), lm.make_evaluate(task)
    params = task.init(jax.random.key(0))
    state = lm.TrainState(params, recipe.optimizer().init(params), jnp.zeros((), jnp.int32))
    before = evaluate(state.params)["held_out_overlap"]
    for number in range(recipe.steps):
        state, _ = step(state, task.fixed, task.batch(number))
    assert evaluate(state.params)["held_out_overlap"] > before + 0.1
