"""Training of Medusa heads and MLP speculators: what is trained is what drafts, on Llama, OPT and T5."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax.heads.head import Head
from specjax.training import answers, head_run, losses, staged
from specjax.training.answers import AnswersRun
from specjax.training.eagle import Batch
from specjax.training.head_run import HeadRun
from specjax.training.lm import FORMAT
from specjax.training.losses import TEXT
from specjax.training.recipe import Recipe
from specjax.training.staged import Staged
from tests import battery
from tests.drafters.test_staged_heads import CONFIGS, expected, head

WIDTH = 9


def batch(family: str) -> Batch:
    numbers = np.random.default_rng(0)
    tokens = numbers.integers(1, battery.VOCAB, (3, WIDTH)).astype(np.int32)
    if family != "t5":
        return Batch(tokens, np.arange(WIDTH)[None] >= np.array([[2], [4], [6]]))
    tokens[:, 0] = battery.target("t5").config.start_token
    source = numbers.integers(1, battery.VOCAB, (3, 5)).astype(np.int32)
    return Batch(tokens, np.arange(WIDTH)[None] >= np.ones((3, 1)), source, np.array([5, 3, 4], np.int32))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def features_of(of: Head, given: Batch, row: int) -> np.ndarray:
    """Features of one text, read alone and without padding."""
    target = of.target
    read = jax.jit(lambda params, *args: target.family.module(params, target.config, target.fmt).read(*args).features)
    text = jnp.asarray(given.tokens[row : row + 1])
    if not target.encoder_decoder:
        return np.asarray(read(target.params, text)[0])
    length = int(np.asarray(given.length)[row])
    source = jnp.asarray(np.asarray(given.source)[row : row + 1, :length])
    return np.asarray(read(target.params, source, jnp.asarray([length], jnp.int32), text)[0])


def trained(of: Head, how: Staged, params, given: Batch) -> list:
    """Every stage at every position, as training computes it."""
    run = jax.jit(lambda params, fixed: staged.run(of, how, params, fixed, given))
    return run(params, of.target.params)


CASES = [("medusa few", "opt"), ("mlp", "t5")]


@pytest.mark.parametrize(
    ("kind", "family"), battery.others_slow([(k, f) for k in CONFIGS for f in battery.FAMILIES], CASES)
)
def test_a_stage_at_a_position_is_what_drafting_computes(kind, family):
    """The independent computation of the drafting tests, at every position of the texts."""
    of, given = head(kind, family), batch(family)
    stages = min(CONFIGS[kind].most, 3)
    found = trained(of, Staged(stages), of.params, given)
    for row in range(3):
        features = features_of(of, given, row)
        for place in range(WIDTH - 1 - stages):
            for stage in range(stages):
                pending = given.tokens[row, place + 1 : place + 2 + stage].tolist()
                logits = expected(of, features[place], pending)
                logits = logits if of.draft_tokens is None else logits[of.draft_tokens]
                np.testing.assert_allclose(found[stage].log_q[row, place], log_softmax(logits), atol=5e-5)


@pytest.mark.parametrize("kind", [pytest.param("medusa", marks=pytest.mark.slow), "medusa few"])
def test_masks_and_losses_are_those_of_the_answers_tokens(kind):
    of, given = head(kind, "opt"), batch("opt")
    how = Staged(2, decay=0.5)
    loss = jax.jit(lambda how, *args: staged.loss(of, how, *args, given, jax.random.key(0)), static_argnums=0)
    value, nats = loss(how, of.params, of.target.params)
    steps = trained(of, how, of.params, given)
    known = range(battery.VOCAB) if of.draft_tokens is None else of.draft_tokens.tolist()
    total = 0.0
    for stage, step in enumerate(steps):
        parts = [
            -float(step.log_q[row, place, list(known).index(token)])
            for row in range(3)
            for place in range(WIDTH - 2 - stage)
            if given.answer[row, place + 2 + stage] and (token := int(given.tokens[row, place + 2 + stage])) in known
        ]
        total += 0.5**stage * float(np.mean(parts))
    np.testing.assert_allclose(value, total, rtol=1e-5)
    p, q = steps[0].log_p, steps[0].log_q
    np.testing.assert_allclose(nats, losses.masked_mean(-(jnp.exp(p) * q).sum(-1), steps[0].mask & steps[0].drafted))
    other = loss(dataclasses.replace(how, divergence="tv"), of.params, of.target.params)
    assert 0 < other[0] < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("family", battery.FAMILIES)
def test_medusa_begins_as_its_target(family):
    of = dataclasses.replace(head("medusa", family), fmt=FORMAT, params={})
    params = staged.init_medusa(of, staged.Staged(2), jax.random.key(0))
    given, target = batch(family), of.target
    steps = trained(of, Staged(2), params, given)
    texts = (given.source, given.length, given.tokens) if family == "t5" else (given.tokens,)
    read = jax.jit(lambda params, *args: target.family.module(params, target.config, target.fmt).read(*args).logits)
    logits = read(target.params, *map(jnp.asarray, texts))[:, :-1]
    for step in steps:
        np.testing.assert_allclose(step.log_q, jax.nn.log_softmax(logits), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("divergence", [TEXT, "kl"])
@pytest.mark.parametrize(("kind", "family"), [("medusa", "llama"), ("medusa", "t5"), ("mlp", "opt"), ("mlp", "t5")])
def test_an_overfitted_batch_reaches_the_entropy_of_the_target(kind, family, divergence):
    from specjax.training import lm

    of, given = dataclasses.replace(head(kind, family), fmt=FORMAT), batch(family)
    how = Staged(2, divergence)
    task = lm.TrainingTask(
        lambda key: of.kind.init(key, of.config, FORMAT), lambda *args: staged.loss(of, how, *args),
        lambda *args: staged.measure(of, how, *args), lambda step: given, (given,), of.target.params,
    )  # fmt: skip
    recipe = Recipe(steps=600, rate=2e-2, warmup=10, weight_decay=0.0, seed=3)
    step = lm.make_step(task, recipe)
    state = lm.TrainState(p := task.init(jax.random.key(0)), recipe.optimizer().init(p), jnp.zeros((), jnp.int32))
    for _ in range(recipe.steps):
        state, metrics = step(state, task.fixed, given)
    found = staged.run(of, how, state.params, of.target.params, given)
    if divergence == TEXT:  # every token of the batch is known by heart
        assert metrics["loss"] < 0.05
        return
    for one in found:
        entropy = losses.masked_mean(-(jnp.exp(one.log_p) * one.log_p).sum(-1), one.mask & one.drafted)
        nats = losses.masked_mean(-(jnp.exp(one.log_p) * one.log_q).sum(-1), one.mask & one.drafted)
        assert nats - entropy < 0.03


def test_texts_of_an_encoder_decoder_begin_with_its_start_token():
    from specjax.training.answers import Answer

    every = [Answer([5, 6, 7], [8, 9]), Answer([4], [2, 3, 4, 5, 6, 7])]
    short, long = head_run.bucketed(every, (4, 8), start=0)
    assert short.tokens.tolist() == [[0, 8, 9, 0]] and short.answer.tolist() == [[False, True, True, False]]
    assert np.asarray(short.source).tolist() == [[5, 6, 7, 0]] and np.asarray(short.length).tolist() == [3]
    assert long.tokens.tolist() == [[0, 2, 3, 4, 5, 6, 7, 0]]
    assert head_run.bucketed(every, (8,))[0].tokens.tolist() == [[5, 6, 7, 8, 9, 0, 0, 0], [4, 2, 3, 4, 5, 6, 7, 0]]


OPTIONS = {"medusa": {"own_matrices": True, "unroll": 2}, "mlp": {"mlp_width": 8, "unroll": 2}}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bundled/opt-tiny", "bundled/t5-draft"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_the_command_trains_resumes_and_drafts(tmp_path, kind, name):
    (tmp_path / "prompts.txt").write_text("".join(f"There were {number} of them\n" for number in range(32)))
    answers = AnswersRun(
        target=name, prompts=(tmp_path / "prompts.txt",), out=tmp_path / "answers.jsonl", max_new_tokens=8, rows=8
    ).train()
    make = lambda out, steps: HeadRun(
        kind=kind, target=name, data=(answers,), out=out, tokens=64, widths=(16,), held_out=0.3, **OPTIONS[kind],
        recipe=Recipe(steps=steps, every=2, warmup=1, decay=1),
    )  # fmt: skip
    make(tmp_path / "parts", 2).train()
    folder, whole = make(tmp_path / "parts", 4).train(), make(tmp_path / "whole", 4).train()
    assert folder is not None and whole is not None
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [2, 4]
    target = sj.load(name)
    loaded = sj.load_head(folder, target)
    options = {"max_new_tokens": 8, "temperature": 0.0}
    out = sj.generate(target, ["The weather is"], drafter=sj.drafters.head(loaded, gamma=2), **options)
    assert out.tokens == sj.generate(target, ["The weather is"], **options).tokens


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("mlp", {"layers": 2}),
        ("eagle", {"own_matrices": True}),
        ("medusa", {"taps": (1,)}),
        ("eagle3", {"divergence": TEXT}),
        ("eagle3", {"mask_token": 1}),
        ("falcon", {"layers": 2}),
        ("eagle3", {"feature_loss": 0.5}),
        ("eagle", {"glance": 0.0}),
        ("medusa-2", {"features": Path("there")}),
        ("medusa", {"rank": 4}),
        ("mlp", {"start": "there"}),
    ],
)
def test_options_of_other_kinds_are_refused(tmp_path, kind, given):
    (tmp_path / "data").write_text("")
    run = HeadRun(kind=kind, target="bundled/opt-tiny", data=(tmp_path / "data",), out=tmp_path / "out", **given)
    with pytest.raises(ValueError, match=next(iter(given))):
        run.train()


def trained_on(tmp_path: Path, rows: Sequence[dict[str, Any]], header: dict[str, Any] | None = None, **given: Any):
    """A run on these rows."""
    target = sj.load("bundled/opt-tiny")
    first = {"kind": answers.KIND, "target": target.name, "vocabulary": answers.vocabulary_of(target)}
    lines = [first if header is None else header, *rows]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = {"kind": "medusa", "target": "bundled/opt-tiny", "widths": (16,), "held_out": 0.3} | given
    return HeadRun(data=(tmp_path / "data.jsonl",), out=tmp_path / "out", **options).train()


@pytest.mark.parametrize(
    ("answer", "given", "name"),
    [
        ([], {}, "no answer"),
        ([5, 4096], {}, "damaged"),
        ([-1], {}, "damaged"),
        ("hello", {}, "damaged"),
        (None, {}, "damaged"),
        ([5, 6], {"kind": "eagle3", "draft_vocab": 5000}, "draft_vocab"),
        ([5, 6], {"widths": (4,)}, "widths"),
    ],
)
def test_answers_that_cannot_be_learned_from_are_refused(tmp_path, answer, given, name):
    rows = [{"prompt_tokens": [5, 6, 7, 8 + row], "answer_tokens": answer} for row in range(20)]
    with pytest.raises(ValueError, match=name):
        trained_on(tmp_path, rows, **given)
    assert not (tmp_path / "out").exists()


def test_a_header_without_a_vocabulary_is_that_of_another_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="tokenizer"):
        trained_on(tmp_path, [{"prompt_tokens": [5], "answer_tokens": [6]}], {"kind": answers.KIND})


@pytest.mark.parametrize("text", ["notes without an end", "a line\nand another\n", "[1]\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path, text):
    file = tmp_path / "notes.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"notes\.txt"):
        answers.begin(file, {"kind": answers.KIND, "count": 3, "rows": 2})
    assert file.read_text() == text
