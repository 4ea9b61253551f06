"""Compiled programs: bounded in number and in memory maps, compiled again when they were dropped."""

import functools
import gc
import itertools
import weakref

import jax
import jax.numpy as jnp
import pytest

import specjax as sj
from specjax import programs
from tests import battery


@pytest.fixture
def limits():
    """Restores the limits of the process after the test."""
    before = programs.compiled_programs()
    yield
    programs.limit_programs(before.capacity, before.max_maps)


def power(x, *, base):
    return base(x) + 1.0


def test_equal_calls_share_a_program_and_static_arguments_or_shapes_do_not():
    run, double = programs.jit(power, static=("base",)), lambda x: 2 * x
    before = programs.compiled_programs().count
    assert run(jnp.ones(3), base=double).tolist() == [3.0] * 3
    run(jnp.zeros(3), base=double)
    assert programs.compiled_programs().count == before + 1
    run(jnp.ones(4), base=double)
    run(jnp.ones(3), base=jnp.negative)
    assert programs.compiled_programs().count == before + 3


def test_the_least_recently_used_program_goes_with_all_that_it_held(limits):
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


def test_donated_buffers_are_reused_and_lowering_keeps_nothing():
    run = programs.jit(power, static=("base",), donate=("x",))
    x, before = jnp.ones(5), programs.compiled_programs().count
    assert "add" in run.lower(x, base=jnp.negative).as_text() and programs.compiled_programs().count == before
    run(x=x, base=jnp.negative)
    assert x.is_deleted()


@pytest.mark.parametrize("name", ["capacity", "max_maps"])
def test_limits_are_positive(name, limits):
    with pytest.raises(ValueError, match=name):
        programs.limit_programs(**{name: 0})


def combinations():
    """Drafters, verifiers and sampling settings of tiny models, each with programs of its own: 432 of them."""
    target, draft = battery.target("opt"), battery.draft("opt")
    made = [
        *(sj.drafters.model(draft, gamma=gamma) for gamma in range(1, 10)),
        *(sj.drafters.ngram(gamma=gamma) for gamma in range(1, 10)),
        *(sj.drafters.suffix(gamma=gamma) for gamma in range(1, 10)),
        *(sj.drafters.layer_skip(target, layers=(0,), gamma=gamma) for gamma in range(1, 10)),
    ]
    settings = [
        {"temperature": 0.0}, {"temperature": 0.8}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1},
        {"repetition_penalty": 1.2},
    ]  # fmt: skip
    for setting, verifier, drafter in itertools.product(settings, ("token", "block"), made):
        yield target, {"drafter": drafter, "verifier": verifier, **setting}


def check_combinations(count: int, max_maps: int) -> int:
    """Runs that many; returns how many programs were evicted."""
    programs.limit_programs(max_maps=max_maps)
    before, first = programs.compiled_programs().evicted, None
    for target, options in itertools.islice(combinations(), count):
        out = sj.generate(target, [[5, 6, 7]], max_new_tokens=6, ignore_eos=True, **options)
        first = first or (target, options, out.tokens)
        now = programs.compiled_programs()
        assert now.maps < max_maps + 2_000 and now.count <= now.capacity and len(out.tokens[0]) == 6
    target, options, tokens = first
    assert sj.generate(target, [[5, 6, 7]], max_new_tokens=6, ignore_eos=True, **options).tokens == tokens
    return programs.compiled_programs().evicted - before


@pytest.mark.skipif(not programs.memory_maps(), reason="the system does not report memory maps")
def test_dozens_of_combinations_stay_within_the_memory_maps(limits):
    jax.clear_caches()
    programs.limit_programs(capacity=1)  # the programs of other tests
    programs.limit_programs(capacity=256)
    gc.collect()
    assert check_combinations(24, programs.memory_maps() + 2_500) > 10


@pytest.mark.slow
def test_a_process_survives_400_combinations(limits):
    assert check_combinations(400, 20_000) > 100
