"""`train head` of P-EAGLE, DFlash, Falcon and SPIRe: stopped and resumed, then drafting; and what one batch teaches."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax.heads.head import Head
from specjax.training import dflash, eagle, falcon, head_kinds, lm, peagle
from specjax.training.answers import AnswersRun
from specjax.training.head_kinds import TRAINED
from specjax.training.head_run import HeadRun
from specjax.training.lm import FORMAT
from specjax.training.recipe import Recipe
from tests import battery
from tests.training import test_eagle, test_falcon, test_one_pass

OPTIONS = {
    "peagle": {"layers": 2, "unroll": 3, "taps": (0, 1), "mlp_width": 16, "draft_vocab": 40},
    "dflash": {"layers": 1, "unroll": 3, "taps": (0, 1), "mlp_width": 16, "divergence": "d-pace"},
    "falcon": {"mlp_width": 16},
    "spire": {"layers": 1, "window": 4},
}


def of_kind(tmp_path, kind: str) -> Head:
    data = tmp_path / "data"
    data.write_text("")
    run = HeadRun(kind=kind, target="x", data=(data,), out=tmp_path, **OPTIONS[kind])  # type: ignore[arg-type]
    chosen = test_one_pass.TOKENS if "draft_vocab" in OPTIONS[kind] else None
    return TRAINED[kind].new(run, battery.target("llama"), chosen)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["peagle", "eagle3"])
def test_own_matrices_begin_as_the_targets(tmp_path, kind):
    of = of_kind(tmp_path, kind) if kind == "peagle" else dataclasses.replace(test_eagle.head(kind), params={})
    params, target = head_kinds.init_with_ends(of, None, jax.random.key(0)), of.target
    if "embed" in params:
        np.testing.assert_array_equal(params["embed"]["table"], target.params["embed"]["tokens"]["table"])
    x = np.random.default_rng(0).normal(size=(1, 3, 16)).astype(np.float32)
    ends = target.family.ends(target.config, target.fmt)(target.family.without_layers(target.params))
    wanted = ends.unembed(ends.leave(jnp.asarray(x)))[..., of.draft_tokens]
    found = dataclasses.replace(of, fmt=FORMAT).module(params).logits(ends, jnp.asarray(x))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIONS)
def test_an_overfitted_batch_reaches_the_entropy_of_the_target(tmp_path, kind):
    of = of_kind(tmp_path, kind)
    own = {"peagle": peagle, "dflash": dflash, "falcon": falcon, "spire": eagle}[kind]
    how = {
        "peagle": dataclasses.replace(eagle.RECIPES["peagle"], steps=2),
        "dflash": dflash.Blocks(2, "kl", gamma=1e9, share=1.0),
        "falcon": falcon.Glancing(glance=0.0, noise=0.0, tokens=1.0, features=0.0),
        "spire": eagle.Unrolling(steps=2, decay=1.0, divergence="kl"),
    }[kind]  # fmt: skip
    given = (test_falcon if kind == "falcon" else test_one_pass).batch()
    task = lm.TrainingTask(
        lambda key: TRAINED[kind].init(of, how, key), lambda *args: own.loss(of, how, *args),
        lambda *args: own.measure(of, how, *args), lambda step: given, (given,), of.target.params,
    )  # fmt: skip
    recipe = Recipe(steps=600, rate=1e-2, warmup=10, weight_decay=0.0, seed=3)
    step = lm.make_step(task, recipe)
    state = lm.TrainState(p := task.init(jax.random.key(0)), recipe.optimizer().init(p), jnp.zeros((), jnp.int32))
    for _ in range(recipe.steps):
        state, metrics = step(state, task.fixed, given)
    assert metrics["loss"] < 0.03  # the divergence from the target


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIONS)
def test_the_command_trains_resumes_and_drafts(tmp_path, kind):
    name = "bundled/opt-tiny"
    words = ("fox", "king", "boat", "tree", "girl", "hen", "cat")
    (tmp_path / "prompts.txt").write_text("".join(f"Once upon a time there was a {word}\n" for word in words) * 6)
    answers = AnswersRun(
        target=name, prompts=(tmp_path / "prompts.txt",), out=tmp_path / "answers.jsonl", max_new_tokens=8, rows=8
    ).train()
    make = lambda out: HeadRun(
        kind=kind, target=name, data=(answers,), out=out, tokens=64, widths=(16,), held_out=0.3, **OPTIONS[kind],
        recipe=Recipe(steps=4, every=2, warmup=1, decay=1),
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
    records = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [2, 4] and records[-1]["held_out_tokens_per_pass"] >= 1
    target = sj.load(name)
    loaded = sj.load_head(again, target)
    options = {"max_new_tokens": 8, "temperature": 0.0}
    out = sj.generate(target, ["Once upon a time"], drafter=sj.drafters.head(loaded, gamma=3), **options)
    assert out.tokens == sj.generate(target, ["Once upon a time"], **options).tokens
