"""A smaller model drafts a chain: of fixed length (`chain.py`), or of a length that a policy decides row by row.

    row 0   t | a b c .      a while_loop of three steps; row 1 stopped after one token, row 2 drafted nothing. Tokens
    row 1   t | a . . .      that the steps drew for them past their end are not proposed (`Draft.valid`), and are
    row 2   t | . . . .      rolled back like rejected ones.

A round in which no row drafts does not run the draft model. Its cache then lags by the committed tokens that it has not
read: they are stored in `missing`, and fed in one block when a row drafts again, or when there are `backlog` of them.

Whether a node is proposed is decided before its token is drawn (invariant 7).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax import checks, trees
from specjax.base import Cache, Drafter, LanguageModel, Warp
from specjax.categorical import noise
from specjax.decoding import run_if
from specjax.drafters.chain import chain, draw_node, plain
from specjax.drafters.loaded import LoadedDrafter, check_model
from specjax.drafters.writer import first_logits, model_writer, next_logits, roll_back
from specjax.policies.policy import Drawn, Policy, PolicyState, Round, Rule, check_buckets, ladder, rows_where
from specjax.programs import memoize
from specjax.types import Commit, Draft, Params

MODEL_GAMMA = 5  # draft tokens per round by default
BACKLOG = 8  # idle rounds pay an eighth of a draft step each


def model(
    draft: Any, *, gamma: int | None = None, policy: Any = None, buckets: tuple[int, ...] | None = None
) -> LoadedDrafter:
    """A smaller model drafts a chain of tokens, each sampled from its own distribution.

    Lossless with any lossless verifier of chains. Leviathan et al. 2023, arXiv 2211.17192, algorithm 1; Chen et al.
    2023, arXiv 2302.01318.

    Args:
      draft: a model from `specjax.load` that shares the target's tokenizer, or one from `drafters.bounded`.
      gamma: draft tokens per round, at least 1. None: 5, or up to the policy's gamma_max.
      policy: from `specjax.policies`; each row then drafts its own number of tokens, at most the policy's gamma_max.
      buckets: draft lengths for which a target forward pass is compiled, if the policy varies the length. None: those
        of `policies.ladder`; (): gamma_max alone.

    Returns:
      The drafter.

    Raises:
      ValueError: gamma and policy together, not a policy, or buckets that do not fit it.

    >>> import specjax as sj
    >>> draft = sj.load("bundled/opt-draft")
    >>> sj.drafters.model(draft, gamma=3).name
    'bundled/opt-draft x3'
    >>> sj.drafters.model(draft, policy=sj.policies.heuristic(gamma_max=8)).name
    'bundled/opt-draft heuristic up to 8'
    """
    check_model("draft", draft)
    if policy is None:
        if buckets is not None:
            raise ValueError(f"buckets={buckets} are for a policy of varying length: give policy=, or leave them out")
        gamma = checks.integer("gamma", MODEL_GAMMA if gamma is None else gamma, least=1)
        draft.lm.check_rollback(gamma, f"a draft of {gamma}")
        return LoadedDrafter(f"{draft.name} x{gamma}", chain(model_writer(draft.lm), gamma), draft.params, draft)
    if not isinstance(policy, Rule):
        raise ValueError(f"policy must be one from specjax.policies, got {type(policy).__name__}")
    if gamma is not None:
        raise ValueError(f"pass either gamma={gamma} or policy={policy.name!r}, not both")
    most = policy.gamma_max
    if policy.policy.constant:
        check_buckets(buckets or (), most)
        return plain() if most == 0 else model(draft, gamma=most)
    draft.lm.check_rollback(most, f"a draft of {most}")
    chosen = ladder(most) if buckets is None else check_buckets(buckets, most)
    drafter = adaptive(draft.lm, policy.policy, chosen)
    params = AdaptiveParams(draft.params, policy.params)
    return LoadedDrafter(f"{draft.name} {policy.name}", drafter, params, draft)


class AdaptiveParams(NamedTuple):
    """Weights of the draft model, and the policy's numbers."""

    model: Params
    policy: Params


class AdaptiveDraft(NamedTuple):
    """State of an adaptive chain.

    `steps` and `drafted` live from propose to commit: how many tokens the round drew, and how many of them each row
    proposes.
    """

    cache: Cache
    missing: Int[Array, "B K"]  # committed tokens that the cache lags by, oldest first
    lag: Int[Array, "B"]  # how many they are, 0..K
    live: Bool[Array, "B"]  # False: the row has ended
    policy: PolicyState
    steps: Int[Array, ""]
    drafted: Int[Array, "B"]


class Writing(NamedTuple):
    """State of the steps of one round."""

    cache: Cache
    token: Int[Array, "B"]
    drafted: Int[Array, "B N"]
    log_q: Float[Array, "B N V"]
    valid: Bool[Array, "B N"]
    going: Bool[Array, "B"]  # rows that draw one more
    policy: PolicyState
    step: Int[Array, ""]  # tokens drawn


@memoize
def adaptive(lm: LanguageModel, policy: Policy, buckets: tuple[int, ...] = (), backlog: int = BACKLOG) -> Drafter:
    """A chain of up to policy.gamma_max tokens sampled from `lm`, each from its warped distribution.

    Args:
      buckets: draft lengths that the target verifies at, see `Drafter.buckets`.
      backlog: how many committed tokens may wait before the draft model reads them.
    """
    gamma = policy.gamma_max
    tree, late = trees.chain(gamma), trees.chain(backlog - 1)

    def init(params: AdaptiveParams, prompt, length, cache_len, prefilled):
        del prefilled
        # A block of the backlog is written whole: it needs room past the last token.
        read = lm.prefill(params.model, prompt, length, cache_len + backlog)
        missing = jnp.zeros((prompt.shape[0], backlog), read.pending.dtype)
        zero = jnp.zeros_like(length)
        state = policy.start(params.policy, length)
        live = jnp.ones(length.shape, bool)
        return AdaptiveDraft(read.cache, missing, zero, live, state, jnp.zeros((), jnp.int32), zero)

    def catch_up(params: AdaptiveParams, state: AdaptiveDraft, drafting):
        """(cache, lag): feeds the missing tokens if there are more than the first forward pass of the round feeds."""
        due = (drafting & jnp.any(state.lag > 1)) | jnp.any(state.lag == backlog)

        def feed(fed):
            cache, lag = fed
            _, cache = lm.extend(params.model, state.missing, cache, late.mask, late.depth)
            return lm.keep(cache, None, lag), jnp.zeros_like(lag)

        return run_if(due, feed, (state.cache, state.lag))

    def propose(params: AdaptiveParams, key, state: AdaptiveDraft, pending, warp: Warp):
        numbers = noise(key, gamma)
        wanted, own = policy.plan(params.policy, state.policy, state.live)
        wanted = jnp.where(state.live, jnp.clip(wanted, 0, gamma), 0)
        if lm.positions is not None:
            wanted = jnp.minimum(wanted, jnp.maximum(lm.positions - state.cache.length - state.lag, 0))
        drafting = jnp.any(wanted > 0)
        cache, lag = catch_up(params, state, drafting)

        def one_more(now: Writing, logits, cache) -> Writing:
            """Draws the next node of the rows that still draft, and decides whether another one follows."""
            token, drafted, log_q, last = draw_node(warp, numbers, now.step, logits, now.drafted, now.log_q)
            step = now.step + 1
            valid = jax.lax.dynamic_update_slice_in_dim(now.valid, now.going[:, None], step, axis=1)
            go, own = policy.go_on(params.policy, now.policy, Drawn(logits, last, token), step)
            going = now.going & go & (step < wanted)
            return Writing(cache, token, drafted, log_q, valid, going, rows_where(now.going, own, now.policy), step)

        def write(now: Writing) -> Writing:
            logits, cache = first_logits(lm, params.model, now.cache, state.missing[:, 0], lag, pending)
            now = one_more(now, logits, cache)
            more = lambda now: one_more(now, *next_logits(lm, params.model, now.cache, now.token))
            return jax.lax.while_loop(lambda now: (now.step < gamma) & jnp.any(now.going), more, now)

        drafted = jnp.broadcast_to(pending[:, None], (pending.shape[0], gamma + 1))
        root = jnp.broadcast_to(jnp.arange(gamma + 1, dtype=jnp.int32)[None] == 0, drafted.shape)
        log_q = jnp.zeros((*drafted.shape, lm.vocab_size), jnp.float32)
        begun = Writing(cache, pending, drafted, log_q, root, wanted > 0, own, jnp.zeros((), jnp.int32))
        done = run_if(drafting, write, begun)

        idle = done.step == 0
        waiting = jnp.arange(backlog, dtype=jnp.int32)[None] == lag[:, None]  # `pending`, where it was not fed
        alone = jnp.arange(backlog, dtype=jnp.int32)[None] == 0  # the last token drawn: never fed
        missing = jnp.where(jnp.where(idle, waiting, alone), done.token[:, None], state.missing)
        count = jnp.sum(done.valid[:, 1:], axis=1, dtype=jnp.int32)
        after = AdaptiveDraft(done.cache, missing, lag, state.live, done.policy, done.step, count)
        return Draft(done.drafted, done.valid, done.log_q), after

    def commit(params: AdaptiveParams, state: AdaptiveDraft, committed: Commit):
        length, running = committed.length, committed.length > 0
        seen = Round(state.drafted, jnp.maximum(length - 1, 0))
        own = policy.observe(params.policy, state.policy, seen)
        # The cache has advanced by `steps`: `pending` and all draws but the last. A row keeps `length` of them, or all
        # and lags by one, as in `chain`. Where nothing was drawn nothing was fed, and one token more waits.
        lag = jnp.where(state.steps == 0, state.lag + length, jnp.maximum(length - state.steps, 0))
        cache = lm.keep(state.cache, None, jnp.minimum(length, state.steps) - state.steps)
        own = rows_where(running, own, state.policy)
        return state._replace(cache=cache, lag=lag, live=state.live & running, policy=own)

    def rewind(params, state: AdaptiveDraft, back, token):
        del params, token
        # In a cascade a row that waits for the others commits nothing, but has not ended. The policy keeps what it
        # observed.
        cache, lag = roll_back(lm, state.cache, state.lag, back)
        return state._replace(cache=cache, lag=lag, live=jnp.ones_like(state.live))

    buckets = check_buckets(buckets, gamma)
    return Drafter(tree, init, propose, commit, lm.vocab_size, rewind=rewind, buckets=buckets, by_row=policy.by_row)
