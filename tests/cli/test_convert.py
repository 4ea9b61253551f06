"""`specjax convert` writes a checkpoint that `specjax.load` and every command take as a model."""

import json

import jax
import numpy as np
import pytest

import specjax as sj
from specjax import checkpoint, sharding


@pytest.fixture(scope="module")
def converted(models, tmp_path_factory) -> str:
    from specjax.cli import main

    folder = str(tmp_path_factory.mktemp("converted") / "tpu")
    assert main(["convert", models["target"], folder, "--dtype", "float32"]) == 0
    return folder


@pytest.mark.slow
def test_the_same_model_on_one_device_and_on_a_mesh(converted, models):
    """The layout is that of a TPU; logits agree with those of the source; each device has its own shards."""
    source, mesh = sj.load(models["target"]), sharding.make_mesh(4, 2)
    here, split = sj.load(converted), sj.load(converted, mesh=mesh)
    assert here.fmt.stacked and not source.fmt.stacked and here.eos == source.eos
    assert here.text is not None and here.text.encode("Once") == source.text.encode("Once")
    tokens = np.array([[1, 50, 60, 70]])
    np.testing.assert_allclose(here.score(tokens), source.score(tokens), rtol=1e-4, atol=1e-4)
    kernel = split.params["layers"]["attn"]["q"]["kernel"]
    assert len({str(shard.index) for shard in kernel.addressable_shards}) == 2
    same = jax.tree.map(lambda a, b: np.array_equal(jax.device_get(a), jax.device_get(b)), here.params, split.params)
    assert jax.tree.all(same)


@pytest.mark.slow
def test_every_command_takes_it(converted, models, specjax_program, caplog):
    args = ["--drafter", "plain", "--max-new-tokens", "4", "--temperature", "0", "--json"]
    texts = []
    for name in (converted, models["target"]):
        ran = specjax_program("generate", "Once", "--target", name, *args)
        assert ran.code == 0, ran.err
        texts.append(json.loads(ran.out)["texts"])
    assert texts[0] == texts[1] and not caplog.records


def test_it_is_read_as_it_is(converted, refused):
    with pytest.raises(ValueError, match="dtype"):
        sj.load(converted, dtype="bfloat16")
    with pytest.raises(ValueError, match="weights"):
        sj.load(converted, weights="int8")
    assert sj.load(converted, cache_dtype="int8").fmt.int8_cache
    refused("convert", "bundled/opt-tiny", converted, name="exists")


def test_int8_weights(models, tmp_path, specjax_program):
    folder = str(tmp_path / "int8")
    ran = specjax_program("convert", models["target"], folder, "--weights", "int8", "--dtype", "float32")
    assert ran.code == 0 and checkpoint.about(folder).fmt.int8_weights
    assert sj.load(folder, weights="int8").fmt.label == "float32, int8 weights"
