"""What this machine, this pair and these prompts are like: every way is run, in the loop that users run, and counted.

First all prompts are decoded in every way, which counts what is accepted; then the first batch is decoded in turns,
which times rounds; the target's own texts are read by the draft models, which ranks them. All times are warm.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specjax.advisor import rank, running, ways
from specjax.advisor.rank import MISS, RANKS, Chain, Cost, Curve, Inner, Measured, Plain, Ranks, Whole
from specjax.advisor.running import Run, Work
from specjax.advisor.ways import PLAIN, Way
from specjax.model import Model
from specjax.trees import from_paths, regular

SHORT, LONG = 2, 8  # draft lengths that a draft model is run with: two tell its step from what else a round takes
COPIED = 8  # of the drafters that look tokens up
# Tokens of a call of the target, for its curve. What the drafts above check is among them: between widths measured the
# curve may jump, and a jump would count as time of the drafter.
WIDTHS = tuple(sorted({1, 2, 3, 4, 5, 6, 8, 12, 16, SHORT + 1, LONG + 1, COPIED + 1}))
# Two trees tell what a level of a tree takes, and what else a round with one: a wide one, and a deep one whose first
# levels have a second guess.
SHAPES = (regular((2, 2)), from_paths([*((0,) * depth for depth in range(1, 9)), (1,), (0, 1), (0, 0, 1)]))
OWN = (1, 4)  # draft lengths of the ways over the target's own weights, whose tokens are dear
IDLE = 1.05  # tokens a round: fewer can gain nothing worth timing, since every round calls the target
LOOKAHEADS = ((4, 3, 4), (7, 5, 7))  # window, n-gram, guesses: a narrow one and the usual one
DYNAMIC = ((8, 4, 2), (16, 6, 4))  # nodes, levels, width of a tree that a model grows
SUFFIXES = ((8, 6), (16, 8))  # nodes, levels of a tree of what followed before
ENOUGH = 2.0  # seconds of plain decoding that a way is timed for, where single runs are short
PAD = 32  # texts to be ranked are padded to multiples of this


class Notes(NamedTuple):
    """Everything that was run so far, in the order of running; what Ctrl-C leaves.

    Attributes:
      passes: every batch, once. turns: the first batch, again and again. ranks: of each draft, the target's texts.
      load: share of the processors that other programs used during the turns.
    """

    passes: dict[Way, list[Run]]
    turns: dict[Way, list[Run]]
    ranks: dict[int, tuple[tuple[int, ...], ...]]
    inners: list[Inner]
    left_out: list[str]
    load: list[float]


def fresh() -> Notes:
    return Notes({}, {}, {}, [], [], [])


# --- what is run -----------------------------------------------------------------------------------------------------


def probes(work: Work) -> list[Way]:
    """The ways that tell what each drafter accepts and costs."""
    found = []
    for number in range(len(work.drafts)):
        if {"model", "cascade"} & set(work.kinds):
            found += [work.drawn("model", SHORT, number), work.drawn("model", LONG, number)]
        if "tree" in work.kinds:
            found += [ways.tree(shape, number) for shape in SHAPES]
    found += [ways.chain(kind, COPIED) for kind in ("ngram", "suffix") if kind in work.kinds]
    return found + [work.drawn(kind, gamma) for kind in ways.SELF if kind in work.kinds for gamma in OWN]


def wholes(work: Work) -> list[Way]:
    """The ways that are weighed as they are run."""
    drafts = range(len(work.drafts))
    every = [
        *(ways.dynamic_tree(*one, draft) for draft in drafts for one in DYNAMIC),
        *(ways.suffix_tree(*one) for one in SUFFIXES),
        *(ways.lookahead(*one) for one in LOOKAHEADS),
    ]
    return [way for way in every if way.kind in work.kinds]


def possible(work: Work, notes: Notes, every: Sequence[Way]) -> list[Way]:
    """Those that this target can have; the others are left out, and why is said."""
    found = []
    for way in every:
        try:
            work.guide(way)
        except ValueError as error:
            reason = f"{way.kind}: {error}"
            if reason not in notes.left_out:
                notes.left_out.append(reason)
        else:
            found.append(way)
    return found


def survey(work: Work, notes: Notes) -> None:
    """Runs all that theory needs, and writes it down in `notes` as it comes."""
    drafting = possible(work, notes, probes(work))
    timed_alone = [way for way in drafting if way.kind == "model" and way["gamma"] == SHORT]
    timed_alone += [way for way in drafting if way.kind in ways.SELF and way["gamma"] == OWN[0]]
    timed_alone += [way for way in drafting if way.kind == "tree" and ways.shape_of(way) == SHAPES[0]]
    counted = [PLAIN, *(way for way in drafting if way not in timed_alone)]
    for place, way in enumerate(counted, start=1):
        _pass(work, notes, way, f"{place} of {len(counted)}: acceptance of {ways.label(way, work.names)}")
    if PLAIN not in notes.passes:
        return
    if "tree" in work.kinds:
        _rank_texts(work, notes)
    if "cascade" in work.kinds and len(work.drafts) > 1:
        _survey_inner(work, notes)
    idle = _leave_idle_out(notes)
    drafting, timed_alone = ([way for way in some if way.kind not in idle] for some in (drafting, timed_alone))
    curve = [ways.verify(width) for width in WIDTHS[1:]]
    for place, way in enumerate([*curve, *timed_alone], start=1):
        if work.stop():
            return
        work.tell(f"{place} of {len(curve) + len(timed_alone)}: compiling {ways.label(way, work.names)}")
        running.decode(work, way, 0)
    ran = [way for way in drafting if way in notes.passes or way in timed_alone]
    notes.load.append(running.take_turns(work, [PLAIN, *curve, *ran], notes.turns, turns_of(work, notes), [0]))
    if PLAIN in notes.turns:
        _survey_wholes(work, notes)


def _leave_idle_out(notes: Notes) -> list[str]:
    """The kinds over the target's own weights that commit hardly more than plain decoding does; that is said."""
    found = []
    for way, runs in notes.passes.items():
        tokens = running.accepted_and_one(running.joined(runs))
        if way.kind in ways.SELF and tokens < IDLE:
            found.append(way.kind)
            notes.left_out.append(
                f"{ways.label(way)}: a round commits {tokens:.2f} tokens, and every round calls the target"
            )
    return found


def turns_of(work: Work, notes: Notes) -> int:
    """Turns that time rounds: more than were asked for where a run is so short that it tells little."""
    first = notes.passes[PLAIN][0]
    return min(max(work.turns, math.ceil(ENOUGH / max(first.prefill + first.decode, 1e-3))), running.MORE * work.turns)


def _pass(work: Work, notes: Notes, way: Way, line: str) -> None:
    """Every batch once; the first twice, since its first run starts the program."""
    if work.stop():
        return
    work.tell(line)
    running.decode(work, way, 0)
    runs = []
    for number in range(len(work.batches)):
        if work.stop():
            return
        runs.append(running.decode(work, way, number))
    notes.passes[way] = runs


def _survey_wholes(work: Work, notes: Notes) -> None:
    """Each as it is run; one whose call takes longer than its tokens could gain is left out, and said."""
    curve = curve_of(notes.turns)
    for way in possible(work, notes, wholes(work)):
        nodes, most = ways.nodes(way), ways.levels(way) + 1
        if curve.relative(nodes) >= most:
            notes.left_out.append(
                f"{ways.label(way, work.names)}: a call of its {nodes} nodes would take {curve.relative(nodes):.1f} "
                f"steps of plain decoding, and commits at most {most} tokens"
            )
            continue
        _pass(work, notes, way, f"acceptance of {ways.label(way, work.names)}")
        if way in notes.passes:
            beside: dict[Way, list[Run]] = {}
            running.take_turns(work, [PLAIN, way], beside, turns_of(work, notes), [0])
            if way in beside:
                notes.turns[way] = _as_of(beside[way], beside[PLAIN], notes.turns[PLAIN])


def _as_of(runs: Sequence[Run], plain: Sequence[Run], usual: Sequence[Run]) -> list[Run]:
    """Runs of later turns as they would have been beside `usual` runs of plain decoding: by their ratios to `plain`."""
    step = statistics.median(run.seconds for run in usual)
    return [own._replace(decode=own.decode / base.seconds * step) for own, base in zip(runs, plain, strict=True)]


def _survey_inner(work: Work, notes: Notes) -> None:
    """How well the last draft model predicts the first: the middle model is the target of a run of its own."""
    middle, small = 0, len(work.drafts) - 1
    if work.stop():
        return
    work.tell(f"how well {ways.short(work.drafts[small].name)} drafts for {ways.short(work.drafts[middle].name)}")
    pair = dataclasses.replace(work, target=work.drafts[middle])
    run = running.decode(pair, ways.chain("model", SHORT, small), 0)
    tried = sum(run.reached[:-1])
    notes.inners.append(Inner(middle, small, sum(run.reached[1:]) / tried if tried else 0.0))


def _rank_texts(work: Work, notes: Notes) -> None:
    """Ranks the target's own texts by each draft model."""
    texts = [row for run in notes.passes[PLAIN] for row in run.tokens]
    prompts = [prompt for batch in work.batches for prompt in batch]
    for number, draft in enumerate(work.drafts):
        if work.stop():
            return
        work.tell(f"ranking the target's texts by {ways.short(draft.name)}")
        notes.ranks[number] = ranks_of(draft, prompts, texts)


def ranks_of(
    draft: Model, prompts: Sequence[list[int]], texts: Sequence[list[int]], *, ranks: int = RANKS
) -> tuple[tuple[int, ...], ...]:
    """The rank of every token of the texts among the draft's most probable after the same words; MISS past `ranks`.

    Of equal logits the smaller token comes first, as it does in a tree of most probable tokens.
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
        said = np.asarray(whole[len(before) :], np.int64)
        rows = logits[len(before) - 1 : len(before) - 1 + len(said)]
        own = rows[np.arange(len(said)), said][:, None]
        earlier = np.arange(rows.shape[1])[None] < said[:, None]
        rank = ((rows > own) | ((rows == own) & earlier)).sum(1)
        found.append(tuple(np.where(rank < ranks, rank, MISS).tolist()))
    return tuple(found)


# --- what it comes to ------------------------------------------------------------------------------------------------


def gather(notes: Notes) -> Measured | None:
    """The notes as theory takes them; None where no turn was timed."""
    if PLAIN not in notes.turns:
        return None
    curve = curve_of(notes.turns)
    plain = Plain(
        statistics.median(run.prefill for run in notes.turns[PLAIN]),
        statistics.fmean(run.calls for run in notes.passes[PLAIN]),
    )
    timed_ways = [way for way in notes.passes if way in notes.turns]
    chains = tuple(
        _chain(notes, curve, kind, drafts)
        for kind, drafts in dict.fromkeys((way.kind, way.drafts) for way in timed_ways)
        if kind in (*ways.DRAWN, "ngram", "suffix")
    )
    ranked = tuple(
        Ranks(number, rows, _tree_cost(notes, curve, number))
        for number, rows in notes.ranks.items()
        if ways.tree(SHAPES[1], number) in timed_ways
    )
    wholes = tuple(_whole(notes, way) for way in timed_ways if way.kind in ways.WHOLE)
    return Measured(curve, plain, chains, ranked, wholes, tuple(notes.inners))


def curve_of(turns: dict[Way, list[Run]]) -> Curve:
    """The verify-cost curve of the turns so far; beyond one token, more tokens take no less time than fewer."""
    timed_ways = [way for way in turns if way.kind in ("plain", "verify")]
    widths = tuple(1 if way == PLAIN else way["width"] for way in timed_ways)
    found = [round_seconds(turns, way) for way in timed_ways]
    seconds = [found[0][0], *rising([took for took, _ in found[1:]])]
    return Curve(widths, tuple(seconds), tuple(spread for _, spread in found))


def rising(values: Sequence[float]) -> list[float]:
    """The rising values of least squared distance: what falls is noise, and pooled with what is before it."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and statistics.fmean(pools[-2]) > statistics.fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [statistics.fmean(pool) for pool in pools for _ in pool]


def round_seconds(turns: dict[Way, list[Run]], way: Way) -> tuple[float, float]:
    """Seconds of a round, and their standard error.

    Of plain decoding the median over the turns; of other ways that median times the median ratio to plain decoding in
    the same turn, so that a machine that slows down for a while does so for both.
    """
    step = statistics.median(run.seconds for run in turns[PLAIN])
    if way == PLAIN:
        values = [run.seconds for run in turns[PLAIN]]
    elif way.kind in ways.WHOLE:  # timed later, in turns of its own
        values = [run.seconds for run in turns[way]]
    else:
        values = [step * own.seconds / base.seconds for own, base in zip(turns[way], turns[PLAIN], strict=True)]
    return statistics.median(values), running.spread_of(values)


def _chain(notes: Notes, curve: Curve, kind: str, drafts: tuple[int, ...]) -> Chain:
    """The runs of one drafter at its draft lengths; acceptance is that of the longest."""
    own = [way for way in notes.turns if (way.kind, way.drafts) == (kind, drafts)]
    longest = max((way for way in own if way in notes.passes), key=lambda way: way["gamma"])
    gammas = [way["gamma"] for way in own]
    seconds = [_round(notes, way) for way in own]
    step, overhead = rank.drafting_cost(gammas, [gamma + 1 for gamma in gammas], seconds, curve)
    reached = running.joined(notes.passes[longest]).reached
    return Chain(longest, reached, _cost(notes, longest, step, overhead))


def _tree_cost(notes: Notes, curve: Curve, draft: int) -> Cost:
    """What a level of a tree takes, and what else a round, from the two trees that were run."""
    own = [ways.tree(shape, draft) for shape in SHAPES]
    step, overhead = rank.drafting_cost(
        [shape.width - 1 for shape in SHAPES], [shape.size for shape in SHAPES],
        [_round(notes, way) for way in own], curve,
    )  # fmt: skip
    return _cost(notes, own[1], step, overhead)


def _whole(notes: Notes, way: Way) -> Whole:
    run = running.joined(notes.passes[way])
    tokens = running.accepted_and_one(run)
    # Of the texts' own means, so that words that repeat within a text do not count as evidence of their own.
    each = [running.accepted_and_one(one) for one in notes.passes[way]]
    error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0
    return Whole(way, tokens, error, _round(notes, way), _cost(notes, way, 0.0, 0.0))


def _round(notes: Notes, way: Way) -> float:
    return round_seconds(notes.turns, way)[0]


def _cost(notes: Notes, way: Way, step: float, overhead: float) -> Cost:
    turns = notes.turns[way]
    run, plain = running.joined(notes.passes[way]), running.joined(notes.passes[PLAIN])
    kept = run.committed / max(run.calls, 1) / running.accepted_and_one(run)
    usual = plain.committed / max(plain.calls, 1)
    seconds, spread = round_seconds(notes.turns, way)
    prefill = statistics.median(one.prefill for one in turns)
    return Cost(step, overhead, prefill, kept / usual, spread / seconds)
