"""Training over a mesh of fake devices, and with accumulated gradients, follows the curve of one device."""

import json

import jax
import numpy as np
import pytest

from specjax.models import opt
from specjax.sharding import make_mesh
from specjax.training import lm, tasks
from specjax.training.answers import AnswersRun
from specjax.training.head_run import HeadRun
from specjax.training.recipe import Recipe

CONFIG = opt.OPTConfig(vocab_size=32, width=16, embed_width=16, layers=1, heads=4, mlp_width=32, max_positions=16)
PACKED = np.tile(np.arange(20, dtype=np.uint16), 30)


def task():
    return tasks.text_task(opt.FAMILY, CONFIG, PACKED, PACKED, rows=8, length=8, evaluations=2)


def run(folder, one, steps=6, **recipe):
    how = Recipe(**({"steps": steps, "warmup": 2, "decay": 2, "rate": 1e-2, "every": 3} | recipe))
    return lm.train(one, how, folder, family="opt", config=CONFIG)


def curve(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def same(one, other, tolerance=2e-4):
    for a, b in zip(one, other, strict=True):
        for name in ("step", "loss", "norm", "held_out_nats"):
            assert a[name] == pytest.approx(b[name], rel=tolerance), name


@pytest.mark.slow
def test_a_model_on_a_mesh(tmp_path):
    """Stopped and resumed on another mesh; the weights are split, and each device holds its part of the moments."""
    run(tmp_path / "one", task())
    split = lambda data, model: lm.on_mesh(task(), make_mesh(data, model), opt.FAMILY.rules, CONFIG.kv_heads)
    run(tmp_path / "mesh", split(2, 4), steps=3, decay=0, warmup=2)
    first = curve(tmp_path / "mesh")[:1]
    same(first, curve(tmp_path / "one")[:1])
    state = run(tmp_path / "mesh", split(4, 2))
    same(curve(tmp_path / "mesh"), curve(tmp_path / "one"))
    shards = {leaf.addressable_shards[0].data.size / leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim > 1}
    assert min(shards) == 0.5 and len(jax.tree.leaves(state.params)[0].sharding.device_set) == 8


@pytest.mark.slow
def test_products_in_half_precision_on_a_mesh(tmp_path):
    """Sums over devices are of parts rounded to bfloat16, whose unit is 2 ** -8 of a value."""
    run(tmp_path / "one", task(), half=True)
    run(tmp_path / "mesh", lm.on_mesh(task(), make_mesh(2, 4), opt.FAMILY.rules, CONFIG.kv_heads), half=True)
    same(curve(tmp_path / "mesh"), curve(tmp_path / "one"), 1e-2)


@pytest.mark.slow
def test_accumulated_gradients_are_those_of_one_large_batch(tmp_path):
    """Two halves of each batch."""
    whole, halves = task(), task()
    part = lambda number: whole.batch(number // 2)[number % 2 :: 2]
    one = run(tmp_path / "one", whole)
    other = run(tmp_path / "two", halves._replace(batch=part), accumulate=2)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)
    assert [record["step"] for record in curve(tmp_path / "two")] == [3, 6]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), [("eagle3", {"taps": (0, 1), "unroll": 2}), ("medusa", {"unroll": 2})])
def test_a_head_on_a_mesh(tmp_path, kind, options):
    (tmp_path / "prompts.txt").write_text("Once upon a time\nThe old man\nA small dog\nOne day\n" * 8)
    answers = AnswersRun(
        target="bundled/opt-draft", prompts=(tmp_path / "prompts.txt",), out=tmp_path / "a.jsonl", max_new_tokens=8
    ).train()
    for name, mesh in (("one", None), ("mesh", "4x2")):
        HeadRun(
            kind=kind, target="bundled/opt-draft", data=(answers,), out=tmp_path / name, tokens=128, widths=(16,),
            held_out=0.3, mesh=mesh, **options, recipe=Recipe(steps=6, every=3, warmup=1, rate=1e-2),
        ).train()  # fmt: skip
    same(curve(tmp_path / "mesh"), curve(tmp_path / "one"))
