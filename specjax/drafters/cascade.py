"""Speculation of n levels: (model, drafter, verifier) is itself a drafter, whose draft follows the model.

The middle model decodes speculatively, with its own drafter and verifier, until it has gamma tokens: the draft. As the
inner verifier is lossless, these tokens follow the joint distribution of the middle model, so `log_q` is its warped
distribution after each prefix, whatever the inner drafter proposed. The inner drafter may be a cascade.

    target      t0 | p  d1 d2 d3 d4 d5 (d6 d7)      gamma = 5: d6, d7 came with the last inner round and are dropped
    inner rounds        [d1 d2] [d3] [d4 d5 d6 d7]  because of their position, never because of their values
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax import checks, decoding, trees, verify
from specjax.base import Cache, Drafter, DraftState, LanguageModel, VerifyFn, Warp
from specjax.decoding import committed_block, round_keys
from specjax.drafters.loaded import LoadedDrafter, check_model
from specjax.programs import memoize
from specjax.trees import Tree
from specjax.types import Commit, Draft, KeyArray, Params, PositionKeys, Verdict
from specjax.verify.coupled import coupled as verify_coupled
from specjax.verify.token import tested


def cascade(
    draft: Any, drafter: Any, *, gamma: int = 6, verifier: str | verify.Verifier | None = None
) -> LoadedDrafter:
    """A smaller model drafts a chain, itself sped up by a drafter: speculation of three levels or more.

    `cascade(middle, model(small))` under a target is the hierarchy target > middle > small; the drafter may be a
    cascade again. Lossless with any lossless verifier of chains. Staged speculative decoding, Spector and Re 2023,
    arXiv 2308.04623; TriForce, Sun et al. 2024, arXiv 2404.11912, section 4.2.

    Args:
      draft: a model from `specjax.load` or `drafters.bounded` that shares the target's tokenizer.
      drafter: a `LoadedDrafter` that drafts for it.
      gamma: draft tokens per round of the target, at least 1; more than a round of the inner levels yields.
      verifier: verifier of the inner rounds, a lossless one: a name of `specjax.verify.TABLE`, or a `Verifier`. None:
        the default for the drafter.

    Returns:
      The drafter.

    Raises:
      ValueError: parts that do not fit together, a lossy verifier, or a drafter without `rewind`.

    >>> import specjax as sj
    >>> middle, small = sj.load("bundled/opt-draft"), sj.load("bundled/opt-tiny")
    >>> sj.drafters.cascade(middle, sj.drafters.model(small, gamma=3), gamma=6).name
    'bundled/opt-draft x6 (bundled/opt-tiny x3)'
    """
    checks.integer("gamma", gamma, least=1)
    check_model("draft", draft)
    if not isinstance(drafter, LoadedDrafter):
        raise ValueError(
            f"the inner drafter must be one from specjax.drafters, got {type(drafter).__name__}: for a draft model "
            "write specjax.drafters.model(draft)"
        )
    part = drafter.drafter
    if verifier is None:
        chosen = verify.default(part.tree, part.siblings, part.dynamic)
    else:
        chosen = verify.get(verifier) if isinstance(verifier, str) else verifier
    chosen.require_lossless()
    drafter.check(draft)
    chosen.check(part.tree, part.siblings, f"inner drafter {drafter.name!r}", dynamic=part.dynamic)
    if part.rewind is None:
        raise ValueError(
            f"drafter {drafter.name!r} cannot roll tokens back (it has no `rewind`), so a cascade cannot use it: "
            "use one that shares the middle model's tokenizer, or looks tokens up"
        )
    over = gamma - 1 + part.tree.width  # tokens that the last inner round may end at
    draft.lm.check_rollback(over, f"a cascade of gamma={gamma}")
    if drafter.source is not None:
        drafter.source.lm.check_rollback(over + part.tree.size - 1, f"a cascade of gamma={gamma}")
    return LoadedDrafter(
        f"{draft.name} x{gamma} ({drafter.name})",
        cascade_drafter(draft.variant(capture=part.capture), part, chosen.fn, gamma),
        CascadeParams(draft.params, drafter.params),
        draft,
    )


class CascadeParams(NamedTuple):
    """Weights of the middle model, and of its drafter."""

    model: Params
    drafter: Params


class Tally(NamedTuple):
    """Inner rounds of each row, summed: forward passes of the middle model, and the verdicts on its drafts."""

    rounds: Int[Array, "B"]
    drafted: Int[Array, "B"]
    tested: Int[Array, "B"]
    accepted: Int[Array, "B"]


class CascadeDraft(NamedTuple):
    """State of a cascade.

    If the inner rounds end at the last draft token and all draft tokens are accepted, that token was never fed: cache
    and inner drafter lag by one. The first inner round after it then commits the token that the outer target
    appended in place of its verifier's choice, while rows that do not lag already draft.
    """

    cache: Cache  # of the middle model: all that is committed but `pending`, and the token it lags by
    inner: DraftState
    missing: Int[Array, "B"]  # the committed token that both lag by
    lag: Int[Array, "B"]  # 1 where they do, else 0
    pending: Int[Array, "B"]  # propose -> commit: the root of the draft
    ahead: Int[Array, "B"]  # propose -> commit: tokens below the root that cache and inner drafter have committed
    tally: Tally
    fresh: Tally  # propose -> commit: this round's part, which counts if the row is still running


class Rounds(NamedTuple):
    """State of the inner rounds. Nodes 0..count of `drafted` are drawn; later ones repeat the root."""

    cache: Cache
    draft: DraftState
    key: KeyArray | PositionKeys
    pending: Int[Array, "B"]
    count: Int[Array, "B"]  # tokens below the root; -1 for a row that lags: its next token is the root
    drafted: Int[Array, "B N"]
    log_q: Float[Array, "B N V"]
    tally: Tally


@memoize
def cascade_drafter(lm: LanguageModel, drafter: Drafter, verify: VerifyFn, gamma: int) -> Drafter:
    """A chain of gamma tokens of `lm`, drafted by `drafter` and verified by `verify`; `log_q` is that of `lm`.

    The drafter's contract (tokens are sampled from `log_q`) holds if `verify` is lossless. All rows draft gamma tokens;
    a batch takes as many inner rounds as its slowest row, at most gamma + 1.

    Seed of the idea: Leviathan et al. 2023 (arXiv 2211.17192), section 6; TriForce (2404.11912) runs three levels.
    """
    roll_back_inner = drafter.rewind
    assert roll_back_inner is not None
    tree = drafter.tree
    linear = tree.is_chain and not drafter.dynamic  # node i continues node i - 1 in every row

    def lent(cache: Cache) -> tuple[Cache, ...]:
        return (cache,) if drafter.borrows else ()

    def init(params: CascadeParams, prompt, length, cache_len, prefilled):
        del prefilled  # the inner drafter reads the middle model
        slots = cache_len + tree.size  # the last inner round starts below the last draft token
        read = lm.prefill(params.model, prompt, length, slots)
        decoding.check_capture(drafter, read.hiddens)
        inner = drafter.init(params.drafter, prompt, length, slots, read)
        zero = jnp.zeros_like(length)
        nothing = Tally(zero, zero, zero, zero)
        return CascadeDraft(read.cache, inner, read.pending, zero, read.pending, zero, nothing, nothing)

    def inner_round(params: CascadeParams, warp: Warp, now: Rounds) -> Rounds:
        running, lagging = now.count < gamma, now.count < 0
        if isinstance(now.key, PositionKeys):  # the middle model's tokens are those that the noise gives it
            key, judged = now.key, verify_coupled
            draft_key = verify_key = key.moved(now.count)
        else:
            key, draft_key, verify_key = round_keys(now.key)
            judged = verify
        warp = after(warp, now.drafted)
        draft, inner, cache = decoding.propose(drafter, params.drafter, draft_key, now, warp)
        out, log_p, cache = decoding.judge(lm, tree, params.model, draft, cache, warp, buckets=drafter.buckets)
        verdict = judged(verify_key, tree, draft, log_p)
        tally = counts(tree, draft, verdict, running, lagging)
        verdict = with_known_token(verdict, lagging, now.drafted[:, 0])
        block = committed_block(tree, draft, verdict)
        n = jnp.where(running, verdict.accepted + 1, 0)
        drafted, log_q = record(now, block, along_path(linear, verdict, log_p), n)
        last = jnp.take_along_axis(block, jnp.maximum(n - 1, 0)[:, None], axis=1)[:, 0]
        committed = decoding.commit_of(drafter, out, log_p, verdict, block, n)
        inner, cache = decoding.commit(lm, drafter, params.drafter, inner, cache, verdict, committed)
        return Rounds(
            cache=cache,
            draft=inner,
            key=key,
            pending=jnp.where(running, last, now.pending),
            count=now.count + n,
            drafted=drafted,
            log_q=log_q,
            tally=jax.tree.map(jnp.add, now.tally, tally),
        )

    def propose(params: CascadeParams, key, state: CascadeDraft, pending, warp):
        rows, zero = pending.shape[0], jnp.zeros_like(pending)
        start = Rounds(
            state.cache,
            state.inner,
            key,
            jnp.where(state.lag == 1, state.missing, pending),
            -state.lag,
            jnp.broadcast_to(pending[:, None], (rows, gamma + 1)),
            jnp.zeros((rows, gamma + 1, lm.vocab_size), jnp.float32),
            Tally(zero, zero, zero, zero),
        )
        end = jax.lax.while_loop(
            lambda now: jnp.any(now.count < gamma), lambda now: inner_round(params, warp, now), start
        )
        valid = lm.proposable(state.cache.length + state.lag, np.arange(gamma + 1))
        draft = Draft(end.drafted, valid, end.log_q)
        state = CascadeDraft(
            end.cache, end.draft, end.drafted[:, -1], state.lag, pending, end.count, state.tally, end.tally
        )
        return draft, state

    def commit(params: CascadeParams, state: CascadeDraft, committed: Commit):
        n = committed.length
        last = jnp.take_along_axis(committed.tokens, jnp.maximum(n - 1, 0)[:, None], axis=1)[:, 0]
        # Tokens n .. ahead of the inner levels are replaced by the last committed one. A row that keeps nothing gets
        # its root back; one that keeps more than they have, lags.
        lag = jnp.maximum(n - state.ahead, 0)
        back = jnp.where(lag > 0, 0, state.ahead - n + 1)
        running = n > 0
        cache = lm.keep(state.cache, None, jnp.minimum(n - state.ahead, 0))
        token = jnp.where(running, last, state.pending)
        return state._replace(
            cache=cache,
            inner=roll_back_inner(params.drafter, state.inner, back, token, *lent(cache)),
            lag=lag,
            tally=jax.tree.map(lambda total, new: total + jnp.where(running, new, 0), state.tally, state.fresh),
        )

    def rewind(params: CascadeParams, state: CascadeDraft, back, token):
        gone = jnp.maximum(back - 1, 0)
        cache = lm.keep(state.cache, None, jnp.minimum(state.lag - gone, 0))
        back = jnp.maximum(back - state.lag, 0)  # rows that lag have not committed the last token
        return state._replace(
            cache=cache,
            inner=roll_back_inner(params.drafter, state.inner, back, token, *lent(cache)),
            lag=jnp.maximum(state.lag - gone, 0),
        )

    return Drafter(trees.chain(gamma), init, propose, commit, lm.vocab_size, rewind=rewind, by_row=drafter.by_row)


def after(warp: Warp, drafted: Int[Array, "B N"]) -> Warp:
    """The warp of an inner round: tokens drafted in earlier ones precede every position too."""

    def longer(logits, ancestors=None):
        given = jnp.broadcast_to(drafted[:, None], (*logits.shape[:2], drafted.shape[1]))
        return warp(logits, given if ancestors is None else jnp.concatenate([given, ancestors], axis=-1))

    return longer


def with_known_token(verdict: Verdict, lagging: Bool[Array, "B"], token: Int[Array, "B"]) -> Verdict:
    """The verdict, except for rows that lag: they accept nothing and append the token that is already known."""
    return Verdict(
        jnp.where(lagging[:, None], 0, verdict.path),
        jnp.where(lagging, 0, verdict.accepted),
        jnp.where(lagging, token, verdict.token),
    )


def along_path(linear: bool, verdict: Verdict, log_p: Float[Array, "B N V"]) -> Float[Array, "B W V"]:
    """The middle model's distribution of each emitted token: the one after the node before it on the path."""
    if linear:
        return log_p
    return jnp.take_along_axis(log_p, verdict.path[..., None], axis=1)


def record(now: Rounds, block: Int[Array, "B W"], log_q: Float[Array, "B W V"], n: Int[Array, "B"]):
    """`drafted` and `log_q` with the first n[b] tokens of the block below the last node. Entries past gamma
    are dropped, and so is the distribution of a root that was known."""
    nodes = now.drafted.shape[1]
    rows = jnp.arange(block.shape[0], dtype=jnp.int32)[:, None]
    step = jnp.arange(block.shape[1], dtype=jnp.int32)[None]
    node = jnp.where(step < n[:, None], now.count[:, None] + step, nodes)  # whose child the token is
    drafted = now.drafted.at[rows, node + 1].set(block, mode="drop")
    return drafted, now.log_q.at[rows, jnp.where(node < 0, nodes, node)].set(log_q, mode="drop")


def counts(tree: Tree, draft: Draft, verdict: Verdict, running: Bool[Array, "B"], lagging: Bool[Array, "B"]) -> Tally:
    """One inner round of the running rows. A row with a known token counts a forward pass and tests nothing."""
    judged = lambda x: jnp.where(running & ~lagging, x, 0)
    drafted = draft.valid[:, 1:].sum(1, dtype=jnp.int32)
    return Tally(
        running.astype(jnp.int32), judged(drafted), judged(tested(tree, draft, verdict)), judged(verdict.accepted)
    )
