"""Tokens that end a text are found in either file, and a wrong file is one line before any weight is read."""

import json

import jax
import numpy as np
import pytest

import specjax as sj
from specjax import convert
from specjax.load import end_tokens
from tests import battery


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
def test_a_wrong_file_is_told_before_weights_are_read(written, message, tmp_path, monkeypatch):
    model = battery.target("opt")
    convert.save_pretrained(tmp_path, model.params, model.family.to_published(model.config), fmt=model.fmt)
    (tmp_path / "generation_config.json").write_bytes(written)
    monkeypatch.setattr(convert, "load_params", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(ValueError, match=message) as error:
        sj.load(tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_a_mesh_of_other_axes_is_refused():
    with pytest.raises(ValueError, match="with axes data and model; got one of axes x, y"):
        sj.load("bundled/opt-tiny", mesh=jax.make_mesh((1, 1), ("x", "y"), devices=jax.devices()[:1]))
