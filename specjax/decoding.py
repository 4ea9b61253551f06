"""The decoding loop: a round is draft, verify, commit; `generate` runs rounds in one while_loop, `stream` on the host.

committed tokens          t0 t1 t2 ... t_n          cache holds t0 .. t_{n-1}; t_n is `pending`
one round                 draft a tree below t_n, verify it in one target forward pass, commit the accepted path and
                          one more token, compact the cache, pass the commit to the drafter

A loop of your own, of a loaded `target` and a `LoadedDrafter`:

    warp = sampling.sampling_params(batch, target.vocab_size, temperature=0.0)
    params = DecodeParams(target.params, drafter.params, warp, stopping.rules(target.vocab_size, eos=target.eos))
    model = target.variant(capture=drafter.drafter.capture)
    init = jax.jit(make_init(model, drafter.drafter, cache_len=256, max_new=64))
    step = jax.jit(make_step(model, drafter.drafter, verify.TABLE["token"].fn), donate_argnums=1)
    state = init(params, row_keys(0, jnp.arange(batch)), prompts, lengths, budgets)
    while (state.stop == Stop.RUNNING).any():
        state, info = step(params, state)  # info: what was drafted, accepted and committed

`tests/test_custom_loop.py` runs it.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Integer

from specjax import programs, sampling, stopping
from specjax.base import Cache, Drafter, DraftState, LanguageModel, VerifyFn, Warp, by_position
from specjax.categorical import argmax
from specjax.models.cache import put_rows
from specjax.sampling import SamplingParams
from specjax.stopping import Stop, StopRules
from specjax.totals import Totals, added, info_of
from specjax.trees import Tree
from specjax.trees.dynamic import layout_of
from specjax.types import Commit, Draft, Info, KeyArray, Output, Params, PositionKeys, Verdict
from specjax.verify.token import overlap

Carry = TypeVar("Carry")
TILE = 8  # cache slots are a multiple of it: TPUs store others in a layout that the loop would copy into another one


class DecodeParams(NamedTuple):
    """Every array that a round reads and never writes: weights, sampling parameters and stop rules."""

    target: Params
    draft: Params
    sampling: SamplingParams
    stop: StopRules


class GenerationState(NamedTuple):
    """Everything that a round carries to the next. Donate it: the caches are written in place."""

    tokens: Int[Array, "B T"]  # new tokens, left-aligned; W slots are spare, so that a last block always fits
    length: Int[Array, "B"]  # how many of them are committed
    pending: Int[Array, "B"]  # the last committed token, not yet in the cache
    stop: Int[Array, "B"]  # a `Stop` code; RUNNING is 0
    room: Int[Array, "B"]  # tokens the row may still take
    room_code: Int[Array, "B"]  # the code of the row that has taken them all: MAX_TOKENS or CACHE_FULL
    automaton: Int[Array, "B"]  # state of the stop strings
    seen: Bool[Array, "B V"]  # tokens present so far, for the repetition penalty
    cache: Cache
    draft: DraftState
    key: KeyArray
    totals: Totals


def row_keys(seed: int | jax.Array, rows: Integer[Array, "B"]) -> KeyArray:
    """One typed key per row: a function of the seed and the row's number, not of its place in the batch."""
    root = jax.random.key(seed) if isinstance(seed, int) else seed
    return jax.vmap(lambda row: jax.random.fold_in(root, row))(rows)


def round_keys(key: KeyArray) -> tuple[KeyArray, KeyArray, KeyArray]:
    """Keys of the next round, of the drafter and of the verifier, [B] each."""
    keys = jax.vmap(lambda k: jax.random.split(k, 3))(key)
    return keys[:, 0], keys[:, 1], keys[:, 2]


def keys_of(
    key: KeyArray, verify: VerifyFn, cache: Cache
) -> tuple[KeyArray, KeyArray | PositionKeys, KeyArray | PositionKeys]:
    """Keys of the next round, of the drafter and of the verifier; both have those of positions if it is `by_position`.

    The cache holds all tokens but `pending`, so the next token has position length + 1.
    """
    if not isinstance(verify, by_position):
        return round_keys(key)
    keys = PositionKeys(key, cache.length + 1)
    return key, keys, keys


def make_init(model: LanguageModel, drafter: Drafter, *, cache_len: int, max_new: int) -> Callable:
    """`init(params, key [B], prompt [B,P], length [B], budget [B], limit=None) -> GenerationState`: reads the prompt.

    `budget` is the largest number of new tokens of each row, 1..max_new. `limit` is the largest number of tokens of a
    row, prompt and new, at most cache_len, which is the default. Both are dynamic, so sizes can be buckets.

    Args:
      cache_len: slots of the cache for committed tokens; those of a draft block are added.
      max_new: size of the output buffer.
    """
    if drafter.vocab_size is not None and drafter.vocab_size != model.vocab_size:
        raise ValueError(
            f"draft vocabulary has {drafter.vocab_size} tokens and the target's {model.vocab_size}: "
            "both models must share one vocabulary, since their distributions are compared token by token"
        )
    width = drafter.tree.width
    slots = -(-(cache_len + drafter.tree.size) // TILE) * TILE

    def init(params: DecodeParams, key, prompt, length, budget, limit=None, known=None) -> GenerationState:
        rows = prompt.shape[0]
        read = model.prefill(params.target, prompt, length, slots, known)
        check_capture(drafter, read.hiddens)
        state = drafter.init(params.draft, prompt, length, slots, read)
        # Decoder-only rows share the cache with their prompt; the last token of all never enters the cache.
        used = jnp.ones_like(length) if model.encoder_decoder else length  # the start token, or the prompt
        room = jnp.minimum(budget, (cache_len if limit is None else limit) - used + 1)
        room_code = jnp.where(budget <= room, int(Stop.MAX_TOKENS), int(Stop.CACHE_FULL)).astype(jnp.int32)
        given = read.pending[:, None] if model.encoder_decoder else prompt
        seen = _mark(jnp.zeros((rows, model.vocab_size), bool), given, used)
        zero, zeros = jnp.zeros((rows,), jnp.int32), jnp.zeros((rows, width), jnp.int32)
        return GenerationState(
            tokens=jnp.zeros((rows, max_new + width), jnp.int32),
            length=zero,
            pending=read.pending,
            stop=jnp.where(room > 0, int(Stop.RUNNING), room_code),
            room=room,
            room_code=room_code,
            automaton=zero,
            seen=seen,
            cache=read.cache,
            draft=state,
            key=key,
            totals=Totals(zero, zero, zero, zero, jnp.zeros((rows,), jnp.float32), zeros, zeros),
        )

    return init


def make_step(model: LanguageModel, drafter: Drafter, verify: VerifyFn) -> Callable:
    """`step(params, state) -> (state, Info)`: one round. Jit it, and donate the state: its caches are written in place.

    With a lossless verifier, the emitted tokens follow the target distribution.
    """
    draft_half, verify_half = make_halves(model, drafter, verify)

    def step(params: DecodeParams, state: GenerationState) -> tuple[GenerationState, Info]:
        return verify_half(params, *draft_half(params, state))

    return step


class Drafted(NamedTuple):
    """What the draft half of a round passes to the verify half."""

    draft: Draft
    key: KeyArray | PositionKeys  # of the verifier, [B]


def make_halves(model: LanguageModel, drafter: Drafter, verify: VerifyFn) -> tuple[Callable, Callable]:
    """The two halves of a round, which `make_step` composes.

    Returns:
      draft_half: (params, state) -> (state, Drafted). The drafter proposes; the state holds its state until `commit`.
      verify_half: (params, state, Drafted) -> (state, Info). Target forward pass, verifier, stop rules and commit.
    """
    tree = drafter.tree

    def draft_half(params: DecodeParams, state: GenerationState) -> tuple[GenerationState, Drafted]:
        next_key, draft_key, verify_key = keys_of(state.key, verify, state.cache)
        warp = make_warp(params.sampling, state.seen)
        draft, draft_state, cache = propose(drafter, params.draft, draft_key, state, warp)
        return state._replace(draft=draft_state, cache=cache, key=next_key), Drafted(draft, verify_key)

    def verify_half(params: DecodeParams, state: GenerationState, drafted: Drafted) -> tuple[GenerationState, Info]:
        active = state.stop == int(Stop.RUNNING)
        warp = make_warp(params.sampling, state.seen)
        draft = drafted.draft
        out, log_p, cache = judge(model, tree, params.target, draft, state.cache, warp, buckets=drafter.buckets)
        verdict = verify(drafted.key, tree, draft, log_p)

        broken = sampling.has_nan(out.logits)
        if draft.log_q is not None:
            broken = broken | sampling.has_nan(draft.log_q)
        block = committed_block(tree, draft, verdict)
        ended = stopping.cut(
            params.stop, block, verdict.accepted + 1, state.room, state.room_code, state.automaton, active & ~broken
        )
        n = ended.length
        stop = jnp.where(active & broken, int(Stop.NAN), jnp.where(active, ended.stop, state.stop))

        committed = commit_of(drafter, out, log_p, verdict, block, n)
        draft_state, cache = commit(model, drafter, params.draft, state.draft, cache, verdict, committed)
        last = jnp.take_along_axis(block, jnp.maximum(n - 1, 0)[:, None], axis=1)[:, 0]
        shared = overlap(tree, draft, log_p, verdict, one_hot=params.sampling.temperature is None)
        info = info_of(tree, draft, verdict, shared, block, n, active & ~broken)
        state = state._replace(
            tokens=put_rows(state.tokens, block, state.length, n > 0),
            length=state.length + n,
            pending=jnp.where(n > 0, last, state.pending),
            stop=stop.astype(jnp.int32),
            room=state.room - n,
            automaton=ended.automaton,
            seen=_mark(state.seen, block, n),
            cache=cache,
            draft=draft_state,
            totals=added(state.totals, info),
        )
        return state, info

    return draft_half, verify_half


@runtime_checkable
class Level(Protocol):
    """What `propose` reads of a state: the drafter's state, the last committed token and the model's cache."""

    @property
    def draft(self) -> DraftState: ...

    @property
    def pending(self) -> Int[Array, "B"]: ...

    @property
    def cache(self) -> Cache: ...


def propose(
    drafter: Drafter, params: Params, key: KeyArray | PositionKeys, state: Level, warp: Warp
) -> tuple[Draft, DraftState, Cache]:
    """The drafter's proposal, its state, and the target's cache, which only a drafter that borrows it writes."""
    if drafter.borrows:
        draft, draft_state, cache = drafter.propose(params, key, state.draft, state.pending, warp, state.cache)
    else:
        draft, draft_state = drafter.propose(params, key, state.draft, state.pending, warp)
        cache = state.cache
    if drafter.tree.scratch.any():  # scratch nodes are never accepted, whatever the drafter marks valid
        draft = draft._replace(valid=draft.valid & ~drafter.tree.scratch[None])
    return draft, draft_state, cache


def commit_of(
    drafter: Drafter,
    out: Output,
    log_p: Float[Array, "B N V"],
    verdict: Verdict,
    block: Int[Array, "B W"],
    length: Int[Array, "B"],
) -> Commit:
    """The `Commit` of a round: the block's tokens, and the target's hidden states along the accepted path."""
    check_capture(drafter, out.hiddens)
    along = lambda x: jnp.take_along_axis(x, verdict.path[..., None], axis=1)
    return Commit(block, length, along(out.features), argmax(log_p), tuple(map(along, out.hiddens)))


def commit(
    model: LanguageModel,
    drafter: Drafter,
    params: Params,
    draft_state: DraftState,
    cache: Cache,
    verdict: Verdict,
    committed: Commit,
) -> tuple[DraftState, Cache]:
    """Keeps the accepted path in the cache and passes the commit to the drafter."""
    linear = drafter.tree.is_chain and not drafter.dynamic  # the path is a prefix of the block: nothing moves
    cache = model.keep(cache, None if linear else verdict.path, committed.length)
    return drafter.commit(params, draft_state, committed, *((cache,) if drafter.borrows else ())), cache


def check_capture(drafter: Drafter, hiddens: tuple[Array, ...]) -> None:
    """Raises ValueError where the model does not return the residual streams that the drafter reads."""
    if len(hiddens) != len(drafter.capture):
        raise ValueError(
            f"the drafter reads the residual streams capture={drafter.capture}, but the model returns {len(hiddens)}: "
            "build it with Model.variant(capture=drafter.capture)"
        )


def judge(
    model: LanguageModel,
    tree: Tree,
    params: Params,
    draft: Draft,
    cache: Cache,
    warp: Warp,
    *,
    buckets: tuple[int, ...] = (),
) -> tuple[Output, Float[Array, "B N V"], Cache]:
    """One target forward pass: output and warped distribution at every node, and the cache with the block.

    With `buckets` the block is the shortest that holds the longest draft of the batch; the output at later nodes is
    undefined.
    """
    if buckets:
        return _judge_shortest(model, tree, params, draft, cache, warp, buckets)
    mask, depth, paths = tree.mask, tree.depth, tree.paths
    if draft.parents is None:
        before = draft.tokens[:, paths]
    else:
        _, mask, depth, rows = layout_of(tree, draft.parents, draft.tokens.shape[0])
        before = jax.vmap(lambda tokens, path: tokens[path])(draft.tokens, rows)
    out, cache = model.extend(params, draft.tokens, cache, mask, depth)
    return out, warp(out.logits, before), cache


def _judge_shortest(model, tree: Tree, params, draft: Draft, cache, warp, buckets: tuple[int, ...]):
    """`judge` of a chain by the least of its prefixes that holds all drafts. Verifying stays as long as the chain: the
    random numbers of a row's verdict must not depend on how much its neighbors drafted (invariant 8)."""
    if not tree.is_chain or draft.parents is not None or buckets[-1] != tree.size - 1:
        raise ValueError(f"buckets {buckets} need a static chain of {buckets[-1]} draft nodes, got {tree.size - 1}")

    proposed = jnp.sum(jnp.cumprod(draft.valid[:, 1:], axis=1, dtype=jnp.int32), axis=1, dtype=jnp.int32)
    chosen = jnp.sum(jnp.max(proposed) > jnp.asarray(buckets[:-1], jnp.int32), dtype=jnp.int32)

    def prefix(length: int) -> Callable:
        size, missing = length + 1, tree.size - length - 1

        def run(carry):
            _, _, cache = carry
            tokens = draft.tokens[:, :size]
            out, cache = model.extend(params, tokens, cache, tree.mask[:size, :size], tree.depth[:size])
            log_p = warp(out.logits, tokens[:, tree.paths[:size, :size]])
            rest = ((0, 0), (0, missing), (0, 0))
            # The last distribution again where no node was fed: a proper one, and no new NaN.
            zeros = lambda x: jnp.pad(x, rest)
            whole = Output(jnp.pad(out.logits, rest, mode="edge"), zeros(out.features), tuple(map(zeros, out.hiddens)))
            return whole, jnp.pad(log_p, rest, mode="edge"), cache

        return run

    shapes = jax.eval_shape(prefix(buckets[-1]), (None, None, cache))
    out, log_p = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[:2])
    carry = out, log_p, cache
    for number, length in enumerate(buckets):
        carry = run_if(chosen == number, prefix(length), carry)
    return carry


def run_if(condition: Bool[Array, ""], run: Callable[[Carry], Carry], carry: Carry) -> Carry:
    """`run(carry)` where the condition holds, else the carry: a loop of at most one iteration.

    Around the branches of a conditional XLA copies every cache that one of them writes; a loop writes it in place.
    """
    return jax.lax.while_loop(lambda s: s[0], lambda s: (jnp.zeros((), bool), run(s[1])), (condition, carry))[1]


def make_warp(params: SamplingParams, seen: Bool[Array, "B V"] | None) -> Warp:
    """The logits processors as one function, for target and draft alike (invariant 4)."""
    return lambda logits, ancestors=None: sampling.warp(params, logits, seen, ancestors)


def committed_block(tree: Tree, draft: Draft, verdict: Verdict) -> Int[Array, "B W"]:
    """The accepted tokens of each row, then the verifier's token; entries after it are undefined."""
    below = jnp.take_along_axis(draft.tokens, verdict.path, axis=1)[:, 1:]
    below = jnp.pad(below, ((0, 0), (0, 1)))
    at = jnp.arange(tree.width, dtype=jnp.int32)[None]
    return jnp.where(at == verdict.accepted[:, None], verdict.token[:, None], below)


def until_ended(
    step: Callable, params: DecodeParams, state: GenerationState, ended: Int[Array, ""], most: Int[Array, ""]
) -> tuple[GenerationState, Int[Array, ""]]:
    """Rounds until `ended` more rows have stopped, all have, or `most` rounds are done; state and number of rounds."""
    running = lambda state: jnp.sum(state.stop == int(Stop.RUNNING), dtype=jnp.int32)
    fewest = jnp.maximum(running(state) - ended, 0)

    def going(carry):
        state, rounds = carry
        return (running(state) > fewest) & (rounds < most)

    return jax.lax.while_loop(going, lambda carry: (step(params, carry[0])[0], carry[1] + 1), (state, jnp.int32(0)))


of_rounds = functools.partial(  # jits what runs rounds; the caches in the state are written in place
    programs.jit, static=("model", "drafter", "verify"), donate=("state",)
)


@of_rounds
def generate(
    params: DecodeParams, state: GenerationState, *, model: LanguageModel, drafter: Drafter, verify: VerifyFn
) -> GenerationState:  # fmt: skip
    """Rounds until every row has stopped: one while_loop, one trace, no host synchronization, the caches donated.

    Compiles once for each (model, drafter, verifier) and set of shapes.
    """
    count_trace()
    step = make_step(model, drafter, verify)
    return jax.lax.while_loop(lambda s: jnp.any(s.stop == int(Stop.RUNNING)), lambda s: step(params, s)[0], state)


@of_rounds
def one_round(params, state, *, model, drafter, verify) -> tuple[GenerationState, Info]:
    """`make_step(...)` jitted with the state donated: what `stream` calls."""
    count_trace()
    return make_step(model, drafter, verify)(params, state)


@functools.partial(programs.jit, static=("model", "drafter", "cache_len", "max_new"))
def prefill(
    params, key, prompt, length, budget, limit=None, known=None, *, model, drafter, cache_len: int, max_new: int
) -> GenerationState:
    """`make_init(...)` jitted: reads the prompts and returns the state before the first round."""
    count_trace()
    init = make_init(model, drafter, cache_len=cache_len, max_new=max_new)
    return init(params, key, prompt, length, budget, limit, known)


def stream(
    params: DecodeParams, state: GenerationState, *, model: LanguageModel, drafter: Drafter, verify: VerifyFn
) -> Iterator[tuple[GenerationState, Info]]:  # fmt: skip
    """Rounds driven from the host: yields (state, Info) after each, until every row has stopped.

    The state that was yielded before is donated to the next round: read what you need of it before going on.
    """
    while bool(jnp.any(state.stop == int(Stop.RUNNING))):
        state, info = one_round(params, state, model=model, drafter=drafter, verify=verify)
        yield state, info


@of_rounds
def _run_draft_half(params, state, *, model, drafter, verify) -> tuple[GenerationState, Drafted]:
    return make_halves(model, drafter, verify)[0](params, state)


@of_rounds
def _run_verify_half(params, state, drafted, *, model, drafter, verify) -> tuple[GenerationState, Info]:
    return make_halves(model, drafter, verify)[1](params, state, drafted)


def parts(*, model: LanguageModel, drafter: Drafter, verify: VerifyFn) -> tuple[Callable, Callable]:
    """The halves of a round jitted apart, for timing: `make_halves` with the state donated.

    Run one after the other they are a round of `one_round`: same values, caches written in place and nothing copied,
    so that their times add up to that of a round.
    """
    static = {"model": model, "drafter": drafter, "verify": verify}
    return functools.partial(_run_draft_half, **static), functools.partial(_run_verify_half, **static)


_traces = 0


def count_trace() -> None:
    """Counts a trace of the function that calls it."""
    global _traces
    _traces += 1


def trace_count() -> int:
    """Number of traces of prefill, generate and one_round in this process; each trace is one compile."""
    return _traces


def _mark(seen: Bool[Array, "B V"], tokens: Int[Array, "B W"], length: Int[Array, "B"]) -> Bool[Array, "B V"]:
    """Adds the first length[b] tokens to the set of each row; later ones are out of range and are dropped."""
    at = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    index = jnp.where(at < length[:, None], tokens, seen.shape[1])
    return jax.vmap(lambda row, tokens: row.at[tokens].set(True, mode="drop"))(seen, index)
