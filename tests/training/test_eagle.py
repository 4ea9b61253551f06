"""Training of EAGLE heads: what is trained is what drafts, and a run is resumable."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax.drafters.head import writer
from specjax.heads.eagle import EagleConfig
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.models.llama import LlamaConfig
from specjax.training import eagle, losses, unrolled
from specjax.training.eagle import Batch, Unrolling
from specjax.training.lm import FORMAT
from tests import battery

WIDTH, TEXT, STEPS = 16, 9, 3
LAYER = LlamaConfig(vocab_size=battery.VOCAB, width=WIDTH, layers=2, heads=4, kv_heads=2, head_width=4, mlp_width=24)
CONFIGS = {"eagle": EagleConfig(LAYER, WIDTH), "eagle3": EagleConfig(LAYER, 3 * WIDTH, (0, 1, 2), 9)}
TOKENS = np.array([0, 1, 2, 4, 5, 7, 8, 10, 12], np.int32)


def head(kind: str, family: str = "llama") -> Head:
    target = battery.target(family)
    params = KINDS[kind].init(jax.random.key(1), CONFIGS[kind], target.fmt)
    params = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim == 2 else leaf, params)
    tokens = TOKENS if kind == "eagle3" else None
    return Head("a head", KINDS[kind], CONFIGS[kind], target.fmt, params, target, tokens)


def batch(rows: int = 3) -> Batch:
    tokens = np.random.default_rng(0).integers(0, battery.VOCAB, (rows, TEXT)).astype(np.int32)
    answer = np.arange(TEXT)[None] >= np.array([[2], [4], [6]])[:rows]
    return Batch(tokens, answer)


@functools.cache
def trained(kind: str) -> list:
    """Steps of the head unrolled over the batch, as training computes them."""
    of = head(kind)
    run = lambda params, fixed: eagle.run(of, params, fixed, batch(), Unrolling(steps=STEPS), None)[0]
    return jax.device_get(jax.jit(run)(of.params, of.target.params))


@pytest.mark.parametrize("kind", battery.others_slow(CONFIGS, ["eagle3"]))
def test_a_step_at_an_anchor_is_what_drafting_computes(kind):
    """The head reads the true pairs up to the anchor, then the tokens of the text as if it had drafted them."""
    of, text = head(kind), jnp.asarray(batch().tokens)
    target = of.target
    steps = trained(kind)
    own = writer(of, 1)
    lm = target.variant(capture=of.config.taps)
    loaded = sj.drafters.head(of, gamma=2)

    @jax.jit
    def drafted(params, own_params, length, fed):
        read = lm.prefill(params, text, length, 2 * TEXT)
        memory = own.init(own_params, text, length, 2 * TEXT, read)
        logits, memory = own.root(own_params, memory, read.pending)
        cache, found = memory.cache, []
        for step in range(STEPS):
            found.append(jax.nn.log_softmax(logits if of.draft_tokens is None else logits[:, of.draft_tokens]))
            tokens = fed[:, step, None]
            out, cache = own.lm.extend(own_params, tokens, cache, np.ones((1, 1), bool), np.zeros((1,), np.int32))
            logits, cache = out.logits[:, 0], own.lm.keep(cache, None, jnp.ones_like(length))
        return found

    for anchor in (0, 2, 4):
        length = jnp.full((len(text),), anchor + 2, jnp.int32)
        fed = text[:, anchor + 2 : anchor + 2 + STEPS]
        for step, expected in enumerate(drafted(target.params, loaded.params, length, fed)):
            np.testing.assert_allclose(steps[step].log_q[:, anchor], expected, atol=2e-5)


@pytest.mark.parametrize("kind", battery.others_slow(CONFIGS, ["eagle3"]))
def test_fewer_anchors_compute_what_all_of_them_do(kind):
    of, given, kept = head(kind), batch(), 0.6
    how = Unrolling(steps=STEPS, kept=kept)
    run = lambda params, fixed, key: eagle.run(of, params, fixed, given, how, key)[:2]
    steps, outs = jax.device_get(jax.jit(run)(of.params, of.target.params, jax.random.key(3)))
    before = np.ones((len(given.tokens), TEXT - 1), bool)
    for number, (step, whole, one) in enumerate(zip(steps, trained(kind), outs, strict=True)):
        found = np.zeros_like(before)
        for row, anchor in np.argwhere(step.mask):
            at = one.at[row, anchor]
            found[row, at] = True
            assert whole.mask[row, at] and before[row, at]
            for name in ("log_q", "log_p", "overlap", "match", "drafted"):
                np.testing.assert_allclose(getattr(step, name)[row, anchor], getattr(whole, name)[row, at], atol=2e-5)
        answered = np.sum(given.answer[:, 2:], 1)
        np.testing.assert_array_equal(found.sum(1), np.maximum(0, ((answered - number) * kept**number).astype(int)))
        before = found if number else before  # the first step trains every anchor
    assert steps[2].log_q.shape[1] < steps[1].log_q.shape[1] < TEXT - 1


def test_masks_select_the_answers_tokens_and_known_tokens():
    of, given = head("eagle3"), batch()
    steps = trained("eagle3")
    logits = np.asarray(of.target.score(given.tokens))
    for number, step in enumerate(steps):
        for row in range(3):
            for anchor in range(TEXT - 1):
                at = anchor + 2 + number  # the token that this step drafts
                assert bool(step.mask[row, anchor]) == (at < TEXT and bool(given.answer[row, at]))
                if at < TEXT:
                    assert bool(step.drafted[row, anchor]) == (logits[row, at - 1].argmax() in TOKENS)


def test_overlap_and_match_are_those_of_the_whole_distributions():
    of, given = head("eagle3"), batch()
    steps = trained("eagle3")
    p = np.asarray(jax.nn.softmax(of.target.score(given.tokens)))[:, 1:]
    q = np.zeros_like(p)
    q[..., TOKENS] = np.exp(np.asarray(steps[0].log_q))
    np.testing.assert_allclose(steps[0].overlap, np.minimum(p, q).sum(-1), rtol=1e-4)
    np.testing.assert_array_equal(steps[0].match, p.argmax(-1) == q.argmax(-1))


def test_simulated_acceptance_multiplies_along_the_chain():
    overlap = [jnp.array([[0.5, 0.8]]), jnp.array([[0.4, 0.5]])]
    match = [jnp.array([[True, True]]), jnp.array([[True, False]])]
    mask = [jnp.ones((1, 2), bool)] * 2
    found = unrolled.acceptance(overlap, match, mask)
    np.testing.assert_allclose(found["tokens_per_pass"], 1 + (0.5 + 0.8) / 2 + (0.2 + 0.4) / 2, rtol=1e-6)
    np.testing.assert_allclose(found["greedy_tokens_per_pass"], 1 + 1 + 0.5)
    np.testing.assert_allclose([found["overlap_0"], found["match_1"]], [0.65, 0.5], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", losses.DIVERGENCES)
def test_divergences_are_least_at_the_target(name):
    log_p = jax.nn.log_softmax(jnp.asarray([[[1.0, 0.0, -2.0]]]))
    value = lambda log_q: losses.DIVERGENCES[name](log_p, log_q)[0, 0]
    gradient = jax.grad(lambda logits: value(jax.nn.log_softmax(logits)))(log_p)
    if name not in ("tv", "log-alpha", "lk"):  # those have a kink there
        np.testing.assert_allclose(gradient, 0.0, atol=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = jax.nn.log_softmax(jnp.asarray(rng.normal(size=(1, 1, 3)), jnp.float32))
        assert value(other) >= value(log_p) - 1e-6


@pytest.mark.slow
def test_no_gradient_flows_between_the_steps_of_hass():
    """Without it, the loss of a later step depends on the first step through its output alone."""
    of = head("eagle")
    attached = dataclasses.replace(eagle.RECIPES["hass"], noise=0.0, detached=False)

    def gradient(how):
        return jax.grad(lambda params: eagle.loss(of, how, params, of.target.params, batch(), jax.random.key(0))[0])(
            of.params
        )

    one, other = gradient(attached), gradient(dataclasses.replace(attached, detached=True))
    assert any(not np.allclose(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "hass", "eagle3"])
def test_an_overfitted_batch_reaches_the_entropy_of_the_target(kind):
    from specjax.training import lm
    from specjax.training.recipe import Recipe

    of = dataclasses.replace(head("eagle3" if kind == "eagle3" else "eagle"), fmt=FORMAT)
    how = dataclasses.replace(eagle.RECIPES[kind], steps=1, noise=0.0, tokens=1.0)
    task = lm.TrainingTask(
        lambda key: of.kind.init(key, of.config, FORMAT), lambda *args: eagle.loss(of, how, *args),
        lambda *args: eagle.measure(of, how, *args), lambda step: batch(), (batch(),), of.target.params,
    )  # fmt: skip
    recipe = Recipe(steps=400, rate=1e-2, warmup=10, weight_decay=0.0, seed=3)
    step = lm.make_step(task, recipe)
    state = lm.TrainState(p := task.init(jax.random.key(0)), recipe.optimizer().init(p), jnp.zeros((), jnp.int32))
    for _ in range(recipe.steps):
        state, metrics = step(state, task.fixed, batch())
    found, _, _ = eagle.run(of, state.params, of.target.params, batch(), how, None)
    entropy = losses.masked_mean(
        losses.DIVERGENCES["ce"](found[0].log_p, found[0].log_p), found[0].mask & found[0].drafted
    )
    assert metrics["nats"] - entropy < 0.02


@pytest.mark.slow
def test_commands_write_answers_and_train_a_head(tmp_path):
    from tests.cli.toys import write_model

    target = write_model(tmp_path / "target", layers=6)
    (tmp_path / "prompts.txt").write_text("".join(f"The {n} cats sat\n" for n in range(40)))
    from specjax.cli import main

    write = [
        "train", "answers", "--target", str(target), "--prompts", str(tmp_path / "prompts.txt"), "--out",
        str(tmp_path / "answers.jsonl"), "--max-new-tokens", "12", "--rows", "8",
    ]  # fmt: skip
    assert main(write) == 0
    whole = (tmp_path / "answers.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 41 and json.loads(lines[0])["count"] == 40
    (tmp_path / "answers.jsonl").write_bytes(b"".join(lines[:12]) + lines[12][:20])  # cut off by a crash
    assert main(write) == 0
    assert (tmp_path / "answers.jsonl").read_bytes() == whole
    train = [
        "train", "head", "eagle3", "--target", str(target), "--data", str(tmp_path / "answers.jsonl"), "--out",
        str(tmp_path / "run"), "--draft-vocab", "60", "--unroll", "2", "--widths", "32", "--tokens", "128", "--every",
        "2", "--held-out", "0.2", "--taps", "1", "2", "4", "--kv-heads", "1",
    ]  # fmt: skip
    assert main([*train, "--steps", "2"]) == 0
    assert main([*train, "--steps", "4"]) == 0
    assert main([*train, "--steps", "4", "--out", str(tmp_path / "once")]) == 0
    loaded = [sj.load_head(tmp_path / run / "head", sj.load(target)) for run in ("run", "once")]
    assert loaded[0].config.layer.kv_heads == 1 < loaded[0].config.layer.heads
    for one, other in zip(*(jax.tree.leaves(head.params) for head in loaded), strict=True):
        np.testing.assert_array_equal(one, other)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == 4 and 1 <= records[-1]["held_out_tokens_per_pass"] <= 3
    args = [
        "generate",
        "Once",
        "--target",
        str(target),
        "--head",
        str(tmp_path / "run" / "head"),
        "--max-new-tokens",
        "8",
    ]
    assert main(args) == 0


def test_layers_of_a_new_head_have_the_attention_of_the_target():
    for name in ("opt", "llama"):
        target = battery.target(name)
        layers = eagle.new_layers(target, 1, 24, 0, target.config.width)
        own = target.config
        assert (layers.heads, layers.kv_heads, layers.head_width) == (own.heads, own.kv_heads, own.head_width)
        assert eagle.new_layers(target, 1, 24, 1, target.config.width).kv_heads == 1


def narrow(tmp_path, family: str, width: int) -> Head:
    from specjax.training.head_kinds import TRAINED
    from specjax.training.head_run import HeadRun

    run = HeadRun(
        kind="eagle3", target="x", data=(), out=tmp_path, width=width, taps=(0, 1, 2), mlp_width=12, kv_heads=1
    )
    of = TRAINED["eagle3"].new(run, battery.target(family), TOKENS)
    return dataclasses.replace(of, params=TRAINED["eagle3"].init(of, None, jax.random.key(0)))


@pytest.mark.parametrize("family", ["llama", pytest.param("opt", marks=pytest.mark.slow)])
def test_a_narrow_head_begins_with_the_principal_components_of_the_targets_matrices(tmp_path, family):
    """The inner products of the embedding are the best approximation of that rank."""
    of, width = narrow(tmp_path, family, 8), 8
    target = of.target
    ends = target.family.ends(target.config, target.fmt)(target.family.without_layers(target.params))
    table = np.asarray(ends.embed.tokens(jnp.arange(battery.VOCAB)[None])[0])
    values, vectors = np.linalg.eigh(table @ table.T)
    nearest = (vectors * np.where(values >= np.sort(values)[-width], values, 0)) @ vectors.T
    found = np.asarray(of.params["embed"]["table"])
    assert found.shape == (battery.VOCAB, width) and width < table.shape[1]
    np.testing.assert_allclose(found @ found.T, nearest, atol=1e-5)
    rows = np.asarray(of.params["head"]["kernel"])
    rows = rows if FORMAT.products.out_in else rows.T
    scale = np.asarray(target.params["final_norm"]["scale"])
    wanted = np.asarray(ends.unembed(jnp.eye(table.shape[1])[None])[0])[:, TOKENS].T * scale
    basis = np.linalg.lstsq(table, found, rcond=None)[0]
    np.testing.assert_allclose(rows, wanted @ basis, atol=1e-5)


@pytest.mark.slow
def test_a_narrow_head_is_written_and_drafts_as_before(tmp_path):
    of = narrow(tmp_path, "llama", 8)
    assert (of.config.layer.heads, of.config.layer.kv_heads, of.config.width, of.config.features) == (2, 1, 8, 48)
    with pytest.raises(ValueError, match="original"):
        of.save_pretrained(tmp_path / "other", format="speculators")
    of.save_pretrained(tmp_path / "head")
    read = sj.load_head(tmp_path / "head", of.target)
    drafts = [sj.draft_logits(of.target, [3, 1, 4], sj.drafters.head(one, gamma=3), steps=3) for one in (of, read)]
    for one, other in zip(*drafts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("width", [10, 20])
def test_the_width_of_a_head_is_whole_attention_heads_and_at_most_the_targets(width, tmp_path):
    with pytest.raises(ValueError, match="width"):
        narrow(tmp_path, "llama", width)


def test_a_head_of_the_targets_width_has_no_embedding_of_its_own(tmp_path):
    of = narrow(tmp_path, "llama", WIDTH)
    assert of.format == "speculators" and "embed" not in of.params


def test_the_losses_of_an_ablation_are_options(tmp_path):
    from specjax.training.head_run import HeadRun

    run = lambda kind, **given: HeadRun(kind=kind, target="x", data=(), out=tmp_path, **given)._recipe(head("eagle"))
    assert run("eagle").features == 1.0 and run("eagle", feature_loss=0.0).features == 0.0
    assert run("falcon").glance == 0.4 and run("falcon", glance=0.0).glance == 0.0
    assert run("hass", unroll=2).steps == 2 and run("hass").divergence == "ce"
