"""Traces that were made up, for those who lay them out."""

import numpy as np

import specjax as sj
from specjax import decoding, drafters, metrics
from specjax.trace.rounds import Reading, Round, Times, Trace


def trace(rounds=(), *, calls=1, drafter=1.0, tokens=5, prompts=(), encoder_decoder=False) -> Trace:
    """A run of one row; `drafter`: seconds to read the prompt, of which the target takes 2."""
    nothing = np.zeros((1,), np.int32)
    totals = decoding.Totals(*[nothing] * 4, nothing, np.zeros((1, 2), np.int32), np.zeros((1, 2), np.int32))
    stats = metrics.stats(totals, np.array([tokens]), {}, compiles=0)
    out = sj.Generation(None, [[]], ["max_tokens"], stats, True)
    given = [list(prompt) for prompt in prompts]
    return Trace(drafters.plain(), calls, given, encoder_decoder, Reading(2.0, drafter), tuple(rounds), out)


def timed(*times) -> list[Round]:
    """Rounds of these times, (whole, draft, verify) each."""
    return [Round(number, (), Times(*one)) for number, one in enumerate(times, start=1)]
