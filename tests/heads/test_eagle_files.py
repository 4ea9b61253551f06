"""EAGLE-3 files that do not fit are one line, before any weight is placed."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import specjax as sj
from specjax.heads.head import Head
from tests.heads import test_formats


def head() -> Head:
    """EAGLE-3 with a draft vocabulary, and with the embedding of its target."""
    whole = test_formats.head("eagle3")
    params = {name: part for name, part in whole.params.items() if name != "embed"}
    return dataclasses.replace(whole, config=dataclasses.replace(whole.config, own_embedding=False), params=params)


def narrower(config, tensors):
    """A head of half the width, without an embedding."""
    config["transformer_layer_config"]["hidden_size"] //= 2


def flat(config, tensors):
    tensors["fc.weight"] = tensors["fc.weight"].reshape(-1)


def short_members(config, tensors):
    tensors["t2d"] = tensors["t2d"][:-1]


def real_offsets(config, tensors):
    tensors["d2t"] = tensors["d2t"].astype(np.float32)


def matrix_of_offsets(config, tensors):
    tensors["d2t"] = tensors["d2t"][None]


def taps(value):
    return lambda config, tensors: config.update(eagle_aux_hidden_state_layer_ids=value)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (narrower, "embed_tokens"), (flat, "fc.weight"), (short_members, "t2d"), (real_offsets, "d2t"),
        (matrix_of_offsets, "d2t"), (taps(["1", "3", "5"]), "whole numbers"), (taps(3), "whole numbers"),
        (taps([1, 2.5, 3]), "whole numbers"), (taps([3, 2, 1]), "ascend"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused(change, name, tmp_path: Path):
    head().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    sj.load_head(tmp_path, test_formats.target())
    change(config, tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=name):
        sj.load_head(tmp_path, test_formats.target())
