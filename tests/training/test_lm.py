"""The recipe: losses against numpy, exact resumption, a falling loss, stops by signal, an export that loads."""

import json
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax.cli import train as command
from specjax.models import opt
from specjax.training import lm, losses, tasks
from specjax.training.lm import Recipe

CONFIG = opt.OPTConfig(vocab_size=23, width=8, embed_width=8, layers=1, heads=1, mlp_width=16, max_positions=16)
PACKED = np.tile(np.arange(20, dtype=np.uint16), 30)


def task(teacher=None):
    return tasks.text_task(CONFIG, PACKED, PACKED, rows=4, length=8, evaluations=2, teacher=teacher)


def train(folder, steps, **options):
    recipe = Recipe(**({"steps": steps, "warmup": 2, "decay": 2, "rate": 1e-2, "every": 3} | options))
    return lm.train(task(), recipe, folder, family="opt", config=CONFIG)


def test_losses_against_numpy():
    rng = np.random.default_rng(0)
    p, q = (rng.normal(size=(2, 3, 5)).astype(np.float32) for _ in range(2))
    labels, mask = rng.integers(0, 5, (2, 3)), rng.random((2, 3)) < 0.6
    soft = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    nats = -np.log(np.take_along_axis(soft(p), labels[..., None], -1)[..., 0])[mask].mean()
    arrays = jnp.asarray(labels), jnp.asarray(mask)
    np.testing.assert_allclose(losses.cross_entropy(jnp.asarray(p), *arrays), nats, rtol=1e-5)
    divergence = (soft(p) * np.log(soft(p) / soft(q))).sum(-1)[mask].mean()
    np.testing.assert_allclose(losses.forward_kl(jnp.asarray(p), jnp.asarray(q), arrays[1]), divergence, rtol=1e-4)
    shared = np.minimum(soft(p), soft(q)).sum(-1)[mask].mean()
    np.testing.assert_allclose(losses.overlap(jnp.asarray(p), jnp.asarray(q), arrays[1]), shared, rtol=1e-5)


def test_a_run_in_two_parts_is_the_run_in_one(tmp_path):
    whole = train(tmp_path / "whole", 6)
    # The schedule is that of the whole run; a signal ends the first part.
    reports = []

    def interrupt(record):
        reports.append(record["step"])
        os.kill(os.getpid(), signal.SIGTERM)

    recipe = Recipe(steps=6, warmup=2, decay=2, rate=1e-2, every=3)
    first = lm.train(task(), recipe, tmp_path / "parts", family="opt", config=CONFIG, report=interrupt)
    assert reports == [3] and int(first.step) == 3
    second = lm.train(task(), recipe, tmp_path / "parts", family="opt", config=CONFIG)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [3, 6]


def test_a_run_that_dies_beside_a_checkpoint_keeps_its_records(tmp_path, monkeypatch):
    """Killed before the checkpoint's record, after it, or in the middle of a line: the records are those of one run."""
    train(tmp_path / "whole", 6)

    class Died(Exception):
        pass

    def dying(state, *args, real=lm.save, **kwargs):
        real(state, *args, **kwargs)
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(lm, "save", dying)
        train(tmp_path / "parts", 6)
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as log:
        log.write('{"step": 5, "lo')
    train(tmp_path / "parts", 6)
    read = lambda name: [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    clean = lambda records: [{k: v for k, v in one.items() if k != "seconds_a_step"} for one in records]
    assert clean(read("parts")) == clean(read("whole"))


def test_a_run_that_is_stopped_before_its_first_record(tmp_path):
    assert lm.draw_curve(tmp_path) is None


def test_handlers_come_back(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    train(tmp_path, 1)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_loss_falls_and_the_export_is_the_model(tmp_path):
    state = train(tmp_path / "run", 60, every=30)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["held_out_nats"] < 0.6 * np.log(23)
    assert len(lm.saved(tmp_path / "run")) == lm.KEPT
    lm.export(state.params, tmp_path / "model", opt.to_published(CONFIG), dtype="float32", tokenizer=tmp_path)
    loaded = sj.load(tmp_path / "model")
    tokens = np.arange(10, dtype=np.int32)[None]
    expected = opt.score(state.params, CONFIG, lm.FORMAT, jnp.asarray(tokens))
    np.testing.assert_allclose(loaded.score(tokens), expected, rtol=1e-5, atol=1e-5)
    assert loaded.config == CONFIG and loaded.eos == (2,)


def test_a_student_is_measured_against_its_teacher():
    params = opt.init(jax.random.key(0), CONFIG, lm.FORMAT)
    teacher = sj.Model("teacher", opt, CONFIG, lm.FORMAT, params)
    found = lm.make_evaluate(task(teacher))(params)
    assert found["held_out_agreement"] == 1.0
    np.testing.assert_allclose(found["held_out_overlap"], 1.0, rtol=1e-5)


def test_the_command_trains_stops_and_goes_on(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text(
        "\n<|endofbook|>\n".join(f"the {i % 7} cats and the {i % 5} dogs sat down. " * 4 for i in range(80))
    )
    args = [
        "--run", str(tmp_path / "run"), "--data", str(text), "--vocab-size", "270", "--width", "8", "--layers", "1",
        "--heads", "1", "--positions", "32", "--length", "16", "--rows", "2", "--steps", "4", "--held-out", "0.2",
    ]  # fmt: skip
    assert command.main(args) == 0
    model = sj.load(tmp_path / "run" / "model")
    assert model.text is not None and model.text.decode(model.text.encode("the cats")) == "the cats"
    assert sj.generate(model, ["the"], max_new_tokens=3, temperature=0.0).tokens[0]
    moved = tmp_path / "moved"
    (tmp_path / "run").rename(moved)
    args[1] = str(moved)
    capsys.readouterr()
    assert command.main([*args, "--steps", "6"]) == 0
    steps = [json.loads(line)["step"] for line in (moved / "metrics.jsonl").read_text().splitlines()]
    assert steps == [4, 6]  # it went on, and did not begin again
    for changed, said in ((["--seed", "1"], "with seed 0, not 1"), (["--width", "16"], "with width 8, not 16")):
        with pytest.raises(ValueError, match=f"was begun {said}: use a new --run folder"):
            command.main([*args, *changed])
    text.write_text("something else")
    with pytest.raises(ValueError, match="was begun with data"):
        command.main(args)


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    train(tmp_path / "run", 3)
    whole = train(tmp_path / "run", 6)
    newest = lm.saved(tmp_path / "run")[-1]
    for file in newest.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.warns(UserWarning, match=r"00000006 cannot be read, .*; going on from step 3"):
        again = train(tmp_path / "run", 6)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert newest.with_suffix(".damaged").is_dir() and lm.saved(tmp_path / "run")[-1] == newest
    for folder in lm.saved(tmp_path / "run"):
        for file in folder.rglob("_METADATA"):
            file.write_bytes(b"")
    with pytest.raises(ValueError, match="is damaged"):
        train(tmp_path / "run", 7)
    assert len(lm.saved(tmp_path / "run")) == lm.KEPT  # none is set aside where none can be read


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--width", "9", "--heads", "2"], "does not divide"),
        (["--length", "600"], "must be below"),
        (["--heads", "0"], "--heads must be at least 1, got 0"),
        (["--held-out", "0"], "--held-out must lie between 0 and 1"),
        (["--rate", "nan"], "--rate must lie between 0 and 1"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--steps", "3000000000"], "--steps must be at most 1073741824"),
        (["--warmup", "1000000000000"], "--warmup must be at most 1073741824"),
        (["--width", "2000000000"], "--width must be at most 65536"),
        (["--positions", "1099511627776"], "--positions must be at most 65536"),
        (["--vocab-size", "1180591620717411303424"], "--vocab-size must lie in"),
        (["--run", ""], "--run must name a folder of its own"),
        (["--dtype", "int8"], "unknown dtype 'int8'"),
        (["--distill", "2"], "must lie in 0..1"),
        (["--vocab-size", "259"], r"--vocab-size must lie in 260\.\.65536"),
        (["--vocab-size", "70000"], r"--vocab-size must lie in 260\.\.65536"),
    ],
)
def test_bad_input_is_told_before_any_work(tmp_path, extra, message):
    (tmp_path / "t.txt").write_text("x")
    with pytest.raises(ValueError, match=message):
        command.main(["--run", str(tmp_path / "r"), "--data", str(tmp_path / "t.txt"), *extra])
    assert not (tmp_path / "r").exists()


def test_a_start_that_failed_can_be_mended(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n<|endofbook|>\n".join(f"the {i} cats sat down." for i in range(20)))
    args = ["--run", str(tmp_path / "run"), "--data", str(text), "--vocab-size", "270", "--width", "8", "--layers", "1"]
    args += ["--heads", "1", "--rows", "2", "--steps", "2", "--held-out", "0.3"]
    with pytest.raises(ValueError, match=r"text has \d+ tokens: fewer than a window of 400"):
        command.main([*args, "--length", "400"])
    text.write_text(text.read_text() + "\n<|endofbook|>\n" + "some dogs were here before the cats. " * 30)
    old = (tmp_path / "run" / "tokenizer" / "tokenizer.json").read_bytes()
    assert command.main([*args, "--length", "16"]) == 0
    packed = (tmp_path / "run" / "train.bin").stat().st_size + (tmp_path / "run" / "held_out.bin").stat().st_size
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").read_bytes() != old
    assert packed > 2 * 20 * 5 + 2 * 30 * 7  # what was packed before the text grew is not taken for it


@pytest.mark.parametrize(("content", "said"), [("{", "is damaged"), (None, "token 2 of the tokenizer .* is '<unk>'")])
def test_tokenizers_that_cannot_serve_are_named(content, said, tmp_path):
    (tmp_path / "t.txt").write_text("one two three\n" * 50)
    home = Path(sj.__file__).parent / "bundled" / "t5-draft"
    if content is not None:
        home = tmp_path / "tokenizer"
        home.mkdir()
        (home / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=said):
        command.main(["--run", str(tmp_path / "r"), "--data", str(tmp_path / "t.txt"), "--tokenizer", str(home)])


@pytest.mark.parametrize("run", ["t.txt", "t.txt/below/it"])
def test_a_run_below_a_file_is_told_before_any_work(run, tmp_path):
    (tmp_path / "t.txt").write_text("x")
    with pytest.raises(ValueError, match=r"--run \S+: \S+t\.txt is a file: name a folder"):
        command.main(["--run", str(tmp_path / run), "--data", str(tmp_path / "t.txt")])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.txt: no such data file"):
        command.main(["--run", str(tmp_path / "r"), "--data", str(tmp_path / "nothing.txt")])
