"""A shared prefix: the request is that of the whole prompts, and the prefix is not read again."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax import drafters, sharding, trees
from specjax.base import Known
from specjax.drafters import LoadedDrafter
from specjax.models.families import FAMILIES
from tests import battery
from tests.drafters import heads
from tests.models.small import assert_close
from tests.models.test_prefill import SLOTS, built, prompts

SHARED = (1, 31, 33, 128, 257)  # around the borders of blocks


@pytest.mark.parametrize(
    ("name", "layout"),
    battery.others_slow(itertools.product(["opt", "llama"], ["cpu", "stacked", "bfloat16"]), [("opt", "cpu")]),
)
def test_a_known_prefix_gives_the_caches_and_streams_of_the_whole_prompt(name, layout):
    lm, _, params = built(name, layout, (0, 2))
    tokens = prompts(1).repeat(3, 0).at[1:, 258:].set(3)
    prefill = jax.jit(lm.prefill, static_argnums=3)
    for count in SHARED:
        length = jnp.asarray([count, min(count + 40, 300), 300], jnp.int32)
        whole = prefill(params, tokens, length, SLOTS)
        read = prefill(params, tokens[:1], jnp.asarray([count]), SLOTS)
        got = prefill(params, tokens, length, SLOTS, Known(read, jnp.asarray(count)))
        inside = np.arange(tokens.shape[1])[None] < np.asarray(length)[:, None]
        bound = 3e-2 if layout == "bfloat16" else 1e-4
        for ours, theirs in zip((got.features, *got.hiddens), (whole.features, *whole.hiddens), strict=True):
            assert_close(np.asarray(ours)[inside], np.asarray(theirs)[inside], bound)
        held = np.pad(inside, ((0, 0), (0, SLOTS - inside.shape[1])))
        for both in zip(jax.tree.leaves(got.cache.layers), jax.tree.leaves(whole.cache.layers), strict=True):
            ours, theirs = (np.moveaxis(np.asarray(a), (-4, -2), (0, 1))[held] for a in both)
            assert_close(ours, theirs, bound)
        np.testing.assert_array_equal(got.pending, whole.pending)
        np.testing.assert_array_equal(got.cache.length, whole.cache.length)


@functools.cache
def model(family: str) -> sj.Model:
    one = battery.target(family)
    return dataclasses.replace(one, eos=())


def drafter_of(kind: str, target: sj.Model) -> LoadedDrafter:
    if kind == "model":
        return drafters.model(battery.draft("llama"), gamma=3)
    if kind == "small_kv":
        return drafters.small_kv(target, gamma=2, budget=12)
    if kind == "heads":
        head = heads.head(trees.chain(3), battery.VOCAB, capture=heads.STREAMS)
        return LoadedDrafter("three streams", head, heads.fitted("llama", 3, heads.STREAMS), target)
    return drafters.plain()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "temperature"), list(itertools.product(["plain", "model", "small_kv", "heads"], [0.0, 1.0]))
)
def test_a_request_with_a_prefix_is_that_of_the_whole_prompts(kind, temperature):
    target = model("llama")
    ids = np.random.default_rng(3).integers(1, battery.VOCAB, 30).tolist()
    rest = [[4], [5, 6, 7], [], [8] * 9]
    run = functools.partial(
        sj.generate, target, drafter=drafter_of(kind, target), max_new_tokens=12, temperature=temperature, seed=4
    )
    got = run(rest, prefix=sj.prefix(target, ids))
    assert got.tokens == run([ids + one for one in rest]).tokens
    assert got.tokens != run([one or [1] for one in rest]).tokens


@pytest.mark.slow
def test_the_prefix_is_not_read_again(monkeypatch):
    """Other keys and values in its place give another text."""
    target = model("opt")
    ids, rest = [3, 4, 5, 6, 7, 8, 9, 10], [[4, 5], [5]]
    known = sj.prefix(target, ids)
    before = sj.generate(target, rest, prefix=known, max_new_tokens=12, temperature=0.0).tokens
    read = known.read()
    spoiled = read._replace(cache=read.cache._replace(layers=jax.tree.map(lambda a: -a, read.cache.layers)))
    monkeypatch.setattr(known, "read", lambda capture: spoiled)
    assert sj.generate(target, rest, prefix=known, max_new_tokens=12, temperature=0.0).tokens != before


@pytest.mark.slow
def test_text_is_tokenized_as_a_whole():
    target = sj.load("bundled/opt-draft")
    start = "Once upon a time, there was a won"
    known = sj.prefix(target, start)
    whole = target.text.encode(start + "derful dog")
    assert tuple(whole[: len(known.tokens)]) != known.tokens  # the tokenizer joins the two
    got = sj.generate(target, ["derful dog", " der"], prefix=known, max_new_tokens=8, temperature=0.0)
    expected = sj.generate(target, [start + "derful dog", start + " der"], max_new_tokens=8, temperature=0.0)
    assert got.tokens == expected.tokens


def test_a_stream_that_is_replayed_keeps_its_prefix():
    target = model("opt")
    known = sj.prefix(target, [3, 4, 5, 6, 7])
    run = functools.partial(sj.stream, target, [[4], [5, 6]], prefix=known, max_new_tokens=6, temperature=0.0)
    stream = run()
    iterator = iter(stream)
    next(iterator), next(iterator)
    replayed = stream._replay()
    np.testing.assert_array_equal(replayed.pending, stream._at.state.pending)
    np.testing.assert_array_equal(replayed.tokens, stream._at.state.tokens)


@pytest.mark.slow
def test_a_mesh_reads_the_prefix_once_for_each_part():
    config, params = FAMILIES["opt"], battery.target("opt").params
    alone, mesh = model("opt"), sharding.make_mesh(4, 2)
    placed = sharding.place(params, mesh, config.rules, battery.FMT, kv_heads=alone.config.kv_heads)
    spread = dataclasses.replace(alone, params=placed, mesh=mesh, rules=config.rules)
    ids, rest = [3, 4, 5, 6, 7, 8], [[4], [5, 6], [7], [8, 9]]
    run = lambda target: (
        sj.generate(target, rest, prefix=sj.prefix(target, ids), max_new_tokens=8, temperature=0.0).tokens
    )
    assert run(spread) == run(alone)


def test_what_has_no_prefix_is_refused():
    target = model("opt")
    known = sj.prefix(target, [3, 4])
    with pytest.raises(ValueError, match="encoder"):
        sj.prefix(battery.target("t5"), [3, 4])
    with pytest.raises(ValueError, match="was not read by the target"):
        sj.generate(battery.draft("opt"), [[3]], prefix=known)
    with pytest.raises(ValueError, match="token ids"):
        sj.generate(target, ["text"], prefix=known)
    with pytest.raises(ValueError, match="positions"):
        sj.prefix(target, [3] * 100)
    with pytest.raises(ValueError, match="empty"):
        sj.prefix(target, [])
