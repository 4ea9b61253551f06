"""Synthetic traces for tests of their layout."""

import numpy as np

import specjax as sj
from specjax import drafters, metrics
from specjax.totals import Totals
from specjax.trace.rounds import PromptTimes, Trace, TraceRound


def trace(rounds=(), *, steps=1, drafter=1.0, tokens=5, prompts=(), encoder_decoder=False) -> Trace:
    """A request of one row with a target prefill of 2 s and a drafter prefill of `drafter` seconds."""
    nothing = np.zeros((1,), np.int32)
    totals = Totals(*[nothing] * 4, nothing, np.zeros((1, 2), np.int32), np.zeros((1, 2), np.int32))
    stats = metrics.stats(totals, np.array([tokens]), {}, compiles=0)
    out = sj.Generation(None, [[]], ["max_tokens"], stats, True)
    given = [list(prompt) for prompt in prompts]
    return Trace(drafters.plain(), steps, given, encoder_decoder, PromptTimes(2.0, drafter), tuple(rounds), out)


def timed(*times) -> list[TraceRound]:
    """Rounds with these (draft, verify) seconds."""
    return [TraceRound(number, (), *one) for number, one in enumerate(times, start=1)]
