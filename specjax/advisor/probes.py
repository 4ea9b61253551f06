"""Which strategies `measure` runs, so that `rank` can predict the others from them."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specjax.advisor import rank
from specjax.advisor.rank import COPIED, HEAD, SELF
from specjax.drafters.head import ONE_PASS, most_drafted
from specjax.strategy import Strategy
from specjax.trees import from_paths, regular, sequoia
from specjax.types import Siblings

if TYPE_CHECKING:
    from specjax.advisor.measure import Survey

SHORT, LONG = 2, 8  # draft lengths measured for a draft model: two lengths separate its step from the overhead
COPIES = 8  # draft length measured for drafters of copied tokens
# Two trees separate the cost of a level from the overhead: a wide one, and a deep one that branches at the top.
SHAPES = (regular((2, 2)), from_paths([*((0,) * depth for depth in range(1, 9)), (1,), (0, 1), (0, 0, 1)]))
OWN = (1, 4)  # draft lengths measured for drafters made from the target, whose tokens are expensive
LOOKAHEADS = ((4, 3, 4), (7, 5, 7))  # window, ngram, guesses
DYNAMIC = ((8, 4, 2), (16, 6, 4))  # size, depth, width
ACCEPTED = (0.6, 0.15, 0.06, 0.03)  # of distinct samples, by rank: shapes the trees of them, of the sizes of `DYNAMIC`
SUFFIXES = ((8, 6), (16, 8))  # size, depth


def probes(survey: "Survey") -> list[Strategy]:
    """The strategies that determine acceptance and cost of each drafter."""
    found = []
    for number in range(len(survey.drafts)):
        if {"model", "cascade"} & set(survey.kinds):
            found += [survey.drawn("model", SHORT, number), survey.drawn("model", LONG, number)]
        if "tree" in survey.kinds:
            found += [rank.tree(shape, number) for shape in SHAPES]
    for folder in heads(survey):
        found += [Strategy.of(HEAD, folder=folder, gamma=gamma) for gamma in lengths(survey, folder)]
    found += [rank.chain(name, COPIES) for name in COPIED if name in survey.kinds]
    return found + [survey.drawn(name, gamma) for name in SELF if name in survey.kinds for gamma in OWN]


def heads(survey: "Survey") -> Sequence[str]:
    """Folders of the heads to consider."""
    return tuple(survey.heads) if HEAD in survey.kinds else ()


def lengths(survey: "Survey", folder: str) -> tuple[int, ...]:
    """Draft lengths measured for a head: two, or one if it drafts no more than that."""
    most = most_drafted(survey.heads[folder])
    return (SHORT, min(LONG, most)) if most > SHORT else (most,)


def is_timed_only(survey: "Survey", one: Strategy) -> bool:
    """Whether its acceptance follows from another probe, so that only its rounds are timed."""
    if one.name == HEAD:
        return one["gamma"] < lengths(survey, one["folder"])[-1]
    least = {"model": SHORT} | dict.fromkeys(SELF, OWN[0])
    return one.get("gamma", -1) == least.get(one.name) or one.tree == SHAPES[0]


def fixed_probes(survey: "Survey") -> list[Strategy]:
    """The strategies that are predicted only as measured."""
    named = lambda name, keys, sizes, *drafts: Strategy.of(name, drafts=drafts, **dict(zip(keys, sizes, strict=True)))
    drafts = range(len(survey.drafts))
    every = [
        *sampled_trees(survey),
        *(named("dynamic-tree", ("size", "depth", "width"), one, draft) for draft in drafts for one in DYNAMIC),
        *(
            Strategy.of(HEAD, folder=folder, dynamic=size, depth=depth, width=width)
            for folder in heads(survey)
            if not isinstance(survey.heads[folder].config, ONE_PASS)
            for size, depth, width in DYNAMIC
        ),
        *(named("suffix-tree", ("size", "depth"), one) for one in SUFFIXES),
        *(named("lookahead", ("window", "ngram", "guesses"), one) for one in LOOKAHEADS),
    ]
    return [strategy for strategy in every if strategy.name in survey.kinds]


def sampled_trees(survey: "Survey") -> list[Strategy]:
    """Trees of distinct samples of draft models and heads; none for greedy decoding, where they are the most
    probable tokens."""
    if survey.options["temperature"] == 0:
        return []
    drawn = functools.partial(Strategy.of, siblings=Siblings.WITHOUT_REPLACEMENT)
    levels = {folder: most_drafted(survey.heads[folder]) for folder in heads(survey)}
    shapes = lambda most: [sequoia(ACCEPTED, size, depth=min(depth, most)) for size, depth, _ in DYNAMIC]
    return [
        *(drawn("tree", shape=one, drafts=(n,)) for n in range(len(survey.drafts)) for one in shapes(rank.GAMMA_MAX)),
        *(drawn(HEAD, folder=name, tree=one) for name, most in levels.items() if most > 1 for one in shapes(most)),
    ]
