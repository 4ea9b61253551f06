"""Predicted speed-up of decoding strategies from measured numbers alone; no model runs here.

    plain       a request: prefill, then one step per token
    a strategy  a request: prefill, then steps / (tokens per round) rounds; a round is one target forward pass over all
                nodes, the steps of the drafter, and overhead

All times are seconds. Tokens per round follow from acceptance by position or by rank, verification from the curve.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specjax import theory, trees
from specjax.advisor.texts import rank_table, replay, replay_chain
from specjax.estimates import Counts, Estimate, combine, of_totals, ratio
from specjax.strategy import Strategy
from specjax.trees import Tree
from specjax.types import Siblings

PLAIN = Strategy.of("plain")
SELF = ("layer-skip", "quantized")  # drafters made from the weights of the target
HEAD = "head"  # a trained head: chains, and trees as they were run
DRAWN = ("model", HEAD, *SELF)  # chains that a model samples
COPIED = ("ngram", "suffix")  # chains of copied tokens
FIXED = ("lookahead", "dynamic-tree", "suffix-tree")  # predicted only with the settings that were run
KINDS = ("model", "tree", "dynamic-tree", HEAD, *COPIED, "suffix-tree", "lookahead", "cascade", *SELF)

Family = tuple[str, tuple[int, ...], str | None]
GAMMA_MAX = 15  # longest chain considered; with its root as wide as the curve


def chain(name: str, gamma: int, *drafts: int, verifier: str | None = None) -> Strategy:
    """A chain of gamma tokens, sampled from a model or copied."""
    return Strategy.of(name, gamma=gamma, drafts=drafts, verifier=verifier)


def tree(shape: Tree, draft: int) -> Strategy:
    """A tree of the most probable tokens of a draft model."""
    return Strategy.of("tree", shape=shape, siblings=Siblings.POINTS, drafts=(draft,))


def cascade(gamma: int, inner: int, middle: int, small: int, *, verifier: str | None = None) -> Strategy:
    """Three models; the middle model drafts gamma tokens, the small one `inner`."""
    return Strategy.of(
        "cascade", gamma=gamma, inner=Strategy.of("model", gamma=inner), drafts=(middle, small), verifier=verifier
    )


def family(strategy: Strategy) -> Family:
    """Drafter, draft models and head: strategies that differ only in size belong to one family."""
    return strategy.name, strategy.drafts, strategy.get("folder")


def is_chain(strategy: Strategy) -> bool:
    """Whether it is predicted for every draft length."""
    return strategy.name in (*DRAWN, *COPIED) and strategy.gamma is not None


def is_fixed(strategy: Strategy) -> bool:
    """Whether it is predicted only with the settings that were run."""
    drawn = strategy.get("siblings") is Siblings.WITHOUT_REPLACEMENT
    return strategy.name in FIXED or drawn or (strategy.name == HEAD and strategy.gamma is None)


class VerifyCurve(NamedTuple):
    """Seconds of a round that verifies several tokens per row, measured in the decoding loop.

    Attributes:
      widths: verified tokens, ascending from 1, a step of plain decoding.
      seconds: medians.
      spread: half of the 95 % interval of each median.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    spread: tuple[float, ...]

    @property
    def step(self) -> float:
        """Seconds of a step of plain decoding."""
        return self.seconds[0]

    def at(self, width: int) -> float:
        """Seconds for `width` tokens, interpolated linearly and extrapolated after the last width."""
        if width <= self.widths[-1] or len(self.widths) == 1:
            return float(np.interp(width, self.widths, self.seconds))
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.widths[-1] - self.widths[-2])
        return self.seconds[-1] + max(slope, 0.0) * (width - self.widths[-1])

    def relative(self, width: int) -> float:
        """`at` in steps of plain decoding."""
        return self.at(width) / self.step


class PlainCost(NamedTuple):
    """Plain decoding of a batch: prefill seconds, and target forward passes until all rows end."""

    prefill: float
    passes: float


class DraftingCost(NamedTuple):
    """Cost of a drafter.

    Attributes:
      step: seconds per drafted token, or per level of a tree.
      overhead: seconds of a round beyond the target forward pass and the draft steps.
      prefill: prefill seconds, the target included.
      balance: committed tokens per target pass over those of each row alone: below 1 if rows of a batch wait for
        others.
      spread: half of the 95 % interval of the seconds per round, relative to them.
      cut: tokens per round of the texts over the accepted ones and one: below 1 because the last round is cut.
    """

    step: float
    overhead: float
    prefill: float
    balance: float = 1.0
    spread: float = 0.0
    cut: float = 1.0


class ChainCounts(NamedTuple):
    """Acceptance of a drafter of chains.

    Attributes:
      strategy: as measured.
      reached: for each prompt, rounds that accepted at least 0, 1, ... draft tokens.
      chances: for each text of the target, the probability that each token is accepted where the draft reaches it; ()
        if not known.
      most: longest chain of the drafter.
    """

    strategy: Strategy
    reached: tuple[tuple[int, ...], ...]
    cost: DraftingCost
    chances: tuple[tuple[float, ...], ...] = ()
    most: int = GAMMA_MAX

    @property
    def total(self) -> tuple[int, ...]:
        """`reached` over all prompts."""
        return tuple(np.sum(self.reached, 0).tolist())


class RankCounts(NamedTuple):
    """Ranks that a draft model gives to the tokens of the target.

    Attributes:
      rows: for each text of the target, the rank of every token among the most probable ones of the draft after the
        same prefix; MISS if not among the first `RANKS`.
    """

    draft: int
    rows: tuple[tuple[int, ...], ...]
    cost: DraftingCost


class FixedCounts(NamedTuple):
    """A strategy that `is_fixed` as measured; `reached` as in `ChainCounts`."""

    strategy: Strategy
    reached: tuple[tuple[int, ...], ...]
    seconds: float  # per round
    cost: DraftingCost


class InnerAcceptance(NamedTuple):
    """Acceptance of the small draft model by the middle one; numbers in the list of drafts."""

    middle: int
    small: int
    alpha: float


class Measurements(NamedTuple):
    """All measured numbers that `rank` needs."""

    curve: VerifyCurve
    plain: PlainCost
    chains: tuple[ChainCounts, ...] = ()
    ranks: tuple[RankCounts, ...] = ()
    fixed: tuple[FixedCounts, ...] = ()
    inners: tuple[InnerAcceptance, ...] = ()


class Candidate(NamedTuple):
    """A strategy with its predicted performance.

    Attributes:
      tokens: committed tokens per round.
      seconds: per round.
      factor: speed-up of decoding.
      speedup: speed-up of whole requests, prefill included.
      error: half of the 95 % interval of both, from acceptance over prompts and times over turns, in quadrature.
    """

    strategy: Strategy
    tokens: float
    seconds: float
    factor: float
    speedup: float
    error: float


def rank(measured: Measurements, *, gamma_max: int = GAMMA_MAX) -> list[Candidate]:
    """All strategies with a prediction, the fastest first; in a tie the one with the shorter round."""
    found = [
        *(one for counts in measured.chains for one in chains(measured, counts, gamma_max=gamma_max)),
        *(one for counts in measured.ranks for one in best_trees(measured, counts)),
        *(weigh(measured, one.strategy, fixed_tokens(one), one.seconds, one.cost) for one in measured.fixed),
        *(one for inner in measured.inners for one in cascades(measured, inner)),
    ]
    return sorted(found, key=lambda one: (-round(one.speedup, 9), one.seconds))


# --- chains ----------------------------------------------------------------------------------------------------------


def chains(measured: Measurements, counts: ChainCounts, *, gamma_max: int = GAMMA_MAX) -> Iterator[Candidate]:
    """Every draft length from 1 on."""
    run, cost = counts.strategy, counts.cost
    for gamma in range(1, min(gamma_max, counts.most) + 1):
        tokens = chain_tokens(counts, gamma)
        seconds = measured.curve.at(gamma + 1) + cost.overhead + gamma * cost.step
        yield weigh(measured, run.replace_settings(gamma=gamma), tokens, seconds, cost)


def chain_tokens(counts: ChainCounts, gamma: int) -> Estimate:
    """Expected tokens per round of a draft length, with their error over prompts.

    Acceptance by position depends on the draft length, since rounds of other lengths begin at other tokens. It carries
    over by token of the text: the rounds of a draft length are replayed on the texts of the target. What the measured
    draft length gained in addition, such as by block verification, which equals token-level verification for one draft
    token, is assumed to grow linearly with the draft length.
    """
    scaled = lambda found, by: combine(lambda tokens: tokens * by, found)
    if not counts.chances:
        return scaled(expected(counts.reached, gamma), counts.cost.cut)
    longest = counts.strategy["gamma"]
    gain = counted_tokens(counts.reached).value * counts.cost.cut / replay_chain(counts.chances, longest).value
    share = (min(gamma, longest) - 1) / max(longest - 1, 1)
    return scaled(replay_chain(counts.chances, gamma), 1 + (gain - 1) * share)


def fixed_tokens(one: FixedCounts) -> Estimate:
    """Tokens per round as measured."""
    return combine(lambda tokens: tokens * one.cost.cut, counted_tokens(one.reached))


def counted_tokens(reached: Sequence[Sequence[int]]) -> Estimate:
    """Tokens per round by count, the accepted ones and one of the target, with their error over prompts."""
    counts = [np.asarray(row, float) for row in reached]
    return ratio([row.sum() for row in counts], [max(row[0], 1.0) for row in counts])


def betas(reached: Counts, length: int) -> np.ndarray:
    """Conditional acceptance probability by position.

    Positions that were not drafted, or never reached, are assumed to be like the later half of those that were.

    Args:
      reached: rounds of all prompts that accepted at least 0, 1, ... tokens.
    """
    counts = np.asarray(reached, float)
    known = int((counts[:-1] > 0).sum())
    found = np.zeros(length)
    if not known:
        return found
    took = min(known, length)
    found[:took] = counts[1 : took + 1] / counts[:took]
    late = known // 2
    found[took:] = counts[late + 1 : known + 1].sum() / counts[late:known].sum()
    return found


def expected(reached: Sequence[Sequence[int]], gamma: int) -> Estimate:
    """Expected tokens per round for a draft length, with their error over prompts.

    Args:
      reached: for each prompt, rounds that accepted at least 0, 1, ... tokens.
    """
    tokens = lambda total: theory.expected_tokens_by_position(betas(total, gamma))
    return of_totals(tokens, np.asarray(reached, float))


def drafting_cost(
    levels: Sequence[int], widths: Sequence[int], seconds: Sequence[float], curve: VerifyCurve
) -> tuple[float, float]:
    """Seconds per drafted level and overhead per round, both at least 0, from rounds of several depths.

    Least-squares line through the seconds beyond the target forward pass. With a single depth all of it is overhead.

    Args:
      levels: tokens drafted one after another.
      widths: tokens that the target verifies.
      seconds: seconds per round.
    """
    deep = np.asarray(levels, float)
    beyond = np.array([took - curve.at(width) for width, took in zip(widths, seconds, strict=True)])
    if len(set(levels)) == 1:
        return 0.0, max(float(beyond.mean()), 0.0)
    step, overhead = np.polyfit(deep, beyond, 1)
    if overhead < 0:
        return max(float((beyond * deep).sum() / (deep * deep).sum()), 0.0), 0.0
    if step < 0:
        return 0.0, max(float(beyond.mean()), 0.0)
    return float(step), float(overhead)


# --- trees -----------------------------------------------------------------------------------------------------------


def best_trees(measured: Measurements, counts: RankCounts) -> Iterator[Candidate]:
    """The best tree of each size and depth by Sequoia's algorithm on acceptance by rank; chains are left out."""
    table, curve, cost = rank_table(counts.rows), measured.curve, counts.cost
    if not table.size:
        return
    seen: set[Tree] = set()
    for depth in range(1, len(table) + 1):
        for size in range(3, curve.widths[-1] + 1):
            if size <= depth + 1 or size > _full(depth, table.shape[1]):
                continue
            shape = trees.sequoia(table[:depth], size)
            if shape in seen or shape.is_chain:
                continue
            seen.add(shape)
            tokens = replay(shape, counts.rows)
            seconds = curve.at(size) + cost.overhead + (shape.width - 1) * cost.step
            yield weigh(measured, tree(shape, counts.draft), tokens, seconds, cost)


def _full(depth: int, ranks: int) -> int:
    return sum(ranks**level for level in range(depth + 1))


# --- cascades --------------------------------------------------------------------------------------------------------


def cascades(measured: Measurements, inner: InnerAcceptance) -> Iterator[Candidate]:
    """Three levels: whole inner rounds fill the chain of the middle model.

    The verify curve of the middle model is not measured: relative to its own step it is assumed to be the target's.
    """
    models = {one.strategy.drafts: one for one in measured.chains if one.strategy.name == "model"}
    middle, small = models.get((inner.middle,)), models.get((inner.small,))
    if middle is None or small is None:
        return
    prefill = middle.cost.prefill + small.cost.prefill - measured.plain.prefill
    for gamma in range(4, 11, 2):
        tokens = chain_tokens(middle, gamma)
        whole = theory.alpha_from_tokens(np.clip(tokens.value, 1, gamma + 1), gamma) ** gamma
        for short in range(1, 5):
            fill = float(theory.rounds_to_fill(inner.alpha, short, gamma, whole))
            one = short * small.cost.step + middle.cost.step * measured.curve.relative(short + 1)
            seconds = measured.curve.at(gamma + 1) + middle.cost.overhead + fill * one
            strategy = cascade(gamma, short, inner.middle, inner.small, verifier=middle.strategy.verifier)
            yield weigh(measured, strategy, tokens, seconds, middle.cost._replace(prefill=prefill))


def weigh(
    measured: Measurements, strategy: Strategy, tokens: Estimate, seconds: float, cost: DraftingCost
) -> Candidate:
    """The candidate whose rounds commit `tokens` in `seconds`. The error of a single prompt is that of times alone."""
    plain, step = measured.plain, measured.curve.step
    kept = tokens.value * cost.balance
    speedup = (plain.prefill + plain.passes * step) / (cost.prefill + plain.passes / kept * seconds)
    unsure = tokens.fixed_singles().margin / tokens.value
    relative = math.hypot(unsure, cost.spread, measured.curve.spread[0] / step)
    return Candidate(strategy, tokens.value, seconds, kept * step / seconds, speedup, relative * speedup)


# --- selection of trials ---------------------------------------------------------------------------------------------


def shortlist(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The candidates to try: the best, then the best that differ from those chosen; similar ones only to fill up."""
    chosen: list[Candidate] = []
    for similar in (False, True):
        for one in candidates:
            if len(chosen) == count:
                return chosen
            if one not in chosen and (similar or not any(_similar(one, other) for other in chosen)):
                chosen.append(one)
    return chosen


def next_look(
    candidates: Sequence[Candidate], tried: Sequence[tuple[Strategy, float]], *, gain: float = 0.02
) -> Candidate | None:
    """The candidate to try after the first trials, if any: where predictions were off, another one may be faster.

    Another length of the fastest family if only one was tried; else the candidate whose corrected prediction exceeds
    all trials. The correction is linear in the levels of the draft.

    Args:
      tried: strategies and their measured speed-ups, at least one.
      gain: least expected gain over the best trial.
    """
    predicted, measured = {one.strategy: one for one in candidates}, dict(tried)
    left = [one for one in candidates if one.strategy not in measured]
    leader, best = max(tried, key=lambda pair: pair[1])
    own = [predicted[strategy] for strategy in measured if family(strategy) == family(leader)]
    others = [o for o in left if family(o.strategy) == family(leader) and not any(_similar(o, old) for old in own)]
    if len(own) == 1 and others:
        return others[0]
    found: list[tuple[float, Candidate]] = []
    for one in left:
        kin = [(s, got) for s, got in tried if family(s) == family(one.strategy)]
        known = sorted((s.levels, got / predicted[s].speedup) for s, got in kin)
        if known:
            correction = _extrapolate(one.strategy.levels, *zip(*known, strict=True))
            found.append((correction * one.speedup, one))
    expected, one = max(found, key=lambda pair: pair[0], default=(0.0, None))
    return one if expected > best * (1 + gain) else None


BEYOND = 0.1  # how far a correction may exceed the measured ones


def _extrapolate(at: int, places: Sequence[int], values: Sequence[float]) -> float:
    """Linear interpolation, and extrapolation from the last two places, at most BEYOND outside the values."""
    found = float(np.interp(at, places, values))
    if len(set(places)) > 1 and not places[0] <= at <= places[-1]:
        first, last = (0, 1) if at < places[0] else (-2, -1)
        if places[first] != places[last]:
            slope = (values[last] - values[first]) / (places[last] - places[first])
            end = first if at < places[0] else last
            found = values[end] + slope * (at - places[end])
    return float(np.clip(found, min(values) - BEYOND, max(values) + BEYOND))


def _similar(one: Candidate, other: Candidate) -> bool:
    """Whether two candidates of one family have rounds of the same length, within an eighth."""
    same = family(one.strategy) == family(other.strategy)
    return same and abs(one.seconds - other.seconds) < max(one.seconds, other.seconds) / 8


SWEPT = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15)  # draft lengths of a sweep
SIZES = (4, 6, 8, 12, 16)  # sizes of its trees, the best prediction of each
CASCADES = 4  # number of its cascades, the best predictions


def field(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates of a sweep: lengths `SWEPT` of each family, one tree per size in `SIZES`, the best cascades, and
    all that were run as they are.

    Args:
      candidates: from `rank`, the fastest first.
    """
    chosen: list[Candidate] = []
    for one in candidates:
        kin = [old.strategy for old in chosen if family(old.strategy) == family(one.strategy)]
        if is_fixed(one.strategy):
            wanted = True
        elif one.strategy.name == "tree":
            wanted = one.strategy.nodes in {*SIZES}.difference(old.nodes for old in kin)
        elif one.strategy.name == "cascade":
            wanted = len(kin) < CASCADES
        else:
            wanted = one.strategy.levels in SWEPT
        chosen += [one] * wanted
    return chosen
