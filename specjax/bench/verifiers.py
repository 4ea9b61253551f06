"""Verifiers compared: what each costs beside the target pass that it judges, and the tokens each commits per round."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decoding as loop
from specjax import estimates, hosts, measuring, trees, verify
from specjax.base import Drafter, LanguageModel, VerifyFn
from specjax.bench.decode import random_model
from specjax.bench.record import Row
from specjax.drafters import LoadedDrafter
from specjax.model import Model
from specjax.programs import memoize
from specjax.request import prepare
from specjax.stopping import Stop
from specjax.types import Draft

PROMPT, SLOTS = 64, 128
JUDGES = 2**32 - 1  # in the place of a row's number
DRAWS = 8  # verdicts of each verifier on each draft: less noise than one, at the cost of the verifier alone


# --- cost ------------------------------------------------------------------------------------------------------------


def cost(
    size: str = "125m", *, rows: int = 8, gamma: int = 8, repeats: int = 5, names: Sequence[str] = tuple(verify.TABLE)
) -> Iterator[Row]:
    """Milliseconds of each verifier on a chain, and its share of one target pass of an OPT shape.

    Args:
      size: of the target, from `opt.sizes()`; its vocabulary is that of the distributions.
      rows: B.
      gamma: draft tokens per row.
      repeats: interleaved runs; medians are reported.
      names: of `verify.TABLE`. Verifiers of point masses receive the draft without its distributions.
    """
    model = random_model(f"opt-{size}", "float32")
    tree, vocab = trees.chain(gamma), model.vocab_size
    read = jax.jit(model.lm.prefill, static_argnums=3)(
        model.params, jnp.ones((rows, PROMPT), jnp.int32), jnp.full((rows,), PROMPT, jnp.int32), SLOTS
    )
    draft, log_p = _draft(rows, gamma, vocab)
    extend = jax.jit(
        lambda params, cache, block: model.lm.extend(params, block, cache, tree.mask, tree.depth)[0].logits
    )
    keys = jax.random.split(jax.random.key(1), rows)

    def program(name: str) -> Callable[[], Any]:
        points = verify.TABLE[name].drafts is verify.DraftKind.POINTS
        run = jax.jit(lambda keys, draft, log_p: verify.TABLE[name].fn(keys, tree, draft, log_p))
        given = draft._replace(log_q=None) if points else draft
        return lambda: run(keys, given, log_p)

    programs = {name: program(name) for name in names}
    programs["pass"] = lambda: extend(model.params, read.cache, draft.tokens)
    with jax.debug_key_reuse(False):  # a timed call draws the same numbers every time
        runs = measuring.interleave(programs, repeats)
    for name in names:
        yield {
            "bench": "verifiers", "verifier": name, "target": size, "rows": rows, "gamma": gamma, "vocab": vocab,
            "ms": 1e3 * runs[name].median, "pass_ms": 1e3 * runs["pass"].median,
            "share": runs[name].median / runs["pass"].median, "load": runs[name].load,
        }  # fmt: skip


def _draft(rows: int, gamma: int, vocab: int) -> tuple[Draft, jax.Array]:
    """A draft and log_p [B, gamma + 1, V]; both distributions are close, so that most draft tokens are accepted."""
    rng = np.random.default_rng(0)
    base = (rng.normal(size=(rows, gamma + 1, vocab)) - 1.2 * np.log1p(rng.permutation(vocab))).astype(np.float32)
    noise = 0.3 * rng.normal(size=base.shape).astype(np.float32)
    log_p, log_q = (jax.nn.log_softmax(jnp.asarray(x), axis=-1) for x in (base, base + noise))
    drawn = jax.random.categorical(jax.random.key(0), log_q[:, :-1])
    tokens = jnp.concatenate([jnp.zeros((rows, 1), jnp.int32), drawn.astype(jnp.int32)], axis=1)
    return Draft(tokens, jnp.ones_like(tokens, dtype=bool), log_q), log_p


# --- committed tokens ------------------------------------------------------------------------------------------------


def committed(
    target: Model,
    drafter: LoadedDrafter,
    prompts: Sequence[Any],
    *,
    names: Sequence[str] | None = None,
    rounds: int = 2000,
    temperature: float = 1.0,
    batch: int = 8,
    new: int = 128,
    seed: int = 0,
) -> Iterator[Row]:
    """Tokens per round of each verifier, and the difference from the first one with its standard error.

    Every round of a run with the first verifier is judged by all: same draft, same distributions, independent keys.
    Rounds of one prompt are correlated, so the error is that of the means by prompt.

    Args:
      names: lossless verifiers of `verify.TABLE` that support the drafter, the reference first; None: all, "token"
        first if it is among them.
      rounds: at least as many are judged; the prompts are repeated with new seeds until then.
      new: tokens per row.

    Raises:
      ValueError: a verifier that does not support the drafts.
    """
    part = drafter.drafter
    if names is None:
        names = [
            name for name, found in verify.TABLE.items()
            if found.lossless and found.supports(part.tree, part.siblings, part.dynamic)
        ]  # fmt: skip
    chosen = [verify.get(name) for name in names]
    counts: dict[int, np.ndarray] = {}  # of each prompt: [rounds, sums of tokens by verifier]
    judged, turn = 0, 0
    while judged < rounds:
        group = [(turn * batch + row) % len(prompts) for row in range(batch)]
        settings: dict[str, Any] = {"max_new_tokens": new, "temperature": temperature, "seed": seed + turn}
        given = [prompts[number] for number in group]
        job = prepare(target, given, drafter=drafter, verifier=chosen[0], **settings).begin()
        for active, tokens in _judged(job, chosen, _judges_key(seed, turn)):
            for row in np.flatnonzero(active):
                known = counts.setdefault(group[row], np.zeros(1 + len(chosen)))
                known += np.concatenate([[1.0], tokens[:, row]])
            judged += int(active.sum())
        turn += 1
    yield from _committed_rows(drafter, list(names), np.stack(list(counts.values())), temperature)


def _judges_key(seed: int, turn: int) -> jax.Array:
    """The key of a turn's verdicts. Row r of a turn draws from fold_in(key(seed + turn), r): a number that is no row
    separates the streams."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), JUDGES), turn)


def _judged(job: Any, chosen: Sequence[verify.Verifier], key: jax.Array) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each round: the active rows [B], and the mean tokens that each verifier would commit [verifier, B]."""
    static, state = job.static, job.state
    judge = _judge(static["model"], static["drafter"], tuple(one.fn for one in chosen))
    number = 0
    while bool(jnp.any(state.stop == int(Stop.RUNNING))):
        same_draft = state._replace(key=jax.random.clone(state.key))  # the round below draws it again
        yield hosts.fetch(judge(job.params, same_draft, jax.random.fold_in(key, number)))
        state, _ = loop.one_round(job.params, state, **static)
        number += 1


@memoize
def _judge(model: LanguageModel, drafter: Drafter, fns: tuple[VerifyFn, ...]) -> Callable:
    """(params, state, key) -> (active rows, mean tokens [verifier, B]) of the state's next round, all on one draft."""

    def run(params: loop.DecodeParams, state: loop.GenerationState, key):
        warp = loop.make_warp(params.sampling, state.seen)
        draft_key = loop.round_keys(state.key)[1]
        draft, _, cache = loop.propose(drafter, params.draft, draft_key, state, warp)
        _, log_p, _ = loop.judge(model, drafter.tree, params.target, draft, cache, warp, buckets=drafter.buckets)

        def mean(number: int, fn: VerifyFn):
            def sample(key):
                return fn(jax.random.split(key, state.length.shape[0]), drafter.tree, draft, log_p).accepted

            keys = jax.random.split(jax.random.fold_in(key, number), DRAWS)
            return jnp.mean(jax.lax.map(sample, keys).astype(jnp.float32), axis=0) + 1.0

        return state.stop == int(Stop.RUNNING), jnp.stack([mean(i, fn) for i, fn in enumerate(fns)])

    return jax.jit(run)


def _committed_rows(drafter: LoadedDrafter, names: list[str], counts: np.ndarray, temperature: float) -> Iterator[Row]:
    rounds = counts[:, 0].sum()
    for number, name in enumerate(names):
        apart = estimates.ratio(counts[:, 1 + number] - counts[:, 1], counts[:, 0])
        yield {
            "bench": "committed", "drafter": drafter.name, "verifier": name, "temperature": temperature,
            "rounds": int(rounds), "tokens_per_round": counts[:, 1 + number].sum() / rounds,
            "against": names[0], **apart.columns("difference"),
        }  # fmt: skip
