"""Cascades: a draft is what the middle model writes, whatever its own drafter proposed; the output stays exact."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decoding as loop
from specjax import drafters, sampling, stopping, trees, verify
from specjax.drafters import LoadedDrafter
from specjax.drafters.cascade import cascade_drafter
from specjax.model import Model
from specjax.models import opt
from specjax.models.format import default_format
from specjax.stopping import Stop
from specjax.verify.token import token_level
from tests import battery, distributions
from tests.battery import Setting, run, texts
from tests.drafters.test_table import table_of
from tests.test_decoding import SAMPLED, exact_joint, sampled_counts
from tests.verify.test_tree_loop import TreeState, tree_drafter

FAMILIES = tuple(battery.FAMILIES)
module = importlib.import_module("specjax.drafters.cascade")  # whose name is the constructor's in the package


@functools.cache
def cascade_of(kind: str, family: str = "opt") -> LoadedDrafter:
    """Cascades of every kind, by what drafts for the middle model."""
    middle, small = battery.draft(family), battery.draft(family, 0.3)
    if kind == "model":
        return drafters.cascade(middle, drafters.model(small, gamma=2), gamma=4)
    if kind == "ngram":
        return drafters.cascade(middle, drafters.ngram(gamma=3), gamma=4)
    if kind == "table":
        return drafters.cascade(middle, table_of(family, 2), gamma=3)
    if kind == "plain":
        return drafters.cascade(middle, drafters.plain(), gamma=3)
    if kind == "block":
        return drafters.cascade(middle, drafters.model(small, gamma=2), gamma=2, verifier="block")
    if kind == "tree":
        return drafters.cascade(middle, tree_of(small), gamma=4, verifier="multiround")
    if kind == "twins":  # the inner drafter is never wrong about the middle model
        return drafters.cascade(middle, drafters.model(middle, gamma=2), gamma=4)
    if kind == "target":  # the middle model is never wrong about the target
        return drafters.cascade(battery.target(family), drafters.model(small, gamma=2), gamma=4)
    if kind == "four":
        lower = drafters.cascade(battery.draft(family, 0.15), drafters.model(small, gamma=2), gamma=3)
        return drafters.cascade(middle, lower, gamma=5)
    assert kind == "three"  # the middle model twice: what the lower one writes is never refused
    lower = drafters.cascade(middle, drafters.model(small, gamma=2), gamma=3)
    return drafters.cascade(middle, lower, gamma=5)


def tree_of(model) -> LoadedDrafter:
    """The tree drafter of the tests, which learns here to take tokens back."""

    def rewind(params, state, back, token):
        del params, token
        return TreeState(model.lm.keep(state.cache, None, jnp.minimum(1 - back, 0)), state.tokens)

    made = tree_drafter(model.lm, trees.regular((2, 1)))._replace(rewind=rewind)
    return LoadedDrafter("tree", made, model.params, model)


# --- what is drafted ---------------------------------------------------------------------------------------------


def assert_drafts_are_the_models_own(kind: str):
    """Greedy drafts of every round, from ragged and rolled-back caches, equal argmaxes of runs without any cache."""
    made, model = cascade_of(kind), battery.draft("opt")
    decode, state, static = battery.prepare("opt", made)
    score = jax.jit(lambda tokens: model.family.score(model.params, model.config, battery.FMT, tokens).argmax(-1))
    rows = [battery.prompts()[row, :n].tolist() for row, n in enumerate(battery.LENGTHS)]
    kept = []
    for after, info in loop.stream(decode, state, verify=token_level, **static):
        state = after
        drafts = np.asarray(info.proposed)[:, 1:].tolist()
        whole = np.zeros((battery.ROWS, 56), np.int32)
        for row, text in enumerate(rows):
            whole[row, : len(text) + len(drafts[row])] = text + drafts[row]
        best = np.asarray(score(jnp.asarray(whole)))
        for row, text in enumerate(rows):
            if info.active[row]:
                assert drafts[row] == best[row, len(text) - 1 : len(text) - 1 + len(drafts[row])].tolist()
            rows[row] = text + info.committed[row, : info.emitted[row]].tolist()
        kept += info.accepted[np.asarray(info.active)].tolist()
    assert [row[n:] for row, n in zip(rows, battery.LENGTHS, strict=True)] == battery.plain("opt")
    assert set(kept) >= {0, 1, made.drafter.tree.size - 1}  # refused at once and later, and accepted whole
    return jax.device_get(state.draft.tally)


@pytest.mark.slow
def test_drafts_are_the_models_own_over_three_levels():
    """And an inner drafter that is never wrong is never refused: what the target refused, it has forgotten too."""
    tally = assert_drafts_are_the_models_own("three")
    assert tally.accepted.tolist() == tally.tested.tolist()
    assert tally.drafted.min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "ngram", "plain", "block", "tree", "table", "four"])
def test_drafts_are_the_models_own_with_every_drafter(kind):
    tally = assert_drafts_are_the_models_own(kind)
    assert tally.accepted.sum() < tally.tested.sum() or kind == "plain"


@pytest.mark.slow
def test_a_perfect_drafter_is_never_rejected():
    """Nor after the target refused what the middle model had accepted: its cache was rolled back with the other."""
    state = run("opt", cascade_of("twins"))
    outer, inner = jax.device_get((state.totals, state.draft.tally))
    assert 0 < outer.accepted.sum() < outer.tested.sum()
    assert inner.accepted.tolist() == inner.tested.tolist()
    assert (inner.rounds * 2 >= inner.drafted).all()
    assert inner.drafted.min() > 0


@pytest.mark.slow
def test_control_a_drafter_without_rollback_is_detected():
    """The control: with a `rewind` that takes nothing back, twins disagree."""
    middle = battery.draft("opt")
    inner = drafters.model(middle, gamma=2)
    forgets = inner._replace(drafter=inner.drafter._replace(rewind=lambda params, state, back, token: state))
    state = run("opt", drafters.cascade(middle, forgets, gamma=4))
    assert state.draft.tally.accepted.sum() < state.draft.tally.tested.sum()


@pytest.mark.slow
def test_a_perfect_middle_model_is_never_rejected():
    """Every round is accepted whole, so that the levels lag whenever an inner round ends at the last draft token."""
    state = run("opt", cascade_of("target"), setting=Setting(max_new=25))
    outer, inner = jax.device_get((state.totals, state.draft.tally))
    assert outer.accepted.tolist() == outer.tested.tolist()
    assert outer.rounds.tolist() == [5] * battery.ROWS
    assert 0 < inner.accepted.sum() < inner.tested.sum()


# --- the target's text and distribution -------------------------------------------------------------------------------


def assert_greedy_equals_plain(kind: str, family: str):
    state = run(family, cascade_of(kind, family))
    assert texts(state) == battery.plain(family)
    totals = jax.device_get(state.totals)
    assert 0 < totals.accepted.sum() < totals.tested.sum()


@pytest.mark.slow
def test_greedy_equals_plain_on_an_encoder_and_decoder():
    assert_greedy_equals_plain("model", "t5")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["model", "ngram", "plain", "block", "table", "three", "four"])
def test_greedy_equals_plain_everywhere(kind, family):
    assert_greedy_equals_plain(kind, family)


def p_value(made: LoadedDrafter, family: str = "opt") -> float:
    counts = sampled_counts(made, family)
    return min(distributions.chi_square(h, exact_joint(t, family)) for t, h in counts.items())


@pytest.mark.slow
def test_sampled_rows_follow_the_joint_distribution():
    assert p_value(cascade_of("block")) > distributions.ALPHA


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "family"), [("model", "t5"), ("ngram", "llama"), ("table", "opt"), ("three", "opt"), ("tree", "opt")]
)
def test_sampled_rows_follow_the_joint_distribution_everywhere(kind, family):
    assert p_value(cascade_of(kind, family), family) > distributions.ALPHA


def remade() -> LoadedDrafter:
    """The cascade "block", built anew with what a test has broken."""
    right, inner = cascade_of("block"), drafters.model(battery.draft("opt", 0.3), gamma=2)
    return right._replace(
        drafter=cascade_drafter.__wrapped__(right.source.lm, inner.drafter, verify.TABLE["block"].fn, 2)
    )


@pytest.mark.slow
def test_the_distribution_test_fails_the_distribution_of_the_smallest_model(monkeypatch):
    """Told in place of the middle model's, though the inner verifier has changed what was drawn from it."""
    believed, emitted = [], module.committed_block

    def noting(tree, draft, verdict):
        believed.append(draft.log_q)
        return emitted(tree, draft, verdict)

    monkeypatch.setattr(module, "committed_block", noting)
    monkeypatch.setattr(module, "along_path", lambda linear, verdict, log_p: believed.pop())
    assert p_value(remade()) < distributions.ALPHA


@pytest.mark.slow
def test_the_distribution_test_fails_noise_shared_by_inner_rounds(monkeypatch):
    fork = module.round_keys
    same = lambda key: (jax.random.wrap_key_data(jax.random.key_data(key)), *fork(key)[1:])
    monkeypatch.setattr(module, "round_keys", same)
    assert p_value(remade()) < distributions.ALPHA


@pytest.mark.slow
def test_penalties_reach_into_the_inner_rounds():
    """Tokens of earlier inner rounds count as seen: the middle model is the target here, and is never refused."""
    options = {"repetition_penalty": 1.6, "logit_bias": {3: -4.0, 5: 1.5}}
    expected = texts(run("opt", drafters.plain(), **options))
    state = run("opt", cascade_of("target"), **options)
    assert texts(state) == expected
    assert state.totals.accepted.tolist() == state.totals.tested.tolist()
    assert expected != battery.plain("opt")


# --- rows are alone ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_end_early_move_and_are_traced_once():
    made = cascade_of("model")
    whole = texts(run("opt", made, SAMPLED))
    order, budget = np.array([3, 1, 7, 0, 2, 6, 5, 4]), np.array([1, 24, 5, 24, 2, 24, 7, 24])
    traces = loop.trace_count()
    moved = run(
        "opt", made, np.array(SAMPLED)[order], tokens=battery.prompts()[order], lengths=battery.LENGTHS[order],
        rows=order, budget=budget[order],
    )  # fmt: skip
    assert loop.trace_count() == traces
    assert texts(moved) == [whole[row][: budget[row]] for row in order]
    assert (np.asarray(moved.totals.rounds) <= budget[order]).all()
    assert moved.draft.tally.rounds[order == 3].tolist() != [0]


@pytest.mark.slow
def test_a_full_cache_stops_it_at_the_same_token():
    state = run("opt", cascade_of("model"), setting=Setting(cache_len=18))
    room = np.minimum(18 - battery.LENGTHS + 1, Setting.max_new)
    assert texts(state) == [row[:n] for row, n in zip(battery.plain("opt"), room, strict=True)]
    assert state.stop.tolist() == [Stop.CACHE_FULL if n < Setting.max_new else Stop.MAX_TOKENS for n in room]


# --- what does not fit together ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_levels_of_published_shapes_are_one_program():
    """opt-13b, opt-1.3b and opt-125m without weights: the whole loop is traced, and its state keeps its shapes."""

    def shapes_of(size: str) -> Model:
        config, fmt = opt.sizes()[size], default_format("bfloat16", platform="tpu")
        params = jax.eval_shape(lambda key: opt.FAMILY.init(key, config, fmt), jax.random.key(0))
        return Model(f"opt-{size}", opt.FAMILY, config, fmt, params)

    rows, target = 4, shapes_of("13b")
    made = drafters.cascade(shapes_of("1.3b"), drafters.model(shapes_of("125m"), gamma=3), gamma=6)
    warps = sampling.sampling_params(rows, target.vocab_size, temperature=0.8)
    given = loop.DecodeParams(target.params, made.params, warps, stopping.rules(target.vocab_size, eos=[2]))
    init = loop.make_init(target.lm, made.drafter, cache_len=256, max_new=64)
    whole = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    state = jax.eval_shape(init, given, keys, whole(rows, 8), whole(rows), whole(rows))
    static = {"model": target.lm, "drafter": made.drafter, "verify": token_level}
    program = loop.generate.lower(given, state, **static)
    assert jax.tree.map(lambda leaf: leaf.shape, program.out_info) == jax.tree.map(lambda leaf: leaf.shape, state)
    assert made.drafter.tree.size == 7 and "while" in program.as_text()


def test_parts_that_do_not_fit_raise():
    opt, t5 = battery.draft("opt"), battery.draft("t5")
    small = drafters.model(opt)
    with pytest.raises(ValueError, match="gamma"):
        drafters.cascade(opt, small, gamma=0)
    with pytest.raises(ValueError, match="got str"):
        drafters.cascade(opt, "opt-125m")
    with pytest.raises(ValueError, match="lossy-typical"):
        drafters.cascade(opt, small, verifier="lossy-typical")
    with pytest.raises(ValueError, match="block"):
        drafters.cascade(opt, small, verifier="blok")
    with pytest.raises(ValueError, match="'kseq'"):
        drafters.cascade(opt, drafters.ngram(), verifier="kseq")
    with pytest.raises(ValueError, match="encoder-decoder"):
        drafters.cascade(opt, drafters.model(t5))
    with pytest.raises(ValueError, match="rewind"):
        drafters.cascade(opt, small._replace(drafter=small.drafter._replace(rewind=None)))
