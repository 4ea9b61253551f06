"""Shared by the tests of drafters that are not chains: a LoadedDrafter and a verifier through the whole loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decoding as loop
from specjax import verify
from specjax.drafters import LoadedDrafter
from specjax.stopping import Stop
from specjax.totals import Totals
from specjax.types import Draft
from tests import battery, distributions
from tests.battery import Setting, run, texts
from tests.test_decoding import exact_joint, sampled_counts

SAMPLED = [0.0, 0.7, 1.3, 1.0, 0.0, 0.9, 1.1, 0.8]
CASES, WIDTH = 64, 40  # one compile of the scores: so many texts at once, of at most so many tokens


def verifier(loaded: LoadedDrafter, name: str):
    """The verifier of that name, which must serve this drafter and be lossless."""
    found, part = verify.TABLE[name], loaded.drafter
    found.require_lossless()
    found.check(part.tree, part.siblings, loaded.name, dynamic=part.dynamic)
    return found.fn


def greedy_equals_plain(family: str, loaded: LoadedDrafter, name: str) -> Totals:
    """Token for token, on a ragged batch; returns the totals for more."""
    state = run(family, loaded, verify=verifier(loaded, name))
    assert texts(state) == battery.plain(family)
    assert state.stop.tolist() == [Stop.MAX_TOKENS] * battery.ROWS
    totals = jax.device_get(state.totals)
    assert (totals.rounds + totals.accepted >= Setting.max_new).all()
    assert totals.accepted.sum() <= totals.tested.sum() <= totals.drafted.sum()
    return totals


def a_full_cache_stops_at_the_same_token(family: str, loaded: LoadedDrafter, name: str) -> None:
    """With a block that no longer fits: the cache of 18 tokens holds 18."""
    state = run(family, loaded, verify=verifier(loaded, name), setting=Setting(cache_len=18))
    used = np.ones_like(battery.LENGTHS) if family == "t5" else battery.LENGTHS
    room = np.minimum(18 - used + 1, Setting.max_new)
    assert texts(state) == [row[:n] for row, n in zip(battery.plain(family), room, strict=True)]
    assert state.stop.tolist() == np.where(room < Setting.max_new, Stop.CACHE_FULL, Stop.MAX_TOKENS).tolist()


def rows_are_independent(family: str, loaded: LoadedDrafter, name: str) -> None:
    """Greedy and sampled rows, moved, ended early by budgets and by an end of text: all in one trace."""
    fn = verifier(loaded, name)
    whole = texts(run(family, loaded, SAMPLED, verify=fn))
    traces = loop.trace_count()
    order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
    moved = run(
        family, loaded, np.array(SAMPLED)[order], verify=fn, tokens=battery.prompts()[order],
        lengths=battery.LENGTHS[order], rows=order,
    )  # fmt: skip
    assert texts(moved) == [whole[i] for i in order]
    budget = [1, 24, 5, 24, 2, 24, 7, 24]
    cut = run(family, loaded, SAMPLED, verify=fn, budget=budget)
    assert texts(cut) == [row[:n] for row, n in zip(whole, budget, strict=True)]
    assert (np.asarray(cut.totals.rounds) <= budget).all()
    eos = whole[3][5]
    ended = run(family, loaded, SAMPLED, verify=fn, setting=Setting(eos=(eos,)))
    assert texts(ended) == [row[: row.index(eos) + 1] if eos in row else row for row in whole]
    assert loop.trace_count() == traces


def follows_the_joint_distribution(family: str, loaded: LoadedDrafter, name: str, **options) -> dict[float, float]:
    """The p-values of three tokens of 4096 rows a temperature, greedy rows between them."""
    counts = sampled_counts(loaded, family, verify=verifier(loaded, name), **options)
    return {t: distributions.chi_square(h, exact_joint(t, family)) for t, h in counts.items()}


@functools.cache
def _scorer(family: str):
    model = battery.target(family)
    if family == "t5":
        score = lambda p, *tokens, n: model.family.score(p, model.config, battery.FMT, *tokens, encoder_length=n)
        return jax.jit(lambda p, prompt, length, new: score(p, prompt, new, n=length))
    return jax.jit(lambda p, whole: model.family.score(p, model.config, battery.FMT, whole))


def logits_after(family: str, cases: list[tuple[int, list[int]]], params=None) -> np.ndarray:
    """[cases, V]: the target's logits after a row of `battery.prompts()` and more tokens, without any cache."""
    model, found = battery.target(family), []
    params = model.params if params is None else params
    for start in range(0, len(cases), CASES):
        some = cases[start : start + CASES]
        given = np.zeros((CASES, WIDTH), np.int32)
        rows = np.zeros((CASES,), np.int32)
        last = np.zeros((CASES,), np.int32)
        for at, (row, new) in enumerate(some):
            head = [model.config.start_token] if family == "t5" else battery.prompts()[row, : battery.LENGTHS[row]]
            text = [*head, *new]
            given[at, : len(text)], rows[at], last[at] = text, row, len(text) - 1
        arrays = [jnp.asarray(given)]
        if family == "t5":
            arrays = [jnp.asarray(battery.prompts()[rows]), jnp.asarray(battery.LENGTHS[rows]), *arrays]
        logits = np.asarray(_scorer(family)(params, *arrays))
        found.append(logits[np.arange(len(some)), last[: len(some)]])
    return np.concatenate(found)


def routes(draft: Draft, parents, row: int) -> list[list[int]]:
    """The tokens from below the root to each node of one row."""
    above = np.asarray(parents if draft.parents is None else draft.parents[row])
    tokens, found = np.asarray(draft.tokens[row]), [[]]
    for node in range(1, len(tokens)):
        found.append([*found[above[node]], int(tokens[node])] if above[node] >= 0 else [])
    return found
