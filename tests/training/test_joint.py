"""Medusa-2: adapters, the loss against an independent computation, and `train head medusa-2`."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax import hosts
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.heads.medusa import MedusaConfig
from specjax.models.cpu import cpu_products
from specjax.models.format import Format
from specjax.training import joint, lm
from specjax.training.answers import AnswersRun
from specjax.training.eagle import Batch
from specjax.training.head_run import HeadRun
from specjax.training.joint import Joint
from specjax.training.lm import FORMAT
from specjax.training.recipe import Recipe
from specjax.training.run import make_mesh
from tests import battery
from tests.training.test_staged import batch, head

HOW = Joint(steps=2, rank=3, alpha=6.0)


def medusa(family: str = "opt"):
    return dataclasses.replace(head("medusa", family), fmt=FORMAT, draft_tokens=None)


def new(family: str = "opt"):
    """(head, parameters whose adapters are not zero)"""
    of = medusa(family)
    of = dataclasses.replace(of, config=dataclasses.replace(of.config, matrices=0), params={})
    params = joint.init(of, HOW, jax.random.key(0))
    rng = np.random.default_rng(0)
    noisy = lambda tree, scale: jax.tree.map(lambda leaf: leaf + scale * rng.normal(size=leaf.shape), tree)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), noisy(params, 0.05))
    return of, params


def logits(of, params, given):
    target = of.target
    texts = (given.tokens,) if not target.encoder_decoder else (given.source, given.length, given.tokens)
    module = target.family.module(params, target.config, target.fmt)
    return module.read(*map(jnp.asarray, texts))


@pytest.mark.parametrize("family", battery.others_slow(battery.FAMILIES, ["opt"]))
def test_a_new_target_is_its_teacher(family):
    of = medusa(family)
    params = joint.init(of, HOW, jax.random.key(0))
    found = joint.tuned(of, HOW, params, of.target.params)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(of.target.params), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    kernels = [path for path, _ in leaves(of.target.params) if ".kernel" in path]
    assert len({path.split(".kernel")[0] for path in kernels}) == len(jax.tree.leaves(params["adapters"])) // 2


def leaves(params):
    return [(jax.tree_util.keystr(keys, simple=True, separator="."), leaf)
            for keys, leaf in jax.tree_util.tree_leaves_with_path(params)]  # fmt: skip


@pytest.mark.parametrize("layout", ["in-out", "stacked", "out-in", "parts"])
def test_adapters_in_every_layout(layout):
    rng = np.random.default_rng(1)
    stack = (3,) if layout == "stacked" else ()
    kernel = rng.normal(size=(*stack, 8, 6)).astype(np.float32)
    fmt = (
        FORMAT
        if layout in ("in-out", "stacked")
        else Format(products=cpu_products("float32", stacked=False, sharded=False))
    )
    given = {
        "in-out": kernel, "stacked": kernel, "out-in": kernel.T,
        "parts": {str(i): part for i, part in enumerate(np.split(kernel.T, 2, axis=1))} if not stack else None,
    }[layout]  # fmt: skip
    params = {"mlp": {"up": {"kernel": given, "bias": np.zeros(6, np.float32)}}, "norm": {"scale": np.ones(8)}}
    adapters = joint.new_adapters(params, 4, fmt, jax.random.key(0))
    one = adapters["mlp"]["up"]
    assert set(adapters) == {"mlp"} and one["a"].shape == (*stack, 8, 4) and one["b"].shape == (*stack, 4, 6)
    one["b"] = rng.normal(size=one["b"].shape).astype(np.float32)
    found = joint.with_adapters(params, adapters, 0.5, fmt)["mlp"]["up"]["kernel"]
    if layout == "parts":
        found = np.concatenate([found["0"], found["1"]], axis=1)
    wanted = kernel + 0.5 * np.einsum("...ir,...ro->...io", one["a"], one["b"])
    np.testing.assert_allclose(found, wanted if fmt is FORMAT else wanted.T, atol=1e-6)


@pytest.mark.parametrize("family", battery.others_slow(battery.FAMILIES, ["opt"]))
def test_the_loss_is_that_of_an_independent_computation(family):
    of, params = new(family)
    given = batch(family)._replace(progress=np.asarray(0.25, np.float32))
    how = dataclasses.replace(HOW, weight=0.3)
    loss = jax.jit(lambda *args: joint.loss(of, how, *args, given, jax.random.key(0)))
    value, _ = loss(params, of.target.params)
    teacher = np.asarray(jax.nn.log_softmax(logits(of, of.target.params, given).logits), np.float64)
    merged = joint.tuned(of, how, params, of.target.params)
    out = logits(of, merged, given)
    student = np.asarray(jax.nn.log_softmax(out.logits), np.float64)
    rows, width = given.tokens.shape
    apart = [
        (np.exp(teacher[row, i]) * (teacher[row, i] - student[row, i])).sum()
        for row in range(rows) for i in range(width - 1) if given.answer[row, i + 1]
    ]  # fmt: skip
    total = np.mean(apart)
    ends = of.target.family.ends(of.target.config, of.target.fmt)(of.target.family.without_layers(merged))
    for stage in range(2):
        drafted = of.module(params["head"]).logits(stage, ends, out.features)
        drafted = np.asarray(jax.nn.log_softmax(drafted), np.float64)
        nats = [
            -drafted[row, i, given.tokens[row, i + 2 + stage]]
            for row in range(rows) for i in range(width - 2 - stage) if given.answer[row, i + 2 + stage]
        ]  # fmt: skip
        total += 0.3 * np.sin(np.pi / 8) * 0.8**stage * np.mean(nats)
    np.testing.assert_allclose(value, total, rtol=1e-5)


@pytest.mark.slow
def test_the_heads_teach_the_target():
    of, params = new()
    given = batch("opt")._replace(progress=np.asarray(1.0, np.float32))

    def gradient(weight):
        how = dataclasses.replace(HOW, weight=weight)
        return jax.grad(lambda params: joint.loss(of, how, params, of.target.params, given, jax.random.key(0))[0])(
            params
        )

    own, alone = gradient(0.5), gradient(0.0)
    assert not any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(alone["head"]))
    trained = [own["head"]["blocks"][str(stage)] for stage in range(HOW.steps)]
    assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(trained))
    pairs = zip(*map(jax.tree.leaves, (own["adapters"], alone["adapters"])), strict=True)
    assert np.median([float(jnp.abs(a - b).max()) for a, b in pairs]) > 1e-6


@pytest.mark.slow
def test_heads_learn_four_times_as_fast():
    of, params = new()
    given = batch("opt")._replace(progress=np.asarray(1.0, np.float32))
    task = lm.TrainingTask(
        lambda key: params, lambda *args: joint.loss(of, HOW, *args), lambda *args: joint.measure(of, HOW, *args),
        lambda step: given, (given,), of.target.params, rate=lambda path: joint.rate(HOW, path),
    )  # fmt: skip
    recipe = Recipe(steps=10, rate=1e-3, warmup=0, decay=0, weight_decay=0.0, clip=1e9)
    before = jax.tree.map(np.asarray, params)
    state = lm.TrainState(params, recipe.optimizer().init(params), jnp.zeros((), jnp.int32))
    state, _ = lm.make_step(task, recipe)(state, task.fixed, given)
    most = lambda name: max(float(np.abs(a - b).max()) for a, b in zip(
        *map(jax.tree.leaves, (state.params[name], before[name])), strict=True))  # fmt: skip
    assert most("head") == pytest.approx(4e-3, rel=0.01) and most("adapters") == pytest.approx(1e-3, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("family", battery.FAMILIES)
def test_an_overfitted_batch(family):
    of, _ = new(family)
    params = joint.init(of, HOW, jax.random.key(0))
    given = batch(family)._replace(progress=np.asarray(1.0, np.float32))
    how = dataclasses.replace(HOW, weight=1.0)
    task = lm.TrainingTask(
        lambda key: params, lambda *args: joint.loss(of, how, *args), lambda *args: joint.measure(of, how, *args),
        lambda step: given, (given,), of.target.params, rate=lambda path: joint.rate(how, path),
    )  # fmt: skip
    recipe = Recipe(steps=600, rate=5e-3, warmup=10, weight_decay=0.0)
    step, evaluate = lm.make_step(task, recipe), lm.make_evaluate(task)
    before = evaluate(params)
    state = lm.TrainState(params, recipe.optimizer().init(params), jnp.zeros((), jnp.int32))
    first = None
    for _ in range(recipe.steps):
        state, metrics = step(state, task.fixed, given)
        first = float(metrics["loss"]) if first is None else first
    after = evaluate(state.params)
    assert before["held_out_teacher_kl"] == pytest.approx(0, abs=1e-6) and first is not None
    assert metrics["loss"] < 0.5 * first
    assert after["held_out_teacher_kl"] < 0.5  # the target moved towards its heads, and not far


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bundled/opt-tiny", "bundled/t5-draft"])
def test_the_command_begins_with_medusa_and_writes_both(tmp_path, name):
    (tmp_path / "prompts.txt").write_text("".join(f"There were {number} of them\n" for number in range(32)))
    answers = AnswersRun(
        target=name, prompts=(tmp_path / "prompts.txt",), out=tmp_path / "answers.jsonl", max_new_tokens=8, rows=8
    ).train()
    common = {"target": name, "data": (answers,), "tokens": 64, "widths": (16,), "held_out": 0.3}
    recipe = Recipe(steps=4, every=2, warmup=1, decay=1, rate=3e-2)
    first = HeadRun(kind="medusa", out=tmp_path / "one", unroll=2, **common, recipe=recipe).train()
    make = lambda out, **more: HeadRun(
        kind="medusa-2", out=out, start=str(first), rank=4, **common, recipe=recipe, **more
    )  # fmt: skip
    folder = make(tmp_path / "whole").train()
    assert folder is not None
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "00000004")  # as if it had been stopped
    shutil.rmtree(tmp_path / "parts" / "head")
    again = make(tmp_path / "parts").train()
    assert again is not None
    for file in folder.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes()
    record = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["held_out_teacher_kl"] > 0 and record["held_out_tokens_per_pass"] >= 1
    target, teacher = sj.load(folder), sj.load(name)
    loaded = sj.load_head(folder, target)
    assert loaded.kind.name == "medusa" and loaded.config.most == 2 and target.eos == teacher.eos
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (target.params, teacher.params)), strict=True))
    options = {"max_new_tokens": 8, "temperature": 0.0}
    out = sj.generate(target, ["The weather is"], drafter=sj.drafters.head(loaded, gamma=2), **options)
    assert out.tokens == sj.generate(target, ["The weather is"], **options).tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bundled/opt-tiny", "bundled/t5-draft"])
def test_gradients_on_a_mesh(name):
    """Not curves: the first gradients of adapters are rounding errors, which Adam makes steps of full size."""
    found = {}
    rng = np.random.default_rng(0)
    for shape in (None, "4x2"):
        mesh = None if shape is None else make_mesh(shape)
        target = sj.load(name, mesh=mesh)
        config = MedusaConfig(target.vocab_size, target.config.width, 2, draft_vocab=target.vocab_size)
        of = Head("x", KINDS["medusa"], config, FORMAT, {}, target)
        params = jax.eval_shape(lambda of=of: joint.init(of, HOW, jax.random.key(0)))
        drawn = found.setdefault("params", jax.tree.map(lambda leaf: 0.02 * rng.normal(size=leaf.shape), params))
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), drawn)
        tokens = np.random.default_rng(1).integers(3, target.vocab_size, (4, 12)).astype(np.int32)
        given = Batch(tokens, np.arange(12)[None] >= np.array([[2], [4], [6], [3]]), progress=np.asarray(1, np.float32))
        if target.encoder_decoder:
            given = given._replace(source=tokens, length=np.array([5, 12, 7, 9], np.int32))
        if mesh is not None:
            params = hosts.lay(params, joint.shardings(params, mesh, of.kind.rules))
        how = dataclasses.replace(HOW, weight=0.5)
        loss = lambda params, fixed, batch, of=of, how=how: joint.loss(
            of, how, params, fixed, batch, jax.random.key(0)
        )[0]
        value, gradient = jax.jit(jax.value_and_grad(loss))(params, target.params, lm.place(given, mesh))
        found[shape] = jax.device_get((value, gradient))
    np.testing.assert_allclose(found["4x2"][0], found[None][0], rtol=1e-5)
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(found[None][1]))
    for a, b in zip(*map(jax.tree.leaves, (found["4x2"][1], found[None][1])), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * scale)


@pytest.mark.slow
def test_a_head_to_begin_with_of_another_kind_or_shape_is_refused(tmp_path):
    target = sj.load("bundled/opt-tiny")
    config = MedusaConfig(target.vocab_size, target.config.width, 2)
    params = KINDS["medusa"].init(jax.random.key(0), config, target.fmt)
    Head("x", KINDS["medusa"], config, target.fmt, params, target).save_pretrained(tmp_path / "head")
    answers = AnswersRun(
        target="bundled/opt-tiny", prompts=(prompts(tmp_path),), out=tmp_path / "a.jsonl", max_new_tokens=4
    ).train()
    make = lambda kind, **more: HeadRun(
        kind=kind, target="bundled/opt-tiny", data=(answers,), out=tmp_path / kind, start=str(tmp_path / "head"),
        held_out=0.3, **more,
    )  # fmt: skip
    with pytest.raises(ValueError, match="medusa, not eagle"):
        make("eagle").train()
    with pytest.raises(ValueError, match="layers"):
        make("medusa", layers=2).train()


def prompts(folder):
    (folder / "prompts.txt").write_text("The weather is\nI like the\nWhere are the\nShe is a\n" * 4)
    return folder / "prompts.txt"
