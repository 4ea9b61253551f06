"""Measurements for `rank`: every strategy is decoded in the loop of `specjax.generate`, counted and timed.

First all prompts are decoded with each strategy, which counts acceptance; then the first batch is decoded interleaved,
which times rounds. The draft models score the texts of the target, which gives acceptance by token and by rank. All
runs are warm.
"""

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax import decoding, drafters, estimates, measuring, metrics
from specjax.advisor import rank, texts
from specjax.advisor.parts import Batch, Part
from specjax.advisor.probes import COPIES, LONG, SHAPES, SHORT, fixed_probes, is_timed_only, probes
from specjax.advisor.rank import HEAD, KINDS, PLAIN, SELF, DraftingCost, VerifyCurve
from specjax.bench.rounds import load_free
from specjax.drafters import LoadedDrafter
from specjax.drafters.head import most_drafted
from specjax.heads import Head
from specjax.model import Model
from specjax.request import prepare
from specjax.stopping import Stop
from specjax.strategy import Strategy
from specjax.trees import chain

FREE = "free"  # name of strategies whose drafter costs nothing: their rounds cost one verification
# Widths of the verify curve. They include those of the chains above, since the curve may jump between widths.
WIDTHS = tuple(sorted({1, 2, 3, 4, 5, 6, 8, 12, 16, SHORT + 1, LONG + 1, COPIES + 1}))
IDLE = 1.05  # tokens per round below which a drafter is not timed: every round needs a target forward pass
ENOUGH = 2.0  # seconds of plain decoding to be timed if single runs are short
MORE = 5  # most turns, relative to the number given


class BatchRun(NamedTuple):
    """One decoded batch, or several in sequence.

    Attributes:
      prefill, decode: seconds without compilation.
      passes: target forward passes until all rows ended.
      reached: for each prompt, rounds that accepted at least 0, 1, ... draft tokens; no filler rows.
      tokens: of each row.
      parts: the single batches of several.
    """

    prefill: float
    decode: float
    passes: int
    reached: tuple[tuple[int, ...], ...]
    tokens: list[list[int]]
    parts: tuple["BatchRun", ...] = ()

    @property
    def committed(self) -> int:
        return sum(map(len, self.tokens))

    @property
    def seconds(self) -> float:
        """Decoding seconds per round."""
        return self.decode / max(self.passes, 1)

    @property
    def speed(self) -> float:
        """Tokens per second, prefill included."""
        return self.committed / (self.prefill + self.decode)

    @property
    def tokens_per_round(self) -> float:
        """Tokens of the texts per target pass of a row, as `Stats.tokens_per_call`."""
        rows = [row for run in self.parts or (self,) for row in run.tokens[: len(run.reached)]]
        return sum(map(len, rows)) / max(sum(row[0] for row in self.reached), 1)


Turns = list[tuple[BatchRun, BatchRun]]  # of each turn: a strategy, and plain decoding in the same turn


@dataclasses.dataclass(frozen=True)
class Survey:
    """Models, prompts and options to measure with, and all runs so far, which are kept on Ctrl-C.

    Attributes:
      batches: prompts as token ids, all batches of one size, each for one part of the work.
      options: keyword arguments of `specjax.generate` except drafter and verifier.
      kinds: drafters to consider, of `rank.KINDS`.
      heads: trained heads of the target, by folder or id.
      turns: timed runs of each strategy.
      progress: receives one line before each run.
      stop: polled between runs; True ends measuring.
      counted: every batch once. timed: the first batch, once per turn.
      ranks: for each draft, the ranks of the tokens of the target.
      chances: for each draft, the probability that it would draft each of these tokens and have it accepted.
      load: share of the processors used by other programs during timed runs.
    """

    target: Model
    drafts: tuple[Model, ...]
    batches: tuple[Batch, ...]
    options: dict[str, Any]
    kinds: tuple[str, ...] = KINDS
    heads: Mapping[str, Head] = dataclasses.field(default_factory=dict)
    turns: int = 3
    progress: Callable[[str], None] = lambda line: None
    stop: Callable[[], bool] = lambda: False
    counted: dict[Strategy, list[BatchRun]] = dataclasses.field(default_factory=dict, init=False)
    timed: dict[Strategy, Turns] = dataclasses.field(default_factory=dict, init=False)
    ranks: dict[int, tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=dict, init=False)
    chances: dict[int, tuple[tuple[float, ...], ...]] = dataclasses.field(default_factory=dict, init=False)
    inners: list[rank.InnerAcceptance] = dataclasses.field(default_factory=list, init=False)
    left_out: list[str] = dataclasses.field(default_factory=list, init=False)
    load: list[float] = dataclasses.field(default_factory=list, init=False)
    _drafters: dict[Strategy, LoadedDrafter] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def drafter(self, strategy: Strategy) -> LoadedDrafter:
        """The drafter of a strategy, built once. Drafters made from the target share their weights."""
        if strategy not in self._drafters:
            if strategy.name == FREE:
                made = load_free(chain(strategy.get("gamma")))
            elif strategy.name == HEAD:
                sizes = {name: value for name, value in strategy.settings if name != "folder"}
                made = drafters.head(self.heads[strategy["folder"]], **sizes)
            else:
                made = strategy.build(self.target, self.drafts)
            if strategy.name in SELF:
                alike = (built.params for old, built in self._drafters.items() if old.name == strategy.name)
                made = made._replace(params=next(alike, made.params))
            self._drafters[strategy] = made
        return self._drafters[strategy]

    def drawn(self, name: str, gamma: int, *drafts: int) -> Strategy:
        """A chain sampled from a model. Counts of a long draft hold for shorter ones with these verifiers: acceptance
        of a position does not depend on later ones."""
        return rank.chain(name, gamma, *drafts, verifier="block" if self.options["temperature"] > 0 else None)

    def numbers(self, part: Part) -> list[int]:
        """The batches of a part."""
        return [number for number, batch in enumerate(self.batches) if batch.part is part]

    def label(self, strategy: Strategy) -> str:
        if strategy.name == FREE:
            return f"verification of {strategy.get('gamma') + 1} tokens"
        return strategy.label([draft.name for draft in self.drafts])

    @property
    def turns_needed(self) -> int:
        """Timed turns: more than given if a single run is short."""
        first = self.counted[PLAIN][0]
        return min(max(self.turns, math.ceil(ENOUGH / max(first.prefill + first.decode, 1e-3))), MORE * self.turns)


# --- decoding --------------------------------------------------------------------------------------------------------


def decode(survey: Survey, strategy: Strategy, number: int) -> BatchRun:
    """Decodes one batch.

    Raises:
      RuntimeError: the logits contain NaN.
    """
    batch, real = list(survey.batches[number].prompts), survey.batches[number].real
    rows = range(number * len(batch), (number + 1) * len(batch))
    drafter = survey.drafter(strategy)
    job = prepare(
        survey.target, batch, drafter=drafter, verifier=strategy.verifier, rows=rows, **survey.options
    ).begin()
    state, run, _ = measuring.timed(lambda: decoding.generate(job.params, job.state, **job.static))
    written, count, stop, totals = jax.device_get((state.tokens, state.length, state.stop, state.totals))
    if np.any(stop == int(Stop.NAN)):
        raise RuntimeError(f"the logits of {survey.target.name} contain NaN: check its weights and dtype")
    new = [written[row, : count[row]].tolist() for row in range(len(batch))]
    return BatchRun(job.seconds["prefill"], run, int(np.max(totals.rounds)), metrics.reached(totals)[:real], new)


def joined(runs: Sequence[BatchRun]) -> BatchRun:
    """Several batches as one run."""
    return BatchRun(
        sum(run.prefill for run in runs), sum(run.decode for run in runs), sum(run.passes for run in runs),
        tuple(row for run in runs for row in run.reached), [row for run in runs for row in run.tokens], tuple(runs),
    )  # fmt: skip


def warm_up(survey: Survey, strategies: Sequence[Strategy]) -> bool:
    """Compiles the strategies; False if stopped."""
    for place, strategy in enumerate(strategies, start=1):
        if survey.stop():
            return False
        survey.progress(f"{place} of {len(strategies)}: compiling {survey.label(strategy)}")
        decode(survey, strategy, 0)
    return True


def interleave(
    survey: Survey, strategies: Iterable[Strategy], turns: int, batches: Sequence[int] = (0,)
) -> dict[Strategy, Turns]:
    """Decodes batches plainly and with the strategies, interleaved: each batch with all of them before the next batch.

    Returns:
      The complete turns of each strategy and of `PLAIN`; empty without any.
    """
    strategies = [PLAIN, *strategies]
    programs = {
        (number, strategy): functools.partial(decode, survey, strategy, number)
        for number, strategy in itertools.product(batches, strategies)
    }
    progress = lambda count, total: survey.progress(f"timed runs: {count} of {total}")
    runs = measuring.interleave(programs, turns, warm_up=False, stop=survey.stop, progress=progress)
    survey.load.append(max(one.load for one in runs.values()))
    by_turn = {
        one: [joined(same) for same in zip(*(runs[number, one].values for number in batches), strict=True)]
        for one in strategies
    }
    return {one: list(zip(own, by_turn[PLAIN], strict=True)) for one, own in by_turn.items() if own}


# --- survey ----------------------------------------------------------------------------------------------------------


def possible(survey: Survey, every: Sequence[Strategy]) -> list[Strategy]:
    """The strategies that the target supports; the reason for leaving out the others is logged."""
    found = []
    for strategy in every:
        try:
            survey.drafter(strategy)
        except ValueError as error:
            reason = f"{strategy.name}: {error}"
            if reason not in survey.left_out:
                survey.left_out.append(reason)
        else:
            found.append(strategy)
    return found


def run(survey: Survey) -> None:
    """Runs everything that `rank` needs."""
    drafting = possible(survey, probes(survey))
    timed_only = [one for one in drafting if is_timed_only(survey, one)]
    counted = [PLAIN, *(one for one in drafting if one not in timed_only)]
    for place, strategy in enumerate(counted, start=1):
        _count(survey, strategy, f"{place} of {len(counted)}: ")
    if PLAIN not in survey.counted:
        return
    if {"model", "tree", "cascade"} & set(survey.kinds):
        _score_texts(survey)
    if "cascade" in survey.kinds and len(survey.drafts) > 1:
        _count_inner(survey)
    idle = _leave_idle_out(survey)
    drafting, timed_only = ([one for one in some if one.name not in idle] for some in (drafting, timed_only))
    curve = [Strategy.of(FREE, gamma=width - 1) for width in WIDTHS[1:]]
    if not warm_up(survey, [*curve, *timed_only]):
        return
    ran = [one for one in drafting if one in survey.counted or one in timed_only]
    survey.timed.update(interleave(survey, [*curve, *ran], survey.turns_needed))
    if PLAIN in survey.timed:
        _survey_fixed(survey)


def _leave_idle_out(survey: Survey) -> list[str]:
    """Drafters made from the target that commit hardly more than plain decoding; logged as left out."""
    found = []
    for strategy, runs in survey.counted.items():
        tokens = joined(runs).tokens_per_round
        if strategy.name in SELF and tokens < IDLE:
            found.append(strategy.name)
            reason = f"{tokens:.2f} tokens per round are too few to gain time"
            survey.left_out.append(f"{survey.label(strategy)}: {reason}")
    return found


def _count(survey: Survey, strategy: Strategy, place: str = "") -> None:
    """Every batch once, after a warm-up run."""
    if survey.stop():
        return
    survey.progress(f"{place}acceptance of {survey.label(strategy)}")
    decode(survey, strategy, 0)
    runs = []
    for number in survey.numbers(Part.SURVEY):
        if survey.stop():
            return
        runs.append(decode(survey, strategy, number))
    survey.counted[strategy] = runs


def _survey_fixed(survey: Survey) -> None:
    """Counts and times `fixed_probes`, except those whose verification alone costs more than their tokens can gain."""
    curve = curve_of(survey.timed)
    for strategy in possible(survey, fixed_probes(survey)):
        cost, most = curve.relative(strategy.nodes), strategy.levels + 1
        if cost >= most:
            survey.left_out.append(
                f"{survey.label(strategy)}: verifying its {strategy.nodes} nodes would take {cost:.1f} steps of plain "
                f"decoding for at most {most} tokens"
            )
            continue
        _count(survey, strategy)
        if strategy in survey.counted:
            turns = interleave(survey, [strategy], survey.turns_needed)
            survey.timed.update({one: runs for one, runs in turns.items() if one != PLAIN})


def _count_inner(survey: Survey) -> None:
    """Acceptance of the last draft model by the first, which is the target of a run of its own."""
    middle, small = 0, len(survey.drafts) - 1
    if survey.stop():
        return
    survey.progress(f"acceptance of {survey.drafts[small].name} by {survey.drafts[middle].name}")
    pair = dataclasses.replace(survey, target=survey.drafts[middle])
    reached = np.sum(decode(pair, rank.chain("model", SHORT, small), 0).reached, 0)
    tried = reached[:-1].sum()
    survey.inners.append(rank.InnerAcceptance(middle, small, float(reached[1:].sum() / tried) if tried else 0.0))


def _score_texts(survey: Survey) -> None:
    """Ranks and acceptance probabilities of the texts of the target, by each draft model."""
    batches = [survey.batches[number] for number in survey.numbers(Part.SURVEY)]
    runs = zip(survey.counted[PLAIN], batches, strict=True)
    written = [row for run, batch in runs for row in run.tokens[: batch.real]]
    prompts = [prompt for batch in batches for prompt in batch.prompts[: batch.real]]
    for number, draft in enumerate(survey.drafts):
        if survey.stop():
            return
        survey.progress(f"scoring the texts of the target with {draft.name}")
        survey.ranks[number], survey.chances[number] = texts.scored(
            draft, survey.target, prompts, written, temperature=survey.options["temperature"]
        )


# --- numbers for rank ------------------------------------------------------------------------------------------------


def gather(survey: Survey) -> rank.Measurements | None:
    """All runs as numbers; None if no turn was timed."""
    if PLAIN not in survey.timed:
        return None
    curve = curve_of(survey.timed)
    plain = rank.PlainCost(
        statistics.median(run.prefill for run, _ in survey.timed[PLAIN]),
        statistics.fmean(run.passes for run in survey.counted[PLAIN]),
    )
    both = [one for one in survey.counted if one in survey.timed]
    families = dict.fromkeys(rank.family(one) for one in both if rank.is_chain(one))
    return rank.Measurements(
        curve,
        plain,
        tuple(_chain(survey, curve, family) for family in families),
        tuple(
            rank.RankCounts(number, rows, _tree_cost(survey, curve, number))
            for number, rows in survey.ranks.items()
            if rank.tree(SHAPES[1], number) in both
        ),
        tuple(_fixed(survey, one) for one in both if rank.is_fixed(one)),
        tuple(survey.inners),
    )


def curve_of(timed: Mapping[Strategy, Turns]) -> VerifyCurve:
    """The verify curve, monotone beyond a width of 1."""
    own = [one for one in timed if one.name in ("plain", FREE)]
    found = [round_seconds(timed, one) for one in own]
    seconds = [found[0][0], *rising([took for took, _ in found[1:]])]
    return VerifyCurve(tuple(1 + one.get("gamma", 0) for one in own), tuple(seconds), tuple(off for _, off in found))


def rising(values: Sequence[float]) -> list[float]:
    """Isotonic regression: the non-decreasing values of least squared distance."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and statistics.fmean(pools[-2]) > statistics.fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [statistics.fmean(pool) for pool in pools for _ in pool]


def round_seconds(timed: Mapping[Strategy, Turns], strategy: Strategy) -> tuple[float, float]:
    """Seconds per round, and half of their 95 % interval over the turns.

    The median over the turns for plain decoding. For others, that median times the median ratio to plain decoding in
    the same turn, so that a machine that slows down for a while affects both.
    """
    values = [run.seconds for run, _ in timed[PLAIN]]
    if strategy != PLAIN:
        step = statistics.median(values)
        values = [step * own.seconds / base.seconds for own, base in timed[strategy]]
    found = estimates.median(values, sample="turns").fixed_singles()
    return found.value, found.margin


def _chain(survey: Survey, curve: VerifyCurve, family: rank.Family) -> rank.ChainCounts:
    """A family of chains: cost from all lengths, acceptance from the longest one."""
    own = [one for one in survey.timed if rank.is_chain(one) and rank.family(one) == family]
    longest = max((one for one in own if one in survey.counted), key=lambda one: one["gamma"])
    gammas = [one["gamma"] for one in own]
    seconds = [round_seconds(survey.timed, one)[0] for one in own]
    step, overhead = rank.drafting_cost(gammas, [gamma + 1 for gamma in gammas], seconds, curve)
    chances = survey.chances.get(longest.drafts[0], ()) if longest.name == "model" else ()
    reached, cost = joined(survey.counted[longest]).reached, _cost(survey, longest, step, overhead)
    most = most_drafted(survey.heads[longest["folder"]]) if longest.name == HEAD else rank.GAMMA_MAX
    return rank.ChainCounts(longest, reached, cost, chances, most)


def _tree_cost(survey: Survey, curve: VerifyCurve, draft: int) -> DraftingCost:
    """Cost of a level of a tree and overhead, from two trees."""
    own = [rank.tree(shape, draft) for shape in SHAPES]
    seconds = [round_seconds(survey.timed, one)[0] for one in own]
    levels, sizes = [shape.width - 1 for shape in SHAPES], [shape.size for shape in SHAPES]
    return _cost(survey, own[1], *rank.drafting_cost(levels, sizes, seconds, curve))


def _fixed(survey: Survey, strategy: Strategy) -> rank.FixedCounts:
    runs = survey.counted[strategy]
    seconds = round_seconds(survey.timed, strategy)[0]
    return rank.FixedCounts(strategy, joined(runs).reached, seconds, _cost(survey, strategy, 0.0, 0.0))


def _cost(survey: Survey, strategy: Strategy, step: float, overhead: float) -> DraftingCost:
    run, plain = (joined(survey.counted[one]) for one in (strategy, PLAIN))
    kept = run.committed / max(run.passes, 1) / run.tokens_per_round
    usual = plain.committed / max(plain.passes, 1)
    seconds, spread = round_seconds(survey.timed, strategy)
    prefill = statistics.median(own.prefill for own, _ in survey.timed[strategy])
    cut = run.tokens_per_round / rank.counted_tokens(run.reached).value
    return DraftingCost(step, overhead, prefill, kept / usual, spread / seconds, cut)
