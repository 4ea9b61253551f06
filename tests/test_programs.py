"""Compiled programs: bounded in number and in memory maps, compiled again when they were dropped."""

import dataclasses
import functools
import gc
import itertools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax import decoding, programs, request
from specjax.model import Model
from specjax.models import opt
from tests import battery


@pytest.fixture
def limits():
    """Restores the limits of the process after the test."""
    before = programs.compiled_programs()
    yield
    names = ("capacity", "max_maps", "smallest_prompt", "smallest_cache")
    programs.limit_programs(**{name: getattr(before, name) for name in names})


def power(x, *, base):
    return base(x) + 1.0


def test_equal_calls_share_a_program_and_static_arguments_or_shapes_do_not(limits):
    programs.limit_programs(max_maps=60_000)  # none is dropped here, whatever ran before
    run, double = programs.jit(power, static=("base",)), lambda x: 2 * x
    before = programs.compiled_programs().count
    assert run(jnp.ones(3), base=double).tolist() == [3.0] * 3
    run(jnp.zeros(3), base=double)
    assert programs.compiled_programs().count == before + 1
    run(jnp.ones(4), base=double)
    run(jnp.ones(3), base=jnp.negative)
    assert programs.compiled_programs().count == before + 3


@pytest.mark.slow
def test_the_least_recently_used_program_goes_with_all_that_it_held(limits):
    gc.freeze()  # what other tests left: the collector need not walk through it
    run = programs.jit(power, static=("base",))
    bases = [functools.partial(jnp.add, float(n)) for n in range(3)]
    held = [weakref.ref(base) for base in bases]
    programs.limit_programs(capacity=2)
    for base in (bases[0], bases[1], bases[0], bases[2]):
        run(jnp.ones(2), base=base)
    evicted = programs.compiled_programs().evicted
    run(jnp.ones(2), base=bases[0])
    assert programs.compiled_programs().evicted == evicted and programs.compiled_programs().count == 2
    del base, bases
    gc.collect()
    assert [ref() is not None for ref in held] == [True, False, True]


def test_donated_buffers_are_reused_and_lowering_keeps_nothing(limits):
    programs.limit_programs(max_maps=60_000)
    run = programs.jit(power, static=("base",), donate=("x",))
    x, before = jnp.ones(5), programs.compiled_programs().count
    assert "add" in run.lower(x, base=jnp.negative).as_text() and programs.compiled_programs().count == before
    run(x=x, base=jnp.negative)
    assert x.is_deleted()


@pytest.mark.parametrize("name", ["capacity", "max_maps", "smallest_prompt", "smallest_cache"])
def test_limits_are_positive(name, limits):
    with pytest.raises(ValueError, match=name):
        programs.limit_programs(**{name: 0})


def combinations():
    """Drafters, verifiers and batch sizes of tiny models, each with programs of its own: 432 of them."""
    target, draft = battery.target("opt"), battery.draft("opt")
    made = [
        *(sj.drafters.model(draft, gamma=gamma) for gamma in range(1, 10)),
        *(sj.drafters.ngram(gamma=gamma) for gamma in range(1, 10)),
        *(sj.drafters.suffix(gamma=gamma) for gamma in range(1, 10)),
        *(sj.drafters.layer_skip(target, layers=(0,), gamma=gamma) for gamma in range(1, 10)),
    ]
    for rows, verifier, drafter in itertools.product(range(1, 7), ("token", "block"), made):
        yield target, [[5, 6, 7]] * rows, {"drafter": drafter, "verifier": verifier}


def check_combinations(start: int, stop: int, max_maps: int, more: int) -> int:
    """Runs those, with at most that many maps `more` at any time; returns how many programs were evicted."""
    programs.limit_programs(max_maps=max_maps)
    before, first = programs.compiled_programs().evicted, None
    for target, prompts, options in itertools.islice(combinations(), start, stop):
        out = sj.generate(target, prompts, max_new_tokens=6, ignore_eos=True, **options)
        first = first or (target, prompts, options, out.tokens)
        now = programs.compiled_programs()
        assert now.maps < max_maps + more and now.count <= now.capacity and len(out.tokens[0]) == 6
    target, prompts, options, tokens = first
    assert sj.generate(target, prompts, max_new_tokens=6, ignore_eos=True, **options).tokens == tokens
    return programs.compiled_programs().evicted - before


@pytest.mark.slow
@pytest.mark.skipif(not programs.memory_maps(), reason="the system does not report memory maps")
def test_combinations_stay_within_the_memory_maps(limits):
    """The limits follow from the maps of one request, which depend on how well programs are compiled."""
    programs.limit_programs(capacity=1)  # the programs of other tests
    programs.limit_programs(capacity=256)
    gc.collect()
    before = programs.memory_maps()
    check_combinations(9, 10, before + 20_000, 2_000)
    one = programs.memory_maps() - before
    assert check_combinations(10, 12, before + one // 2, 3 * one // 2) > 2


@pytest.mark.slow
def test_a_process_survives_400_combinations(limits):
    assert check_combinations(0, 400, 20_000, 2_000) > 100


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 65, 100, 4097])
def test_buckets_double_and_end_at_the_positions(size, limits):
    assert programs.prompt_bucket(size) == max(32, 1 << (size - 1).bit_length())
    assert programs.cache_bucket(size) == max(128, 1 << (size - 1).bit_length())
    assert programs.cache_bucket(size, 50) == 50
    programs.limit_programs(smallest_cache=48)
    assert programs.cache_bucket(size) >= size and programs.cache_bucket(48) == 48 and programs.cache_bucket(49) == 96


@pytest.mark.slow
def test_a_short_prompt_is_no_wider_for_a_long_answer():
    """Arrays of short prompts are read in small blocks, whatever the cache; there are two widths for each cache."""
    model = sj.load("bundled/opt-tiny")
    widths = {}
    for tokens in (1, 20, 256, 257, 400):
        job = request.prepare(model, [[5] * tokens], max_new_tokens=[500 - tokens]).begin()
        widths[tokens] = job.prompt.tokens.shape[1]
    assert widths == {1: 256, 20: 256, 256: 256, 257: job.cache_len, 400: job.cache_len}
    assert request.prepare(model, [[5]], max_new_tokens=[9]).begin().prompt.tokens.shape[1] == 128


BUCKETS = {"smallest_cache": 128, "smallest_prompt": 32}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "cache", "prompt"), [("opt", 1, 1), ("t5", 1, 1), ("opt", 48, 16), ("t5", 48, 16)])
def test_tokens_do_not_depend_on_the_buckets(family, cache, prompt, limits):
    drafter, prompts = sj.drafters.model(battery.draft(family), gamma=3), [[5, 6, 7], [3] * 9]
    options = {"max_new_tokens": [20, 7], "temperature": [0.0, 0.9], "drafter": drafter, "ignore_eos": True}
    outputs = []
    for smallest in (BUCKETS, {"smallest_cache": cache, "smallest_prompt": prompt}):
        programs.limit_programs(**smallest)
        outputs.append(sj.generate(battery.target(family), prompts, **options).tokens)
    assert outputs[0] == outputs[1]
    assert [len(row) for row in outputs[0]] == [20, 7]


def long_model():
    """A model of one layer with 2,048 positions."""
    config = dataclasses.replace(battery.FAMILIES["opt"][1], layers=1, max_positions=2048)
    params = opt.FAMILY.init(jax.random.key(3), config, battery.FMT)
    return Model("long", opt.FAMILY, config, battery.FMT, params)


def check_requests(count: int, *, prompt: int, new: int, most: int) -> None:
    """Random requests of at most that many tokens: their programs are few, counted as traces and by the backend."""
    compiled, model, rng = [], long_model(), np.random.default_rng(0)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if event == "/jax/core/compile/backend_compile_duration" else None
    )
    traces, before = decoding.trace_count(), programs.compiled_programs().count
    for _ in range(count):
        tokens, budget = rng.integers(0, battery.VOCAB, rng.integers(1, prompt + 1)), int(rng.integers(1, new + 1))
        out = sj.generate(model, [tokens.tolist()], max_new_tokens=budget, ignore_eos=True, temperature=0.0)
        assert [len(row) for row in out.tokens] == [budget]
    assert decoding.trace_count() - traces <= most
    assert programs.compiled_programs().count - before <= most + 1  # the keys of the rows are a program
    assert len(compiled) <= most + 1


@pytest.mark.slow
def test_random_requests_share_programs():
    check_requests(12, prompt=200, new=50, most=4)


@pytest.mark.slow
def test_100_random_requests_compile_at_most_12_programs():
    check_requests(100, prompt=1500, new=500, most=12)


@pytest.mark.slow
def test_rotary_positions_do_not_end():
    """5,000 tokens of a model that was trained on 64 positions, with a draft and without."""
    target, draft = battery.target("llama"), battery.draft("llama")
    assert target.config.max_positions == 64
    options = {"max_new_tokens": 5000, "temperature": 0.0, "ignore_eos": True}
    plain, drafted = (sj.generate(target, [[5, 6, 7]], drafter=d, **options) for d in (None, sj.drafters.model(draft)))
    assert len(plain.tokens[0]) == 5000 and plain.stop_reasons == ["max_tokens"]
    assert drafted.tokens == plain.tokens
