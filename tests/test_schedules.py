"""Whatever is accepted when: random acceptances, ragged prompts and lengths of draft give plain decoding's text."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax import drafters, trees
from specjax.base import Drafter
from specjax.drafters import LoadedDrafter
from specjax.types import Draft
from tests import battery
from tests.battery import Setting, run, texts

ROWS, WIDTH, NEW, GAMMA = 4, 8, 12, 8
FAMILIES = tuple(battery.FAMILIES)
FAST = (("opt", "model-5"), ("llama", "model-2"), ("t5", "model-7"), ("opt", "ngram-6"))
EVERY = tuple((f, f"{kind}-{g}") for f in FAMILIES for kind in ("model", "ngram") for g in range(1, 9))
PLAN = Setting(max_new=NEW, cache_len=24)


class Script(NamedTuple):
    """What the scripted drafter proposes: arrays, so that no example compiles."""

    truth: jax.Array  # [B, NEW] the text to come
    right: jax.Array  # [B, NEW] how many tokens it gets right in a round that begins there
    length: jax.Array  # [B, NEW] how many it proposes, 0..GAMMA


def scripted() -> Drafter:
    """Proposes the truth up to a wrong token, as the script lists for each position of each row."""

    def propose(params, key, state, pending, warp):
        del key, warp
        rows, depth = jnp.arange(pending.shape[0], dtype=jnp.int32), jnp.arange(GAMMA, dtype=jnp.int32)[None]
        here = jnp.minimum(state, NEW - 1)
        ahead = jnp.take_along_axis(params.truth, jnp.minimum(state[:, None] + depth, NEW - 1), axis=1)
        wrong = (ahead + 1) % battery.VOCAB
        tokens = jnp.where(depth == params.right[rows, here][:, None], wrong, ahead)
        valid = depth < params.length[rows, here][:, None]
        root = jnp.ones_like(valid[:, :1])
        return Draft(jnp.concatenate([pending[:, None], tokens], 1), jnp.concatenate([root, valid], 1), None), state

    init = lambda params, prompt, length, cache_len, prefilled: jnp.zeros_like(length)
    commit = lambda params, state, new: state + new.length
    return Drafter(trees.chain(GAMMA), init, propose, commit)


SCRIPTED = scripted()
seeds = st.integers(0, 2**32 - 1)


def request(rng: np.random.Generator) -> dict:
    """Ragged prompts and budgets of fixed shapes."""
    return {
        "tokens": rng.integers(0, battery.VOCAB, (ROWS, WIDTH)).astype(np.int32),
        "lengths": rng.integers(1, WIDTH + 1, ROWS).astype(np.int32),
        "budget": rng.integers(1, NEW + 1, ROWS),
        "setting": PLAN,
    }


@pytest.mark.parametrize("family", battery.others_slow(FAMILIES, ["opt"]))
@settings(max_examples=8)
@given(seed=seeds)
def test_any_schedule_of_acceptances(family, seed):
    rng = np.random.default_rng(seed)
    options = request(rng)
    budget = options.pop("budget")
    truth = run(family, drafters.plain(), **options)
    numbers = lambda: jnp.asarray(rng.integers(0, GAMMA + 1, (ROWS, NEW)), jnp.int32)
    script = Script(truth.tokens[:, :NEW], numbers(), numbers())
    state = run(family, LoadedDrafter("scripted", SCRIPTED, script), **options, budget=budget)
    assert texts(state) == [row[:n] for row, n in zip(texts(truth), budget, strict=True)]
    assert state.totals.rounds.tolist() == rounds_of(script, budget)  # the script was followed


def rounds_of(script: Script, budget: np.ndarray) -> list[int]:
    """Rounds that the script needs: each takes what is right among what is proposed, and one token more."""
    right, length, counts = np.asarray(script.right), np.asarray(script.length), []
    for row, limit in enumerate(budget):
        at = rounds = 0
        while at < limit:
            at += 1 + min(right[row, at], length[row, at])
            rounds += 1
        counts.append(rounds)
    return counts


def model_or_ngram_equals_plain(family: str, kind: str, seed: int) -> None:
    """A draft whose weights lie at a random distance from the target's: all, some or none of it is accepted."""
    rng = np.random.default_rng(seed)
    options = request(rng)
    helper = battery.drafter_for(kind, family)
    if kind.startswith("model"):
        noise = np.float32(rng.choice([0.0, 0.03, 0.1, 0.5]))
        leaves, structure = jax.tree.flatten(battery.target(family).params)
        near = [p + noise * rng.normal(size=p.shape).astype(np.float32) * np.std(p) for p in leaves]
        helper = helper._replace(params=jax.tree.unflatten(structure, near))
    assert texts(run(family, helper, **options)) == texts(run(family, drafters.plain(), **options))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), FAST)
@settings(max_examples=8)
@given(seed=seeds)
def test_greedy_equals_plain_on_random_requests(family, kind, seed):
    model_or_ngram_equals_plain(family, kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), EVERY)
@settings(max_examples=8)
@given(seed=seeds)
def test_greedy_equals_plain_on_random_requests_for_every_gamma(family, kind, seed):
    model_or_ngram_equals_plain(family, kind, seed)
