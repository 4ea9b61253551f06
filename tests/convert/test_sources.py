"""Every format gives the same tensors, whole or sliced; every kind of damage gives one line that names the file."""

import json
import struct
from pathlib import Path

import flax.serialization
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
from safetensors.numpy import save_file

from specjax.convert import open_source
from specjax.convert.msgpack_source import read_msgpack
from specjax.convert.safetensors_source import read_safetensors
from tests.convert.writers import GOLDEN, NAMES, WRITERS, tensors_of

SLICES = (slice(3, 7), slice(2, 5))


def one_line(error: pytest.ExceptionInfo[Exception], *words: object) -> None:
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message, message


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_format_holds_the_same_tensors(name, writer, rewrite):
    expected = tensors_of(name)
    with open_source(rewrite(name, writer)) as source:
        assert set(source.names()) == set(expected)
        for tensor, value in expected.items():
            assert source.shape(tensor) == value.shape
            assert source.dtype(tensor) == value.dtype
            np.testing.assert_array_equal(source.read(tensor), value)
            np.testing.assert_array_equal(
                source.read(tensor, SLICES[: value.ndim]), value[SLICES[: value.ndim]], err_msg=tensor
            )


def test_reading_after_close_or_an_unknown_tensor_is_an_error(rewrite):
    source = open_source(rewrite("opt-pre-norm", "safetensors"))
    with pytest.raises(ValueError, match=r"nothing\.weight"):
        source.read("nothing.weight")
    name = source.names()[0]
    source.close()
    with pytest.raises(ValueError, match="is closed"):
        source.read(name)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, ml_dtypes.float8_e4m3fn])
def test_safetensors_dtypes(tmp_path, dtype):
    value = np.arange(12).reshape(3, 4).astype(dtype)
    save_file({"a": value}, tmp_path / "x.safetensors")
    tensor = read_safetensors(tmp_path / "x.safetensors")["a"]
    assert tensor.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(tensor.load(tensor.everything).astype(np.float32), value.astype(np.float32))


def test_msgpack_bfloat16_and_scalars_of_other_kinds(tmp_path):
    tree = {"params": {"a": {"kernel": jnp.arange(6.0, dtype=jnp.bfloat16).reshape(2, 3)}}}
    file = tmp_path / "flax_model.msgpack"
    file.write_bytes(flax.serialization.to_bytes(tree))
    tensor = read_msgpack(file)["a.weight"]
    assert tensor.shape == (3, 2)
    assert tensor.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(tensor.load(tensor.everything), np.asarray(tree["params"]["a"]["kernel"]).T)
    file.write_bytes(flax.serialization.msgpack_serialize({"a": {"step": 3}}))
    with pytest.raises(ValueError, match=r"int at a\.step"):
        read_msgpack(file)


def test_msgpack_arrays_cut_into_chunks(tmp_path, monkeypatch):
    """flax cuts arrays above 1 GiB; here, above 100 bytes, so that rows straddle chunks."""
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 100)
    table = np.arange(77.0, dtype=np.float32).reshape(11, 7)
    file = tmp_path / "flax_model.msgpack"
    file.write_bytes(flax.serialization.to_bytes({"shared": {"embedding": table}, "lm_head": {"kernel": table}}))
    tensors = read_msgpack(file)
    np.testing.assert_array_equal(tensors["shared.weight"].load((slice(0, 11), slice(0, 7))), table)
    np.testing.assert_array_equal(tensors["shared.weight"].load((slice(2, 9), slice(3, 5))), table[2:9, 3:5])
    np.testing.assert_array_equal(tensors["lm_head.weight"].load((slice(3, 5), slice(2, 9))), table[2:9, 3:5].T)


def truncate(file: Path, keep: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])


@pytest.mark.parametrize("keep", [0.0, 0.0001, 0.01, 0.5, 0.999])
@pytest.mark.parametrize(("writer", "file"), [("safetensors", "model.safetensors"), ("flax", "flax_model.msgpack")])
def test_a_truncated_file_is_named(writer, file, keep, rewrite):
    folder = rewrite("opt-pre-norm", writer)
    truncate(folder / file, keep)
    with pytest.raises(ValueError) as error:
        open_source(folder)
    one_line(error, folder / file)


@pytest.mark.parametrize(("writer", "file"), [("safetensors", "model.safetensors"), ("flax", "flax_model.msgpack")])
def test_noise_is_no_checkpoint(writer, file, rewrite):
    folder = rewrite("opt-pre-norm", writer)
    generator = np.random.default_rng(0)
    for _ in range(50):
        (folder / file).write_bytes(generator.bytes(int(generator.integers(1, 400))))
        with pytest.raises(ValueError) as error:
            open_source(folder)
        one_line(error, folder / file)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]},
        {"dtype": "Q7", "shape": [3], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [-3], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [3], "data_offsets": [-12, 0]},
        {"dtype": "F32", "shape": 3},
        7,
    ],
)
def test_safetensors_headers_that_lie(tmp_path, entry):
    text = json.dumps({"a": entry}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(12))
    with pytest.raises(ValueError) as error:
        open_source(tmp_path)
    one_line(error, file, "corrupted")


def test_a_deeply_nested_msgpack_is_refused(tmp_path):
    (tmp_path / "flax_model.msgpack").write_bytes(b"\x91" * 100_000)
    with pytest.raises(ValueError, match="nested deeper"):
        open_source(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        open_source(tmp_path)
    one_line(error, tmp_path, "model.safetensors", "flax_model.msgpack", "pytorch_model.bin")


@pytest.mark.parametrize("writer", ["safetensors-shards", "flax-shards"])
def test_shards(writer, rewrite):
    folder = rewrite("opt-pre-norm", writer)
    (index,) = folder.glob("*.index.json")
    weight_map = json.loads(index.read_text())["weight_map"]
    shard = sorted(set(weight_map.values()))[-1]

    index.write_text(json.dumps({"weight_map": weight_map | {"model/decoder/ghost": shard}}))
    with pytest.raises(ValueError) as error:
        open_source(folder)
    one_line(error, index, "ghost", shard)

    index.write_text(json.dumps({"weight_map": weight_map | {"a": f"../{shard}"}}))
    with pytest.raises(ValueError, match="same folder"):
        open_source(folder)

    index.write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        open_source(folder)

    index.write_text(json.dumps({"weight_map": weight_map}))
    (folder / shard).unlink()
    with pytest.raises(FileNotFoundError) as error:
        open_source(folder)
    one_line(error, index, shard, "missing")


def test_safetensors_come_before_flax(rewrite):
    folder = rewrite("opt-pre-norm", "safetensors")
    (folder / "flax_model.msgpack").write_bytes(b"noise")
    assert open_source(folder).where.endswith("model.safetensors")


def test_a_read_holds_no_more_than_its_slice(rewrite):
    """What a slice keeps alive is a map of its tensor, not a copy; and nothing is left once it is dropped."""
    source = open_source(rewrite("llama-grouped-untied", "safetensors"))
    part = source.read("lm_head.weight", (slice(0, 2), slice(0, 32)))
    assert part.base is not None
    assert not part.flags.owndata
    assert not part.flags.writeable


def test_the_golden_folder_is_small():
    assert sum(file.stat().st_size for file in GOLDEN.rglob("*")) < 1_000_000


def test_a_tensor_is_taken_from_the_shard_that_the_index_names(tmp_path):
    right, wrong = np.ones(3, np.float32), np.zeros(3, np.float32)
    save_file({"a": right}, tmp_path / "model-1.safetensors")
    save_file({"a": wrong, "b": right}, tmp_path / "model-2.safetensors")
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    np.testing.assert_array_equal(open_source(tmp_path).read("a"), right)


@pytest.mark.parametrize("shape", ["[Infinity, 1]", "[1.5]"])
def test_shapes_that_are_not_whole_are_refused(shape, tmp_path):
    header = f'{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": [0, 4]}}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ValueError, match="entry of a"):
        open_source(tmp_path)


def test_json_without_end_is_one_line(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 100_000) + b"[" * 100_000)
    with pytest.raises(ValueError, match="JSON"):
        open_source(tmp_path)


@pytest.mark.parametrize("chunked", [{}, {"shape": [3], "chunks": {"0": 1}}, {"shape": {"0": 3}, "chunks": {}}])
def test_damaged_chunks_are_one_line(chunked, tmp_path):
    tree = {"w": {"__msgpack_chunked_array__": True, **chunked}}
    (tmp_path / "flax_model.msgpack").write_bytes(msgpack.packb(tree))
    with pytest.raises(ValueError, match="is corrupted") as error:
        open_source(tmp_path)
    assert "\n" not in str(error.value)


def test_a_git_lfs_pointer_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ValueError, match="git lfs pull"):
        open_source(tmp_path)
