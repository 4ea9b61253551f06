"""Checkpoints become parameters in every layout and go back unchanged; whatever does not fit is named."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file, save_file

from specjax.convert import load_params, open_source, save_pretrained
from specjax.convert.assemble import copy_into, leaves
from specjax.convert.sources import StoredTensor, TensorSource
from specjax.models.cpu import CPUProducts
from specjax.models.format import Format
from tests import battery
from tests.convert.writers import GOLDEN, NAMES, WRITERS, config_of, names_of, tensors_of

FORMATS = {
    "separate": Format(),
    "stacked": Format(stacked=True),
    "half, (out, in)": Format(dtype="bfloat16", products=CPUProducts()),
    "half, stacked": Format(dtype="bfloat16", stacked=True),
    "half, in parts": Format(dtype="bfloat16", products=CPUProducts(part=8)),
}


def set_leaf(tree: dict, path: str, value) -> None:
    *parents, last = path.split(".")
    for key in parents:
        tree = tree.setdefault(key, {})
    tree[last] = value


def params_by_hand(name: str, fmt: Format) -> dict:
    """What loading must give, put together without the loader: separate layers first, then stacked with numpy."""
    table, flat = names_of(config_of(name)), {}
    for tensor, value in tensors_of(name).items():
        _, path = min(table.candidates(tensor))
        if path.endswith((".kernel", "tokens.table")):
            value = value.astype(jnp.dtype(fmt.dtype))
        flat[path] = value.T if path.endswith(".kernel") and not fmt.products.out_in else value
    tree: dict = {}
    for path, value in dict(flat).items():
        limit = fmt.products.part if isinstance(fmt.products, CPUProducts) else 0
        if path.endswith(".kernel") and limit and value.shape[1] > limit:
            count = next(n for n in range(2, 99) if value.shape[1] % n == 0 and value.shape[1] // n <= limit)
            flat |= {f"{path}.{i}": part for i, part in enumerate(np.split(flat.pop(path), count, axis=1))}
    for path, value in flat.items():
        before, _, after = path.partition("layers.")
        if not fmt.stacked or not after:
            set_leaf(tree, path, value)
        elif after.startswith("0."):
            rest = after.removeprefix("0.")
            count = sum(other.startswith(f"{before}layers.") and other.endswith(f".{rest}") for other in flat)
            set_leaf(
                tree, f"{before}layers.{rest}", np.stack([flat[f"{before}layers.{i}.{rest}"] for i in range(count)])
            )
    return tree


def abstract(params: dict) -> dict:
    return jax.tree.map(lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype), params)


def assert_same(got: dict, expected: dict) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for (keys, one), (_, other) in zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree_util.tree_leaves_with_path(expected), strict=True
    ):
        assert one.dtype == other.dtype, keys
        np.testing.assert_array_equal(np.asarray(one), other, err_msg=jax.tree_util.keystr(keys))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("name", NAMES)
def test_loading_in_every_layout(name, fmt):
    expected = params_by_hand(name, fmt)
    with open_source(GOLDEN / name) as source:
        got = load_params(source, names_of(config_of(name)), abstract(expected), fmt=fmt)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(got))
    assert_same(got, expected)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", battery.others_slow(NAMES, NAMES[::3]))
def test_loading_from_every_file_format(name, writer, rewrite):
    fmt = FORMATS["stacked"]
    expected = params_by_hand(name, fmt)
    with open_source(rewrite(name, writer)) as source:
        assert_same(load_params(source, names_of(config_of(name)), abstract(expected), fmt=fmt), expected)


@pytest.mark.parametrize("shard_bytes", battery.others_slow([10**9, 20_000], [20_000]))
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("name", NAMES)
def test_saving_gives_back_the_published_names_and_values(name, fmt, shard_bytes, tmp_path):
    """Read back by the safetensors package: names, orientation and values are those that transformers wrote."""
    params = jax.tree.map(jnp.asarray, params_by_hand(name, fmt))
    save_pretrained(tmp_path, params, config_of(name), fmt=fmt, shard_bytes=shard_bytes)
    files = sorted(tmp_path.glob("*.safetensors"))
    written = {key: value for file in files for key, value in load_file(file).items()}
    expected = tensors_of(name)
    assert set(written) == set(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(written[key], value.astype(written[key].dtype), err_msg=key)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == config_of(name) | {"dtype": fmt.dtype}
    assert (len(files) > 1) == (shard_bytes < 10**9 and sum(v.nbytes for v in written.values()) > shard_bytes)
    if len(files) > 1:
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(value.nbytes for value in written.values())
        assert max(file.stat().st_size for file in files) < 20_000 + 8_000  # the shard's limit and its header
    assert not list(tmp_path.glob(".*"))


def test_saving_again_removes_what_the_last_save_left(tmp_path):
    name, fmt = "opt-pre-norm", Format()
    params = params_by_hand(name, fmt)
    save_pretrained(tmp_path, params, config_of(name), fmt=fmt, shard_bytes=5_000)
    save_pretrained(tmp_path, params, config_of(name), fmt=fmt)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_failed_save_leaves_the_old_checkpoint_alone(tmp_path):
    name, fmt = "opt-pre-norm", Format()
    params = params_by_hand(name, fmt)
    save_pretrained(tmp_path, params, config_of(name), fmt=fmt)
    before = (tmp_path / "model.safetensors").read_bytes()

    class Full:
        def save_pretrained(self, folder):
            raise OSError("no space left on device")

    changed = jax.tree.map(lambda value: value + 1, params)
    with pytest.raises(OSError, match="no space"):
        save_pretrained(tmp_path, changed, config_of(name), fmt=fmt, tokenizer=Full())
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_what_cannot_be_saved_leaves_no_folder(tmp_path):
    params = params_by_hand("opt-pre-norm", Format())
    folder = tmp_path / "new"
    with pytest.raises(ValueError, match="model_type"):
        save_pretrained(folder, params, config_of("opt-pre-norm") | {"model_type": "bert"}, fmt=Format())
    with pytest.raises(ValueError, match="adapter"):
        save_pretrained(folder, params | {"adapter": np.zeros(3)}, config_of("opt-pre-norm"), fmt=Format())
    assert not folder.exists()


def test_everything_that_does_not_fit_is_in_one_message(tmp_path):
    name, fmt = "opt-pre-norm", Format()
    tensors = tensors_of(name)
    for number in range(2):
        for part in ("q_proj", "k_proj", "v_proj"):
            del tensors[f"model.decoder.layers.{number}.self_attn.{part}.weight"]
    tensors["model.decoder.layers.0.adapter.weight"] = np.zeros(3, np.float32)
    tensors["model.decoder.embed_tokens.weight"] = np.zeros((128, 16), np.float32)  # a padded vocabulary
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError) as error:
        load_params(open_source(tmp_path), names_of(config_of(name)), abstract(params_by_hand(name, fmt)), fmt=fmt)
    message = str(error.value)
    assert "\n" not in message
    assert "missing: model.decoder.layers.0.self_attn.k_proj.weight" in message
    assert "and 1 more" in message
    assert "unexpected: model.decoder.layers.0.adapter.weight" in message
    assert "model.decoder.embed_tokens.weight has shape (128, 16), not (96, 16)" in message
    assert str(tmp_path) in message


def test_a_transposed_kernel_is_mis_shaped(tmp_path):
    name, fmt = "opt-pre-norm", Format()
    tensors = tensors_of(name)
    key = "model.decoder.layers.0.fc1.weight"
    tensors[key] = tensors[key].T.copy()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"fc1\.weight"):
        load_params(open_source(tmp_path), names_of(config_of(name)), abstract(params_by_hand(name, fmt)), fmt=fmt)


@pytest.mark.parametrize("change", ["none", "values", "shape"])
def test_two_tensors_of_one_parameter_must_be_the_same(change, tmp_path):
    name, fmt = "opt-pre-norm", Format()
    tensors = tensors_of(name)
    head = tensors["model.decoder.embed_tokens.weight"].copy()
    tensors["lm_head.weight"] = head[:-1] if change == "shape" else head
    if change == "values":
        head[-1, -1] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    read = lambda: load_params(
        open_source(tmp_path), names_of(config_of(name)), abstract(params_by_hand(name, fmt)), fmt=fmt
    )
    if change == "none":
        read()
        return
    with pytest.raises(ValueError, match=r"lm_head.weight and model.decoder.embed_tokens.weight"):
        read()


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.bool_])
def test_integer_weights_raise(dtype, tmp_path):
    name, fmt = "opt-pre-norm", Format()
    tensors = tensors_of(name)
    key = "model.decoder.layers.0.fc1.weight"
    tensors[key] = tensors[key].astype(dtype)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=key):
        load_params(open_source(tmp_path), names_of(config_of(name)), abstract(params_by_hand(name, fmt)), fmt=fmt)


def test_progress_counts_the_bytes_of_the_model():
    name, fmt, seen = "opt-pre-norm", Format(), []
    shapes = abstract(params_by_hand(name, fmt))
    table = names_of(config_of(name))
    params = load_params(open_source(GOLDEN / name), table, shapes, fmt=fmt, progress=lambda *now: seen.append(now))
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert len(seen) == len(jax.tree.leaves(params))
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
    assert seen[0][0] > 0


class Ledger(TensorSource):
    """A source that writes down what is read of it."""

    def __init__(self, tensors):
        self.reads: list[tuple[str, int]] = []

        def watched(name: str, value: np.ndarray) -> StoredTensor:
            def load(index):
                part = value[index]
                self.reads.append((name, part.size))
                return part

            return StoredTensor(value.shape, value.dtype, load, "memory")

        super().__init__({name: watched(name, value) for name, value in tensors.items()}, "memory")


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("name", ["llama-grouped-untied", "t5-gated-untied"])
def test_a_sharded_load_reads_the_slices_and_gives_the_same_values(name, fmt):
    """Each slice of a kernel is read once however many replicas there are, and none is read whole."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def place(path: str, shape: tuple[int, ...]) -> NamedSharding:
        if ".kernel" not in path:
            return NamedSharding(mesh, P())
        split = "attn.o" in path or "down" in path  # rows here, columns there: as tensor parallelism lays them
        axes = [None] * (len(shape) - 2) + (["model", None] if split != fmt.products.out_in else [None, "model"])
        return NamedSharding(mesh, P(*axes))

    expected, source = params_by_hand(name, fmt), Ledger(tensors_of(name))
    got = load_params(source, names_of(config_of(name)), abstract(expected), fmt=fmt, place=place)
    assert_same(got, expected)
    for leaf in leaves(got, fmt):
        value = got
        for key in leaf.path.split("."):
            value = value[key]
        assert value.sharding == place(leaf.path, leaf.shape)
    table = names_of(config_of(name))
    kernels = {tensor for tensor in source.names() if min(table.candidates(tensor))[1].endswith("kernel")}
    pieces = {leaf.pieces[0]: leaf.part[1] for leaf in leaves(got, fmt)}
    for tensor in source.names():
        reads = [size for read, size in source.reads if read == tensor]
        whole = int(np.prod(source.shape(tensor)))
        cuts = 2 * pieces.get(min(table.candidates(tensor))[1], 1) if tensor in kernels else 1
        assert reads == [whole // cuts] * cuts, tensor


def test_a_transposing_copy_in_tiles():
    values = np.arange(700 * 300, dtype=np.float32).reshape(700, 300)
    out = np.empty((300, 700), ml_dtypes.bfloat16)
    copy_into(out, values.T)
    np.testing.assert_array_equal(out, values.T.astype(ml_dtypes.bfloat16))
