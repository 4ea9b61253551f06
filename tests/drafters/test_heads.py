"""Drafters that read hidden states: what they receive, and that decoding stays exact with them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decoding as loop
from specjax import drafters, trees
from specjax.models.format import Format
from specjax.planning import program as hlo
from specjax.verify.token import token_level
from tests import battery, distributions
from tests.battery import run, texts
from tests.drafters import drafting
from tests.drafters.heads import STREAMS, loaded, read_again
from tests.models import small
from tests.test_decoding import draws_warped_and_tells_raw, exact_joint, sampled_counts

FAMILIES = tuple(battery.FAMILIES)
GAMMA = 3
KINDS = {
    "last feature": {"tree": trees.chain(GAMMA)},
    "last feature, points": {"tree": trees.chain(GAMMA), "points": True},
    "last feature, tree": {"tree": trees.regular((3, 2)), "points": True},
    "last feature, buckets": {"tree": trees.chain(GAMMA), "buckets": (0, GAMMA)},
    "three streams": {"tree": trees.chain(GAMMA), "capture": STREAMS},
    "three streams, points": {"tree": trees.chain(GAMMA), "capture": STREAMS, "points": True},
    "three streams, tree": {"tree": trees.regular((3, 2)), "capture": STREAMS, "points": True},
    "three streams, buckets": {"tree": trees.chain(GAMMA), "capture": STREAMS, "buckets": (0, GAMMA)},
}
VERIFIERS = {"last feature, tree": "deterministic", "three streams, tree": "deterministic"}
DEFAULT = [("last feature, tree", "t5")]


@functools.cache
def made(kind: str, family: str):
    return loaded(family, **KINDS[kind])


def assert_received(seen, model, rows: list[list[int]], capture) -> None:
    """The hidden states of every committed token but the last, as one forward pass over each text has them."""
    read, length = np.asarray(seen.rows), np.asarray(seen.length)
    for row, expected in enumerate(read_again(model, rows, capture)):
        assert length[row] == len(expected)
        close = 1e-5 * np.abs(expected).max()  # of the largest stream: rounding is relative to what was added up
        np.testing.assert_allclose(read[row, : len(expected)], expected, rtol=1e-5, atol=close)


@pytest.mark.parametrize(
    ("kind", "family"), battery.others_slow([(k, f) for k in KINDS for f in FAMILIES], DEFAULT)
)  # fmt: skip
def test_greedy_equals_plain_and_every_hidden_state_arrives(kind, family):
    drafter = made(kind, family)
    state = run(family, drafter, verify=drafting.verifier(drafter, VERIFIERS.get(kind, "token")))
    assert texts(state) == battery.plain(family)
    totals = jax.device_get(state.totals)
    assert 0 < totals.accepted.sum() < totals.tested.sum()
    assert_received(state.draft, battery.target(family), texts(state), drafter.drafter.capture)


@pytest.mark.slow
def test_rows_that_stopped_early_keep_their_hidden_states():
    state = run("opt", made("three streams", "opt"), budget=[1, 24, 5, 24, 2, 24, 7, 24])
    assert_received(state.draft, battery.target("opt"), texts(state), STREAMS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "family"),
    battery.others_slow(
        [(k, f) for k in ("last feature", "last feature, points", "three streams") for f in FAMILIES],
        [("three streams", "t5")],
    ),
)
def test_sampled_rows_follow_the_joint_distribution(kind, family):
    for temperature, counts in sampled_counts(made(kind, family), family).items():
        assert distributions.chi_square(counts, exact_joint(temperature, family)) > distributions.ALPHA


@pytest.mark.slow
def test_the_distribution_test_fails_a_head_that_returns_another_log_q():
    right = made("three streams", "opt")
    functions = right.drafter._replace(propose=draws_warped_and_tells_raw(right.drafter.propose, 2.0))
    counts = sampled_counts(right._replace(drafter=functions))
    worst = min(distributions.chi_square(h, exact_joint(t, "opt")) for t, h in counts.items())
    assert worst < distributions.ALPHA


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "family"),
    battery.others_slow(
        [(k, f) for k in ("last feature", "last feature, tree", "three streams") for f in FAMILIES],
        [("last feature, tree", "llama")],
    ),
)
def test_inside_a_cascade_a_head_reads_the_middle_model(kind, family):
    """Greedy equality, and after every rollback the hidden states are those of the middle model."""
    middle, inner = battery.draft(family), made(kind, family)
    drafter = drafters.cascade(middle, inner, gamma=4)
    state = run(family, drafter)
    assert texts(state) == battery.plain(family)
    seen, lag = state.draft.inner, np.asarray(state.draft.lag)
    rows = [row[: len(row) - lag[at]] for at, row in enumerate(texts(state))]
    assert_received(seen, middle, rows, inner.drafter.capture)


@pytest.mark.slow
def test_sampled_rows_of_a_cascade_over_a_head_follow_the_joint_distribution():
    drafter = drafters.cascade(battery.draft("opt"), made("three streams", "opt"), gamma=3)
    for temperature, counts in sampled_counts(drafter).items():
        assert distributions.chi_square(counts, exact_joint(temperature)) > distributions.ALPHA


@pytest.mark.slow
def test_a_model_without_the_captured_streams_is_refused():
    decode, state, static = battery.prepare("opt", made("three streams", "opt"))
    static["model"] = battery.target("opt").lm
    with pytest.raises(ValueError, match="capture"):
        loop.one_round.lower(decode, state, verify=token_level, **static)


# --- unused hidden states cost nothing ---------------------------------------------------------------------------


def gathers(kind: str, *, fmt: Format = battery.FMT) -> tuple[list[str], list[str]]:
    """In the optimized decoding loop: gathers of [B, W, D], and buffers of residual streams of several layers."""
    family, rows, width = "opt", battery.ROWS, battery.FAMILIES["opt"][1].width
    drafter = drafters.ngram(gamma=GAMMA) if kind == "ngram" else made(kind, family)
    decode, state, static = battery.prepare(family, drafter)
    if fmt.stacked:
        model = battery.target(family)
        params = small.laid_out(small.laid_out(model.params, battery.FMT), fmt)
        static["model"] = model.family.language_model(model.config, fmt, capture=drafter.drafter.capture)
        slots = battery.Setting.cache_len + drafter.drafter.tree.size
        text = jnp.asarray(battery.prompts()), jnp.asarray(battery.LENGTHS)
        read = jax.eval_shape(lambda: static["model"].prefill(params, *text, slots))
        cache = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), read.cache)
        decode, state = decode._replace(target=params), state._replace(cache=cache)
    text = loop.generate.lower(decode, state, verify=token_level, **static).compile().as_text()
    lines = hlo.program(text)
    block = GAMMA + 1
    shapes = {i.name: i.shape for i in lines}
    gathered = [i.line for i in lines if i.opcode == "gather" and shapes[i.operands[0]] == (rows, block, width)]
    stacked = [i.line for i in lines if i.shape[1:] == (rows, block, width) and len(i.shape) == 4]
    return gathered, stacked


@pytest.mark.slow
def test_no_gather_of_features_that_nothing_reads():
    assert not gathers("ngram")[0]
    assert gathers("last feature")[0]  # the control


@pytest.mark.slow
def test_stacked_layers_keep_no_residual_streams_that_nothing_reads():
    stacked = Format(stacked=True)
    assert not gathers("ngram", fmt=stacked)[1]
    assert gathers("three streams", fmt=stacked)[1]  # the control


@pytest.mark.slow
@pytest.mark.parametrize("family", ["t5"])
def test_prefill_runs_no_decoder_for_hidden_states_that_nothing_reads(family):
    """The start token's forward pass is removed where the drafter does not read it."""

    def dots(drafter) -> int:
        model = battery.target(family)
        lm = model.variant(capture=drafter.drafter.capture)
        decode, state, _ = battery.prepare(family, drafter)
        arrays = (decode, state.key, jnp.asarray(battery.prompts()), jnp.asarray(battery.LENGTHS), state.room)
        static = {"model": lm, "drafter": drafter.drafter, "cache_len": 60, "max_new": 24}
        text = loop.prefill.lower(*arrays, **static).compile().as_text()
        return sum(i.opcode in ("dot", "custom-call") for i in hlo.program(text))

    assert dots(made("last feature", family)) > dots(drafters.plain())
