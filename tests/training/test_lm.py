"""The recipe: losses against numpy, exact resumption, decreasing loss, stops by signal, an export that loads."""

import json
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

import specjax as sj
from specjax.cli import train as command
from specjax.models import opt
from specjax.training import lm, tasks
from specjax.training.lm import Recipe
from specjax.training.recipe import orthogonal

CONFIG = opt.OPTConfig(vocab_size=23, width=8, embed_width=8, layers=1, heads=1, mlp_width=16, max_positions=16)
PACKED = np.tile(np.arange(20, dtype=np.uint16), 30)


def task(teacher=None):
    return tasks.text_task(opt.FAMILY, CONFIG, PACKED, PACKED, rows=4, length=8, evaluations=2, teacher=teacher)


def train(folder, steps, **options):
    recipe = Recipe(**({"steps": steps, "warmup": 2, "decay": 2, "rate": 1e-2, "every": 3} | options))
    return lm.train(task(), recipe, folder, family="opt", config=CONFIG)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of 6 steps: its last state and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return train(folder, 6), folder


def test_muon_updates_kernels_of_layers_and_adamw_the_rest():
    inner = {"layers.0.attn.q.kernel", "fc.kernel", "blocks.0.0.kernel"}
    rest = {"embed.table", "final_norm.scale", "head.kernel", "heads.0.kernel", "head.1.kernel"}
    params = {name: jnp.ones((3,) if name == "final_norm.scale" else (3, 2)) for name in inner | rest}
    chosen = orthogonal(params)
    assert {name for name in params if chosen[name] is not None} == inner


def records(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_resumed_run_equals_an_uninterrupted_run(whole, tmp_path):
    # The schedule covers the whole run; a signal ends the first part.
    reports = []

    def interrupt(record):
        reports.append(record["step"])
        if record["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    recipe = Recipe(steps=6, warmup=2, decay=2, rate=1e-2, every=3)
    first = lm.train(task(), recipe, tmp_path / "parts", family="opt", config=CONFIG, report=interrupt)
    assert reports == [1, 3] and int(first.step) == 3  # that compiling is over, and a record
    second = lm.train(task(), recipe, tmp_path / "parts", family="opt", config=CONFIG)
    for one, other in zip(jax.tree.leaves(whole[0]), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert [record["step"] for record in records(tmp_path / "parts")] == [3, 6]


@pytest.mark.slow
def test_records_survive_a_crash_near_a_checkpoint(whole, tmp_path, monkeypatch):
    """Killed after a checkpoint and in the middle of a line: the records equal those of one run."""

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
    clean = lambda folder: [{k: v for k, v in one.items() if k != "seconds_per_step"} for one in records(folder)]
    assert clean(tmp_path / "parts") == clean(whole[1])


@pytest.mark.slow
def test_metrics_are_fetched_only_for_records(tmp_path, monkeypatch):
    """40 steps with records at 20 and 40: the host reads their metrics, and those of the first step to report it."""
    fetched = []
    real = jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda x: (fetched.append(x), real(x))[1])
    monkeypatch.setattr(lm, "make_evaluate", lambda task: lambda params: {})
    monkeypatch.setattr(lm, "save", lambda *args, **kwargs: None)
    seen = []
    batches = task()._replace(batch=lambda step: seen.append(step) or task().batch(step))
    recipe = Recipe(steps=40, warmup=2, decay=2, every=20)
    state = lm.train(batches, recipe, tmp_path, family="opt", config=CONFIG)
    assert [set(metrics) for metrics in fetched] == [{"loss", "nats", "norm", "rate"}] * 3
    assert seen == list(range(40)) and int(state.step) == 40


def test_no_curve_before_the_first_record(tmp_path):
    assert lm.draw_curve(tmp_path) is None


@pytest.mark.slow
def test_signal_handlers_are_restored(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    train(tmp_path, 1)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_the_loss_decreases_and_the_export_equals_the_model(tmp_path):
    state = train(tmp_path / "run", 60, every=30)
    assert records(tmp_path / "run")[-1]["held_out_nats"] < 0.6 * np.log(23)
    assert len(lm.saved(tmp_path / "run")) == lm.KEPT
    lm.export(state.params, tmp_path / "model", opt.to_published(CONFIG), dtype="float32", tokenizer=tmp_path)
    loaded = sj.load(tmp_path / "model")
    tokens = np.arange(10, dtype=np.int32)[None]
    expected = opt.FAMILY.score(state.params, CONFIG, lm.FORMAT, jnp.asarray(tokens))
    np.testing.assert_allclose(loaded.score(tokens), expected, rtol=1e-5, atol=1e-5)
    assert loaded.config == CONFIG and loaded.eos == (2,)


def test_files_in_bfloat16_keep_norms_and_biases_in_float32(tmp_path):
    params = opt.FAMILY.init(jax.random.key(0), CONFIG, lm.FORMAT)
    lm.export(params, tmp_path / "model", opt.to_published(CONFIG), dtype="bfloat16", tokenizer=tmp_path)
    with safe_open(tmp_path / "model/model.safetensors", "numpy") as file:
        dtypes = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    wide = {name for name in dtypes if name.endswith("bias") or "norm" in name}
    assert wide and dtypes == {name: "F32" if name in wide else "BF16" for name in dtypes}


def test_a_student_is_evaluated_against_its_teacher():
    params = opt.FAMILY.init(jax.random.key(0), CONFIG, lm.FORMAT)
    teacher = sj.Model("teacher", opt.FAMILY, CONFIG, lm.FORMAT, params)
    found = lm.make_evaluate(task(teacher))(params)
    assert found["held_out_agreement"] == 1.0
    np.testing.assert_allclose(found["held_out_overlap"], 1.0, rtol=1e-5)


@pytest.mark.slow
def test_command_trains_and_resumes(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text(
        "\n<|endofbook|>\n".join(f"the {i % 7} cats and the {i % 5} dogs sat down. " * 4 for i in range(80))
    )
    args = [
        "--run", str(tmp_path / "run"), "--data", str(text), "--vocab-size", "270", "--width", "8", "--layers", "1",
        "--heads", "1", "--positions", "32", "--length", "16", "--rows", "2", "--steps", "4", "--held-out", "0.2",
    ]  # fmt: skip
    assert command.main(["lm", *args]) == 0
    model = sj.load(tmp_path / "run" / "model")
    assert model.text is not None and model.text.decode(model.text.encode("the cats")) == "the cats"
    assert sj.generate(model, ["the"], max_new_tokens=3, temperature=0.0).tokens[0]
    moved = tmp_path / "moved"
    (tmp_path / "run").rename(moved)
    args[1] = str(moved)
    capsys.readouterr()
    assert command.main(["lm", *args, "--steps", "6"]) == 0
    steps = [json.loads(line)["step"] for line in (moved / "metrics.jsonl").read_text().splitlines()]
    assert steps == [4, 6]  # resumed, not restarted
    for changed, match in ((["--seed", "1"], "seed 0"), (["--width", "16"], "width 8")):
        with pytest.raises(ValueError, match=match):
            command.main(["lm", *args, *changed])
    text.write_text("something else")
    with pytest.raises(ValueError, match="data"):
        command.main(["lm", *args])


@pytest.mark.slow
def test_a_damaged_checkpoint_is_skipped(tmp_path):
    train(tmp_path / "run", 3)
    whole = train(tmp_path / "run", 6)
    newest = lm.saved(tmp_path / "run")[-1]
    for file in newest.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.warns(UserWarning, match="step 3"):
        again = train(tmp_path / "run", 6)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert newest.with_suffix(".damaged").is_dir() and lm.saved(tmp_path / "run")[-1] == newest
    for folder in lm.saved(tmp_path / "run"):
        for file in folder.rglob("_METADATA"):
            file.write_bytes(b"")
    with pytest.raises(ValueError, match="damaged"):
        train(tmp_path / "run", 7)
    assert len(lm.saved(tmp_path / "run")) == lm.KEPT  # none is renamed if none is readable


@pytest.mark.parametrize(
    ("extra", "argument"),
    [
        (["--width", "9", "--heads", "2"], "heads"),
        (["--length", "600"], "length"),
        (["--heads", "0"], "heads"),
        (["--held-out", "0"], "held_out"),
        (["--rate", "nan"], "rate"),
        (["--steps", "0"], "steps"),
        (["--steps", "3000000000"], "steps"),
        (["--warmup", "1000000000000"], "warmup"),
        (["--width", "2000000000"], "width"),
        (["--positions", "1099511627776"], "positions"),
        (["--vocab-size", "1180591620717411303424"], "vocab_size"),
        (["--run", ""], "run"),
        (["--dtype", "int8"], "dtype"),
        (["--distill", "2"], "distill"),
        (["--texts", "student"], "texts"),
        (["--vocab-size", "259"], "vocab_size"),
        (["--vocab-size", "70000"], "vocab_size"),
    ],
)
def test_invalid_options_raise_before_any_work(tmp_path, extra, argument):
    (tmp_path / "t.txt").write_text("x")
    with pytest.raises(ValueError, match=argument):
        command.main(["lm", "--run", str(tmp_path / "r"), "--data", str(tmp_path / "t.txt"), *extra])
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_failed_start_can_be_repeated(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n<|endofbook|>\n".join(f"the {i} cats sat down." for i in range(20)))
    args = ["--run", str(tmp_path / "run"), "--data", str(text), "--vocab-size", "270", "--width", "8", "--layers", "1"]
    args += ["--heads", "1", "--rows", "2", "--steps", "2", "--held-out", "0.3"]
    with pytest.raises(ValueError, match="length 400"):
        command.main(["lm", *args, "--length", "400"])
    text.write_text(text.read_text() + "\n<|endofbook|>\n" + "some dogs were here before the cats. " * 30)
    old = (tmp_path / "run" / "tokenizer" / "tokenizer.json").read_bytes()
    assert command.main(["lm", *args, "--length", "16"]) == 0
    packed = (tmp_path / "run" / "train.bin").stat().st_size + (tmp_path / "run" / "held_out.bin").stat().st_size
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").read_bytes() != old
    assert packed > 2 * 20 * 5 + 2 * 30 * 7  # the text was packed again


@pytest.mark.parametrize(("content", "match"), [("{", "damaged"), (None, "<unk>")])
def test_unusable_tokenizers_raise(content, match, tmp_path):
    (tmp_path / "t.txt").write_text("one two three\n" * 50)
    home = Path(sj.__file__).parent / "bundled" / "t5-draft"
    if content is not None:
        home = tmp_path / "tokenizer"
        home.mkdir()
        (home / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=match):
        command.main(["lm", "--run", str(tmp_path / "r"), "--data", str(tmp_path / "t.txt"), "--tokenizer", str(home)])


@pytest.mark.parametrize("run", ["t.txt", "t.txt/below/it"])
def test_a_run_folder_below_a_file_raises_before_any_work(run, tmp_path):
    (tmp_path / "t.txt").write_text("x")
    with pytest.raises(ValueError, match="run"):
        command.main(["lm", "--run", str(tmp_path / run), "--data", str(tmp_path / "t.txt")])


def test_a_missing_data_file_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.txt"):
        command.main(["lm", "--run", str(tmp_path / "r"), "--data", str(tmp_path / "nothing.txt")])
