"""Tokens that end a text are found in either file, a wrong file is one line before any weight is read, and a loaded
model is saved as what it is."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import specjax as sj
from specjax import convert, sharding
from specjax.loading import end_tokens, load
from specjax.models import opt, t5
from specjax.models.cpu import CPUProducts
from specjax.models.families import FAMILIES
from specjax.models.format import Format
from tests import battery
from tests.convert.writers import GOLDEN
from tests.models.small import CONFIGS


@pytest.mark.parametrize(
    ("generation", "config", "found"),
    [
        (None, {}, ()), (None, {"eos_token_id": 2}, (2,)), (None, {"eos_token_id": np.uint32(7)}, (7,)),
        ({"eos_token_id": [3, 4]}, {"eos_token_id": 2}, (3, 4)), ({}, {"eos_token_id": [5]}, (5,)),
        ({"eos_token_id": None}, {"eos_token_id": 2}, ()),
    ],
)  # fmt: skip
def test_end_tokens(generation, config, found, tmp_path):
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert end_tokens(tmp_path, config) == found


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b"{", "generation_config.json is corrupted: not JSON"), (b"\xff\xfe{}\x00", "is corrupted: not JSON"),
        (b"[1]", "is corrupted: not an object"), (b'{"eos_token_id": "</s>"}', "has eos_token_id '</s>'"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_before_weights_are_read(written, message, tmp_path, monkeypatch):
    model = battery.target("opt")
    convert.save_pretrained(tmp_path, model.params, model.family.to_published(model.config), fmt=model.fmt)
    (tmp_path / "generation_config.json").write_bytes(written)
    monkeypatch.setattr(convert, "load_params", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(ValueError, match=message) as error:
        sj.load(tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_a_mesh_of_other_axes_is_refused():
    with pytest.raises(ValueError, match="axes x, y"):
        sj.load("bundled/opt-tiny", mesh=jax.make_mesh((1, 1), ("x", "y"), devices=jax.devices()[:1]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bundled/opt-tiny", "bundled/t5-draft"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_model_is_saved_with_its_tokenizer_and_its_end_tokens(name, dtype, tmp_path):
    model = sj.load(name, dtype=dtype)
    model = dataclasses.replace(model, eos=(*model.eos, 7))
    model.save_pretrained(tmp_path / "m", shard_bytes=200_000)
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 1
    again = sj.load(tmp_path / "m", dtype=dtype)
    assert (again.config, again.fmt, again.eos) == (model.config, model.fmt, model.eos)
    for one, other in zip(jax.tree.leaves(again.params), jax.tree.leaves(model.params), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert again.text is not None and model.text is not None and again.text.pieces() == model.text.pieces()
    assert again.text.encode("the cat</s>") == model.text.encode("the cat</s>")


def test_a_model_on_a_mesh_is_saved(tmp_path):
    golden = Path(__file__).parent / "golden" / "opt-pre-norm"
    plain, model = sj.load(golden), sj.load(golden, mesh=sharding.make_mesh(2, 4))
    model.save_pretrained(tmp_path)
    again = sj.load(tmp_path)
    for one, other in zip(jax.tree.leaves(again.params), jax.tree.leaves(plain.params), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_model_that_was_made_by_hand_is_saved(tmp_path):
    for name in ("opt", "llama"):
        model = battery.target(name)
        model.save_pretrained(tmp_path / name)
        assert sj.load(tmp_path / name).config == model.config
    undescribed = dataclasses.replace(model.config, o_bias=True)
    with pytest.raises(ValueError, match="published"):
        dataclasses.replace(model, config=undescribed).save_pretrained(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", ["opt", "opt-350m", "llama", "llama-tied", "t5"])
def test_the_shapes_of_all_layers_come_of_one(name, stacked):
    family, config = FAMILIES[name.partition("-")[0]], CONFIGS[name][1] if name in CONFIGS else None
    config = config or t5.T5Config(vocab_size=71, width=16, encoder_layers=3, decoder_layers=2)
    for fmt in (
        Format(stacked=stacked),
        Format("bfloat16", stacked, products=CPUProducts(part=0 if stacked else 8)),
    ):
        want = jax.eval_shape(lambda key, fmt=fmt: family.init(key, config, fmt), jax.random.key(0))
        assert family.abstract(config, fmt) == want


@pytest.mark.slow
def test_layers_that_the_file_lacks_are_refused_at_once(tmp_path, monkeypatch):
    """Traced are not the layers that config.json counts, but one."""
    shutil.copytree(GOLDEN / "opt-pre-norm", tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_hidden_layers": 5000}))
    build, counted = opt.Block.__init__, []
    monkeypatch.setattr(opt.Block, "__init__", lambda *args, **more: counted.append(1) or build(*args, **more))
    with pytest.raises(ValueError, match="missing"):
        load(tmp_path / "model")
    assert counted == [1]
