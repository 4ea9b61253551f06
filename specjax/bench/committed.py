"""Tokens that each verifier commits a round, on the very same drafts of one run."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import api, verify
from specjax import decoding as loop
from specjax.base import Drafter, LanguageModel, VerifyFn
from specjax.bench.decode import Row
from specjax.bench.pair import read_prompts
from specjax.drafters import LoadedDrafter
from specjax.loading import load
from specjax.model import Model
from specjax.naming import drafting
from specjax.programs import memoize
from specjax.sampling import Stages
from specjax.stopping import Stop

DRAWS = 8  # verdicts of each draft and verifier: less noise than one, for the price of a verifier alone


def committed(
    target: Model,
    guide: LoadedDrafter,
    prompts: Sequence[Any],
    *,
    names: Sequence[str] | None = None,
    rounds: int = 2000,
    temperature: float = 1.0,
    batch: int = 8,
    new: int = 128,
    seed: int = 0,
) -> Iterator[Row]:
    """Tokens a round of each verifier, and the difference from the first one with its standard error.

    Every round of a run with the first verifier is judged by all: same draft, same laws, keys of their own. What one
    prompt's rounds have in common does not average out, so the error is that of the means by prompt.

    Args:
      names: lossless verifiers of `verify.TABLE` that serve the guide, the one that is compared with first; None: all
        that do, "token" first where it is one of them.
      rounds: at least as many are judged; the prompts are gone through again with new seeds until then.
      new: tokens of a row.

    Raises:
      ValueError: a verifier that does not serve the guide's drafts.
    """
    part = guide.drafter
    serving = lambda name: verify.TABLE[name].supports(part.tree, part.siblings, part.dynamic)
    if names is None:
        names = [name for name, found in verify.TABLE.items() if found.lossless and serving(name)]
    chosen = [verify.get(name) for name in names]
    counts: dict[int, np.ndarray] = {}  # of each prompt: [rounds, sums of tokens by verifier]
    judged, turn = 0, 0
    while judged < rounds:
        start = turn * batch % len(prompts)
        group = [(start + i) % len(prompts) for i in range(batch)]
        given = [prompts[i] for i in group]
        settings: dict[str, Any] = {"max_new_tokens": new, "temperature": temperature, "seed": seed + turn}
        job = api.prepare(target, given, drafter=guide, verifier=chosen[0], **settings)
        for active, committed_here in _judged(job, chosen, jax.random.key(seed + turn)):
            for row in np.flatnonzero(active):
                known = counts.setdefault(group[row], np.zeros(1 + len(chosen)))
                known += np.concatenate([[1.0], committed_here[:, row]])
            judged += int(active.sum())
        turn += 1
    yield from _rows(guide, list(names), np.stack(list(counts.values())), temperature)


def of_pair(
    target: str, draft: str, dtype: str, prompts: str, drafter: str, temperature: float, rounds: int, new: int
) -> Iterator[Row]:
    """`committed` of models by name, on a file of prompts; `drafter` as for `specjax generate --drafter`."""
    given, _ = read_prompts(prompts)
    spec = drafting.parse(drafter)
    big = load(target, dtype=dtype)
    guide = drafting.make(spec, big, [load(draft, dtype=dtype)] if drafting.needs(spec) else [])
    for row in committed(big, guide, given, rounds=rounds, temperature=temperature, new=new):
        yield {"target": target, "dtype": dtype} | row


def _judged(job: api.Job, chosen: Sequence[verify.Verifier], root) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each round: the active rows [B], and the tokens that every verifier would commit [verifier, B]."""
    static, state = job.static, job.state
    every = _every(static["model"], static["drafter"], static["stages"], tuple(one.fn for one in chosen))
    number = 0
    while bool(jnp.any(state.stop == int(Stop.RUNNING))):
        yield jax.device_get(every(job.params, state, jax.random.fold_in(root, number)))
        state, _ = loop.one_round(job.params, state, **static)
        number += 1


@memoize
def _every(model: LanguageModel, drafter: Drafter, stages: Stages, fns: tuple[VerifyFn, ...]) -> Callable:
    """(params, state, key) -> (active rows, mean tokens [verifier, B]) of the state's next round, all on one draft."""

    def run(params: loop.DecodeParams, state: loop.GenerationState, key):
        warp = loop.make_warp(params.sampling, stages, state.seen)
        draft_key = loop.round_keys(state.key)[1]
        draft, _, cache = loop.propose(drafter, params.draft, draft_key, state, warp)
        _, log_p, _ = loop.judge(model, drafter.tree, params.target, draft, cache, warp, buckets=drafter.buckets)

        def mean(number: int, fn: VerifyFn):
            def drawn(key):
                return fn(jax.random.split(key, state.length.shape[0]), drafter.tree, draft, log_p).accepted

            keys = jax.random.split(jax.random.fold_in(key, number), DRAWS)
            return jnp.mean(jax.lax.map(drawn, keys).astype(jnp.float32), axis=0) + 1.0

        return state.stop == int(Stop.RUNNING), jnp.stack([mean(i, fn) for i, fn in enumerate(fns)])

    return jax.jit(run)


def _rows(guide: LoadedDrafter, names: list[str], counts: np.ndarray, temperature: float) -> Iterator[Row]:
    rounds = counts[:, 0].sum()
    for number, name in enumerate(names):
        apart = counts[:, 1 + number] - counts[:, 1]
        mean = apart.sum() / rounds
        yield {
            "bench": "committed", "guide": guide.name, "verifier": name, "temperature": temperature,
            "rounds": int(rounds), "tokens_per_round": counts[:, 1 + number].sum() / rounds,
            "against": names[0], "difference": mean, "error": _ratio_error(apart, counts[:, 0]),
        }  # fmt: skip


def _ratio_error(sums: np.ndarray, weights: np.ndarray) -> float:
    """Standard error of sum(sums) / sum(weights) over independent prompts (linearised); nan of a single prompt."""
    if len(sums) < 2:
        return float("nan")
    residual = sums - sums.sum() / weights.sum() * weights
    return float(np.sqrt(len(sums) / (len(sums) - 1) * np.sum(residual**2)) / weights.sum())
