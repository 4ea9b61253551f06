"""Checkpoints in an object store, read by ranges."""

import json

import fsspec
import jax
import numpy as np
import pytest

import specjax as sj
from specjax import convert, sharding
from specjax.convert import remote
from tests.convert.writers import GOLDEN, tensors_of

NAME = "llama-grouped-untied"


@pytest.fixture
def store():
    """(files by name) -> the name of a folder of memory:// that holds them."""
    system, folders = fsspec.filesystem("memory"), []

    def write(files: dict[str, bytes]) -> str:
        folders.append(f"/models/{len(folders)}")
        for name, content in files.items():
            system.pipe_file(f"{folders[-1]}/{name}", content)
        return f"memory:/{folders[-1]}"

    yield write
    for folder in folders:
        system.rm(folder, recursive=True)


def files_of(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != ".npz"}


def test_tensors_and_slices(store, monkeypatch):
    """Whole tensors, rows and columns, in blocks of a few rows."""
    monkeypatch.setattr(remote, "BLOCK", 1000)
    checkpoint = convert.locate(store(files_of(GOLDEN / NAME)))
    for name, wanted in tensors_of(NAME).items():
        np.testing.assert_array_equal(checkpoint.source.read(name), wanted)
        cuts = tuple(slice(n // 3, n // 2 + 1) for n in wanted.shape)
        np.testing.assert_array_equal(checkpoint.source.read(name, cuts), wanted[cuts])


def test_a_model_is_that_of_the_folder(store):
    """With its tokenizer, and on a mesh."""
    from specjax.convert.locate import BUNDLED_FOLDER

    name = store(files_of(BUNDLED_FOLDER / "opt-tiny"))
    for mesh in (None, sharding.make_mesh(2, 3, devices=jax.devices()[:6])):
        here, there = sj.load("bundled/opt-tiny", mesh=mesh), sj.load(name, mesh=mesh)
        assert here.text is not None and there.text is not None and here.eos == there.eos
        assert there.text.encode("Once") == here.text.encode("Once")
        same = jax.tree.map(lambda a, b: np.array_equal(a, b) and a.sharding == b.sharding, here.params, there.params)
        assert jax.tree.all(same)


def test_rows_of_a_shard_are_read_alone(store, monkeypatch):
    """Half of the rows of the largest tensor: half of its bytes."""
    system = fsspec.filesystem("memory")
    checkpoint, real, read = convert.locate(store(files_of(GOLDEN / NAME))), type(system).cat_file, []

    def cat_file(self, path, start=None, end=None, **options):
        read.append(end - start)
        return real(self, path, start=start, end=end, **options)

    monkeypatch.setattr(type(system), "cat_file", cat_file)
    name = max(tensors_of(NAME), key=lambda name: tensors_of(NAME)[name].size)
    rows, columns = checkpoint.source.shape(name)
    checkpoint.source.read(name, (slice(0, rows // 2), slice(0, columns)))
    assert sum(read) == rows // 2 * columns * checkpoint.source.dtype(name).itemsize


@pytest.mark.parametrize("damage", ["missing", "truncated", "index"])
def test_damage_is_one_error(damage, store):
    files = files_of(GOLDEN / NAME)
    if damage == "missing":
        del files["model.safetensors"]
    if damage == "truncated":
        files["model.safetensors"] = files["model.safetensors"][:-10]
    if damage == "index":
        files["model.safetensors.index.json"] = json.dumps({"weight_map": {"absent": "model.safetensors"}}).encode()
    with pytest.raises((ValueError, FileNotFoundError), match=r"safetensors"):
        convert.locate(store(files))
