"""The decoding loop, every drafter on every family: greedy equals plain, distributions are exact, rows are alone."""

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax import categorical, drafters, stopping, trees
from specjax import decoding as loop
from specjax.base import Drafter
from specjax.drafters import chain
from specjax.drafters.writer import model_writer
from specjax.models import attention
from specjax.request import named_verifier
from specjax.stopping import Stop
from specjax.verify.token import token_level
from tests import battery, distributions
from tests.battery import Setting, drafter_for, run, texts

DRAFTERS = ("model-1", "model-3", "model-8", "ngram-1", "ngram-4")
MORE = tuple(f"model-{g}" for g in (2, 4, 5, 6, 7))
FAMILIES = tuple(battery.FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_vary(family):
    """Not one token over and over, which anything would reproduce."""
    assert sum(len(set(row[8:])) > 3 for row in battery.plain(family)) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_greedy_is_the_argmax_of_the_scores(family):
    for row in (0, 4):
        new = np.array(battery.plain(family)[row])
        logits = battery.scores(family, battery.prompts()[row], int(battery.LENGTHS[row]), new)
        assert logits[:-1].argmax(-1).tolist() == new.tolist()


def greedy_equals_plain(kind, family):
    state = run(family, drafter_for(kind, family))
    assert texts(state) == battery.plain(family)
    assert state.stop.tolist() == [Stop.MAX_TOKENS] * battery.ROWS
    totals = jax.device_get(state.totals)
    assert 0 < totals.accepted.sum() < totals.tested.sum() <= totals.drafted.sum()  # both outcomes were met
    assert (totals.rounds + totals.accepted >= battery.Setting.max_new).all()


@pytest.mark.parametrize(
    ("kind", "family"),
    battery.others_slow(
        itertools.product(DRAFTERS, FAMILIES),
        [("model-8", "opt"), ("model-3", "t5"), ("ngram-4", "opt")],
    ),
)  # fmt: skip
def test_greedy_equals_plain(kind, family):
    greedy_equals_plain(kind, family)


def in_pieces(monkeypatch) -> Setting:
    """Caches are read in pieces of few slots, in programs that no other test compiles."""
    for name, slots in {"WHOLE": 8, "FIRST": 4, "ALIGN": 1, "PIECE": 6}.items():
        monkeypatch.setattr(attention, name, slots)
    return Setting(cache_len=61)


def other(kind: str, family: str) -> drafters.LoadedDrafter:
    """Drafters that read caches in ways of their own."""
    target, draft = battery.target(family), battery.draft(family)
    made = {
        "tree": lambda: drafters.tree(draft, trees.regular((2, 2))),
        "cascade": lambda: drafters.cascade(draft, battery.drafter_for("ngram-4", family), gamma=4),
        "small-kv": lambda: drafters.small_kv(target, gamma=2, budget=9),
        "snapkv": lambda: drafters.small_kv(
            target, gamma=2, budget=12, selection=drafters.SnapKV(window=4, observed=4)
        ),
        "layer-skip": lambda: drafters.layer_skip(target, gamma=2, layers=[0]),
    }
    return made[kind]() if kind in made else drafter_for(kind, family)


@pytest.mark.parametrize(
    ("kind", "family"),
    battery.others_slow(
        [
            *itertools.product(("plain", "model-3", "tree", "cascade", "small-kv", "layer-skip"), FAMILIES),
            ("snapkv", "opt"), ("snapkv", "llama"),
        ],
        [("model-3", "opt")],
    ),
)  # fmt: skip
def test_a_cache_read_in_pieces_changes_no_text(monkeypatch, kind, family):
    """Rows grow across the borders of the pieces, and past half of the cache, from where all of it is read."""
    expected, drafter = battery.plain(family), other(kind, family)
    verifier = named_verifier(drafter, None).fn
    assert texts(run(family, drafter, verify=verifier, setting=in_pieces(monkeypatch))) == expected


@pytest.mark.slow
def test_a_stream_goes_on_where_its_cache_is_read_in_pieces(monkeypatch):
    """Stopped before, at and after the borders of pieces, which the rows cross at different times."""
    one = dataclasses.replace(battery.target("opt"), eos=())
    options = {"drafter": sj.drafters.model(battery.draft("opt"), gamma=2), "max_new_tokens": 24, "seed": 3}
    prompts = [[3, 4], [5, 6, 7, 8, 9], [1] * 11]
    whole = sj.generate(one, prompts, **options)
    in_pieces(monkeypatch)
    alike = dataclasses.replace(one, fmt=dataclasses.replace(one.fmt, fill=7))  # other programs
    stream = sj.stream(alike, prompts, **options)
    while stream.result().stop_reasons.count("interrupted"):
        for _ in zip(range(2), stream, strict=False):
            pass
    assert stream.result().tokens == whole.tokens


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model-3", "small-kv"])
def test_a_cache_read_in_pieces_follows_the_joint_distribution(monkeypatch, kind):
    setting = dataclasses.replace(in_pieces(monkeypatch), max_new=3)
    temperature = sampled_temperatures()
    tokens = np.tile(battery.prompts()[4], (len(temperature), 1))
    lengths = np.full((len(temperature),), 9, np.int32)
    state = run("opt", other(kind, "opt"), temperature, tokens=tokens, lengths=lengths, setting=setting)
    for warmth, counts in counts_of(np.asarray(state.tokens)).items():
        assert distributions.chi_square(counts, exact_joint(warmth)) > distributions.ALPHA
        assert distributions.chi_square(counts, exact_joint(warmth + 0.3)) < distributions.ALPHA  # the control


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", MORE)
def test_greedy_equals_plain_for_every_gamma(kind, family):
    greedy_equals_plain(kind, family)


@pytest.mark.parametrize("family", battery.others_slow(FAMILIES, ["t5"]))
def test_a_perfect_draft_is_accepted_whole(family):
    state = run(family, drafters.model(battery.target(family), gamma=3))
    assert texts(state) == battery.plain(family)
    totals = jax.device_get(state.totals)
    assert totals.accepted.sum() == totals.tested.sum()
    assert totals.rounds.tolist() == [battery.Setting.max_new // 4] * battery.ROWS


# --- distributions: the joint of the first three tokens ---------------------------------------------------------------

SAMPLED_ROWS = 4096  # of each temperature
TEMPERATURES = (0.7, 1.3)


def sampled_temperatures(between: float = 0.0) -> np.ndarray:
    """The temperature of each row: with one row `between` after every sixteen."""
    return np.tile([*TEMPERATURES * 8, between], SAMPLED_ROWS // 8)


def exact_joint(temperature: float, family: str = "opt") -> np.ndarray:
    """The target's own distribution of three tokens after one prompt, [V, V, V]."""
    return distributions.joint(battery.exact_model(family, 4, temperature), 3)


def sampled(drafter, family="opt", **options):
    """The final state of SAMPLED_ROWS rows of each temperature after one prompt, with greedy rows between them."""
    temperature = sampled_temperatures()
    tokens = np.tile(battery.prompts()[4, :9], (len(temperature), 1))
    lengths = np.full((len(temperature),), 9, np.int32)
    setting = Setting(max_new=3, cache_len=24)
    state = run(family, drafter, temperature, tokens=tokens, lengths=lengths, setting=setting, **options)
    return jax.device_get((state.tokens, state.totals))


@functools.cache
def shipped(kind, family):
    """`sampled` with a drafter and the verifier as they are."""
    return sampled(drafter_for(kind, family), family)


def counts_of(tokens) -> dict[float, np.ndarray]:
    """Histograms of the first three tokens of the rows of each temperature."""
    temperature, new = sampled_temperatures(), tokens[:, :3]
    greedy = new[temperature == 0.0]
    assert (greedy == greedy[0]).all()
    return {t: distributions.histogram(new[temperature == t], battery.VOCAB) for t in TEMPERATURES}


DISTRIBUTION_CASES = [("opt", "model-2"), ("opt", "ngram-2"), ("llama", "model-2"), ("t5", "model-2")]


@pytest.mark.parametrize(("family", "kind"), battery.others_slow(DISTRIBUTION_CASES, [("opt", "model-2")]))
def test_sampled_rows_follow_the_joint_distribution(family, kind):
    tokens, _ = shipped(kind, family)
    for temperature, histogram in counts_of(tokens).items():
        assert histogram.sum() == SAMPLED_ROWS
        assert distributions.chi_square(histogram, exact_joint(temperature, family)) > distributions.ALPHA


def test_the_overlap_of_sampled_rows_is_their_chance_of_acceptance():
    """Each tested token passes with the mass that p and q share: the sums agree within five standard errors, in a batch
    with greedy rows too, whose distributions have one token."""
    _, totals = shipped("model-2", "opt")
    for one in (0.0, *TEMPERATURES):
        accepted, overlap, tested = (
            getattr(totals, name)[sampled_temperatures() == one].sum() for name in ("accepted", "overlap", "tested")
        )
        spread = (tested * 0.25) ** 0.5 if one else 1e-4 * tested
        assert abs(accepted - overlap) < 5 * spread, (one, accepted, overlap, tested)


def test_the_distribution_test_sees_another_temperature():
    tokens, _ = shipped("model-2", "opt")
    assert distributions.chi_square(counts_of(tokens)[0.7], exact_joint(0.85)) < distributions.ALPHA


def sampled_counts(drafter, family="opt", **options) -> dict[float, np.ndarray]:
    """Histograms of the first three tokens of `sampled`."""
    return counts_of(sampled(drafter, family, **options)[0])


def least(counts: dict[float, np.ndarray], family: str = "opt") -> float:
    """The smallest of the p-values."""
    return min(distributions.chi_square(h, exact_joint(t, family)) for t, h in counts.items())


def accepts_too_much(key, tree, draft, log_p):
    """A broken verifier: it takes every draft that the target does not exclude, as if p >= q."""
    return token_level(key, tree, draft._replace(log_q=jnp.minimum(draft.log_q, log_p)), log_p)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_distribution_test_fails_a_broken_verifier(family):
    counts = sampled_counts(drafter_for("model-2", family), family, verify=accepts_too_much)
    assert least(counts, family) < distributions.ALPHA


class Stored(NamedTuple):
    """State of a drafter that keeps the key of its first round."""

    inner: Any
    key: jax.Array
    kept: jax.Array


def same_key_every_round(drafter: Drafter) -> Drafter:
    """A broken drafter: each row draws the same numbers in every round."""

    def init(params, prompt, length, cache_len, prefilled):
        return Stored(
            drafter.init(params, prompt, length, cache_len, prefilled),
            jnp.zeros((len(length), 2), jnp.uint32),
            jnp.zeros((len(length), 1), bool),
        )

    def propose(params, key, state, pending, warp):
        data = jnp.where(state.kept, state.key, jax.random.key_data(key))
        draft, inner = drafter.propose(params, jax.random.wrap_key_data(data), state.inner, pending, warp)
        return draft, Stored(inner, data, jnp.ones_like(state.kept))

    commit = lambda params, state, new: state._replace(inner=drafter.commit(params, state.inner, new))
    return drafter._replace(init=init, propose=propose, commit=commit)


@pytest.mark.slow
def test_the_distribution_test_fails_draft_noise_kept_between_rounds():
    """As a public implementation does: marginals stay right, the joint does not."""
    right = drafter_for("model-1", "opt")
    broken = right._replace(drafter=same_key_every_round(right.drafter))
    assert least(sampled_counts(broken)) < distributions.ALPHA


@pytest.mark.slow
def test_the_distribution_test_fails_draft_noise_shared_by_positions(monkeypatch):
    one = lambda key, gamma: jnp.broadcast_to(categorical.uniforms(key, (1, 2)), (len(key), gamma, 2))
    monkeypatch.setattr(chain, "noise", lambda key, gamma: categorical.Noise(one(key, gamma)))
    right = drafter_for("model-2", "opt")
    broken = right._replace(drafter=chain.chain.__wrapped__(model_writer(battery.draft("opt").lm), 2))
    assert least(sampled_counts(broken)) < distributions.ALPHA


def rescaled(log_probs, power):
    """The distribution at another temperature; one-hot rows stay."""
    return jax.nn.log_softmax(jnp.where(jnp.isneginf(log_probs), -jnp.inf, log_probs * power))


def draws_warped_and_tells_raw(propose, warmth):
    def lie(params, key, state, pending, warp):
        draft, state = propose(params, key, state, pending, warp)
        return draft._replace(log_q=rescaled(draft.log_q, warmth)), state

    return lie


def draws_raw_and_tells_warped(propose, warmth):
    def lie(params, key, state, pending, warp):
        raw = lambda logits, ancestors=None: rescaled(warp(logits, ancestors), warmth)
        draft, state = propose(params, key, state, pending, raw)
        return draft._replace(log_q=rescaled(draft.log_q, 1 / warmth)), state

    return lie


@pytest.mark.slow
@pytest.mark.parametrize("lie", [draws_warped_and_tells_raw, draws_raw_and_tells_warped])
def test_the_distribution_test_fails_a_draft_distribution_that_is_not_the_one_drawn_from(lie):
    """Temperature on the target's side only."""
    right = drafter_for("model-2", "opt")
    warmth = jnp.asarray(sampled_temperatures(1.0), jnp.float32)[:, None, None]  # greedy rows stay as they are
    broken = right._replace(drafter=right.drafter._replace(propose=lie(right.drafter.propose, warmth)))
    assert least(sampled_counts(broken)) < distributions.ALPHA


# --- rows are alone ----------------------------------------------------------------------------------------------

SAMPLED = [0.0, 0.7, 1.3, 1.0, 0.0, 0.9, 1.1, 0.8]


def test_a_row_does_not_depend_on_its_place_neighbors_or_padding():
    whole = texts(run("opt", drafter_for("model-3", "opt"), SAMPLED))
    order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
    padded = np.concatenate([battery.prompts(), np.full((battery.ROWS, 8), 7, np.int32)], 1)
    moved = texts(
        run(
            "opt", drafter_for("model-3", "opt"), np.array(SAMPLED)[order], tokens=padded[order],
            lengths=battery.LENGTHS[order], rows=order,
        )
    )  # fmt: skip
    assert [whole[i] for i in order] == moved


def test_a_stopped_row_writes_nothing_and_stops_no_other():
    budget = [1, 24, 5, 24, 2, 24, 7, 24]
    full = texts(run("opt", drafter_for("model-3", "opt"), SAMPLED))
    state = run("opt", drafter_for("model-3", "opt"), SAMPLED, budget=budget)
    assert texts(state) == [row[:n] for row, n in zip(full, budget, strict=True)]
    assert (np.asarray(state.totals.rounds) <= budget).all()


# --- stops -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "model-8", "ngram-4"])
def test_eos_inside_a_block_cuts_it_there(kind):
    eos = battery.plain("opt")[3][5]
    state = run("opt", drafter_for(kind, "opt"), setting=Setting(eos=(eos,)))
    for row, new, stop in zip(battery.plain("opt"), texts(state), state.stop.tolist(), strict=True):
        cut = row.index(eos) + 1 if eos in row else len(row)
        assert new == row[:cut]
        assert stop == (Stop.EOS if eos in row else Stop.MAX_TOKENS)


@pytest.mark.parametrize("kind", battery.others_slow(["plain", "model-8"], ["model-8"]))
def test_a_stop_string_across_tokens_cuts_at_the_token_that_completes_it(kind):
    pieces = [bytes([97 + token]) for token in range(battery.VOCAB)]
    row = battery.plain("opt")[2]
    pattern = b"".join(pieces[t] for t in row[6:9])
    table = stopping.automaton([pattern], pieces, battery.VOCAB)
    state = run("opt", drafter_for(kind, "opt"), setting=Setting(automaton=table))
    for whole, new, stop in zip(battery.plain("opt"), texts(state), state.stop.tolist(), strict=True):
        at = b"".join(pieces[t] for t in whole).find(pattern)
        assert new == (whole if at < 0 else whole[: at + 3])
        assert stop == (Stop.MAX_TOKENS if at < 0 else Stop.STOP_STRING)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["plain", "model-8"])
def test_a_full_cache_stops_every_drafter_at_the_same_token(kind, family):
    state = run(family, drafter_for(kind, family), setting=Setting(cache_len=18))
    used = np.ones_like(battery.LENGTHS) if family == "t5" else battery.LENGTHS
    room = np.minimum(18 - used + 1, Setting.max_new)
    assert state.length.tolist() == room.tolist()
    assert texts(state) == [row[:n] for row, n in zip(battery.plain(family), room, strict=True)]
    codes = np.where(room < Setting.max_new, Stop.CACHE_FULL, Stop.MAX_TOKENS)
    assert state.stop.tolist() == codes.tolist()


def test_nan_in_the_weights_stops_the_row_and_commits_nothing():
    broken = jax.tree.map(lambda p: p.at[(0,) * p.ndim].set(jnp.nan), battery.target("opt").params)
    state = run("opt", drafter_for("model-8", "opt"), params=broken)
    assert state.stop.tolist() == [Stop.NAN] * battery.ROWS
    assert state.length.tolist() == [0] * battery.ROWS


# --- penalties, biases and filters act on every slot ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "family"), [*itertools.product(["model-3", "ngram-4"], FAMILIES)])
def test_penalties_biases_and_filters_of_rows(kind, family):
    """Greedy rows with a penalty and a bias, rows of the most probable token only, and rows with banned tokens."""
    penalty, bias, banned = 1.4, {3: -4.0, 5: 1.5}, {token: float("-inf") for token in range(6)}
    state = run(
        family, drafter_for(kind, family), [0.0] * 4 + [1.0] * 2 + [1.5] * 2, top_k=[0] * 4 + [1] * 2 + [0] * 2,
        repetition_penalty=[penalty] * 4 + [1.0] * 4, logit_bias=[bias] * 4 + [None] * 2 + [banned] * 2,
    )  # fmt: skip
    found, plain = texts(state), battery.plain(family)
    for new, prompt, length in zip(found[:4], battery.prompts(), battery.LENGTHS, strict=False):
        logits = battery.scores(family, prompt, int(length), np.array(new))
        first = [battery.target(family).config.start_token] if family == "t5" else prompt[:length].tolist()
        for at, token in enumerate(new):
            warped = battery.plain_distribution(logits[at], {*first, *new[:at]}, 0.0, penalty=penalty, bias=bias)
            assert warped.argmax() == token
    assert found[:4] != plain[:4] and found[4:6] == plain[4:6]
    assert min(min(row) for row in found[6:]) >= 6


# --- compiling and the host --------------------------------------------------------------------------------------


def test_one_trace_and_no_transfer():
    run("opt", drafter_for("model-3", "opt"), SAMPLED)
    before = loop.trace_count()
    other = battery.prompts()[::-1].copy()
    run(
        "opt",
        drafter_for("model-3", "opt"),
        SAMPLED[::-1],
        tokens=other,
        setting=Setting(seed=7, eos=(1,)),
        budget=[5] * 8,
    )
    assert loop.trace_count() == before


def test_generate_does_not_touch_the_host():
    model, drafter = battery.target("opt"), drafter_for("model-8", "opt")
    warm = loop.sampling.sampling_params(battery.ROWS, battery.VOCAB, temperature=0.0)
    decode = loop.DecodeParams(model.params, drafter.params, warm, stopping.rules(battery.VOCAB))
    static = {"model": model.lm, "drafter": drafter.drafter}
    state = loop.prefill(
        decode, loop.row_keys(0, jnp.arange(battery.ROWS)), jnp.asarray(battery.prompts()),
        jnp.asarray(battery.LENGTHS), jnp.full((battery.ROWS,), 24, jnp.int32), **static, cache_len=60, max_new=24,
    )  # fmt: skip
    with jax.transfer_guard("disallow"):
        state = loop.generate(decode, state, verify=token_level, **static)
    assert state.length.tolist() == [24] * battery.ROWS


# --- conditional work in place; that it copies no cache is tested in test_policies.py ------------------------------


@pytest.mark.parametrize(("condition", "turns"), [(True, 1), (False, 0)])
def test_run_if_runs_once_or_not_at_all(condition, turns):
    ran = []

    def run(carry):
        jax.debug.callback(lambda: ran.append(1))
        return carry[0] + 1, carry[1].at[2].set(5.0)

    count, buffer = jax.jit(lambda c, x: loop.run_if(c, run, x))(condition, (jnp.int32(7), jnp.zeros(4)))
    jax.effects_barrier()
    assert len(ran) == turns and int(count) == 7 + turns
    np.testing.assert_array_equal(buffer, [0.0, 0.0, 5.0 * turns, 0.0])
