"""Prompts in batches, each for one part of the work: what chooses candidates does not judge them."""

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Part(enum.Enum):
    """What prompts are used for. Candidates are judged on other prompts than those that they were chosen on."""

    SURVEY = "survey"
    TRIALS = "trials"
    SWEEP = "sweep"


class Batch(NamedTuple):
    """Prompts decoded together; those from `real` on only fill the batch."""

    prompts: tuple[list[int], ...]
    real: int
    part: Part


def deal(prompts: Sequence[list[int]], *, trials: bool, sweep: bool) -> dict[Part, Sequence[list[int]]]:
    """The prompts of each part: a sweep gets every second one, and the trials every second one of the rest.

    A single prompt is used by all parts, and by survey and trials if a sweep leaves one.
    """
    halve = lambda some: (some[::2], some[1::2] or some)
    found: dict[Part, Sequence[list[int]]] = {Part.SURVEY: prompts}
    for part, wanted in ((Part.SWEEP, sweep), (Part.TRIALS, trials)):
        if wanted:
            found[Part.SURVEY], found[part] = halve(found[Part.SURVEY])
    return found


def make_batches(parts: Mapping[Part, Sequence[list[int]]], batch: int) -> tuple[Batch, ...]:
    """The prompts in batches of `batch`; the last batch of a part is filled with prompts from its start."""
    found = []
    for part, prompts in parts.items():
        for start in range(0, len(prompts), batch):
            filled = [prompts[number % len(prompts)] for number in range(start, start + batch)]
            found.append(Batch(tuple(filled), min(batch, len(prompts) - start), part))
    return tuple(found)
