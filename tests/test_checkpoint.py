"""Checkpoints restore exactly, onto other meshes too, and raise for wrong requests and damage."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import specjax as sj
from specjax import checkpoint, sharding
from specjax.models import opt
from specjax.models.cpu import CPUProducts
from specjax.models.format import DTYPES, Format, default_format

CONFIG = opt.OPTConfig(96, width=64, embed_width=64, layers=2, heads=8, mlp_width=128, max_positions=32)
FMT = Format(dtype="bfloat16", stacked=True)


def params():
    return opt.FAMILY.init(jax.random.key(0), CONFIG, FMT)


def placed(mesh):
    return sharding.place(params(), mesh, opt.FAMILY.rules, FMT, kv_heads=CONFIG.heads)


def wanted(mesh):
    shapes = jax.eval_shape(params)
    return checkpoint.like(shapes, sharding.shardings(shapes, mesh, opt.FAMILY.rules, FMT, kv_heads=CONFIG.heads))


def same(a, b) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        x.dtype == y.dtype and np.array_equal(jax.device_get(x), jax.device_get(y))
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "run" / "tiny"
    checkpoint.save(folder, placed(sharding.make_mesh(2, 4)), family="opt", config=CONFIG, fmt=FMT, notes={"step": 3})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 4), (1, 8), (4, 2)], ids=str)
def test_parameters_are_restored_onto_any_mesh(saved, shape):
    """Bit for bit, with the requested shardings; no device receives more than its shard."""
    mesh = sharding.make_mesh(*shape)
    back = checkpoint.restore(saved, wanted(mesh), fmt=FMT)
    assert same(back, params())
    kernel = back["layers"]["attn"]["q"]["kernel"]
    assert kernel.sharding == wanted(mesh)["layers"]["attn"]["q"]["kernel"].sharding
    assert {s.data.shape for s in kernel.addressable_shards} == {(2, 64, 64 // shape[1])}


def test_parameters_are_restored_onto_one_device(saved):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.eval_shape(params)
    back = checkpoint.restore(saved, checkpoint.like(shapes, jax.tree.map(lambda _: here, shapes)), fmt=FMT)
    assert same(back, params())


def test_about_describes_the_checkpoint(saved):
    found = checkpoint.about(saved)
    assert (found.family, found.fmt, found.notes) == ("opt", FMT, {"step": 3})
    assert opt.OPTConfig(**found.config) == CONFIG


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_restored_format_is_an_equal_static_argument(tmp_path, platform, dtype):
    fmt = default_format(dtype, platform=platform)
    checkpoint.save(tmp_path / "of", {"x": jnp.zeros(3)}, family="opt", config=CONFIG, fmt=fmt)
    held, fmt = checkpoint.about(tmp_path / "of").fmt, dataclasses.replace(fmt, kernel=None)  # not of the arrays
    assert held == fmt and hash(held) == hash(fmt)


@pytest.mark.slow
def test_a_training_state_is_restored(tmp_path):
    """Optimizer moments, typed keys and Python numbers, in the same containers."""
    mesh = sharding.make_mesh(1, 8)
    weights = placed(mesh)
    state = {
        "params": weights,
        "opt": optax.adamw(1e-3).init(weights),
        "key": jax.random.key(7),
        "keys": jax.random.split(jax.random.key(8), 3),
        "step": jnp.int32(12),
        "position": 345,
    }
    checkpoint.save(tmp_path / "state", state, family="opt", config=CONFIG, fmt=FMT)
    back = checkpoint.restore(tmp_path / "state", checkpoint.like(state))
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert back["position"] == 345
    assert (jax.random.key_data(back["keys"]) == jax.random.key_data(state["keys"])).all()
    assert jax.random.key_data(back["key"]).tolist() == jax.random.key_data(state["key"]).tolist()
    assert same(back["params"], weights) and same(back["opt"], state["opt"])
    mu = back["opt"][0].mu["layers"]["mlp"]["up"]["kernel"]
    assert mu.sharding.shard_shape(mu.shape) == (2, 64, 16)


def test_a_folder_that_is_not_a_checkpoint_raises(tmp_path):
    with pytest.raises(ValueError, match="nothing"):
        checkpoint.restore(tmp_path / "nothing", {})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    for read in (lambda f: checkpoint.restore(f, {}), checkpoint.about):
        with pytest.raises(ValueError, match="other"):
            read(tmp_path / "other")


def change(tree, path: str, leaf):
    """A copy of a nested dict with one leaf replaced, or removed if `leaf` is None."""
    head, _, rest = path.partition(".")
    copy = dict(tree)
    if rest:
        copy[head] = change(tree.get(head, {}), rest, leaf)
    elif leaf is None:
        del copy[head]
    else:
        copy[head] = leaf
    return copy


def test_other_arrays_than_requested_are_named(saved):
    good = wanted(sharding.make_mesh(2, 4))
    table = good["embed"]["tokens"]["table"]
    longer = jax.ShapeDtypeStruct((104, 64), table.dtype, sharding=table.sharding)
    wider = jax.ShapeDtypeStruct(table.shape, jnp.float32, sharding=table.sharding)
    for tree, message in (
        (
            change(good, "embed.tokens.table", longer),
            r"embed\.tokens\.table has shape \(96, 64\).* \(104, 64\)",
        ),
        (change(good, "embed.tokens.table", wider), r"embed\.tokens\.table has dtype bfloat16.* float32"),
        (change(good, "embed.tokens.table", None), r"has unexpected 'embed\.tokens\.table' \(1 such"),
        (change(good, "head.kernel", table), r"lacks 'head\.kernel' \(1 such"),
    ):
        with pytest.raises(ValueError, match=message):
            checkpoint.restore(saved, tree)


@pytest.mark.parametrize(
    "field, was, value", [("out_in", False, True), ("dtype", "bfloat16", "float32"), ("stacked", True, False)]
)
def test_another_format_raises(saved, field, was, value):
    """Square kernels have the same shape in both orientations: only the format differs."""
    other = dataclasses.replace(FMT, **({"products": CPUProducts()} if field == "out_in" else {field: value}))
    with pytest.raises(ValueError, match=rf"{field}={was}.*{field}={value}"):
        checkpoint.restore(saved, wanted(sharding.make_mesh(2, 4)), fmt=other)


def test_kernels_in_parts_are_restored_only_in_parts(tmp_path):
    kernel = {"0": jnp.ones((4, 2)), "1": jnp.zeros((4, 2))}
    cut = Format(dtype="bfloat16", products=CPUProducts(part=2))
    checkpoint.save(tmp_path / "cut", {"kernel": kernel}, family="opt", config=CONFIG, fmt=cut)
    assert same(checkpoint.restore(tmp_path / "cut", checkpoint.like({"kernel": kernel}), fmt=cut), {"kernel": kernel})
    with pytest.raises(ValueError, match=r"part=2.*part=0"):
        checkpoint.restore(
            tmp_path / "cut", {"kernel": jnp.ones((4, 4))}, fmt=dataclasses.replace(cut, products=CPUProducts())
        )


def test_a_damaged_checkpoint_raises(tmp_path):
    folder = tmp_path / "cut"
    small = {"a": jnp.arange(4.0)}
    checkpoint.save(folder, small, family="opt", config=CONFIG, fmt=FMT)
    assert same(checkpoint.restore(folder, checkpoint.like(small)), small)
    for file in (folder / "tree").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(ValueError, match="damaged"):
        checkpoint.restore(folder, checkpoint.like(small))
    (folder / "about" / "metadata").write_text('{"version": 1')
    with pytest.raises(ValueError, match="damaged"):
        checkpoint.about(folder)
    for content in ('{"version": 2}', "[]"):
        (folder / "about" / "metadata").write_text(content)
        with pytest.raises(ValueError, match="damaged"):
            checkpoint.about(folder)


def test_nothing_is_overwritten(saved):
    with pytest.raises(ValueError, match="tiny"):
        checkpoint.save(saved, {"a": jnp.zeros(3)}, family="opt", config=CONFIG, fmt=FMT)
    assert same(checkpoint.restore(saved, wanted(sharding.make_mesh(2, 4))), params())


def test_a_failed_save_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="notes"):
        checkpoint.save(tmp_path / "a", {}, family="opt", config=CONFIG, fmt=FMT, notes={"x": object()})
    with pytest.raises(Exception):  # noqa: B017 - orbax's own, of any kind
        checkpoint.save(tmp_path / "a", {"x": jnp.zeros(3), "y": object()}, family="opt", config=CONFIG, fmt=FMT)
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [None, (2, 4)], ids=str)
def test_a_model_is_restored_with_its_tokenizer(mesh, tmp_path):
    """From one device; onto a mesh, the whole model on every device or with its rows split."""
    model = sj.load("bundled/opt-tiny")
    checkpoint.save_model(tmp_path / "tiny", model)
    place = {} if mesh is None else {"mesh": sharding.make_mesh(*mesh), "replicate": True}
    back = checkpoint.load_model(tmp_path / "tiny", **place)
    assert same(back.params, model.params) and (back.config, back.eos) == (model.config, model.eos)
    prompts, options = ["Once upon a time", "The old man"], {"max_new_tokens": 6, "temperature": 0.0}
    assert sj.generate(back, prompts, **options).texts == sj.generate(model, prompts, **options).texts


def test_a_checkpoint_of_arrays_is_no_model(saved):
    with pytest.raises(ValueError, match="restore its arrays"):
        checkpoint.load_model(saved)
