"""Policies of draft length: their rules by hand, and whole runs: lossless, rows alone, no work where nobody drafts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decoding as loop
from specjax import drafters, policies, theory
from specjax.drafters import LoadedDrafter
from specjax.drafters.model import BACKLOG, AdaptiveParams, adaptive
from specjax.planning import program as hlo
from specjax.policies import Policy, Round, Rule
from specjax.policies.policy import as_planned, learn_nothing, on_forever
from specjax.verify.token import token_level
from tests import battery, distributions
from tests.battery import FAMILIES, Setting, drafter_for, prepare, run, texts
from tests.test_decoding import SAMPLED, exact_joint, least, sampled_counts

NEW = Setting.max_new


# --- rules ---------------------------------------------------------------------------------------------------------


def test_heuristic_two_up_where_all_passed_and_one_down_where_not():
    rule = policies.heuristic(gamma_max=6)
    state = rule.policy.start(rule.params, jnp.asarray([3, 3, 3]))
    lengths = []
    for accepted in ([5, 0, 4], [6, 0, 4], [6, 2, 0], [0, 1, 3], [5, 0, 2], [5, 0, 1], [5, 0, 1]):
        wanted, state = rule.policy.plan(rule.params, state, jnp.ones(3, bool))
        lengths.append(wanted.tolist())
        state = rule.policy.observe(rule.params, state, Round(wanted, jnp.minimum(jnp.asarray(accepted), wanted)))
    assert lengths == [[5, 5, 5], [6, 4, 4], [6, 3, 6], [6, 2, 5], [5, 1, 4], [6, 1, 3], [5, 1, 2]]
    assert policies.heuristic(gamma_max=3).params["start"] == 3


def test_best_is_the_theory_and_plain_where_nothing_pays():
    draft = battery.draft("opt")
    assert policies.best(0.8, 0.05, gamma_max=12).gamma_max == theory.best_gamma(0.8, 0.05, gamma_max=12).gamma == 8
    assert policies.best(0.1, 0.2).gamma_max == 0
    assert drafters.model(draft, policy=policies.best(0.1, 0.2)) == drafters.plain()
    curve = [1, 1.1, 5, 5, 5]
    assert policies.best(0.8, 0.05, gamma_max=4, verify_cost=curve).gamma_max == 1


def test_fixed_is_the_plain_chain_and_its_program():
    draft = battery.draft("opt")
    assert drafters.model(draft, policy=policies.fixed(3)) == drafters.model(draft, gamma=3)


@pytest.mark.parametrize("cost", [pytest.param(0.01, marks=pytest.mark.slow), 0.2, 3.0])
def test_goodput_is_the_theory(cost):
    """The same choice as in float64, over random histories of a batch."""
    target, draft = theory.StepTime(1e-4, cost / 8, 1.0), theory.StepTime(1e-5, cost / 80, 0.1)
    rule = policies.goodput(target, draft=draft, gamma_max=7, prior=0.6, weight=2.0, decay=0.8)
    length = jnp.asarray([4, 9, 30, 7])
    rng = np.random.default_rng(1)
    state, chosen = rule.policy.start(rule.params, length), set()
    accepted = tested = np.zeros(4)
    context = np.asarray(length, float)
    for step in range(12):
        wanted, state = rule.policy.plan(rule.params, state, jnp.ones(4, bool))
        common = (accepted.sum() + 2 * 0.6) / (tested.sum() + 2)
        alphas = (accepted + 2 * common) / (tested + 2)
        want = theory.best_goodput(alphas, target, draft=draft, context=context, gamma_max=7)
        assert wanted.tolist() == [want.gamma] * 4
        chosen.add(want.gamma)
        got = rng.binomial(want.gamma, 0.9 if step < 6 else 0.1, 4)
        state = rule.policy.observe(rule.params, state, Round(wanted, jnp.asarray(got, jnp.int32)))
        accepted, tested = 0.8 * accepted + got, 0.8 * tested + got + (got < want.gamma)
        context = context + got + 1
    assert len(chosen) > 1 or cost == 3.0
    assert cost != 3.0 or chosen == {0}  # a batch that arithmetic binds: plain decoding


def test_goodput_counts_no_gain_of_ended_rows():
    """One live row with alpha near 0 beside ended ones with alpha near 1."""
    rule = policies.goodput(theory.StepTime(0.0, 0.0, 1.0), draft=theory.StepTime(0.0, 0.0, 0.2), gamma_max=4)
    state = rule.policy.start(rule.params, jnp.ones(4, jnp.int32))
    state = state._replace(tested=jnp.full(4, 1e4), accepted=jnp.asarray([0.0, 1e4, 1e4, 1e4]))
    plan = lambda live: rule.policy.plan(rule.params, state, jnp.asarray(live))[0].tolist()
    assert plan([True] * 4) == [4] * 4
    assert plan([True, False, False, False]) == [0] * 4


def test_ladder():
    assert [policies.ladder(g) for g in (1, 2, 5, 6, 8, 16)] == [
        (0, 1), (0, 2), (0, 5), (0, 3, 6), (0, 3, 8), (0, 3, 7, 16),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda draft: drafters.model(draft, policy="heuristic"), "policy"),
        (lambda draft: drafters.model(draft, gamma=4, policy=policies.threshold()), "gamma=4"),
        (lambda draft: drafters.model(draft, buckets=(0, 5)), "buckets"),
        (lambda draft: drafters.model(draft, policy=policies.threshold(), buckets=(4, 0, 16)), "buckets"),
        (lambda draft: drafters.model(draft, policy=policies.threshold(), buckets=(0, 8)), "gamma_max=16"),
        (lambda draft: policies.fixed(-1), "gamma"),
        (lambda draft: policies.heuristic(gamma_max=0), "gamma_max"),
        (lambda draft: policies.heuristic(gamma_max=4, start=9), "start"),
        (lambda draft: policies.threshold(1.5), "theta"),
        (lambda draft: policies.goodput(theory.StepTime(0, 0, 1), weight=0), "weight"),
        (lambda draft: policies.oracle(np.zeros((2, 3))), "agrees"),
        (lambda draft: policies.disco(policies.Disco(*[jnp.zeros((3, 4))] * 5)), "DISCO"),
    ],
)
def test_invalid_arguments_raise(make, name):
    with pytest.raises(ValueError, match=name) as error:
        make(battery.draft("opt"))
    assert "\n" not in str(error.value)


# --- whole runs ----------------------------------------------------------------------------------------------------

KINDS = ("heuristic-6", "threshold-4", "disco-4", "goodput-4")
DEFAULT = [("threshold-4", "opt")]
MORE = [(kind, family) for kind in KINDS for family in FAMILIES if (kind, family) not in DEFAULT]


def greedy_equals_plain(kind, family):
    chosen = drafter_for(kind, family)
    state = run(family, chosen)
    assert texts(state) == battery.plain(family)
    totals = jax.device_get(state.totals)
    assert 0 < totals.accepted.sum() < totals.tested.sum() <= totals.drafted.sum()  # both outcomes were met
    assert totals.drafted.sum() < totals.rounds.sum() * (chosen.drafter.tree.size - 1)  # the policy did something


@pytest.mark.parametrize(("kind", "family"), DEFAULT)
def test_greedy_equals_plain(kind, family):
    greedy_equals_plain(kind, family)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "family"), MORE)
def test_greedy_equals_plain_for_all(kind, family):
    greedy_equals_plain(kind, family)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threshold-2", "disco-3"])
def test_sampled_rows_follow_the_joint_distribution(kind):
    assert least(sampled_counts(drafter_for(kind, "opt"))) > distributions.ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heuristic-2", "goodput-2", "threshold-3"])
def test_sampled_rows_follow_the_joint_distribution_for_all(kind):
    assert least(sampled_counts(drafter_for(kind, "opt"))) > distributions.ALPHA


def looks(right: LoadedDrafter) -> LoadedDrafter:
    """A policy that looks: its answer about the token just drawn is applied to that very token, which is dropped."""

    def propose(params, key, state, pending, warp):
        draft, state = right.drafter.propose(params, key, state, pending, warp)
        another = jnp.pad(draft.valid[:, 2:], ((0, 0), (0, 1)))  # it went on after node i
        return draft._replace(valid=draft.valid.at[:, 1:].set(draft.valid[:, 1:] & another)), state

    return right._replace(drafter=right.drafter._replace(propose=propose))


@pytest.mark.slow
def test_the_distribution_test_fails_a_policy_that_drops_the_token_it_looked_at():
    counts = sampled_counts(looks(drafter_for("threshold-2", "opt")))
    for temperature, histogram in counts.items():
        assert distributions.chi_square(histogram, exact_joint(temperature)) < distributions.ALPHA


@pytest.mark.slow
def test_rows_are_alone_and_numbers_are_arguments():
    """A sampled row is what it is without its neighbors, whose lengths differ; another theta compiles nothing."""
    chosen = drafter_for("threshold-4", "opt")
    whole = texts(run("opt", chosen, SAMPLED))
    pick = [6, 1]
    few = run(
        "opt", chosen, np.array(SAMPLED)[pick], tokens=battery.prompts()[pick], lengths=battery.LENGTHS[pick],
        rows=np.array(pick),
    )  # fmt: skip
    assert texts(few) == [whole[row] for row in pick]
    traces = loop.trace_count()
    other = drafters.model(battery.draft("opt"), policy=policies.threshold(0.95, gamma_max=4))
    state = run("opt", other, SAMPLED)
    assert loop.trace_count() == traces
    totals = [jax.device_get(run("opt", each, SAMPLED).totals) for each in (chosen, other)]
    assert totals[1].drafted.sum() < totals[0].drafted.sum()
    assert texts(state) != whole  # other lengths, other draws of the same distribution


@pytest.mark.slow
def test_the_oracle_drafts_what_is_accepted_and_needs_no_more_rounds():
    draft = battery.draft("opt")
    new = np.array(battery.plain("opt"))
    agrees = policies.agreement(draft, battery.prompts(), battery.LENGTHS, new)
    assert 0.1 < agrees.mean() < 0.99
    bound = run("opt", drafters.model(draft, policy=policies.oracle(agrees, gamma_max=6)))
    fixed = run("opt", drafters.model(draft, gamma=6))
    assert texts(bound) == battery.plain("opt")
    totals, others = jax.device_get((bound.totals, fixed.totals))
    assert totals.accepted.tolist() == totals.drafted.tolist()
    assert totals.rounds.tolist() == others.rounds.tolist()
    assert totals.drafted.sum() < others.drafted.sum()


# --- what idle rows and rounds cost --------------------------------------------------------------------------------


@functools.cache
def _scripted(gamma_max: int) -> Policy:
    def plan(params, state, live):
        del live
        return jnp.take_along_axis(params, state[:, None], axis=1, mode="clip")[:, 0], state

    observe = lambda params, state, seen: state + 1
    return Policy(gamma_max, lambda params, length: jnp.zeros_like(length), plan, on_forever, observe)


def scripted(lengths) -> Rule:
    """Lengths by row and round; the last one repeats."""
    table = jnp.asarray(np.broadcast_to(lengths, (battery.ROWS, np.shape(lengths)[-1])), jnp.int32)
    return Rule("scripted", _scripted(4), table)


PAUSES = np.array([0] * (BACKLOG + 2) + [2] + [0] * 3 + [4, 0, 3])
LATE = np.roll(PAUSES, 1) * (np.arange(len(PAUSES)) > 0)
SCRIPT = np.stack([PAUSES, PAUSES, PAUSES * 0, PAUSES, LATE, PAUSES, np.minimum(PAUSES, 1), PAUSES])


def forgets(right: LoadedDrafter) -> LoadedDrafter:
    """Broken: at most one waiting token is remembered."""
    commit = right.drafter.commit
    cut = lambda state: state._replace(lag=jnp.minimum(state.lag, 1))
    return right._replace(drafter=right.drafter._replace(commit=lambda *args: cut(commit(*args))))


@pytest.mark.slow
def test_after_a_pause_the_draft_model_has_read_everything():
    """The target drafts for itself: whatever the pauses, nothing is refused. Control: one token is lost."""
    chosen = drafters.model(battery.target("opt"), policy=scripted(SCRIPT))
    state = run("opt", chosen)
    assert texts(state) == battery.plain("opt")
    assert state.totals.accepted.tolist() == state.totals.drafted.tolist()
    assert state.totals.drafted[2] == 0 < state.totals.drafted[6] < state.totals.drafted[0]
    assert state.totals.rounds[2] == NEW
    lost = run("opt", forgets(chosen))
    assert texts(lost) == battery.plain("opt")
    assert lost.totals.accepted.sum() < lost.totals.drafted.sum()


def spied(lm, widths: list[int]):
    """The model, noting the width of every block that it is fed."""

    def extend(params, tokens, *args, **options):
        jax.debug.callback(lambda: widths.append(tokens.shape[1]))
        return lm.extend(params, tokens, *args, **options)

    return lm._replace(extend=extend)


def widths_of(script, *, budget=None):
    """Widths of the blocks fed to the target, and to the draft model, in a run of scripted lengths."""
    fed: tuple[list[int], list[int]] = ([], [])
    model = battery.target("opt")
    chosen = drafters.model(model, policy=scripted(script))
    watched = adaptive(spied(model.lm, fed[1]), _scripted(4), (0, 2, 4))
    decode, state, static = prepare("opt", chosen._replace(drafter=watched), budget=budget)
    static["model"] = spied(static["model"], fed[0])
    state = loop.generate(decode, state, verify=token_level, **static)
    jax.effects_barrier()
    return *fed, texts(state)


@pytest.mark.slow
def test_a_round_is_as_long_as_its_longest_draft():
    """The target reads 1, 3 or 5 tokens; the draft model runs as often as the longest row drafts, never in a pause."""
    target, draft, written = widths_of(SCRIPT)
    assert written == battery.plain("opt")
    assert target[:10] == [1] * 10
    assert target[10:12] == [3, 3]  # round 11: 2 of most rows, 1 of row 6; round 12: of the row that lags behind
    assert set(target) == {1, 3, 5}
    # The backlog is fed when it is full, and what waits before the first draft of two tokens: a pair, then one.
    assert draft[:4] == [BACKLOG, BACKLOG, 2, 1]


@pytest.mark.slow
def test_ended_rows_run_no_draft_model():
    """Row 0 drafts nothing and runs on; the others want 4 tokens a round but have ended after two."""
    script = np.full((battery.ROWS, 1), 4)
    script[0] = 0
    target, draft, _ = widths_of(script, budget=[NEW] + [2] * (battery.ROWS - 1))
    drafting = sum(width > 1 for width in target)
    assert drafting == 2  # the round that ends them, and one in which the drafter has not heard of it
    assert len(target) == NEW
    assert draft.count(2) == 2 and draft.count(1) == 2 * 3
    assert draft.count(BACKLOG) == (NEW - 2) // BACKLOG


@pytest.mark.slow
def test_buckets_change_no_text():
    draft, rule = battery.draft("opt"), policies.threshold(0.6, gamma_max=4)
    whole = run("opt", drafters.model(draft, policy=rule, buckets=()), SAMPLED)
    parts = run("opt", drafters.model(draft, policy=rule, buckets=(0, 2, 4)), SAMPLED)
    assert texts(whole) == texts(parts)
    np.testing.assert_allclose(whole.totals.overlap, parts.totals.overlap, rtol=1e-4)


def test_buckets_of_another_chain_are_refused():
    wrong = drafter_for("model-3", "opt")
    wrong = wrong._replace(drafter=wrong.drafter._replace(buckets=(0, 4)))
    with pytest.raises(ValueError, match="buckets"):
        run("opt", wrong)


@pytest.mark.slow
def test_no_cache_is_copied_in_the_loop():
    """Neither by the choice among the target's calls nor by the loop and the branches of the drafter.

    Blocks are shorter than the heads are wide, so that scores, which are transposed, are smaller than the caches."""
    guided, model = drafter_for("threshold-4", "opt"), battery.draft("opt")
    rule = policies.threshold(0.6, gamma_max=4)
    short = adaptive(model.lm, rule.policy, backlog=FAMILIES["opt"][1].head_width - 1)
    params = AdaptiveParams(model.params, rule.params)
    decode, state, static = prepare("opt", guided._replace(drafter=short, params=params))
    text = loop.generate.lower(decode, state, verify=token_level, **static).compile().as_text()
    assert hlo.copies(hlo.while_body(text), state.cache.layers[0].k.size) == []


@pytest.mark.slow
def test_a_constant_policy_is_never_called():
    """`policies.fixed` in the adaptive chain decodes as the plain chain does: two programs of one method."""
    draft = battery.draft("opt")
    always = Policy(3, lambda params, length: (), as_planned(3), on_forever, learn_nothing)
    one = run("opt", drafters.model(draft, policy=Rule("always", always)), SAMPLED)
    other = run("opt", drafters.model(draft, policy=policies.fixed(3)), SAMPLED)
    assert texts(one) == texts(other)
    assert one.totals.tested.tolist() == other.totals.tested.tolist()
