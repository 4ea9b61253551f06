"""SPIRe: what it drafts against an independent computation and against training, and the slots that it keeps."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax import drafters
from specjax.drafters.head_writer import head_writer
from specjax.heads import spire_formats
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.models.layers import in_order
from specjax.training import eagle, head_kinds
from specjax.training.eagle import Batch, Unrolling
from specjax.types import Commit
from tests import battery

FAMILIES = ("opt", "llama")
WINDOW, SINKS, TEXT, STEPS = 3, 1, 24, 3


@functools.cache
def head(family: str) -> Head:
    target = battery.target(family)
    config = spire_formats.shape(target, (0, 1), window=WINDOW, sinks=SINKS)
    params = KINDS["spire"].init(jax.random.key(1), config, target.fmt)
    params = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim == 2 else leaf, params)
    mix = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), jnp.float32)
    return Head("a head", KINDS["spire"], config, target.fmt, params | {"mix": mix}, target)


def text() -> np.ndarray:
    return np.random.default_rng(0).integers(3, battery.VOCAB, (3, TEXT)).astype(np.int32)


# --- independent, in float64, one text at a time ---------------------------------------------------------------------


def dot(x: np.ndarray, linear: dict) -> np.ndarray:
    kernel = linear["kernel"]
    kernel = np.concatenate(in_order(kernel), 1) if isinstance(kernel, dict) else kernel
    y = x @ (np.asarray(kernel, np.float64).T if battery.FMT.products.out_in else np.asarray(kernel, np.float64))
    return y + np.asarray(linear["bias"]) if "bias" in linear else y


def norm(x: np.ndarray, params: dict, eps: float) -> np.ndarray:
    if "bias" in params:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * np.asarray(params["scale"]) + np.asarray(
            params["bias"]
        )
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * np.asarray(params["scale"])


def turned(a: np.ndarray, positions: np.ndarray, config) -> np.ndarray:
    """[n, heads, width] at these positions; OPT has its positions in the embedding."""
    if not hasattr(config, "rope_theta"):
        return a
    half = config.head_width // 2
    angle = (positions[:, None] * config.rope_theta ** (-np.arange(half) / half))[:, None]
    low, high = a[..., :half], a[..., half:]
    return np.concatenate([low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)], -1)


def expected(of: Head, streams: np.ndarray, tokens: list[int], steps: int) -> list[np.ndarray]:
    """Logits of `steps` tokens drafted after tokens[:-steps], fed the true ones.

    Args:
      streams: [layers, n, D] of the target, entering the copied layers at tokens[:-steps-1].
    """
    config, params, target = of.config.layer, of.params, of.target.params
    width, memory = config.head_width, [list(layer) for layer in streams]
    found = []
    module = of.target.family.ends(of.target.config, of.target.fmt)(of.target.family.without_layers(target))
    for step in range(steps):
        place = len(tokens) - steps - 1 + step  # of the token that is read; the memory is of the places before it
        enter = module.enter(jnp.asarray([[tokens[place]]], jnp.int32), jnp.asarray([[place]], jnp.int32))
        x, own = np.asarray(enter, np.float64)[0], []
        seen = np.array([j for j in range(place) if j < SINKS or j > place - 1 - WINDOW])
        for index in range(config.layers):
            layer = params["layers"][str(index)]
            own.append(x[0])
            split = lambda a: a.reshape(len(a), -1, width)
            read = norm(np.array(memory[index])[seen], layer["attn_norm"], config.eps)
            q = turned(
                split(dot(norm(x, layer["attn_norm"], config.eps), layer["attn"]["q"])), np.array([place]), config
            )
            k = turned(split(dot(read, layer["attn"]["k"])), seen, config)
            v = split(dot(read, layer["attn"]["v"]))
            k, v = (np.repeat(a, config.heads // config.kv_heads, 1) for a in (k, v))
            scores = np.einsum("hw,nhw->hn", q[0], k) / np.sqrt(width)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = np.einsum("hn,nhw->hw", weights / weights.sum(-1, keepdims=True), v).reshape(1, -1)
            x = x + dot(mixed, layer["attn"]["o"])
            normed, mlp = norm(x, layer["mlp_norm"], config.eps), layer["mlp"]
            if "gate" in mlp:
                gate = dot(normed, mlp["gate"])
                x = x + dot(gate / (1 + np.exp(-gate)) * dot(normed, mlp["up"]), mlp["down"])
            else:
                x = x + dot(np.maximum(dot(normed, mlp["up"]), 0), mlp["down"])
        own.append(x[0])
        weights = np.exp(np.asarray(params["mix"], np.float64))
        weights /= weights.sum(-1, keepdims=True)
        for index in range(config.layers):
            memory[index].append(weights[index] @ np.array(own))
        last = norm(x, params["final_norm"], config.eps)
        found.append(np.asarray(module.unembed(jnp.asarray(last[None], jnp.float32)))[0, 0])
    return found


@functools.cache
def streams(family: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [B,S,D], streams [B,layers,S,D] and logits of the target on the text."""
    target = battery.target(family)
    read = target.family.module(target.params, target.config, target.fmt).read(jnp.asarray(text()), (0, 1))
    return np.asarray(read.features), np.stack(read.hiddens, 1), np.asarray(read.logits)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_those_of_an_independent_computation(family):
    of = head(family)
    loaded = drafters.head(of, gamma=STEPS)
    _, hiddens, _ = streams(family)
    for row, length in ((0, 2), (2, TEXT - STEPS)):  # the longer one drops pairs
        prompt = text()[row, :length]
        drafted, logits = sj.draft_logits(of.target, prompt, loaded, steps=STEPS)
        tokens = [*prompt.tolist(), *drafted.tolist()]
        wanted = expected(of, hiddens[row][:, : length - 1], tokens, STEPS)
        np.testing.assert_allclose(logits, wanted, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_training_is_what_drafting_computes(family):
    of = head(family)
    batch = Batch(text(), np.ones((3, TEXT), bool))
    run = lambda *params: eagle.run(of, *params, batch, Unrolling(steps=STEPS), None)[0]
    steps = jax.jit(run)(of.params, of.target.params)
    _, hiddens, _ = streams(family)
    for row, anchor in itertools.product(range(3), (0, 4, TEXT - 2 - STEPS)):
        tokens = text()[row, : anchor + 2 + STEPS - 1].tolist()
        wanted = expected(of, hiddens[row][:, : anchor + 1], [*tokens, 0], STEPS)
        for step, logits in enumerate(wanted):
            np.testing.assert_allclose(steps[step].log_q[row, anchor], jax.nn.log_softmax(logits), atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", battery.others_slow(FAMILIES, ["opt"]))
def test_slots_that_are_dropped_change_no_draft(family):
    """Rows that commit different numbers of tokens, over many rounds, against a cache that drops nothing."""
    of = head(family)
    target = of.target
    places = (target.family, target.config, target.fmt)
    make = lambda nodes: head_writer(of.kind.model, of.config, of.fmt, 3, nodes, places, False)
    few, many = make(3), make(1000)
    prompt = np.tile(text(), (1, 2))
    length = jnp.asarray([3, 20, 30], jnp.int32)
    read = target.family.module(target.params, target.config, target.fmt).read(jnp.asarray(prompt), (0, 1))
    prefilled = read._replace(hiddens=tuple(read.hiddens))
    params = drafters.head(of, gamma=2).params
    width, slots, rows = prompt.shape[1], 2 * prompt.shape[1], np.arange(3)
    short = jnp.asarray(prompt[:, :30])
    memories = [one.init(params, short, length, slots, prefilled) for one in (few, many)]
    assert memories[0].cache.out.shape[2] == SINKS + WINDOW + 2 * 3 + 3 < memories[1].cache.out.shape[2]
    rng, at = np.random.default_rng(1), np.asarray(length)
    step = {one: jax.jit(one.root) for one in (few, many)}
    for _ in range(9):
        found = []
        for number, one in enumerate((few, many)):
            logits, memories[number] = step[one](params, memories[number], jnp.asarray(prompt[rows, at - 1]))
            token = jnp.argmax(logits, -1)[:, None].astype(jnp.int32)
            out, _ = one.lm.extend(
                params, token, memories[number].cache, np.ones((1, 1), bool), np.zeros((1,), np.int32)
            )
            found.append((logits, out.logits))
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        new = rng.integers(1, 4, 3)
        new = np.minimum(new, width - at)
        block = np.minimum(at[:, None] + np.arange(3)[None], width - 1)
        before = np.minimum(block - 1, width - 1)
        take = lambda array, where: jnp.asarray(np.asarray(array)[rows[:, None], where])
        committed = Commit(take(prompt, block), jnp.asarray(new, jnp.int32), take(read.features, before),
                           take(prompt, block), tuple(take(hidden, before) for hidden in read.hiddens))  # fmt: skip
        for number, one in enumerate((few, many)):
            memories[number] = one.commit(params, memories[number], None, None, 0, committed)
            back = jnp.asarray(rng.integers(0, 1, 3), jnp.int32)
            memories[number] = one.rewind(params, memories[number], back, jnp.zeros((3,), jnp.int32))
        at = at + new
    assert int(memories[0].cache.dropped.min()) > 0


def test_a_new_draft_copies_the_layers_of_its_target():
    of = head("llama")
    fresh = dataclasses.replace(of, params={})
    params = head_kinds.init_spire(fresh, None, jax.random.key(0))
    for place in ("0", "1"):
        copied, own = params["layers"][place], head_kinds.plain(of.target.params["layers"][place], of.target.fmt)
        jax.tree.map(np.testing.assert_array_equal, copied, own)
    assert (params["mix"] == 0).all()


def test_it_is_written_and_read_back(tmp_path):
    of = head("opt")
    of.save_pretrained(tmp_path)
    again = sj.load_head(tmp_path, of.target)
    assert again.kind.name == "spire" and again.config == of.config
    jax.tree.map(np.testing.assert_array_equal, again.params, of.params)


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"copied_layers": [0, 2]}, "layers"), ({"copied_layers": [1, 0]}, "ascend"),
     ({"copied_layers": "1"}, "copied_layers"), ({"sliding_window": 0}, "sliding_window"),
     ({"copied_layers": [1]}, "layers.1|shape")],
)  # fmt: skip
def test_files_of_another_shape_are_refused(tmp_path, changed, named):
    import json

    of = head("opt")
    of.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changed
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=named):
        sj.load_head(tmp_path, of.target)


def test_targets_of_other_families_are_refused():
    with pytest.raises(ValueError, match="Llama and OPT"):
        spire_formats.shape(battery.target("t5"), (0,), window=3, sinks=1)
