"""Predictions from synthetic measurements."""

import numpy as np
import pytest

from specjax import theory, trees
from specjax.advisor import rank, texts
from specjax.advisor.rank import (
    ChainCounts,
    DraftingCost,
    InnerAcceptance,
    Measurements,
    PlainCost,
    RankCounts,
    VerifyCurve,
)
from specjax.advisor.texts import MISS
from specjax.estimates import Estimate

FREE = DraftingCost(step=0.0, overhead=0.0, prefill=0.0)
FLAT = tuple(1.0 for _ in range(16))
CLIFF = (1.0, 1.0, 1.0, 1.0, *(3.0 for _ in range(12)))  # a fifth token costs two more steps
LATER = tuple(1.0 + 0.12 * n for n in range(16))


def curve(seconds=FLAT) -> VerifyCurve:
    return VerifyCurve(tuple(range(1, len(seconds) + 1)), tuple(seconds), tuple(0.0 for _ in seconds))


def reached(alpha: float, depth: int = 8, rounds: int = 10**9) -> tuple[int, ...]:
    return tuple(round(rounds * alpha**d) for d in range(depth + 1))


def chain(
    alpha: float, cost: DraftingCost = FREE, *, kind: str = "model", draft: int = 0, verifier: str | None = None
) -> ChainCounts:
    return ChainCounts(
        rank.chain(kind, 8, *([draft] if kind == "model" else []), verifier=verifier), (reached(alpha),), cost
    )


def measured(seconds=FLAT, **parts) -> Measurements:
    return Measurements(curve(seconds), PlainCost(prefill=0.0, passes=64.0), **parts)


def best(made: Measurements) -> rank.Candidate:
    return rank.rank(made)[0]


def test_free_accurate_draft_gets_the_longest_chain():
    found = best(measured(chains=(chain(0.9),)))
    assert found.strategy == rank.chain("model", rank.GAMMA_MAX, 0)
    assert found.speedup == pytest.approx(theory.expected_tokens(0.9, rank.GAMMA_MAX), rel=1e-6)
    assert found.factor == pytest.approx(found.speedup)


@pytest.mark.parametrize("seconds", [FLAT, CLIFF, LATER], ids=["flat", "cliff", "rising"])
@pytest.mark.parametrize("alpha, c, overhead", [(0.8, 0.05, 0.0), (0.6, 0.02, 0.1), (0.9, 0.2, 0.05), (0.5, 0.3, 0.0)])
def test_best_chain_is_that_of_theory(seconds, alpha, c, overhead):
    made = measured(seconds, chains=(chain(alpha, FREE._replace(step=c, overhead=overhead)),))
    wanted = theory.best_gamma(alpha, c, gamma_max=15, verify_cost=np.array(seconds), overhead=overhead)
    found = best(made)
    if wanted.gamma:
        assert found.strategy["gamma"] == wanted.gamma and found.speedup == pytest.approx(wanted.factor, rel=1e-6)
    else:
        assert found.speedup <= 1


@pytest.mark.parametrize("alpha, c", [(0.5, 0.5), (0.5, 0.7), (0.9, 0.95), (0.0, 0.1)])
def test_no_length_helps_from_cost_alpha_on(alpha, c):
    candidates = rank.rank(measured(chains=(chain(alpha, FREE._replace(step=c)),)))
    assert len(candidates) == rank.GAMMA_MAX and all(one.speedup <= 1 + 1e-9 for one in candidates)
    assert best(measured(chains=(chain(0.5, FREE._replace(step=0.4)),))).speedup > 1  # below that cost it does


def test_a_jump_of_the_verify_curve_limits_chain_and_tree():
    rows = texts_of_ranks(0.75, 0.2, seed=1)
    made = measured(CLIFF, chains=(chain(0.75),), ranks=(RankCounts(0, rows, FREE),))
    found = rank.rank(made)
    chains = [one for one in found if one.strategy.name == "model"]
    branching = [one for one in found if one.strategy.name == "tree"]
    assert chains[0].strategy["gamma"] == 3
    assert branching[0].strategy.tree.size == 4
    uncut = rank.rank(made._replace(curve=curve(FLAT)))
    assert next(one for one in uncut if one.strategy.name == "model").strategy["gamma"] == 15
    assert next(one for one in uncut if one.strategy.name == "tree").strategy.tree.size == 16


def test_prefill_and_waiting_rows_reduce_the_speedup():
    plain = best(measured(chains=(chain(0.8),)))
    slow = measured(chains=(chain(0.8, FREE._replace(prefill=64.0)),))
    assert best(slow).speedup < plain.speedup / 2 and best(slow).factor == pytest.approx(plain.factor)
    waiting = best(measured(chains=(chain(0.8, FREE._replace(balance=0.5)),)))
    assert waiting.speedup == pytest.approx(plain.speedup / 2)


def test_candidates_keep_the_verifier_of_their_counts():
    made = measured(chains=(chain(0.5, verifier="block"), chain(0.7, kind="ngram")))
    found = rank.rank(made)
    assert found[0].strategy == rank.chain("ngram", 15)
    assert {one.strategy.verifier for one in found if one.strategy.name == "model"} == {"block"}


# --- acceptance ------------------------------------------------------------------------------------------------------


def test_untested_positions_are_like_the_later_ones():
    assert rank.betas((100, 80, 40, 20), 5) == pytest.approx([0.8, 0.5, 0.5, 60 / 120, 60 / 120])
    assert rank.betas((100, 0, 0), 3).tolist() == [0, 0, 0]  # nothing beyond is known, and none is promised
    assert rank.betas((0, 0), 2).tolist() == [0, 0]
    assert rank.betas((100, 80, 40, 20), 2) == pytest.approx([0.8, 0.5])


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_error_against_repeated_surveys(spread):
    """400 surveys of 20 prompts: their spread is known to 3.5 %, and the mean error must meet it within 4 of those.

    Prompts differ in how easy they are. The binomial error, the negative control, takes all rounds as independent.
    """
    rng = np.random.default_rng(0)
    chance, prompts = np.array([0.8, 0.6, 0.7, 0.5]), 20
    found, errors, naive = [], [], []
    for _ in range(400):
        rows = []
        for easy in rng.uniform(-spread, spread, prompts):
            counts = [int(rng.integers(10, 20))]
            for value in chance:
                counts.append(int(rng.binomial(counts[-1], value + easy)))
            rows.append(tuple(counts))
        estimate, total = rank.expected(rows, 4), np.sum(rows, 0)
        found.append(estimate.value)
        errors.append(estimate.error)
        ends = total[:-1] - total[1:]
        committed = np.repeat(np.arange(1, 6), [*ends, total[-1]])
        naive.append(committed.std() / np.sqrt(len(committed)))
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.14)
    assert spread == 0 or np.mean(naive) < 0.6 * np.std(found)
    if not spread:
        assert np.mean(found) == pytest.approx(float(theory.expected_tokens_by_position(chance)), rel=0.02)


def texts_of_ranks(first: float, second: float, *, seed: int, tokens: int = 4000) -> tuple[tuple[int, ...], ...]:
    drawn = np.random.default_rng(seed).random(tokens)
    ranks = np.where(drawn < first, 0, np.where(drawn < first + second, 1, MISS))
    return tuple(tuple(part.tolist()) for part in np.split(ranks, 8))


def test_a_table_of_ranks_by_hand():
    table = texts.rank_table([(0, 1, MISS, 0)], depth=2, width=2)
    # First of a round: 0, 1, miss, 0. Second, where the first token had a rank: 1 after 0, miss after 1; no last one.
    assert table.tolist() == [[0.5, 0.25], [0.0, 0.5]]
    assert texts.rank_table([(MISS, MISS)], depth=3, width=2).tolist() == [[0, 0]]
    assert texts.rank_table([()]).size == 0


def test_replay_by_hand():
    two = trees.regular((2, 1))  # two draft tokens, and the best one after each
    assert texts.replay(trees.chain(2), [(0, 0, MISS, 0, MISS)]).value == 2.5  # 3 and 2 tokens
    assert texts.replay(two, [(1, 0, MISS, MISS, 1, 1)]).value == 2.0  # 3, 1 and 2
    assert texts.replay(two, [()]) == Estimate(1.0)


def test_chains_are_replayed_by_token():
    """Rounds as they are decoded: certain tokens by hand, uncertain ones against rounds drawn at random."""
    certain = [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    assert texts.replay_chain([certain], 2).value == 7 / 3  # 3 tokens, whose last is the target's own, 3 and 1
    assert texts.replay_chain([certain], 3).value == 7 / 2  # 3 and 4
    assert texts.replay_chain([[0.0, 0.0], [0.0]], 4).value == 1.0
    rng = np.random.default_rng(0)
    chances, gamma, rounds = rng.random(40), 3, 0
    for _ in range(4000):
        at = 0
        while at < len(chances):
            passed = rng.random(gamma) < np.append(chances[at : at + gamma], np.ones(gamma))[:gamma]
            at, rounds = at + int(np.cumprod(passed).sum()) + 1, rounds + 1
    assert texts.replay_chain([chances.tolist()], gamma).value == pytest.approx(4000 * 40 / rounds, rel=0.01)


def test_short_chains_follow_the_texts_and_long_ones_the_measured_length():
    """Half of the tokens are easy, in runs, and what the measured rounds of 8 gained is gained in proportion."""
    rows = [[1.0] * 12 + [0.0] * 12] * 4
    longest = texts.replay_chain(rows, 8).value
    counts = ChainCounts(
        rank.chain("model", 8, 0), ((10, *[0] * 8),), FREE._replace(cut=2 * longest), tuple(map(tuple, rows))
    )
    tokens = lambda gamma: rank.chain_tokens(counts, gamma).value
    assert tokens(1) == pytest.approx(texts.replay_chain(rows, 1).value)
    assert tokens(8) == pytest.approx(2 * longest)  # as measured
    assert tokens(12) == pytest.approx(2 * texts.replay_chain(rows, 12).value)


def test_replay_equals_the_formula_for_independent_ranks():
    rows = texts_of_ranks(0.6, 0.2, seed=0, tokens=16000)
    shape = trees.sequoia([0.6, 0.2], 10)
    tokens, error = texts.replay(shape, rows).value, texts.replay(shape, rows).error
    assert abs(tokens - trees.expected_length(shape, [0.6, 0.2])) < 4 * error < 0.2
    assert texts.rank_table(rows)[:3, :2] == pytest.approx(np.tile([0.6, 0.2], (3, 1)), abs=0.02)
    assert abs(tokens - trees.expected_length(shape, [0.5, 0.3])) > 4 * error  # it can tell


# --- costs -----------------------------------------------------------------------------------------------------------


def test_the_curve_is_linear_between_and_after_the_widths():
    made = VerifyCurve((1, 2, 4), (2.0, 2.2, 3.0), (0.0, 0.0, 0.0))
    assert [made.at(width) for width in (1, 3, 6)] == pytest.approx([2.0, 2.6, 3.8])
    assert made.relative(4) == 1.5


def test_step_and_overhead_from_two_lengths():
    rounds = lambda step, overhead: [LATER[gamma] + overhead + gamma * step for gamma in (2, 8)]
    cost = lambda *seconds: rank.drafting_cost((2, 8), (3, 9), seconds, curve(LATER))
    assert cost(*rounds(0.1, 0.3)) == pytest.approx((0.1, 0.3))
    step, overhead = cost(*rounds(0.1, -0.1))  # noise: less than its parts
    assert overhead == 0 and 0 < step < 0.1
    assert cost(*rounds(-0.01, 0.3)) == pytest.approx((0.0, 0.25))
    assert rank.drafting_cost((8,), (9,), [LATER[8] + 0.2], curve(LATER)) == pytest.approx((0.0, 0.2))
    assert rank.drafting_cost((8,), (9,), [LATER[8] - 0.2], curve(LATER)) == (0.0, 0.0)


def test_cascade_prediction_is_that_of_theory():
    middle, small = FREE._replace(step=0.2), FREE._replace(step=0.02)
    made = measured(
        chains=(chain(0.85, middle, draft=0), chain(0.5, small, draft=1)),
        inners=(InnerAcceptance(middle=0, small=1, alpha=0.7),),
    )
    found = {one.strategy: one for one in rank.rank(made)}
    wanted = theory.cascade_factor_whole_rounds([0.85, 0.7], [0.2, 0.02], [6, 3])
    assert found[rank.cascade(6, 3, 0, 1)].speedup == pytest.approx(wanted, rel=1e-6)
    assert best(made).strategy.name == "cascade"
    swept = [one.strategy for one in rank.field(rank.rank(made))]
    assert sum(one.name == "cascade" for one in swept) == rank.CASCADES and best(made).strategy in swept
    assert {one["gamma"] for one in swept if one.drafts == (1,)} == {*rank.SWEPT}


def test_a_cascade_keeps_the_verifier_of_its_middle_model():
    chains = (chain(0.85, draft=0, verifier="block"), chain(0.5, draft=1, verifier="block"))
    found = rank.rank(measured(chains=chains, inners=(InnerAcceptance(middle=0, small=1, alpha=0.7),)))
    assert {one.strategy.verifier for one in found if one.strategy.name == "cascade"} == {"block"}


# --- who is tried ----------------------------------------------------------------------------------------------------


def test_shortlist_differs():
    made = measured(LATER, chains=(chain(0.8, FREE._replace(step=0.05)), chain(0.55, kind="suffix")))
    every = rank.rank(made)
    found = rank.shortlist(every, 3)
    assert found[0] == every[0] and len(found) == 3
    ratios = [a.seconds / b.seconds for a in found for b in found if a is not b and a.strategy.name == b.strategy.name]
    assert all(ratio <= 1 / (1 - 1 / 8) + 1e-9 or ratio > 1.125 for ratio in ratios) and len(set(found)) == 3
    assert rank.shortlist(every, 0) == [] and len(rank.shortlist(every[:2], 5)) == 2
    alike = rank.rank(measured(chains=(chain(0.9),)))  # all rounds take the same time
    assert len(rank.shortlist(alike, 4)) == 4


def test_trials_correct_predictions():
    made = measured(LATER, chains=(chain(0.9, FREE._replace(step=0.05)), chain(0.3, kind="suffix")))
    candidates = rank.rank(made)
    every = {one.strategy: one for one in candidates}
    known = lambda gamma, off: (rank.chain("model", gamma, 0), every[rank.chain("model", gamma, 0)].speedup * off)
    best = candidates[0].strategy["gamma"]
    # Of the fastest kind one length alone was tried: another one is.
    found = rank.next_look(candidates, [known(best, 1.0), (rank.chain("suffix", 2), 0.5)])
    assert found is not None and found.strategy.name == "model" and found.strategy["gamma"] != best
    # Long drafts are slower than they should be, short ones faster: the best one is shorter.
    found = rank.next_look(candidates, [known(12, 0.6), known(7, 0.9)])
    assert found is not None and found.strategy.name == "model" and found.strategy["gamma"] < 7
    # Theory is right: those that were tried are the best.
    assert rank.next_look(candidates, [known(best, 1.0), known(2, 1.0)]) is None
    assert rank.next_look(candidates[:1], [known(best, 1.0)]) is None
