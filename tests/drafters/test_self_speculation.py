"""Drafters that borrow the target's cache, in the batteries: greedy equals plain, the joint distribution, rows that
end early, rows that are alone, one trace, no copy of the cache, and loans that are abused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decoding as loop
from specjax import drafters
from specjax.drafters import Retrieval, Sinks, SnapKV
from specjax.models.format import Format
from specjax.planning import program as hlo
from specjax.stopping import Stop
from specjax.verify.token import token_level
from tests import battery, distributions
from tests.battery import Setting, prepare, run, texts
from tests.models import small
from tests.test_decoding import accepts_too_much, exact_joint, least, sampled_counts

pytestmark = pytest.mark.slow  # heavy to compile; tests/cli/test_drafters.py runs one of each kind by default

FAMILIES = tuple(battery.FAMILIES)
SAMPLED = [0.0, 0.7, 1.3, 1.0, 0.0, 0.9, 1.1, 0.8]
SNAP, CHUNKS = SnapKV(window=5, observed=3, pool=3, every=4), Retrieval(window=5, chunk=2, observed=2, every=3)
MAKE = {
    "sinks": lambda t, gamma=3: drafters.small_kv(t, gamma=gamma, budget=2 * gamma + 2, selection=Sinks(2)),
    "snapkv": lambda t, gamma=3: drafters.small_kv(t, gamma=gamma, budget=3 * gamma, selection=SNAP),
    "retrieval": lambda t, gamma=3: drafters.small_kv(t, gamma=gamma, budget=3 * gamma, selection=CHUNKS),
    "layer-skip": lambda t, gamma=3: drafters.layer_skip(t, gamma=gamma, layers=[0]),
    "int8": lambda t, gamma=3: drafters.quantized(t, gamma=gamma),
}
PAIRS = [
    (kind, family) for kind in MAKE for family in FAMILIES if family != "t5" or kind not in ("snapkv", "retrieval")
]
QUICK = [
    ("sinks", "t5"), ("snapkv", "llama"), ("retrieval", "opt"), ("layer-skip", "t5"), ("int8", "llama"),
]  # fmt: skip


def marked(pairs):
    return [pair if pair in QUICK else pytest.param(*pair, marks=pytest.mark.slow) for pair in pairs]


def made(kind, family, gamma=3):
    return MAKE[kind](battery.target(family), gamma)


@pytest.mark.parametrize(("kind", "family"), marked(PAIRS))
def test_greedy_equals_plain(kind, family):
    """Ragged rows, most of them far longer than the budgets."""
    state = run(family, made(kind, family))
    assert texts(state) == battery.plain(family)
    assert state.stop.tolist() == [Stop.MAX_TOKENS] * battery.ROWS
    totals = jax.device_get(state.totals)
    assert 0 < totals.accepted.sum() <= totals.tested.sum() <= totals.drafted.sum()
    if kind != "int8":  # whose draft is nearly the target
        assert totals.accepted.sum() < totals.tested.sum()  # both outcomes were met


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_budget_for_the_whole_text_makes_a_perfect_draft(family):
    """All slots, all positions, the ring and the rounds' copies: one wrong number and a token would be refused."""
    loaded = drafters.small_kv(battery.target(family), gamma=3, budget=64, selection=Sinks(2))
    state = run(family, loaded)
    totals = jax.device_get(state.totals)
    assert totals.accepted.sum() == totals.tested.sum() > 0
    assert totals.rounds.tolist() == [battery.Setting.max_new // 4] * battery.ROWS


@pytest.mark.parametrize(("kind", "family"), battery.others_slow(PAIRS, [("snapkv", "llama"), ("int8", "llama")]))
def test_sampled_rows_follow_the_joint_distribution(kind, family):
    """Three tokens after a prompt of nine: longer than the budgets of six and seven."""
    if kind == "int8":  # coarser, or the draft's distribution would be too close to the target's
        loaded = drafters.quantized(battery.target(family), gamma=2)
        loaded = loaded._replace(params=jax.tree.map(lambda a: a // 9 * 9 if a.dtype == jnp.int8 else a, loaded.params))
    else:
        loaded = tight(kind, family)
    for temperature, histogram in sampled_counts(loaded, family).items():
        assert distributions.chi_square(histogram, exact_joint(temperature, family)) > distributions.ALPHA


def tight(kind, family):
    """gamma 2 and budgets below the prompt's nine tokens."""
    target = battery.target(family)
    if kind == "layer-skip":
        return made(kind, family, 2)
    if kind == "sinks":
        return drafters.small_kv(target, gamma=2, budget=6, selection=Sinks(2))
    chosen = {"snapkv": SnapKV(3, 3, 3, 1), "retrieval": Retrieval(3, 2, 1, 1)}[kind]
    return drafters.small_kv(target, gamma=2, budget=7, selection=chosen)


@pytest.mark.parametrize(("kind", "family"), [("sinks", "opt"), ("layer-skip", "t5")])
def test_the_distribution_test_fails_a_broken_verifier(kind, family):
    assert least(sampled_counts(tight(kind, family), family, verify=accepts_too_much), family) < distributions.ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sinks", "snapkv"])
def test_a_row_does_not_depend_on_its_place_neighbors_or_padding(kind):
    """Rows choose their slots at times of their own: a neighbor's turn must not be theirs."""
    loaded = made(kind, "opt")
    whole = texts(run("opt", loaded, SAMPLED))
    order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
    padded = np.concatenate([battery.prompts(), np.full((battery.ROWS, 8), 7, np.int32)], 1)
    more = {"tokens": padded[order], "lengths": battery.LENGTHS[order], "rows": order}
    moved = run("opt", loaded, np.array(SAMPLED)[order], **more)
    assert [whole[i] for i in order] == texts(moved)
    alone = {"tokens": battery.prompts()[2:3], "lengths": battery.LENGTHS[2:3], "rows": [2]}
    assert texts(run("opt", loaded, SAMPLED[2:3], **alone)) == whole[2:3]


@pytest.mark.parametrize("kind", ["snapkv", "layer-skip"])
def test_a_stopped_row_writes_nothing_and_stops_no_other(kind):
    budget = [1, 24, 5, 24, 2, 24, 7, 24]
    loaded = made(kind, "opt")
    full = texts(run("opt", loaded, SAMPLED))
    state = run("opt", loaded, SAMPLED, budget=budget)
    assert texts(state) == [row[:n] for row, n in zip(full, budget, strict=True)]
    assert (np.asarray(state.totals.rounds) <= budget).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sinks", "layer-skip"])
def test_a_full_cache_stops_rows_at_the_same_token(kind):
    state = run("opt", made(kind, "opt"), setting=Setting(cache_len=18))
    room = np.minimum(18 - battery.LENGTHS + 1, Setting.max_new)
    plain = battery.plain("opt")
    assert texts(state) == [row[:n] for row, n in zip(plain, room, strict=True)]


def test_one_trace_for_equal_drafters():
    """The constructors give the same drafter for the same arguments: nothing compiles twice."""
    for kind in MAKE:
        assert made(kind, "opt").drafter == made(kind, "opt").drafter
    run("opt", made("snapkv", "opt"), SAMPLED)
    before = loop.trace_count()
    run("opt", made("snapkv", "opt"), SAMPLED[::-1], lengths=battery.LENGTHS[::-1].copy())
    assert loop.trace_count() == before


@pytest.mark.parametrize("kind", ["sinks", "snapkv", "layer-skip"])
def test_no_copy_of_the_targets_cache_in_the_loop(kind):
    decode, state, static = prepare("opt", made(kind, "opt"))
    text = loop.generate.lower(decode, state, verify=token_level, **static).compile().as_text()
    buffer = state.cache.layers[0].k
    assert buffer.size > 4 * 16 * 32  # and of no weight
    assert not hlo.copies(hlo.while_body(text), buffer.size)


# --- what a draft step reads -------------------------------------------------------------------------------------


def shapes_in_the_draft_loop(kind: str) -> set[int]:
    """Every extent of an array inside the loop over gamma draft steps."""
    decode, state, static = prepare("opt", made(kind, "opt"))
    drafter = static["drafter"]
    warp = loop.make_warp(decode.sampling, None)
    traced = jax.make_jaxpr(lambda s: loop.propose(drafter, decode.draft, s.key, s, warp)[0])(state)
    (steps,) = [e for e in traced.eqns if e.primitive.name == "scan" and e.params["length"] == 3]
    return {extent for jaxpr in inner(steps) for e in jaxpr.eqns for v in e.invars for extent in v.aval.shape}


def inner(equation):
    for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
        if hasattr(value, "jaxpr"):
            yield value.jaxpr
            for below in value.jaxpr.eqns:
                yield from inner(below)


def test_a_draft_step_reads_the_budget_and_no_more():
    whole = Setting.cache_len + 4
    assert whole in shapes_in_the_draft_loop("layer-skip")  # the control
    for kind, slots in (("sinks", 11), ("snapkv", 12), ("retrieval", 12)):
        extents = shapes_in_the_draft_loop(kind)
        assert slots in extents
        assert whole not in extents


# --- stacked layers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("snapkv", "llama"),
        pytest.param("layer-skip", "opt", marks=pytest.mark.slow),
        pytest.param("retrieval", "opt", marks=pytest.mark.slow),
        pytest.param("int8", "llama", marks=pytest.mark.slow),
        pytest.param("sinks", "llama", marks=pytest.mark.slow),
    ],
)
def test_stacked_layers_draft_the_same(kind, name, monkeypatch):
    """Scanned layers propose what unrolled ones do, round by round."""
    found = {}
    for fmt in (battery.FMT, Format(stacked=True)):
        model = battery.target(name)
        in_out = small.laid_out(model.params, battery.FMT)  # its (out, in) kernels, turned back
        params = small.laid_out(in_out, fmt) if fmt.stacked else model.params
        laid = dataclasses.replace(model, fmt=fmt, params=params)
        monkeypatch.setattr(battery, "target", lambda family, laid=laid: laid)
        decode, state, static = prepare(name, MAKE[kind](laid), setting=Setting(max_new=12))
        found[fmt] = [
            (np.asarray(info.proposed), np.asarray(info.committed))
            for _, info in loop.stream(decode, state, verify=token_level, **static)
        ]
        monkeypatch.undo()
    for ours, theirs in zip(*found.values(), strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[1], theirs[1])


# --- loans -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_control_a_drafter_that_changes_the_targets_cache_is_detected():
    """The control: committed slots written, or lengths not given back, and greedy texts are others."""
    loaded = made("layer-skip", "opt")
    plain = battery.plain("opt")

    def abused(spoil):
        def propose(*arguments):
            draft, state, cache = loaded.drafter.propose(*arguments)
            return draft, state, spoil(cache)

        return loaded._replace(drafter=loaded.drafter._replace(propose=propose))

    assert texts(run("opt", abused(lambda cache: cache))) == plain
    assert texts(run("opt", abused(lambda cache: cache._replace(length=cache.length + 1)))) != plain
    spoiled = lambda cache: cache._replace(layers=jax.tree.map(lambda a: a.at[:, :, 0].set(1.0), cache.layers))
    assert texts(run("opt", abused(spoiled))) != plain


def test_another_target_raises():
    loaded = made("sinks", "opt")
    other = battery.target("opt")
    bigger = dataclasses.replace(other, name="bigger", config=dataclasses.replace(other.config, layers=3))
    with pytest.raises(ValueError, match="bigger"):
        loaded.check(bigger)
    loaded.check(other)


@pytest.mark.parametrize("make", [drafters.small_kv, drafters.layer_skip, drafters.quantized])
def test_invalid_target_and_gamma_raise(make):
    with pytest.raises(ValueError, match="target"):
        make("opt")
    with pytest.raises(ValueError, match="gamma"):
        make(battery.target("opt"), gamma=0)
