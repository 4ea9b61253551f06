"""Kernels of accelerators behind `Format.kernel`: the values of the reference, on one device and on a mesh."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoint, loading, sharding
from specjax.models import attention
from specjax.models.cache import KV, Prefix
from specjax.models.families import FAMILIES
from specjax.models.format import Format, default_format
from specjax.models.kernels import CuDNN, Kernel, Splash, Split, has_flash_attention, prompt_kernel
from tests import battery
from tests.models.small import CONFIGS, assert_close, laid_out, noisy

KERNELS = {"splash": Splash(interpret=True), "cudnn": CuDNN(implementation="xla")}
BLOCK, SLOTS = 128, 300


def attended(kernel, start, *, dtype="float32", rows=2, heads=4, kv_heads=2, width=64, bias=None, row=0):
    """Attention of a block that begins at slot `start`; later slots hold what must not be read."""
    rng = np.random.default_rng(start)
    drawn = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)
    q = drawn(rows, BLOCK, heads, width).astype(jnp.float32)
    layers = np.array(rng.normal(size=(2, rows + row, kv_heads, SLOTS, width)), np.float32)
    layers[..., start + BLOCK :, :] = 1e4  # what a block beyond the end would notice
    kv = KV(*(jnp.asarray(one, dtype) for one in layers))
    block = KV(*(one[row:, :, start : start + BLOCK] for one in kv))
    causal = jnp.broadcast_to(jnp.tril(jnp.ones((BLOCK, BLOCK), bool)), (rows, BLOCK, BLOCK))
    fmt = Format(cache_dtype=dtype, kernel=kernel)

    @jax.jit
    def run(q, block, kv, start):
        prefix = Prefix(block, (kv,), 0, start, row)
        return attention.attend(q, prefix, causal, scale=0.3, fmt=fmt, bias=bias)

    return run(q, block, kv, jnp.int32(start))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("start", "heads"),
    battery.others_slow(
        [(0, (4, 2)), (1, (4, 4)), (BLOCK - 1, (4, 1)), (BLOCK, (4, 2)), (BLOCK + 1, (2, 2)), (SLOTS - BLOCK, (4, 2))],
        [(BLOCK + 1, (2, 2))],
    ),
)
def test_a_block_after_any_number_of_slots_equals_the_reference(name, start, heads):
    given = {"heads": heads[0], "kv_heads": heads[1]}
    ours, reference = (attended(kernel, start, **given) for kernel in (KERNELS[name], None))
    assert ours.dtype == jnp.float32 and np.isfinite(np.asarray(reference)).all()
    assert_close(ours, reference, 1e-5)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("width", battery.others_slow([64, 80, 128], [64]))
def test_bfloat16_and_head_widths(name, width):
    with jax.numpy_dtype_promotion("standard"):  # JAX's own XLA implementation promotes
        ours, reference = (
            attended(kernel, 100, dtype="bfloat16", width=width, row=1) for kernel in (KERNELS[name], None)
        )
    assert_close(ours, reference, 2e-2)


@dataclasses.dataclass(frozen=True)
class Refusing(Kernel):
    """Must not be called."""

    every: bool = True

    def takes(self, block: int, width: int) -> bool:
        del block, width
        return self.every

    def local(self, q, k, v, seen):
        raise AssertionError("a kernel was called")


def test_blocks_with_a_bias_and_those_that_no_kernel_takes_are_read_by_the_reference():
    with pytest.raises(AssertionError):
        attended(Refusing(), 0)
    np.testing.assert_array_equal(attended(Refusing(every=False), 0), attended(None, 0))
    bias = jax.random.normal(jax.random.key(1), (1, 4, BLOCK, BLOCK))
    np.testing.assert_array_equal(attended(Refusing(), 0, bias=bias), attended(None, 0, bias=bias))


LENGTHS = (BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 290)


@functools.cache
def built(name: str, kernel: Kernel | None):
    """(format, family, configuration, parameters) of a tiny model that reads prompts in blocks of 128."""
    family, config = CONFIGS[name]
    config = dataclasses.replace(config, max_positions=SLOTS)
    fmt = Format(stacked=True, wide=(BLOCK, 32), narrow=(BLOCK, 32), apart=None, kernel=kernel)
    params = laid_out(noisy(family.init(jax.random.key(1), config, Format()), 2, lambda leaf: 0.2), fmt)
    return fmt, family, config, params


@functools.cache
def read(name: str, kernel: Kernel | None, mesh=None):
    fmt, family, config, params = built(name, kernel)
    lm = family.language_model(config, fmt)
    tokens = jax.random.randint(jax.random.key(3), (len(LENGTHS), 290), 0, config.vocab_size)
    length = jnp.asarray(LENGTHS, jnp.int32)
    if mesh is not None:
        params = sharding.place(params, mesh, FAMILIES[name].rules, fmt, kv_heads=config.kv_heads)
        lm = sharding.on_mesh(lm, mesh, FAMILIES[name].rules)
        tokens, length = jax.device_put((tokens, length), sharding.row_sharding(mesh))
    out = jax.jit(lm.prefill, static_argnums=3)(params, tokens, length, SLOTS)
    inside = np.arange(290)[None] < np.asarray(LENGTHS)[:, None]
    return np.asarray(out.features)[inside]


@pytest.mark.parametrize("name", ["llama", pytest.param("opt", marks=pytest.mark.slow)])
def test_prompts_at_the_borders_of_blocks_equal_the_reference(name):
    assert_close(read(name, KERNELS["splash"]), read(name, None), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_mesh_splits_heads_and_rows(name):
    mesh = sharding.make_mesh(2, 2, devices=jax.devices()[:4])
    split = dataclasses.replace(KERNELS[name], split=Split(mesh, sharding.DATA, FAMILIES["llama"].rules.heads))
    assert_close(read("llama", split, mesh), read("llama", None), 1e-5)


@pytest.mark.slow
def test_scores_and_gradients_do_not_depend_on_the_kernel():
    """Training reads without a cache, by the reference."""
    grads = []
    for kernel in (None, KERNELS["splash"]):
        fmt, family, config, params = built("llama", kernel)
        tokens = jax.random.randint(jax.random.key(3), (1, BLOCK), 0, config.vocab_size)
        loss = lambda params: jnp.square(family.score(params, config, fmt, tokens)).mean()  # noqa: B023
        grads.append(jax.jit(jax.grad(loss))(params))
    jax.tree.map(np.testing.assert_array_equal, *grads)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads[0])) > 0


def test_the_platform_chooses():
    chosen = lambda platform, dtype, **given: default_format(dtype, platform=platform, **given).kernel
    assert chosen("tpu", "bfloat16") == Splash() and chosen("tpu", "bfloat16", cache_dtype="int8") == Splash()
    assert chosen("gpu", "bfloat16") == chosen("gpu", "float16") == CuDNN()
    for platform, dtype in (("cpu", "bfloat16"), ("tpu", "float32"), ("tpu", "float16"), ("gpu", "float32")):
        assert chosen(platform, dtype) is None
    assert chosen("tpu", "bfloat16", cache_dtype="float32") is None
    split = Split(sharding.make_mesh(1, 8), sharding.DATA, None)
    assert chosen("tpu", "bfloat16", sharded=True) is None
    assert chosen("tpu", "bfloat16", sharded=True, split=split) == prompt_kernel("tpu", "bfloat16", split)
    client = lambda version: types.SimpleNamespace(platform_version=version)
    for version, capability, has in (("cuda 12", "8.0", True), ("cuda 12", "10.0", True), ("cuda 12", "7.5", False)):
        gpu = types.SimpleNamespace(client=client(version), compute_capability=capability)
        assert has_flash_attention(gpu) is has
    assert not has_flash_attention(types.SimpleNamespace(client=client("rocm 6"), compute_capability="gfx942"))


def test_on_gpus_a_prompt_block_is_a_custom_call_of_cudnn(monkeypatch):
    """Lowered for CUDA on a machine without a GPU, which has no cuDNN to ask for its version."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.bfloat16)
    seen = jax.ShapeDtypeStruct((BLOCK, 256), jnp.bool_)
    traced = jax.jit(CuDNN().attend).trace(shape(2, BLOCK, 4, 64), *[shape(2, 2, 256, 64)] * 2, seen)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaScaleBiasSoftmax" in text


@pytest.mark.slow
def test_loading_and_restoring_choose_by_platform_and_mesh(monkeypatch, tmp_path):
    on_tpu = lambda *given, **named: default_format(*given, **named | {"platform": "tpu"})
    monkeypatch.setattr(loading, "default_format", on_tpu)
    monkeypatch.setattr(checkpoint, "prompt_kernel", lambda _, *given: prompt_kernel("tpu", *given))
    mesh = sharding.make_mesh(2, 1, devices=jax.devices()[:2])
    load = functools.partial(loading.load, "bundled/opt-tiny", dtype="bfloat16")
    alone = load()
    checkpoint.save_model(tmp_path / "tiny", alone)
    assert checkpoint.about(tmp_path / "tiny").fmt == dataclasses.replace(alone.fmt, kernel=None)
    restored = functools.partial(checkpoint.load_model, tmp_path / "tiny")
    for made in (load, restored):
        assert made().fmt.kernel == Splash()
        assert made(mesh=mesh).fmt.kernel == Splash(Split(mesh, sharding.DATA, "model"))
        uneven = sharding.make_mesh(1, 2, devices=jax.devices()[:2])  # of three heads
        assert made(mesh=uneven).fmt.kernel == Splash(Split(uneven, sharding.DATA, None))
        assert made(mesh=mesh, replicate=True).fmt.kernel == Splash(Split(mesh, sharding.DATA, None))
