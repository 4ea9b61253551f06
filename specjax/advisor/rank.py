"""Which way of decoding should be fastest, by theory, from measured numbers alone: nothing here runs a model.

    plain     a request: prefill, then as many steps as it has tokens
    a way     a request: prefill, then steps / (tokens a round) rounds; a round is one call of the target over all its
              nodes, the drafter's steps, and what else a round takes

Seconds throughout. A way's tokens a round come from its acceptance by position or by rank, its call from the curve.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specjax import theory, trees
from specjax.advisor import ways
from specjax.advisor.ways import Way
from specjax.trees import Tree

GAMMA_MAX = 15  # longest chain that is weighed: with its root as wide as the curve was measured
RANKS, DEPTH = 4, 8  # of the trees that are weighed: children of a node, levels
CONFIDENCE = 1.96  # standard errors on either side of a number that is told
MISS = -1  # in `Ranks.rows`: the target's token is none of the draft's best


class Curve(NamedTuple):
    """A call of the target over several tokens a row, in the loop that users run.

    Attributes:
      widths: tokens, ascending from 1: a step of plain decoding.
      seconds: of a round, medians.
      spread: how far each of them may be off.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    spread: tuple[float, ...]

    @property
    def step(self) -> float:
        """Seconds of a step of plain decoding."""
        return self.seconds[0]

    def at(self, width: int) -> float:
        """Seconds of a call over `width` tokens: straight between the widths measured, and on after the last."""
        if width <= self.widths[-1] or len(self.widths) == 1:
            return float(np.interp(width, self.widths, self.seconds))
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.widths[-1] - self.widths[-2])
        return self.seconds[-1] + max(slope, 0.0) * (width - self.widths[-1])

    def relative(self, width: int) -> float:
        """`at` in steps of plain decoding."""
        return self.at(width) / self.step


class Plain(NamedTuple):
    """Plain decoding of a batch of requests: seconds to read the prompts, and calls of the target until all ended."""

    prefill: float
    calls: float


class Cost(NamedTuple):
    """What a drafter adds to a request.

    Attributes:
      step: seconds to draft one token more, or one level of a tree.
      overhead: seconds of a round beyond the target's call and the drafter's steps.
      prefill: seconds to read the prompts, the target's included.
      balance: tokens that a call committed over those that its rounds accept by count: below 1 where rows of a batch
        wait for others, and where the last round of a text is cut.
      spread: how far the seconds of its rounds may be off, relative.
    """

    step: float
    overhead: float
    prefill: float
    balance: float = 1.0
    spread: float = 0.0


class Chain(NamedTuple):
    """A drafter of chains, as measured.

    Attributes:
      way: as it was run: its kind, models and verifier.
      reached: rounds that accepted at least 0, 1, ... of their drafted tokens, over all rows.
    """

    way: Way
    reached: tuple[int, ...]
    cost: Cost


class Ranks(NamedTuple):
    """Where a draft model ranks what the target says.

    Attributes:
      rows: of each text of the target, the rank of every token among the draft's most probable after the same words;
        MISS where it is none of the first `RANKS`.
    """

    draft: int
    rows: tuple[tuple[int, ...], ...]
    cost: Cost


class Whole(NamedTuple):
    """A way that is weighed just as it was run, one of `ways.WHOLE`: its costs and gains are not a chain's."""

    way: Way
    tokens: float
    error: float  # standard error of `tokens`
    seconds: float  # of a round
    cost: Cost


class Inner(NamedTuple):
    """How well the smaller draft model predicts the middle one, whose places are `small` and `middle`."""

    middle: int
    small: int
    alpha: float


class Measured(NamedTuple):
    """All that theory needs."""

    curve: Curve
    plain: Plain
    chains: tuple[Chain, ...] = ()
    ranks: tuple[Ranks, ...] = ()
    wholes: tuple[Whole, ...] = ()
    inners: tuple[Inner, ...] = ()


class Candidate(NamedTuple):
    """A way of decoding and what theory expects of it.

    Attributes:
      tokens: that a round commits. seconds: of a round.
      factor: speed over plain decoding while decoding. speedup: the same of whole requests, prompts included.
      error: of both: half of the 95 % interval of the acceptance and what the times may be off, in quadrature.
    """

    way: Way
    tokens: float
    seconds: float
    factor: float
    speedup: float
    error: float


def rank(measured: Measured, *, gamma_max: int = GAMMA_MAX) -> list[Candidate]:
    """All ways that can be weighed from these numbers, the fastest first; of equals the one that drafts less."""
    found = [
        *(one for chain in measured.chains for one in chains(measured, chain, gamma_max=gamma_max)),
        *(one for ranks in measured.ranks for one in best_trees(measured, ranks)),
        *(whole(measured, one) for one in measured.wholes),
        *(one for inner in measured.inners for one in cascades(measured, inner)),
    ]
    return sorted(found, key=lambda one: (-round(one.speedup, 9), one.seconds))


# --- chains ----------------------------------------------------------------------------------------------------------


def chains(measured: Measured, chain: Chain, *, gamma_max: int = GAMMA_MAX) -> Iterator[Candidate]:
    """Every draft length from 1 on."""
    for gamma in range(1, gamma_max + 1):
        tokens, error = expected(chain.reached, gamma)
        seconds = measured.curve.at(gamma + 1) + chain.cost.overhead + gamma * chain.cost.step
        way = ways.chain(chain.way.kind, gamma, *chain.way.drafts, verifier=chain.way.verifier)
        yield weigh(measured, way, tokens, error, seconds, chain.cost)


def betas(reached: Sequence[int], length: int) -> np.ndarray:
    """The chance that a token is accepted, given that all before it were: by position.

    Positions that were not drafted, or never reached, are taken to be like the later half of those that were.

    Args:
      reached: rounds that accepted at least 0, 1, ... tokens.
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


def expected(reached: Sequence[int], gamma: int) -> tuple[float, float]:
    """Tokens of a round of gamma drafts, and their standard error: each beta is a share of so many rounds."""
    chance = betas(reached, gamma)
    tokens = float(theory.expected_tokens_by_position(chance))
    products = np.cumprod(chance)
    after = np.cumsum(products[::-1])[::-1]  # what each beta is a factor of
    tested = np.array([reached[min(d, len(reached) - 2)] for d in range(gamma)], float) if len(reached) > 1 else None
    if tested is None:
        return tokens, 0.0
    slope = np.divide(after, chance, out=np.zeros_like(after), where=chance > 0)
    variance = slope**2 * chance * (1 - chance) / np.maximum(tested, 1)
    return tokens, float(math.sqrt(variance.sum()))


def drafting_cost(
    levels: Sequence[int], widths: Sequence[int], seconds: Sequence[float], curve: Curve
) -> tuple[float, float]:
    """Seconds of a drafted level and of what else a round takes, from rounds of several depths.

    The straight line of least squares through what rounds take beyond the target's call; neither is below 0. With one
    depth all of it is overhead.

    Args:
      levels: tokens drafted one after the other in a round. widths: tokens that the target checks. seconds: of a round.
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


def best_trees(measured: Measured, ranks: Ranks) -> Iterator[Candidate]:
    """The best tree of each size and depth that could pay, by Sequoia's program on acceptance by rank.

    Chains are left out: a draft model's are weighed by themselves.
    """
    table, curve = rank_table(ranks.rows), measured.curve
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
            tokens, error = replay(shape, ranks.rows)
            seconds = curve.at(size) + ranks.cost.overhead + (shape.width - 1) * ranks.cost.step
            yield weigh(measured, ways.tree(shape, ranks.draft), tokens, error, seconds, ranks.cost)


def rank_table(rows: Sequence[Sequence[int]], *, depth: int = DEPTH, width: int = RANKS) -> np.ndarray:
    """[depth, width]: the chance that the draft's guess of this rank is right, all before it being among its guesses.

    As deep as something was reached.
    """
    right, tried = np.zeros((depth, width)), np.zeros(depth)
    for row in rows:
        for start in range(len(row)):
            for deep, found in enumerate(row[start : start + depth]):
                tried[deep] += 1
                if not 0 <= found < width:
                    break
                right[deep, found] += 1
    known = int((tried > 0).sum())
    return right[:known] / tried[:known, None]


def replay(shape: Tree, rows: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Tokens a round with a tree of a draft's most probable tokens on these very texts, and the standard error.

    What the target says is what it would say: the rounds are walked, not modeled. The last token of a round is the
    target's own, whatever the draft thinks of it.
    """
    below: list[dict[int, int]] = [{} for _ in shape.parents]  # of each node: rank -> child
    for node, parent in enumerate(shape.parents[1:], start=1):
        below[parent][len(below[parent])] = node
    took = []
    for row in rows:
        at = 0
        while at < len(row):
            node, start = 0, at
            while at < len(row) and row[at] in below[node]:
                node, at = below[node][row[at]], at + 1
            at += 1
            took.append(at - start)
    if not took:
        return 1.0, 0.0
    return float(np.mean(took)), float(np.std(took) / math.sqrt(len(took)))


def _full(depth: int, ranks: int) -> int:
    return sum(ranks**level for level in range(depth + 1))


# --- what is weighed otherwise ---------------------------------------------------------------------------------------


def whole(measured: Measured, one: Whole) -> Candidate:
    """A way as it was run."""
    return weigh(measured, one.way, one.tokens, one.error, one.seconds, one.cost)


def cascades(measured: Measured, inner: Inner) -> Iterator[Candidate]:
    """Three levels: the middle model's chain is filled by whole rounds of speculation of its own.

    A call of the middle model over several tokens is taken to cost as many of its steps as the target's call costs of
    its own: its curve is not measured.
    """
    models = {chain.way.drafts: chain for chain in measured.chains if chain.way.kind == "model"}
    middle, small = models.get((inner.middle,)), models.get((inner.small,))
    if middle is None or small is None:
        return
    for gamma in range(4, 11, 2):
        tokens, error = expected(middle.reached, gamma)
        for short in range(1, 5):
            fill = float(theory.rounds_to_fill(inner.alpha, short, gamma))
            one = short * small.cost.step + middle.cost.step * measured.curve.relative(short + 1)
            seconds = measured.curve.at(gamma + 1) + middle.cost.overhead + fill * one
            way = ways.cascade(gamma, short, inner.middle, inner.small, verifier=middle.way.verifier)
            prefill = middle.cost.prefill + small.cost.prefill - measured.plain.prefill
            yield weigh(measured, way, tokens, error, seconds, middle.cost._replace(prefill=prefill))


def weigh(measured: Measured, way: Way, tokens: float, error: float, seconds: float, cost: Cost) -> Candidate:
    """What a round of `tokens` in `seconds` makes of a request."""
    plain, step = measured.plain, measured.curve.step
    kept = tokens * cost.balance
    calls = plain.calls / kept
    speedup = (plain.prefill + plain.calls * step) / (cost.prefill + calls * seconds)
    loose = measured.curve.spread[0] / step
    relative = math.hypot(CONFIDENCE * error / tokens, cost.spread, loose)
    return Candidate(way, tokens, seconds, kept * step / seconds, speedup, relative * speedup)


# --- who is tried ----------------------------------------------------------------------------------------------------


def shortlist(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The ones to be tried: the best, and after it the best that differ enough to be worth a run of their own.

    Of one kind and model, those whose rounds take within an eighth of the same time are taken for alike. Where there
    are fewer than `count` others, the alike ones fill up.
    """
    chosen: list[Candidate] = []
    for alike in (False, True):
        for one in candidates:
            if len(chosen) == count:
                return chosen
            if one not in chosen and (alike or not any(_alike(one, other) for other in chosen)):
                chosen.append(one)
    return chosen


def next_look(
    candidates: Sequence[Candidate], tried: Sequence[tuple[Way, float]], *, gain: float = 0.02
) -> Candidate | None:
    """What to try after the first trials, if anything: where theory was off, something else may be the fastest.

    Of the fastest kind so far another length, where only one was tried; else the way that should be faster than all of
    them. By how much theory was off at the lengths tried is taken to be straight in between and a little beyond.

    Args:
      tried: ways and the speed-ups that were measured, at least one.
      gain: how much faster than the best a way must be expected to be.
    """
    predicted, seen = {one.way: one for one in candidates}, dict(tried)
    left = [one for one in candidates if one.way not in seen]
    kin = lambda way: (way.kind, way.drafts)
    leader, best = max(tried, key=lambda pair: pair[1])
    family = [predicted[way] for way in seen if kin(way) == kin(leader)]
    others = [one for one in left if kin(one.way) == kin(leader) and not any(_alike(one, old) for old in family)]
    if len(family) == 1 and others:
        return others[0]
    found: list[tuple[float, Candidate]] = []
    for one in left:
        known = sorted((ways.levels(w), got / predicted[w].speedup) for w, got in tried if kin(w) == kin(one.way))
        if known:
            off = _straight(ways.levels(one.way), *zip(*known, strict=True))
            found.append((off * one.speedup, one))
    expected, one = max(found, key=lambda pair: pair[0], default=(0.0, None))
    return one if expected > best * (1 + gain) else None


BEYOND = 0.1  # by how much more than anything measured a correction may be


def _straight(at: int, places: Sequence[int], values: Sequence[float]) -> float:
    """Linear between the places, and beyond as between the last two, but no further than BEYOND from the values."""
    found = float(np.interp(at, places, values))
    if len(set(places)) > 1 and not places[0] <= at <= places[-1]:
        first, last = (0, 1) if at < places[0] else (-2, -1)
        if places[first] != places[last]:
            slope = (values[last] - values[first]) / (places[last] - places[first])
            end = first if at < places[0] else last
            found = values[end] + slope * (at - places[end])
    return float(np.clip(found, min(values) - BEYOND, max(values) + BEYOND))


def _alike(one: Candidate, other: Candidate) -> bool:
    same = (one.way.kind, one.way.drafts) == (other.way.kind, other.way.drafts)
    return same and abs(one.seconds - other.seconds) < max(one.seconds, other.seconds) / 8


SWEPT = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15)  # draft lengths of a sweep
SIZES = (4, 6, 8, 12, 16)  # of its trees: of each the best by theory
CASCADES = 4  # of its cascades: the best by theory


def field(candidates: Sequence[Candidate]) -> list[Candidate]:
    """What a sweep decodes: of every kind and model the lengths `SWEPT`, of trees the best by theory of the sizes
    `SIZES`, of cascades the best by theory, and all that is weighed as it runs.

    Args:
      candidates: as `rank` gives them, the fastest by theory first.
    """
    chosen: list[Candidate] = []
    for one in candidates:
        kin = [old.way for old in chosen if (old.way.kind, old.way.drafts) == (one.way.kind, one.way.drafts)]
        if one.way.kind == "tree":
            wanted = ways.nodes(one.way) in {*SIZES}.difference(map(ways.nodes, kin))
        elif one.way.kind == "cascade":
            wanted = len(kin) < CASCADES
        else:
            wanted = one.way.kind in ways.WHOLE or ways.levels(one.way) in SWEPT
        chosen += [one] * wanted
    return chosen
