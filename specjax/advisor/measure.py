"""Measurements for `rank`: every strategy is decoded in the loop of `specjax.generate`, counted and timed.

First all prompts are decoded with each strategy, which counts acceptance; then the first batch is decoded interleaved,
which times rounds. The draft models score the texts of the target, which gives acceptance by rank. All runs are warm.
"""

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax import api, measuring
from specjax import decoding as loop
from specjax.advisor import rank
from specjax.advisor.rank import (
    COPIED,
    DRAWN,
    FIXED,
    KINDS,
    MISS,
    PLAIN,
    RANKS,
    SELF,
    ChainCounts,
    DraftingCost,
    FixedCounts,
    InnerAcceptance,
    Measurements,
    PlainCost,
    RankCounts,
    VerifyCurve,
)
from specjax.bench.rounds import free
from specjax.drafters import LoadedDrafter
from specjax.model import Model
from specjax.registry import Strategy
from specjax.stopping import Stop
from specjax.trees import from_paths, regular

FREE = "free"  # name of strategies whose drafter costs nothing: their rounds cost one verification
SHORT, LONG = 2, 8  # draft lengths measured for a draft model: two lengths separate its step from the overhead
COPIES = 8  # draft length measured for drafters of copied tokens
# Widths of the verify curve. They include those of the chains above, since the curve may jump between widths.
WIDTHS = tuple(sorted({1, 2, 3, 4, 5, 6, 8, 12, 16, SHORT + 1, LONG + 1, COPIES + 1}))
# Two trees separate the cost of a level from the overhead: a wide one, and a deep one that branches at the top.
SHAPES = (regular((2, 2)), from_paths([*((0,) * depth for depth in range(1, 9)), (1,), (0, 1), (0, 0, 1)]))
OWN = (1, 4)  # draft lengths measured for drafters made from the target, whose tokens are expensive
IDLE = 1.05  # tokens per round below which a drafter is not timed: every round needs a target forward pass
LOOKAHEADS = ((4, 3, 4), (7, 5, 7))  # window, ngram, guesses
DYNAMIC = ((8, 4, 2), (16, 6, 4))  # size, depth, width
SUFFIXES = ((8, 6), (16, 8))  # size, depth
ENOUGH = 2.0  # seconds of plain decoding to be timed if single runs are short
MORE = 5  # most turns, relative to the number given
PAD = 32  # scored texts are padded to multiples of this


# --- decoding --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Workload:
    """Models, prompts and options to measure with.

    Attributes:
      batches: prompts as token ids, all batches of one size.
      options: keyword arguments of `specjax.generate` except drafter and verifier.
      kinds: drafters to consider, of `rank.KINDS`.
      turns: timed runs of each strategy.
      progress: receives one line before each run.
      stop: polled between runs; True ends measuring.
    """

    target: Model
    drafts: tuple[Model, ...]
    batches: tuple[tuple[list[int], ...], ...]
    options: dict[str, Any]
    kinds: tuple[str, ...] = KINDS
    turns: int = 3
    progress: Callable[[str], None] = lambda line: None
    stop: Callable[[], bool] = lambda: False
    _drafters: dict[Strategy, LoadedDrafter] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def drafter(self, strategy: Strategy) -> LoadedDrafter:
        """The drafter of a strategy, built once. Drafters made from the target share their weights."""
        if strategy not in self._drafters:
            if strategy.name == FREE:
                made = LoadedDrafter(FREE, free(strategy.get("gamma")))
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

    def label(self, strategy: Strategy) -> str:
        if strategy.name == FREE:
            return f"verification of {strategy.get('gamma') + 1} tokens"
        return strategy.label([draft.name for draft in self.drafts])


class BatchRun(NamedTuple):
    """One decoded batch, or several in sequence.

    Attributes:
      prefill, decode: seconds without compilation.
      passes: target forward passes until all rows ended.
      reached: rounds that accepted at least 0, 1, ... draft tokens, over all rows.
    """

    prefill: float
    decode: float
    passes: int
    reached: tuple[int, ...]
    tokens: list[list[int]]

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
        """Tokens per round by count: the accepted ones and one of the target."""
        return 1 + sum(self.reached[1:]) / max(self.reached[0], 1)


def make_batches(prompts: Sequence[list[int]], batch: int) -> tuple[tuple[list[int], ...], ...]:
    """The prompts in batches of `batch`; the last batch is filled with prompts from the start."""
    count = -(-len(prompts) // batch)
    filled = [prompts[number % len(prompts)] for number in range(count * batch)]
    return tuple(tuple(filled[start : start + batch]) for start in range(0, len(filled), batch))


def decode(work: Workload, strategy: Strategy, number: int) -> BatchRun:
    """Decodes one batch.

    Raises:
      RuntimeError: the logits contain NaN.
    """
    batch = work.batches[number]
    rows = range(number * len(batch), (number + 1) * len(batch))
    job = api.prepare(
        work.target, list(batch), drafter=work.drafter(strategy), verifier=strategy.verifier, rows=rows, **work.options
    )
    state, run, _ = measuring.timed(lambda: loop.generate(job.params, job.state, **job.static))
    written, count, stop, totals = jax.device_get((state.tokens, state.length, state.stop, state.totals))
    if np.any(stop == int(Stop.NAN)):
        raise RuntimeError(f"the logits of {work.target.name} contain NaN: check its weights and dtype")
    rounds = int(np.sum(totals.rounds))
    reached = (rounds, *np.sum(totals.depth_accepted, 0)[:-1].astype(int).tolist())
    texts = [written[row, : count[row]].tolist() for row in range(len(batch))]
    return BatchRun(job.seconds["prefill"], run, int(np.max(totals.rounds)), reached, texts)


def joined(runs: Sequence[BatchRun]) -> BatchRun:
    """Several batches as one run."""
    deepest = max(len(run.reached) for run in runs)
    columns = [[*run.reached, *[0] * (deepest - len(run.reached))] for run in runs]
    return BatchRun(
        sum(run.prefill for run in runs), sum(run.decode for run in runs), sum(run.passes for run in runs),
        tuple(np.sum(columns, 0).tolist()), [row for run in runs for row in run.tokens],
    )  # fmt: skip


class SurveyLog(NamedTuple):
    """All runs so far, kept on Ctrl-C.

    Attributes:
      passes: every batch once. turns: timed runs, one per turn.
      ranks: for each draft, the ranks of the tokens of the target.
      load: share of the processors used by other programs during timed runs.
    """

    passes: dict[Strategy, list[BatchRun]]
    turns: dict[Strategy, list[BatchRun]]
    ranks: dict[int, tuple[tuple[int, ...], ...]]
    inners: list[InnerAcceptance]
    left_out: list[str]
    load: list[float]


def empty_log() -> SurveyLog:
    return SurveyLog({}, {}, {}, [], [], [])


def warm_up(work: Workload, strategies: Sequence[Strategy]) -> bool:
    """Compiles the strategies; False if stopped."""
    for place, strategy in enumerate(strategies, start=1):
        if work.stop():
            return False
        work.progress(f"{place} of {len(strategies)}: compiling {work.label(strategy)}")
        decode(work, strategy, 0)
    return True


def interleave(
    work: Workload, log: SurveyLog, strategies: Iterable[Strategy], turns: int, batches: Sequence[int]
) -> dict[Strategy, list[BatchRun]]:
    """Decodes batches interleaved: each batch with every strategy before the next batch. One run per complete turn."""
    strategies = list(strategies)
    programs = {
        (number, strategy): functools.partial(decode, work, strategy, number)
        for number, strategy in itertools.product(batches, strategies)
    }
    done = lambda count, total: work.progress(f"timed runs: {count} of {total}")
    runs = measuring.interleave(programs, turns, warm_up=False, stop=work.stop, progress=done)
    log.load.append(max((one.load for one in runs.values()), default=0.0))
    by_turn = {one: zip(*(runs[number, one].values for number in batches), strict=True) for one in strategies}
    found = {one: [joined(same) for same in turns] for one, turns in by_turn.items()}
    return {one: same for one, same in found.items() if same}


# --- survey ----------------------------------------------------------------------------------------------------------


def probes(work: Workload) -> list[Strategy]:
    """The strategies that determine acceptance and cost of each drafter."""
    found = []
    for number in range(len(work.drafts)):
        if {"model", "cascade"} & set(work.kinds):
            found += [work.drawn("model", SHORT, number), work.drawn("model", LONG, number)]
        if "tree" in work.kinds:
            found += [rank.tree(shape, number) for shape in SHAPES]
    found += [rank.chain(name, COPIES) for name in COPIED if name in work.kinds]
    return found + [work.drawn(name, gamma) for name in SELF if name in work.kinds for gamma in OWN]


def fixed_probes(work: Workload) -> list[Strategy]:
    """The strategies of `FIXED`, which are predicted only as measured."""
    named = lambda name, keys, sizes, *drafts: Strategy.of(name, drafts=drafts, **dict(zip(keys, sizes, strict=True)))
    drafts = range(len(work.drafts))
    every = [
        *(named("dynamic-tree", ("size", "depth", "width"), one, draft) for draft in drafts for one in DYNAMIC),
        *(named("suffix-tree", ("size", "depth"), one) for one in SUFFIXES),
        *(named("lookahead", ("window", "ngram", "guesses"), one) for one in LOOKAHEADS),
    ]
    return [strategy for strategy in every if strategy.name in work.kinds]


def possible(work: Workload, log: SurveyLog, every: Sequence[Strategy]) -> list[Strategy]:
    """The strategies that the target supports; the reason for leaving out the others is logged."""
    found = []
    for strategy in every:
        try:
            work.drafter(strategy)
        except ValueError as error:
            reason = f"{strategy.name}: {error}"
            if reason not in log.left_out:
                log.left_out.append(reason)
        else:
            found.append(strategy)
    return found


def survey(work: Workload, log: SurveyLog) -> None:
    """Runs everything that `rank` needs and logs it."""
    drafting = possible(work, log, probes(work))
    own = {"model": SHORT} | dict.fromkeys(SELF, OWN[0])
    timed_only = [one for one in drafting if one.get("gamma", -1) == own.get(one.name) or one.tree == SHAPES[0]]
    counted = [PLAIN, *(one for one in drafting if one not in timed_only)]
    for place, strategy in enumerate(counted, start=1):
        _pass(work, log, strategy, f"{place} of {len(counted)}: acceptance of {work.label(strategy)}")
    if PLAIN not in log.passes:
        return
    if "tree" in work.kinds:
        _rank_texts(work, log)
    if "cascade" in work.kinds and len(work.drafts) > 1:
        _survey_inner(work, log)
    idle = _leave_idle_out(work, log)
    drafting, timed_only = ([one for one in some if one.name not in idle] for some in (drafting, timed_only))
    curve = [Strategy.of(FREE, gamma=width - 1) for width in WIDTHS[1:]]
    if not warm_up(work, [*curve, *timed_only]):
        return
    ran = [one for one in drafting if one in log.passes or one in timed_only]
    log.turns.update(interleave(work, log, [PLAIN, *curve, *ran], turns_of(work, log), [0]))
    if PLAIN in log.turns:
        _survey_fixed(work, log)


def _leave_idle_out(work: Workload, log: SurveyLog) -> list[str]:
    """Drafters made from the target that commit hardly more than plain decoding; logged as left out."""
    found = []
    for strategy, runs in log.passes.items():
        tokens = joined(runs).tokens_per_round
        if strategy.name in SELF and tokens < IDLE:
            found.append(strategy.name)
            log.left_out.append(f"{work.label(strategy)}: {tokens:.2f} tokens per round are too few to gain time")
    return found


def turns_of(work: Workload, log: SurveyLog) -> int:
    """Number of timed turns: more than given if a single run is short."""
    first = log.passes[PLAIN][0]
    return min(max(work.turns, math.ceil(ENOUGH / max(first.prefill + first.decode, 1e-3))), MORE * work.turns)


def _pass(work: Workload, log: SurveyLog, strategy: Strategy, line: str) -> None:
    """Every batch once, after a warm-up run."""
    if work.stop():
        return
    work.progress(line)
    decode(work, strategy, 0)
    runs = []
    for number in range(len(work.batches)):
        if work.stop():
            return
        runs.append(decode(work, strategy, number))
    log.passes[strategy] = runs


def _survey_fixed(work: Workload, log: SurveyLog) -> None:
    """Counts and times `FIXED`, except those whose verification alone costs more than their tokens can gain."""
    curve = curve_of(log.turns)
    for strategy in possible(work, log, fixed_probes(work)):
        nodes, most = strategy.nodes, strategy.levels + 1
        if curve.relative(nodes) >= most:
            log.left_out.append(
                f"{work.label(strategy)}: verifying its {nodes} nodes would take {curve.relative(nodes):.1f} steps of "
                f"plain decoding for at most {most} tokens"
            )
            continue
        _pass(work, log, strategy, f"acceptance of {work.label(strategy)}")
        if strategy in log.passes:
            beside = interleave(work, log, [PLAIN, strategy], turns_of(work, log), [0])
            if strategy in beside:
                log.turns[strategy] = _rescaled(beside[strategy], beside[PLAIN], log.turns[PLAIN])


def _rescaled(runs: Sequence[BatchRun], plain: Sequence[BatchRun], usual: Sequence[BatchRun]) -> list[BatchRun]:
    """Runs of later turns, scaled by their ratios to `plain` to the speed of plain decoding in `usual`."""
    step = statistics.median(run.seconds for run in usual)
    return [own._replace(decode=own.decode / base.seconds * step) for own, base in zip(runs, plain, strict=True)]


def _survey_inner(work: Workload, log: SurveyLog) -> None:
    """Acceptance of the last draft model by the first, which is the target of a run of its own."""
    middle, small = 0, len(work.drafts) - 1
    if work.stop():
        return
    work.progress(f"acceptance of {work.drafts[small].name} by {work.drafts[middle].name}")
    pair = dataclasses.replace(work, target=work.drafts[middle])
    run = decode(pair, rank.chain("model", SHORT, small), 0)
    tried = sum(run.reached[:-1])
    log.inners.append(InnerAcceptance(middle, small, sum(run.reached[1:]) / tried if tried else 0.0))


def _rank_texts(work: Workload, log: SurveyLog) -> None:
    """Ranks the texts of the target by each draft model."""
    texts = [row for run in log.passes[PLAIN] for row in run.tokens]
    prompts = [prompt for batch in work.batches for prompt in batch]
    for number, draft in enumerate(work.drafts):
        if work.stop():
            return
        work.progress(f"scoring the texts of the target with {draft.name}")
        log.ranks[number] = ranks_of(draft, prompts, texts)


def ranks_of(
    draft: Model, prompts: Sequence[list[int]], texts: Sequence[list[int]], *, ranks: int = RANKS
) -> tuple[tuple[int, ...], ...]:
    """Rank of every token of the texts among the most probable tokens of the draft after the same prefix.

    Ranks from `ranks` on are MISS. Tokens with equal logits are ranked by number, as in a tree of most probable tokens.
    """
    limit = draft.positions or 10**9
    wide = max(len(prompt) for prompt in prompts)
    long = max(len(text) + (0 if draft.encoder_decoder else wide) for text in texts)
    long = min(-(-(long + 1) // PAD) * PAD, limit)
    found = []
    for prompt, text in zip(prompts, texts, strict=True):
        before = [draft.config.start_token] if draft.encoder_decoder else list(prompt)
        whole = [*before, *text][:long]
        padded = np.zeros((1, long), np.int32)
        padded[0, : len(whole)] = whole
        read = np.full((1, wide), draft.config.start_token if draft.encoder_decoder else 0, np.int32)
        read[0, : len(prompt)] = prompt
        logits = np.asarray(draft.score(*([read, padded] if draft.encoder_decoder else [padded])))[0]
        written = np.asarray(whole[len(before) :], np.int64)
        rows = logits[len(before) - 1 : len(before) - 1 + len(written)]
        own = rows[np.arange(len(written)), written][:, None]
        earlier = np.arange(rows.shape[1])[None] < written[:, None]
        place = ((rows > own) | ((rows == own) & earlier)).sum(1)
        found.append(tuple(np.where(place < ranks, place, MISS).tolist()))
    return tuple(found)


# --- numbers for rank ------------------------------------------------------------------------------------------------


def gather(log: SurveyLog) -> Measurements | None:
    """The log as numbers; None if no turn was timed."""
    if PLAIN not in log.turns:
        return None
    curve = curve_of(log.turns)
    plain = PlainCost(
        statistics.median(run.prefill for run in log.turns[PLAIN]),
        statistics.fmean(run.passes for run in log.passes[PLAIN]),
    )
    timed = [one for one in log.passes if one in log.turns]
    chains = tuple(
        _chain(log, curve, family)
        for family in dict.fromkeys(map(rank.family, timed))
        if family[0] in (*DRAWN, *COPIED)
    )
    ranked = tuple(
        RankCounts(number, rows, _tree_cost(log, curve, number))
        for number, rows in log.ranks.items()
        if rank.tree(SHAPES[1], number) in timed
    )
    fixed = tuple(_fixed(log, one) for one in timed if one.name in FIXED)
    return Measurements(curve, plain, chains, ranked, fixed, tuple(log.inners))


def curve_of(turns: dict[Strategy, list[BatchRun]]) -> VerifyCurve:
    """The verify curve, monotone beyond a width of 1."""
    timed = [one for one in turns if one.name in ("plain", FREE)]
    widths = tuple(1 + one.get("gamma", 0) for one in timed)
    found = [round_seconds(turns, one) for one in timed]
    seconds = [found[0][0], *rising([took for took, _ in found[1:]])]
    return VerifyCurve(widths, tuple(seconds), tuple(spread for _, spread in found))


def rising(values: Sequence[float]) -> list[float]:
    """Isotonic regression: the non-decreasing values of least squared distance."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and statistics.fmean(pools[-2]) > statistics.fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [statistics.fmean(pool) for pool in pools for _ in pool]


def round_seconds(turns: dict[Strategy, list[BatchRun]], strategy: Strategy) -> tuple[float, float]:
    """Seconds per round and their uncertainty.

    The median over the turns for plain decoding. For others, that median times the median ratio to plain decoding in
    the same turn, so that a machine that slows down for a while affects both.
    """
    step = statistics.median(run.seconds for run in turns[PLAIN])
    if strategy == PLAIN or strategy.name in FIXED:  # the latter are rescaled already
        values = [run.seconds for run in turns[strategy]]
    else:
        values = [step * own.seconds / base.seconds for own, base in zip(turns[strategy], turns[PLAIN], strict=True)]
    return statistics.median(values), measuring.error(values)


def _chain(log: SurveyLog, curve: VerifyCurve, family: tuple[str, tuple[int, ...]]) -> ChainCounts:
    """A family of chains: cost from all lengths, acceptance from the longest one."""
    own = [one for one in log.turns if rank.family(one) == family]
    longest = max((one for one in own if one in log.passes), key=lambda one: one["gamma"])
    gammas = [one["gamma"] for one in own]
    seconds = [round_seconds(log.turns, one)[0] for one in own]
    step, overhead = rank.drafting_cost(gammas, [gamma + 1 for gamma in gammas], seconds, curve)
    return ChainCounts(longest, joined(log.passes[longest]).reached, _cost(log, longest, step, overhead))


def _tree_cost(log: SurveyLog, curve: VerifyCurve, draft: int) -> DraftingCost:
    """Cost of a level of a tree and overhead, from two trees."""
    own = [rank.tree(shape, draft) for shape in SHAPES]
    seconds = [round_seconds(log.turns, one)[0] for one in own]
    levels, sizes = [shape.width - 1 for shape in SHAPES], [shape.size for shape in SHAPES]
    return _cost(log, own[1], *rank.drafting_cost(levels, sizes, seconds, curve))


def _fixed(log: SurveyLog, strategy: Strategy) -> FixedCounts:
    tokens = joined(log.passes[strategy]).tokens_per_round
    # Standard error over texts: rounds of one text are not independent.
    each = [one.tokens_per_round for one in log.passes[strategy]]
    error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0
    return FixedCounts(strategy, tokens, error, round_seconds(log.turns, strategy)[0], _cost(log, strategy, 0.0, 0.0))


def _cost(log: SurveyLog, strategy: Strategy, step: float, overhead: float) -> DraftingCost:
    run, plain = joined(log.passes[strategy]), joined(log.passes[PLAIN])
    kept = run.committed / max(run.passes, 1) / run.tokens_per_round
    usual = plain.committed / max(plain.passes, 1)
    seconds, spread = round_seconds(log.turns, strategy)
    prefill = statistics.median(one.prefill for one in log.turns[strategy])
    return DraftingCost(step, overhead, prefill, kept / usual, spread / seconds)
