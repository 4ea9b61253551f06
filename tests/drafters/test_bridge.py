"""Bridges: what the draft reads is the committed text in its own tokens, and the distribution stays the target's."""

import dataclasses
import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax import decoding as loop
from specjax import drafters
from specjax.drafters import LoadedDrafter, vocabulary
from specjax.drafters.bridge import BridgeParams, intersection, reencoding
from specjax.drafters.vocabulary import NONE, Reading, Spelling, Writing
from specjax.model import Model
from specjax.stopping import Stop
from specjax.types import Siblings
from specjax.verify.token import token_level
from tests import battery, distributions
from tests.battery import Setting, run, texts
from tests.cli import toys
from tests.test_decoding import SAMPLED, exact_joint, sampled_counts

pytestmark = pytest.mark.slow  # heavy to compile; tests/cli/test_drafters.py runs one of each kind by default

module = importlib.import_module("specjax.drafters.bridge")  # whose name is the constructor's in the package
FAMILIES = tuple(battery.FAMILIES)
KINDS = ("intersection", "reencoding")
# The draft's vocabulary: each of its tokens is one of the target's, or one that only the draft has (NONE). Only the
# target has 4, which the draft reads as (3, 1), 10, read as (9, 3, 2), and 8, which has no draft tokens.
ONES = (0, 5, 3, NONE, 7, 1, 9, 11, 2, NONE, 12, 6)
ROWS_OF = (0, 5, 3, 4, 7, 1, 9, 11, 2, 10, 12, 6)  # whose weights they have
READ = {4: (3, 1), 8: (), 10: (9, 3, 2), **{t: (d,) for d, t in enumerate(ONES) if t != NONE}}
# The other way: 3 alone becomes two target tokens, 9 alone none.
BACK = {3: (8, 4), 9: (), **{d: (t,) for d, t in enumerate(ONES) if t != NONE}}
RUNS = {(3, 1): 4, (9, 3, 2): 10, **{(d,): t for d, t in enumerate(ONES) if t != NONE}}
WIDTH, SKIP, OPENING = 3, 2, (8,)


def spelling(table: dict[int, tuple[int, ...]]) -> Spelling:
    tokens = np.zeros((len(table), WIDTH), np.int32)
    for token, ids in table.items():
        tokens[token, : len(ids)] = ids
    return Spelling(jnp.asarray(tokens), jnp.asarray([len(table[t]) for t in range(len(table))], jnp.int32))


@functools.cache
def draft(family: str) -> Model:
    """The target with noise, in the draft's vocabulary."""
    near = battery.draft(family)

    def chosen(leaf):
        for axis, size in enumerate(leaf.shape):
            if size == battery.VOCAB:
                leaf = jnp.take(leaf, jnp.asarray(ROWS_OF), axis=axis)
        return leaf

    config = dataclasses.replace(near.config, vocab_size=len(ONES))
    return dataclasses.replace(near, config=config, params=jax.tree.map(chosen, near.params))


def params(kind: str, family: str) -> BridgeParams:
    opening = () if family == "t5" else OPENING
    reading = Reading(spelling(READ), jnp.int32(SKIP), jnp.asarray(opening, jnp.int32))
    if kind == "reencoding":
        joins = jax.tree.map(jnp.asarray, vocabulary.joins(RUNS))
        return BridgeParams(draft(family).params, reading, Writing(joins, spelling(BACK)))
    source = [ONES.index(t) if t in ONES else NONE for t in range(battery.VOCAB)]
    return BridgeParams(draft(family).params, reading, jnp.asarray(source, jnp.int32))


def bridge_of(kind: str, family: str = "opt", gamma: int = 3, **options) -> LoadedDrafter:
    lm = draft(family).lm
    if kind == "reencoding":
        made = reencoding(lm, gamma, **options)
    else:
        made = intersection(lm, battery.VOCAB, gamma, **options)
    return LoadedDrafter(kind, made, params(kind, family), draft(family))


# --- what is drafted ---------------------------------------------------------------------------------------------


def draft_tokens(text: list[int]) -> list[int]:
    """The draft tokens of a target text, by the definition."""
    rest = text[1:] if text[0] == SKIP else text
    return [*OPENING, *(d for token in rest for d in READ[token])]


def target_tokens(written: list[int]) -> list[int]:
    """Draft tokens as target tokens: the longest run first, by the definition."""
    out, at = [], 0
    while at < len(written):
        for size in range(WIDTH, 0, -1):
            run = tuple(written[at : at + size])
            if run in RUNS:
                out.append(RUNS[run])
                break
        else:
            size = 1
            if not BACK[written[at]]:
                return out
            out += BACK[written[at]]
        at += size
    return out


def next_tokens(rows: list[list[int]]) -> np.ndarray:
    """[B, V] the draft's logits after each row, by a run without any cache."""
    padded = np.zeros((len(rows), battery.MAX_POSITIONS), np.int32)
    for row, text in enumerate(rows):
        padded[row, : len(text)] = text
    return np.asarray(_score(draft("opt").params, jnp.asarray(padded)))[
        np.arange(len(rows)), [len(r) - 1 for r in rows]
    ]


@jax.jit
def _score(weights, tokens):
    return draft("opt").family.score(weights, draft("opt").config, battery.FMT, tokens)


def expected(kind: str, rows: list[list[int]], gamma: int) -> list[list[int]]:
    """What each row proposes greedily after its committed text."""
    contexts, out = [draft_tokens(row) for row in rows], [[] for _ in rows]
    for _ in range(gamma):
        logits = next_tokens([c + o for c, o in zip(contexts, out, strict=True)])
        if kind == "intersection":
            logits[:, [d for d, t in enumerate(ONES) if t == NONE]] = -np.inf
        for row, best in enumerate(logits.argmax(-1)):
            out[row].append(int(best))
    if kind == "intersection":
        return [[ONES[d] for d in row] for row in out]
    return [target_tokens(row)[:gamma] for row in out]


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_follow_the_model_on_the_converted_text(kind):
    """Of every round: after blocks refused at once, in part and accepted whole, and after tokens that tell nothing."""
    gamma = 2  # short enough to be accepted whole here and there
    made = bridge_of(kind, gamma=gamma)
    lengths = np.minimum(battery.LENGTHS, 6)  # the draft's 64 positions last for all of the text
    tokens = battery.prompts()
    tokens[2, lengths[2] - 1], tokens[4, lengths[4] - 1] = 4, 10  # two and three draft tokens; greedy texts have none
    decode, state, static = battery.prepare("opt", made, tokens=tokens, lengths=lengths, setting=Setting(max_new=12))
    rows = [tokens[row, :n].tolist() for row, n in enumerate(lengths)]
    kept, endings = set(), set()
    for _, info in loop.stream(decode, state, verify=token_level, **static):
        wanted = expected(kind, rows, gamma)
        for row in np.flatnonzero(info.active):
            endings.add(len(READ[rows[row][-1]]))
            count = int(info.drafted[row])
            assert info.valid[row, 1 : count + 1].all()
            assert info.proposed[row, 1 : count + 1].tolist() == wanted[row]
            rows[row] += info.committed[row, : info.emitted[row]].tolist()
            kept.add(int(info.accepted[row]))
    assert kept >= {0, 1, gamma}
    assert endings == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_control_a_wrong_conversion_is_detected(kind):
    """The control: with another table, the drafts of the same rows are others."""
    made = bridge_of(kind)
    reading = made.params.reading._replace(spelling=spelling({**READ, 4: (1, 3)}))
    other = made._replace(params=made.params._replace(reading=reading))
    drafts = [np.asarray(first_draft(one).tokens) for one in (made, other)]
    touched = [4 in battery.prompts()[row, :n] for row, n in enumerate(battery.LENGTHS)]
    same = (drafts[0] == drafts[1]).all(1)
    assert same[~np.array(touched)].all() and not same.all()


def first_draft(made: LoadedDrafter, temperature=0.0, **options):
    decode, state, _ = battery.prepare("opt", made, temperature, **options)

    @jax.jit
    def propose(decode, state):
        warp = loop.make_warp(decode.sampling, state.seen)
        return made.drafter.propose(decode.draft, state.key, state.draft, state.pending, warp)[0]

    return propose(decode, state)


def test_joined_and_split_tokens():
    """Every text of four draft tokens, in at most three target tokens."""
    written = np.stack(np.meshgrid(*[np.arange(len(ONES))] * 4, indexing="ij"), -1).reshape(-1, 4).astype(np.int32)
    tokens, count = jax.jit(module.in_target_tokens, static_argnums=2)(params("reencoding", "opt").writing, written, 3)
    for row, some, n in zip(written.tolist(), np.asarray(tokens).tolist(), np.asarray(count), strict=True):
        assert some[:n] == target_tokens(row)[:3]


def test_pack():
    tokens = jnp.arange(24).reshape(2, 4, 3)
    count = jnp.asarray([[1, 0, 3, 2], [0, 0, 1, 0]])
    packed, size = module.pack(tokens, count, 7)
    assert packed.tolist() == [[0, 6, 7, 8, 9, 10, 0], [18, 0, 0, 0, 0, 0, 0]]
    assert size.tolist() == [6, 1]
    first, size = module.pack(tokens, count, 4)
    assert (first[0].tolist(), size.tolist()) == ([0, 6, 7, 8], [4, 1])
    last, size = module.pack(tokens, count, 4, most=jnp.asarray([3, 3]))
    assert (last[0].tolist(), size.tolist()) == ([8, 9, 10, 0], [3, 1])


# --- the target's text and distribution -------------------------------------------------------------------------------


def assert_greedy_equals_plain(kind: str, family: str):
    state = run(family, bridge_of(kind, family))
    assert texts(state) == battery.plain(family)
    totals = jax.device_get(state.totals)
    assert 0 < totals.accepted.sum() < totals.tested.sum() <= totals.drafted.sum()


QUICK = [("intersection", "opt"), ("reencoding", "opt"), ("intersection", "t5"), ("reencoding", "llama")]


@pytest.mark.parametrize(("kind", "family"), QUICK)
def test_greedy_equals_plain(kind, family):
    assert_greedy_equals_plain(kind, family)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "family"), [(k, f) for k in KINDS for f in FAMILIES if (k, f) not in QUICK])
def test_greedy_equals_plain_in_every_family(kind, family):
    assert_greedy_equals_plain(kind, family)


def least(counts: dict[float, np.ndarray], family: str = "opt") -> float:
    """The smallest of the p-values."""
    return min(distributions.chi_square(h, exact_joint(t, family)) for t, h in counts.items())


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_rows_follow_the_joint_distribution(kind):
    assert least(sampled_counts(bridge_of(kind, gamma=2))) > distributions.ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_sampled_rows_follow_the_joint_distribution_in_every_family(kind, family):
    assert least(sampled_counts(bridge_of(kind, family, gamma=2), family), family) > distributions.ALPHA


def reporting(change, kind: str = "intersection") -> LoadedDrafter:
    """A bridge that changes its draft after drawing it."""
    right = bridge_of(kind, gamma=2)

    def propose(*args):
        drafted, state = right.drafter.propose(*args)
        return change(drafted), state

    return right._replace(drafter=right.drafter._replace(propose=propose))


def test_control_an_unnormalized_distribution_is_detected():
    """Tokens that are not shared are masked without renormalization: log_q has less mass than was sampled from."""
    broken = reporting(lambda drafted: drafted._replace(log_q=drafted.log_q + jnp.log(0.6)))
    assert least(sampled_counts(broken)) < distributions.ALPHA


def test_control_point_masses_reported_as_samples_are_detected():
    """A re-encoded text with a uniform log_q."""
    even = jnp.full((battery.VOCAB,), -np.log(battery.VOCAB), jnp.float32)
    distributions_of = lambda tokens: jnp.broadcast_to(even, (*tokens.shape, battery.VOCAB))
    broken = reporting(lambda drafted: drafted._replace(log_q=distributions_of(drafted.tokens)), "reencoding")
    assert least(sampled_counts(broken)) < distributions.ALPHA


def test_the_reported_distribution_is_restricted_and_normalized():
    drafted = first_draft(bridge_of("intersection"), SAMPLED)
    q = np.exp(np.asarray(drafted.log_q[:, :-1], np.float64))
    np.testing.assert_allclose(q.sum(-1), 1, atol=1e-5)
    only_target = [t for t in range(battery.VOCAB) if t not in ONES]
    assert (q[..., only_target] == 0).all()
    logits = next_tokens([draft_tokens(battery.prompts()[row, :n].tolist()) for row, n in enumerate(battery.LENGTHS)])
    for row, temperature in enumerate(SAMPLED):
        if temperature and battery.LENGTHS[row] <= 6:
            probs = battery.plain_distribution([logits[row, ONES.index(t)] if t in ONES else -np.inf
                                     for t in range(battery.VOCAB)], set(), temperature)  # fmt: skip
            np.testing.assert_allclose(q[row, 0], probs, atol=2e-5)


def test_kinds_of_drafts():
    sampled, points = (bridge_of(kind).drafter for kind in KINDS)
    assert (sampled.vocab_size, points.vocab_size, points.siblings) == (battery.VOCAB, None, Siblings.POINTS)
    first, second = (first_draft(bridge_of("reencoding"), 1.0, setting=Setting(seed=seed)) for seed in (0, 1))
    assert first.log_q is None
    np.testing.assert_array_equal(first.tokens, second.tokens)


# --- rows are alone, and end early -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_its_place_neighbors_or_padding(kind):
    whole = texts(run("opt", bridge_of(kind), SAMPLED))
    order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
    padded = np.concatenate([battery.prompts(), np.full((battery.ROWS, 8), 4, np.int32)], 1)
    moved = run("opt", bridge_of(kind), np.array(SAMPLED)[order], tokens=padded[order], lengths=battery.LENGTHS[order],
                rows=order)  # fmt: skip
    assert [whole[i] for i in order] == texts(moved)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_row_changes_nothing_and_stops_no_other(kind):
    budget = [1, 24, 5, 24, 2, 24, 7, 24]
    full = texts(run("opt", bridge_of(kind), SAMPLED))
    before = loop.trace_count()
    state = run("opt", bridge_of(kind), SAMPLED, budget=budget)
    assert texts(state) == [row[:n] for row, n in zip(full, budget, strict=True)]
    assert loop.trace_count() == before  # and one trace serves both


def test_nothing_is_drafted_where_the_warp_removes_all_shared_tokens():
    """Only tokens that the draft lacks are allowed: the rows go on plainly, and no NaN stops them."""
    banned = {t: float("-inf") for t in range(battery.VOCAB) if t in ONES}
    state = run("opt", bridge_of("intersection"), 1.0, logit_bias=banned)
    assert state.stop.tolist() == [Stop.MAX_TOKENS] * battery.ROWS
    assert {t for row in texts(state) for t in row} <= {4, 8, 10}
    assert state.totals.drafted.sum() == 0


def test_nan_in_the_draft_stops_the_rows():
    made = bridge_of("intersection")
    broken = jax.tree.map(lambda p: p.at[(0,) * p.ndim].set(jnp.nan), made.params.model)
    state = run("opt", made._replace(params=made.params._replace(model=broken)), 1.0)
    assert state.stop.tolist() == [Stop.NAN] * battery.ROWS


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_room_decodes_plainly(kind, monkeypatch):
    """Every token takes three draft tokens and there is room for one: nothing is drafted, and the text is the same."""
    monkeypatch.setattr(module, "SLACK", 0)
    made = bridge_of(kind)
    dense = made.params.reading._replace(spelling=spelling(dict.fromkeys(range(battery.VOCAB), (9, 3, 2))))
    lm = draft("opt").lm
    fresh = {
        "intersection": lambda: intersection.__wrapped__(lm, battery.VOCAB, 3, stretch=1),
        "reencoding": lambda: reencoding.__wrapped__(lm, 3, stretch=1),
    }[kind]()
    state = run("opt", made._replace(drafter=fresh, params=made.params._replace(reading=dense)))
    assert texts(state) == battery.plain("opt")
    drafted = np.asarray(state.totals.drafted)
    assert drafted.max() <= 9  # the first rounds
    assert (np.asarray(state.totals.rounds) > 15).all()


# --- the user's constructors -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    return sj.load("bundled/opt-tiny")


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A model whose tokens are bytes."""
    return sj.load(toys.write_model(tmp_path_factory.mktemp("letters")))


PROMPTS = ["Once upon a time", "The old man"]


@pytest.mark.slow
def test_between_one_tokenizer_and_itself_a_bridge_is_the_plain_chain(tiny):
    """The same distributions, the same draws: every token of a sampled run is that of `drafters.model`."""
    options = {"max_new_tokens": 16, "temperature": 0.8}
    bridged = sj.generate(tiny, PROMPTS, drafter=drafters.bridge(tiny, tiny, gamma=3), **options)
    chained = sj.generate(tiny, PROMPTS, drafter=drafters.model(tiny, gamma=3), **options)
    assert bridged.tokens == chained.tokens
    assert bridged.lossless


@pytest.mark.slow
def test_re_encoding_with_one_tokenizer_is_never_rejected(tiny):
    out = sj.generate(tiny, PROMPTS, drafter=drafters.reencode(tiny, tiny, gamma=3), max_new_tokens=16, temperature=0.0)
    assert out.stats.accepted_per_tested == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("constructor", [drafters.bridge, drafters.reencode])
def test_words_draft_for_letters(constructor, tiny, letters):
    options = {"max_new_tokens": 12, "temperature": 0.0}
    out = sj.generate(letters, PROMPTS, drafter=constructor(tiny, letters, gamma=3), **options)
    assert out.tokens == sj.generate(letters, PROMPTS, **options).tokens
    assert out.stats.accepted_per_tested is not None


def test_without_a_bridge_another_vocabulary_is_refused(tiny, letters):
    with pytest.raises(ValueError, match=rf"{tiny.vocab_size}.*257.*drafters\.bridge"):
        sj.generate(letters, PROMPTS, drafter=drafters.model(tiny))


@pytest.mark.parametrize("constructor", [drafters.bridge, drafters.reencode])
def test_invalid_bridges_raise(constructor, tiny, letters):
    with pytest.raises(ValueError, match="gamma"):
        constructor(tiny, letters, gamma=0)
    with pytest.raises(ValueError, match="width"):
        constructor(tiny, letters, width=True)
    with pytest.raises(ValueError, match="stretch"):
        constructor(tiny, letters, stretch=0)
    with pytest.raises(ValueError, match="draft"):
        constructor("bundled/opt-tiny", letters)
    with pytest.raises(ValueError, match="rewind"):
        drafters.cascade(tiny, constructor(tiny, tiny))
    with pytest.raises(ValueError, match="target"):
        constructor(tiny, None)
    with pytest.raises(ValueError, match="tokenizer"):
        constructor(tiny, battery.target("opt"))
    made = constructor(tiny, letters)
    with pytest.raises(ValueError, match=r"letters.*bundled/opt-tiny"):
        sj.generate(tiny, PROMPTS, drafter=made)
