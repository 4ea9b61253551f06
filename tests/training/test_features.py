"""Features of the target kept on disk: the same training, an interrupted start, and folders of something else."""

import json
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax.training.answers import AnswersRun
from specjax.training.head_run import HeadRun
from specjax.training.recipe import Recipe

OPTIONS = {
    "eagle3": {"taps": (0, 1), "unroll": 2, "draft_vocab": 48},
    "hass": {},
    "medusa": {"unroll": 2},
    "peagle": {"layers": 1, "unroll": 2, "taps": (0, 1), "mlp_width": 16},
    "dflash": {"layers": 1, "unroll": 2, "taps": (1,), "mlp_width": 16},
    "falcon": {"mlp_width": 16},
    "spire": {"layers": 1, "window": 4},
}


def written(folder: Path, target: str) -> Path:
    words = ("fox", "king", "boat", "tree", "girl", "hen", "cat")
    (folder / "prompts.txt").write_text("".join(f"Once upon a time there was a {word}\n" for word in words) * 6)
    run = AnswersRun(target=target, prompts=(folder / "prompts.txt",), out=folder / "a.jsonl", max_new_tokens=8, rows=8)
    answers = run.train()
    assert answers is not None
    return answers


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("answers"), "bundled/opt-tiny")


@pytest.fixture(scope="module")
def kept(answers, tmp_path_factory) -> Path:
    """Features of the answers, kept by a run."""
    folder = tmp_path_factory.mktemp("features")
    assert head_run(answers, folder / "run", features=folder / "features").train() is not None
    return folder / "features"


def head_run(answers: Path, out: Path, **options) -> HeadRun:
    kind = options.pop("kind", "eagle3")
    given = {"target": "bundled/opt-tiny", "tokens": 64, "widths": (12, 16), "held_out": 0.3} | OPTIONS[kind] | options
    recipe = Recipe(steps=4, every=2, warmup=1, decay=1)
    return HeadRun(kind=kind, data=(answers,), out=out, recipe=recipe, **given)


def curve(run: Path) -> list[list[float]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [[value for name, value in record.items() if name != "seconds_per_step"] for record in records]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def same_training(answers: Path, folder: Path, **options) -> None:
    for name, features in (("each-step", None), ("kept", folder / "features")):
        assert head_run(answers, folder / name, features=features, **options).train() is not None
    np.testing.assert_allclose(curve(folder / "kept"), curve(folder / "each-step"), rtol=1e-5)


@pytest.mark.slow
def test_kept_features_train_the_same_head(kept, answers, tmp_path):
    before = contents(kept)
    for name, features in (("each-step", None), ("kept", kept)):
        assert head_run(answers, tmp_path / name, features=features).train() is not None
    np.testing.assert_allclose(curve(tmp_path / "kept"), curve(tmp_path / "each-step"), rtol=1e-5)
    assert contents(kept) == before  # several runs share it


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle3", "peagle"])
def test_heads_are_exported_in_the_dtype_that_is_asked_for(kept, answers, tmp_path, kind):
    target = sj.load("bundled/opt-tiny")
    whole, half = (
        head_run(answers, tmp_path / "run", kind=kind, head_dtype=dtype, features=kept if kind == "eagle3" else None)
        for dtype in ("float32", "bfloat16")
    )
    folder = whole.train()
    assert folder is not None
    large, first = (folder / "model.safetensors").stat().st_size, sj.load_head(folder, target).params
    assert half.train() == folder  # a finished run is exported again
    assert (folder / "model.safetensors").stat().st_size < 0.6 * large
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(leaf.dtype), first)
    for leaf, exact, near in zip(
        *map(jax.tree.leaves, (sj.load_head(folder, target).params, first, rounded)), strict=True
    ):
        assert np.array_equal(leaf, near) or np.array_equal(leaf, exact)  # norms keep their dtype


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in OPTIONS if kind != "eagle3"])
def test_of_every_kind(answers, tmp_path, kind):
    same_training(answers, tmp_path, kind=kind)


@pytest.mark.slow
def test_of_an_encoder_decoder(tmp_path):
    same_training(written(tmp_path, "bundled/t5-draft"), tmp_path, kind="medusa", target="bundled/t5-draft")


@pytest.mark.slow
def test_an_interrupted_start_goes_on(kept, answers, tmp_path):
    folder = tmp_path / "features"
    stopped = []

    def stop(text: str) -> None:
        if text.startswith("features") and not stopped:
            stopped.append(text)
            os.kill(os.getpid(), signal.SIGTERM)

    assert head_run(answers, tmp_path / "run", features=folder).train(stop) is None and stopped
    begun = next(file for file in folder.glob("train-*.bin") if file.stat().st_size)
    with begun.open("ab") as file:
        file.write(b"a part of a text")
    assert head_run(answers, tmp_path / "run", features=folder).train() is not None
    assert contents(folder) == contents(kept)


@pytest.mark.slow
def test_answers_that_were_appended_are_read_alone(kept, answers, tmp_path):
    lines, folder, said = answers.read_text().splitlines(keepends=True), tmp_path / "features", []
    begun = tmp_path / "begun.jsonl"
    begun.write_text("".join(lines[: len(lines) // 2]))
    assert head_run(begun, tmp_path / "first", features=folder).train() is not None
    held = len(lines) // 2 - 1  # the first line says how they were written
    assert head_run(answers, tmp_path / "second", features=folder).train(said.append) is not None
    counts = [int(text.split()[2].replace(",", "")) for text in said if text.startswith("features of")]
    assert held < counts[0] and counts[-1] == len(lines) - 1
    assert contents(folder) == contents(kept)


@pytest.mark.slow
def test_half_of_the_disk(answers, tmp_path):
    for dtype in ("float32", "bfloat16"):
        assert head_run(answers, tmp_path / "run", features=tmp_path / dtype, dtype=dtype, kind="medusa").train()
    sizes = [
        sum(len(data) for name, data in contents(tmp_path / dtype).items() if name.endswith(".bin"))
        for dtype in ("float32", "bfloat16")
    ]
    assert 1.8 * sizes[1] < sizes[0] < 2 * sizes[1]  # the streams; two numbers per token keep their dtype


@pytest.mark.parametrize(
    "options, named",
    [({"taps": (0,)}, "taps"), ({"widths": (12,)}, "texts"), ({"dtype": "bfloat16"}, "target|dtype"),
     ({"held_out": 0.5}, "texts")],
)  # fmt: skip
def test_features_of_something_else_are_refused(kept, answers, tmp_path, options, named):
    before = contents(kept)
    with pytest.raises(ValueError, match=named):
        head_run(answers, tmp_path / "other", features=kept, **options).train()
    assert contents(kept) == before


def test_features_that_do_not_fit_on_the_disk(answers, tmp_path, monkeypatch):
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(OSError, match="GiB"):
        head_run(answers, tmp_path / "run", features=tmp_path / "features").train()
