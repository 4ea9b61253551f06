"""int8 weights and caches: what they store, the same numbers on every path, and drafters on a target that has them."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax import checkpoint, drafters, sharding, trees
from specjax.models import cache as caches
from specjax.models import quantize
from specjax.models.format import Format, default_format
from tests import battery
from tests.convert.writers import GOLDEN
from tests.models import small

FORMATS = {
    "separate": default_format("float32", platform="cpu", cache_dtype="int8"),
    "stacked": Format(stacked=True, int8_cache=True),
}
FAMILIES = tuple(battery.FAMILIES)


# --- keys and values -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 0.5001), ("bfloat16", 1.1)])
def test_no_number_moves_by_more_than_half_a_step(dtype, bound):
    x = jax.random.normal(jax.random.key(0), (2, 3, 5, 8)) * jnp.asarray([1.0, 30.0, 1e-3])[None, :, None, None]
    x = x.at[0, 0, 2].set(0.0).astype(dtype)
    stored = caches.quantized(x)
    assert (stored.values.dtype, stored.scale.dtype) == (jnp.int8, jnp.dtype(dtype))
    moved = np.abs(np.asarray(caches.widened(stored), np.float32) - np.asarray(x, np.float32))
    assert (moved <= bound * np.asarray(stored.scale, np.float32)).all()
    peaks = np.abs(np.asarray(stored.values, np.int32)).max(-1)
    assert ((peaks >= 126) | (np.asarray(x, np.float32) == 0).all(-1)).all()  # each head and slot has its own scale


@pytest.mark.parametrize(
    ("name", "layout"),
    battery.others_slow(itertools.product(["opt", "llama"], FORMATS), [("opt", "stacked")]),
)
def test_blocks_steps_and_trees_see_the_same_numbers(name, layout):
    """A position attends to keys and values as the cache stores them, in whatever blocks they were computed."""
    fmt = FORMATS[layout]
    built, exact = small.build(name, fmt), small.build(name, dataclasses.replace(fmt, int8_cache=False))
    tokens = jnp.asarray(small.tokens(3, 2, 21))
    one, slots = jnp.ones((1, 1), bool), 320
    prefill = functools.partial(built.prefill, cache_len=slots)
    lengths = lambda n: jnp.full((2,), n, jnp.int32)
    whole = prefill(built.params, tokens, lengths(21)).features
    step = prefill(built.params, tokens[:, :1], lengths(1)).cache
    tree = trees.chain(5)
    block = prefill(built.params, tokens[:, :16], lengths(16)).cache
    after, _ = built.extend(built.params, tokens[:, 15:21], block, jnp.asarray(tree.mask), jnp.asarray(tree.depth))
    small.assert_close(after.features, whole[:, 15:], 1e-4)
    for at in range(21):
        out, step = built.extend(built.params, tokens[:, at : at + 1], step, one, jnp.zeros((1,), jnp.int32))
        step = built.keep(step, None, jnp.ones((2,), jnp.int32))
        small.assert_close(out.features[:, 0], whole[:, at], 1e-4)
    other = exact.prefill(exact.params, tokens, lengths(21), cache_len=slots).features
    difference = np.abs(np.asarray(whole - other)).max() / np.abs(np.asarray(other)).max()
    assert 1e-5 < difference < 0.05
    sizes = [caches.size_in_bytes(block.layers), caches.size_in_bytes(exact.model.prefill(
        exact.params, tokens, lengths(21), slots).cache.layers)]  # fmt: skip
    width = built.config.head_width
    assert sizes[0] * 4 * width == sizes[1] * (width + 4)


def int8(family: str, *, weights: bool = False) -> sj.Model:
    model = battery.target(family)
    fmt = dataclasses.replace(model.fmt, int8_cache=True)
    if weights:
        return dataclasses.replace(model, params=quantize.quantized(model.params, fmt=model.fmt), fmt=fmt.quantized())
    return dataclasses.replace(model, fmt=fmt)


DRAFTERS = {
    "ngram": lambda target, draft: drafters.ngram(gamma=3),
    "model": lambda target, draft: drafters.model(draft, gamma=3),
    "tree": lambda target, draft: drafters.tree(draft, trees.Tree((trees.ROOT, 0, 0, 1, 1, 2))),
    "layer_skip": lambda target, draft: drafters.layer_skip(target, gamma=3, layers=[0]),
    "small_kv": lambda target, draft: drafters.small_kv(target, gamma=2, budget=12),
    "snapkv": lambda target, draft: drafters.small_kv(
        target, gamma=2, budget=14, selection=drafters.SnapKV(window=6, observed=4, every=4)
    ),
    "retrieval": lambda target, draft: drafters.small_kv(
        target, gamma=2, budget=14, selection=drafters.Retrieval(window=6, chunk=4, every=4)
    ),
    "bounded": lambda target, draft: drafters.model(drafters.bounded(draft, budget=10, slack=8, block=8), gamma=3),
    "cascade": lambda target, draft: drafters.cascade(draft, drafters.ngram(gamma=2), gamma=2),
}
PAIRS = [
    (family, kind) for family, kind in itertools.product(FAMILIES, DRAFTERS)
    if family != "t5" or kind not in ("snapkv", "retrieval")
]  # fmt: skip


@functools.cache
def plain_texts(family: str, weights: bool) -> list[list[int]]:
    return sj.generate(int8(family, weights=weights), PROMPTS, max_new_tokens=20, temperature=0.0).tokens


PROMPTS = [[int(token) for token in row[:n]] for row, n in zip(battery.prompts()[:4], (1, 3, 16, 9), strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_greedy_text_is_that_of_plain_decoding_of_the_same_target(family, kind):
    target = int8(family, weights=kind == "cascade")
    draft = battery.draft(family)
    draft = dataclasses.replace(draft, fmt=dataclasses.replace(draft.fmt, int8_cache=True))
    got = sj.generate(target, PROMPTS, drafter=DRAFTERS[kind](target, draft), max_new_tokens=20, temperature=0.0)
    assert got.tokens == plain_texts(family, kind == "cascade")


# --- loading ---------------------------------------------------------------------------------------------------------


def near(got, expected):
    """Equal but for weights at the border of two steps: XLA and numpy may divide differently there."""
    for (path, one), (other_path, other) in zip(
        *map(jax.tree_util.tree_leaves_with_path, (got, expected)), strict=True
    ):
        assert (path, one.dtype, one.shape) == (other_path, other.dtype, other.shape)
        step = 1.0 if one.dtype == jnp.int8 else 0.0
        np.testing.assert_allclose(np.float32(one), np.float32(other), rtol=1e-6, atol=step)
        if step:
            assert np.mean(np.asarray(one) != np.asarray(other)) < 1e-3


@pytest.mark.parametrize(
    ("name", "stacked"),
    battery.others_slow(
        itertools.product(["opt-pre-norm", "llama-grouped-untied", "t5-gated-untied"], [False, True]),
        [("opt-pre-norm", False), ("llama-grouped-untied", True), ("t5-gated-untied", True)],
    ),
)
def test_weights_are_loaded_straight_into_int8(name, stacked, monkeypatch):
    whole = sj.load(GOLDEN / name, stacked=stacked)
    monkeypatch.setattr("specjax.convert.assemble.CHANNELS_BYTES", 1 << 10)  # several pieces of each
    loaded = sj.load(GOLDEN / name, stacked=stacked, weights="int8")
    assert "int8 weights" in repr(loaded) and loaded.fmt.int8_weights
    near(loaded.params, quantize.quantized(whole.params, fmt=whole.fmt))


@pytest.mark.parametrize("name", battery.others_slow(["opt-pre-norm", "llama-grouped-untied", "t5-relu-tied"], []))
def test_a_mesh_holds_the_same_weights_and_decodes_the_same(name):
    alone = sj.load(GOLDEN / name, weights="int8", cache_dtype="int8")
    mesh = sharding.make_mesh(8, 1) if name.startswith("t5") else sharding.make_mesh(4, 2)  # its 3 heads do not divide
    spread = sj.load(GOLDEN / name, weights="int8", cache_dtype="int8", mesh=mesh)
    near(spread.params, alone.params)
    kernels = [leaf for leaf in jax.tree.leaves(spread.params) if leaf.dtype == jnp.int8]
    assert all(leaf.sharding.is_fully_replicated == (mesh.shape["model"] == 1) for leaf in kernels)
    prompts = [[3, 4, 5], [6, 7], [8], [5, 4, 3, 6]] * 2
    run = functools.partial(sj.generate, max_new_tokens=8, temperature=0.0, drafter=drafters.ngram(gamma=2))
    assert run(spread, prompts).tokens == run(alone, prompts).tokens


def test_a_checkpoint_keeps_int8_weights(tmp_path):
    model = sj.load("bundled/opt-tiny", weights="int8", cache_dtype="int8")
    checkpoint.save_model(tmp_path / "saved", model)
    again = checkpoint.load_model(tmp_path / "saved")
    assert again.fmt == model.fmt
    near(again.params, model.params)


def test_int8_weights_have_no_names_in_a_published_layout(tmp_path):
    with pytest.raises(ValueError, match="int8"):
        sj.load("bundled/opt-tiny", weights="int8").save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("wrong", [{"weights": "int4"}, {"cache_dtype": "fp8"}])
def test_unknown_formats_are_refused_before_weights_are_read(wrong, monkeypatch):
    monkeypatch.setattr("specjax.convert.load_params", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(ValueError, match=next(iter(wrong))):
        sj.load("bundled/opt-tiny", **wrong)
