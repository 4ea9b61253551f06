"""Prompts are read in blocks whose number follows their lengths: the same values, and no wasted work."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax import drafters, sharding
from specjax.models import attention, opt, t5
from specjax.models.cache import KV
from specjax.models.decoder import causal
from specjax.models.families import FAMILIES
from specjax.models.format import Format, default_format
from specjax.planning import program as hlo
from tests import battery
from tests.models.small import CONFIGS, assert_close, laid_out, noisy

WIDTH, SLOTS, VOCAB = 300, 320, 71
FORMATS = {
    "cpu": default_format("float32", platform="cpu"),
    "stacked": Format(stacked=True, apart=None),  # all rows at once
    "bfloat16": default_format("bfloat16", platform="cpu"),
}


@functools.cache
def built(name: str, layout: str, capture: tuple[int, ...] = ()):
    """(pure functions, their split structure, parameters) of a tiny model with room for long prompts."""
    module, config = CONFIGS[name]
    config, fmt = dataclasses.replace(config, max_positions=SLOTS), FORMATS[layout]
    params = laid_out(noisy(module.init(jax.random.key(1), config, Format()), 2, lambda leaf: 0.2), fmt)
    return module.language_model(config, fmt, capture=capture), module.module(params, config, fmt), params


def prompts(rows: int, width: int = WIDTH) -> jax.Array:
    return jax.random.randint(jax.random.key(3), (rows, width), 0, VOCAB)


@pytest.mark.parametrize(
    ("name", "layout"),
    battery.others_slow(itertools.product(["opt", "llama"], ["cpu", "stacked"]), [("llama", "stacked")]),
)
def test_blocks_of_a_prompt_equal_the_whole_prompt(name, layout):
    capture = (0, 1, 2)
    lm, model, params = built(name, layout, capture)
    tokens = prompts(3)
    visible, positions = causal(tokens)
    whole, _ = jax.jit(model.run, static_argnums=(3, 4, 5))(tokens, positions, visible, None, None, capture)
    prefill, extend = jax.jit(lm.prefill, static_argnums=3), jax.jit(lm.extend)
    one = jnp.ones((1, 1), bool), jnp.zeros((1,), jnp.int32)
    for lengths in ((1, 1, 1), (31, 32, 33), (63, 64, 65), (127, 129, 1), (255, 256, 257), (2, 300, 299)):
        length = jnp.asarray(lengths, jnp.int32)
        got = prefill(params, tokens, length, SLOTS)
        inside = np.arange(WIDTH)[None] < np.asarray(lengths)[:, None]
        for ours, reference in zip((got.features, *got.hiddens), (whole.features, *whole.hiddens), strict=True):
            assert_close(np.asarray(ours)[inside], np.asarray(reference)[inside], 1e-4)
        out, _ = extend(params, got.pending[:, None], got.cache, *one)
        assert_close(np.asarray(out.logits)[:, 0], np.asarray(whole.logits)[range(3), np.asarray(lengths) - 1], 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True])
def test_an_encoder_reads_wide_prompts_row_by_row(stacked):
    module, config = t5.FAMILY, t5.T5Config(VOCAB, width=32, head_width=8, heads=4, encoder_layers=2, decoder_layers=3)
    together = Format(stacked=stacked, apart=None)
    params = noisy(module.init(jax.random.key(1), config, together), 2, lambda leaf: 0.2)
    length = jnp.asarray([300, 1, 129], jnp.int32)
    read, programs = [], []
    for fmt in (together, dataclasses.replace(together, apart=WIDTH)):
        prefill = jax.jit(module.language_model(config, fmt).prefill, static_argnums=3)
        programs.append(prefill.lower(params, prompts(3), length, 8).compile().as_text())
        read.append(prefill(params, prompts(3), length, 8).cache.cross)
    inside = np.asarray(read[0].visible)
    assert np.array_equal(inside, read[1].visible) and inside.sum(1).tolist() == length.tolist()
    for ours, reference in zip(jax.tree.leaves(read[1].layers), jax.tree.leaves(read[0].layers), strict=True):
        ours, reference = (np.moveaxis(np.asarray(one), (-4, -2), (0, 1))[inside] for one in (ours, reference))
        assert_close(ours, reference, 1e-4)
    scores = (3, config.heads, WIDTH, WIDTH)  # of all rows
    assert [any(one.shape == scores for one in hlo.program(text)) for text in programs] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True])
def test_an_encoder_reads_many_narrow_prompts_in_groups(monkeypatch, stacked):
    """Seven rows in groups of three."""
    module, config = t5.FAMILY, t5.T5Config(VOCAB, width=32, head_width=8, heads=4, encoder_layers=2, decoder_layers=3)
    together = Format(stacked=stacked, apart=None)
    params = noisy(module.init(jax.random.key(1), config, together), 2, lambda leaf: 0.2)
    tokens, length = prompts(7)[:, :20], jnp.asarray([20, 1, 7, 19, 3, 20, 11], jnp.int32)
    monkeypatch.setattr(t5, "ENCODER_ROOM", 60)
    read, programs = [], []
    for fmt in (together, dataclasses.replace(together, apart=WIDTH)):
        prefill = jax.jit(module.language_model(config, fmt).prefill, static_argnums=3)
        programs.append(prefill.lower(params, tokens, length, 8).compile().as_text())
        read.append(prefill(params, tokens, length, 8).cache.cross)
    assert np.array_equal(read[0].visible, read[1].visible)
    for ours, reference in zip(jax.tree.leaves(read[1].layers), jax.tree.leaves(read[0].layers), strict=True):
        assert ours.shape == reference.shape
        assert_close(ours, reference, 1e-4)
    assert [any(one.shape == (7, 4, 20, 20) for one in hlo.program(text)) for text in programs] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(("stacked", "apart"), [*itertools.product([False, True], [None, 33])])
def test_an_encoder_reads_wide_prompts_in_blocks(monkeypatch, stacked, apart):
    """Blocks of 32: the keys and values of the whole; nothing is as large as the prompt times itself, and blocks past
    the longest row are not computed."""
    monkeypatch.setattr(attention, "WHOLE", 16)
    for name, slots in {"FIRST": 8, "PIECE": 16}.items():
        monkeypatch.setattr(attention, name, slots)
    module, config = t5.FAMILY, t5.T5Config(VOCAB, width=32, head_width=8, heads=4, encoder_layers=2, decoder_layers=3)
    fmt, width = Format(stacked=stacked, apart=apart), 150
    params = noisy(module.init(jax.random.key(1), config, fmt), 2, lambda leaf: 0.2)
    tokens, lengths = prompts(3)[:, :width], ((1, 31, 32), (33, 63, 64), (65, 128, 150), (97, 1, 96))
    whole = jax.jit(module.language_model(config, fmt).prefill, static_argnums=3)
    expected = [whole(params, tokens, jnp.asarray(each), 8).cache.cross for each in lengths]
    monkeypatch.setattr(t5, "ENCODER_BLOCK", 32)
    blocks = jax.jit(module.language_model(config, dataclasses.replace(fmt, fill=7)).prefill, static_argnums=3)
    for each, reference in zip(lengths, expected, strict=True):
        got = blocks(params, tokens, jnp.asarray(each), 8).cache.cross
        inside = np.asarray(reference.visible)
        assert np.array_equal(got.visible[:, :width], inside) and not got.visible[:, width:].any()
        for ours, theirs in zip(jax.tree.leaves(got.layers), jax.tree.leaves(reference.layers), strict=True):
            ours, theirs = (np.moveaxis(np.asarray(one), (-4, -2), (0, 1)) for one in (ours, theirs))
            assert_close(ours[:, :width][inside], theirs[inside], 1e-4)
            done = -(-np.asarray(each) // 32) * 32 if apart else np.full(3, -(-max(each) // 32) * 32)
            for row, count in zip(ours, done, strict=True):
                assert row[: min(count, width)].any((1, 2)).all() and not row[count:].any()
    text = blocks.lower(params, tokens, jnp.asarray(lengths[0]), 8).compile().as_text()
    assert not any(one.shape[-2:] == (160, 160) for one in hlo.program(text))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "lengths", "written"),
    [
        ("cpu", (1, 128), (128, 128)),
        ("cpu", (129, 1), (256, 128)),
        ("cpu", (256, 300), (256, 300)),
        ("stacked", (1, 128), (128, 128)),
        ("stacked", (129, 1), (256, 256)),
    ],
)
def test_the_number_of_blocks_follows_the_length(layout, lengths, written):
    lm, _, params = built("opt", layout)
    length = jnp.asarray(lengths, jnp.int32)
    cache = jax.jit(lm.prefill, static_argnums=3)(params, prompts(2) + 1, length, SLOTS).cache
    for kv in jax.tree.leaves(cache.layers, is_leaf=lambda node: isinstance(node, KV)):
        used = np.moveaxis(np.asarray(kv.k != 0), -4, 0).any((*range(1, kv.k.ndim - 2), -1))
        for row, count in zip(used, written, strict=True):
            assert row[:count].all() and not row[count:].any()


@pytest.mark.parametrize(
    ("layout", "rows"),
    battery.others_slow(itertools.product(FORMATS, [1, 3]), [("cpu", 3), ("stacked", 1), ("bfloat16", 3)]),
)
def test_the_loop_copies_no_cache_and_computes_no_unused_output(layout, rows):
    lm, _, params = built("opt", layout)

    def prefill(params, prompt, length):
        read = lm.prefill(params, prompt, length, SLOTS)
        return read.cache, read.pending

    shapes = (jax.ShapeDtypeStruct((rows, WIDTH), jnp.int32), jax.ShapeDtypeStruct((rows,), jnp.int32))
    text = jax.jit(prefill).lower(params, *shapes).compile().as_text()
    bodies = [body for body in hlo.while_bodies(text) if any(i.opcode == "dot" for i in body)]
    together = rows if layout == "stacked" else 1
    assert len(bodies) == len(FORMATS[layout].prompt_blocks(together, WIDTH))
    for body in bodies:
        assert not [i for i in body if i.opcode in ("copy", "transpose") and SLOTS in i.shape]  # a cache
        assert not [i for i in body if i.shape == (rows, WIDTH, 32)]  # features
        assert not [i for i in body if i.opcode == "dot" and VOCAB in i.shape]


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_a_large_block_reads_no_more_padding_than_it_is_worth(platform):
    fmt = default_format("float32", platform=platform)
    for width, rows in itertools.product((20, 64, 256, 300, 4096), (1, 3, 64)):
        blocks, cost = fmt.prompt_blocks(rows, width), lambda size: max(size * rows, fmt.fill)  # noqa: B023
        small = blocks[-1][0]
        assert blocks[-1][1] == 0 and sorted(blocks, reverse=True) == list(blocks)
        for size, least in blocks[:-1]:
            assert size <= width and -(-(least + 1) // small) * cost(small) >= cost(size) * 0.99


def test_a_prompt_of_one_block_needs_no_loop():
    lm, _, params = built("opt", "cpu")
    shapes = (jax.ShapeDtypeStruct((2, 32), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.int32))
    text = jax.jit(lm.prefill, static_argnums=3).lower(params, *shapes, SLOTS).compile().as_text()
    assert not [body for body in hlo.while_bodies(text) if any(i.opcode == "dot" for i in body)]


@pytest.mark.parametrize("name", battery.others_slow(["opt", "llama"], ["llama"]))
def test_a_mesh_reads_the_same_prompt(name):
    lm, model, params = built(name, "stacked", (1,))
    mesh = sharding.make_mesh(2, 2, devices=jax.devices()[:4])
    placed = sharding.place(params, mesh, FAMILIES[name].rules, model.fmt, kv_heads=model.config.kv_heads)
    length = jnp.asarray([33, 300], jnp.int32)
    alone = jax.jit(lm.prefill, static_argnums=3)(params, prompts(2), length, SLOTS)
    spread = jax.jit(sharding.on_mesh(lm, mesh, FAMILIES[name].rules).prefill, static_argnums=3)
    rows = jax.device_put((prompts(2), length), sharding.row_sharding(mesh))
    lowered = spread.lower(placed, *rows, SLOTS)
    counts = hlo.collectives(hlo.program(lowered.compile().as_text()))
    assert counts.keys() <= {"all-reduce", "all-gather"}
    got = spread(placed, *rows, SLOTS)
    assert_close(np.asarray(got.features), np.asarray(alone.features), 1e-4)
    assert_close(np.asarray(got.hiddens[0]), np.asarray(alone.hiddens[0]), 1e-4)
    for ours, theirs in zip(jax.tree.leaves(got.cache), jax.tree.leaves(alone.cache), strict=True):
        assert_close(np.asarray(ours), np.asarray(theirs), 1e-4)


def test_padding_past_the_position_table_is_harmless():
    lm, _, params = built("opt", "cpu")
    tokens, length = prompts(1, 400), jnp.asarray([SLOTS], jnp.int32)
    read = jax.jit(lm.prefill, static_argnums=3)(params, tokens, length, 416)
    assert np.isfinite(np.asarray(read.features)).all()


BORDERS = (31, 32, 33, 64, 65)  # around one and two blocks of 32


@pytest.mark.parametrize("family", battery.others_slow(battery.FAMILIES, ["opt"]))
def test_text_after_prompts_at_the_borders_of_blocks(family):
    """Speculative text equals plain text, and both equal the argmax of scores without a cache."""
    model, draft = battery.target(family), battery.draft(family)
    if family == "opt":
        model, draft = (_with_positions(one, 128) for one in (model, draft))
    given = np.random.default_rng(7).integers(1, battery.VOCAB, (len(BORDERS), max(BORDERS))).astype(np.int32)
    prompts = [row[:length].tolist() for row, length in zip(given, BORDERS, strict=True)]
    model = dataclasses.replace(model, eos=())
    plain = sj.generate(model, prompts, max_new_tokens=12, temperature=0.0)
    out = sj.generate(model, prompts, drafter=drafters.model(draft, gamma=3), max_new_tokens=12, temperature=0.0)
    assert out.tokens == plain.tokens and out.stats.accepted > 0
    assert [len(tokens) for tokens in plain.tokens] == [12] * len(BORDERS)
    padded = lambda rows, width: [[*row, *[0] * (width - len(row))] for row in rows]
    if family == "t5":
        decoded = [[model.config.start_token, *tokens[:-1]] for tokens in plain.tokens]
        starts, logits = [0] * len(BORDERS), model.score(padded(prompts, max(BORDERS)), decoded)
    else:
        texts = [prompt + tokens for prompt, tokens in zip(prompts, plain.tokens, strict=True)]
        starts, logits = [length - 1 for length in BORDERS], model.score(padded(texts, max(BORDERS) + 12))
    for start, row, tokens in zip(starts, np.asarray(logits), plain.tokens, strict=True):
        assert row[start : start + 12].argmax(-1).tolist() == tokens


def _with_positions(model, positions: int):
    """The model with a longer table of positions."""
    config = dataclasses.replace(model.config, max_positions=positions)
    table = jax.random.normal(jax.random.key(4), (positions + opt.POSITION_OFFSET, config.width))
    embed = model.params["embed"] | {"positions": {"table": table}}
    return dataclasses.replace(model, config=config, params=model.params | {"embed": embed})
