"""Draft models with a tokenizer of their own: two bridges over the tables of `drafters.vocabulary`.

`intersection` (TLI; Timor et al. 2025, arXiv 2502.05202) samples from the draft's distribution over the tokens that
both vocabularies share. `reencoding` (after universal assisted generation) decodes greedily with the draft and proposes
the same text in the target's tokens. Both are lossless with any lossless verifier: `log_q` of the first is the
distribution that it sampled from; the second proposes point masses, a function of the text.

The draft model reads the committed text token by token through a table. Its own tokenizer would write the text with
fewer tokens: a word of two target tokens becomes at least two draft tokens. A compiled loop cannot run a tokenizer, so
acceptance is lower; the output is exact. Bridges cannot be used inside a cascade: the number of draft tokens per
committed token is not stored, so that tokens cannot be rolled back (no `Drafter.rewind`).

    target     t0        t1   t2        pending        committed tokens, each a row of the table
    draft      d0 d1 d2  d3   d4 d5     d6 d7          its cache holds what is left of the queue: d6 d7
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax import checks, trees
from specjax.base import Cache, Drafter, LanguageModel
from specjax.categorical import argmax
from specjax.drafters import vocabulary as _vocabulary
from specjax.drafters.chain import write_chain
from specjax.drafters.loaded import LoadedDrafter, check_model
from specjax.drafters.vocabulary import NONE, Joins, Reading, Writing
from specjax.drafters.writer import next_logits
from specjax.programs import memoize
from specjax.types import Commit, Draft, Params, Siblings

SLACK = 64  # draft tokens that a row may hold beyond `stretch` for each of the target's: short texts vary most


class BridgeParams(NamedTuple):
    """Parameters of a bridge: the draft's weights, and the tables between both vocabularies."""

    model: Params
    reading: Reading
    writing: Any  # intersection: the draft's token of each target token [V], or NONE; reencoding: a Writing


class BridgeDraft(NamedTuple):
    """State of a draft model that reads through a table. Cache and queue are together the committed text.

    Attributes:
      cache: of the draft model.
      queue: draft tokens that are not in the cache yet, left-aligned.
      count: how many, at least 1: the next token follows the last of them.
      text: target tokens committed.
    """

    cache: Cache
    queue: Int[Array, "B Q"]
    count: Int[Array, "B"]
    text: Int[Array, "B"]


@memoize
def intersection(lm: LanguageModel, vocab_size: int, gamma: int, *, stretch: int = 2) -> Drafter:
    """A chain of gamma shared tokens, each sampled from `lm` restricted to them, under the target's warp.

    Where the warp leaves them no mass, the chain ends: a property of the distribution, not of a token.

    Args:
      lm: the draft model; params are `BridgeParams`.
      vocab_size: of the target's logits.
      gamma: draft tokens per round.
      stretch: room of the draft per target token, in draft tokens, besides SLACK. A row that needs more, or more than
        the draft's positions, continues without a draft; of a prompt that needs more, the draft reads the end.
    """
    reader = _reader(lm, gamma, stretch)

    def queue_size(width: int) -> int:
        return width + 1  # a token of the target, and the draft token that was drawn but never fed

    def propose(params: BridgeParams, key, state: BridgeDraft, pending, warp):
        spelling = params.reading.spelling

        def feed(token, cache):
            logits, cache = next_logits(lm, params.model, cache, spelling.tokens[token, 0])
            return onto(params.writing, logits), cache

        room = reader.room(params, state)[:, None]
        logits, cache = reader.feed(params, state)
        draft, cache = write_chain(
            feed, onto(params.writing, logits), cache, pending, key, warp, gamma=gamma, restricted=True
        )
        valid = draft.valid & (room | (jnp.arange(gamma + 1, dtype=jnp.int32)[None] == 0))
        return draft._replace(valid=valid), state._replace(cache=cache)

    def commit(params: BridgeParams, state: BridgeDraft, committed: Commit):
        # Fed were the queue and gamma - 1 drafts. A row keeps those that were accepted: they are tokens of their own.
        length, spelling = committed.length, params.reading.spelling
        last, before = (_column(committed.tokens, jnp.maximum(length - back, 0)) for back in (1, 2))
        previous = jnp.where(length >= 2, spelling.tokens[before, 0], _column(state.queue, state.count - 1))
        spelled, count = spelling.tokens[last], spelling.count[last]
        # The draft drawn last was never fed; and if the newest token has no draft tokens, the last draft token is fed
        # again, since the distribution after it is needed again.
        again = (length == gamma + 1) | (count == 0)
        alone = jnp.pad(spelled, ((0, 0), (0, 1)))
        queue = jnp.where(again[:, None], jnp.concatenate([previous[:, None], spelled], 1), alone)
        again = again.astype(jnp.int32)
        return reader.settle(params, state, length, state.count + length - 1 - again, queue, count + again)

    return Drafter(trees.chain(gamma), functools.partial(reader.init, queue_size), propose, commit, vocab_size)


@memoize
def reencoding(lm: LanguageModel, gamma: int, *, stretch: int = 2) -> Drafter:
    """gamma greedy tokens of `lm`, proposed as at most gamma target tokens.

    Runs of draft tokens that are one target token are joined, the longest run first; any other draft token becomes the
    target tokens with its bytes. A draft token without such tokens ends the proposal. The draft is greedy at every
    temperature, so that its proposal is a function of the text: point masses.
    """
    reader = _reader(lm, gamma, stretch)

    def queue_size(width: int) -> int:
        return width * (gamma + 1)  # all that a round can commit

    def propose(params: BridgeParams, key, state: BridgeDraft, pending, warp):
        del key, warp
        logits, cache = reader.feed(params, state)

        def body(carry, _):
            cache, token = carry
            logits, cache = next_logits(lm, params.model, cache, token)
            following = argmax(logits)
            return (cache, following), following

        first = argmax(logits)
        (cache, _), others = jax.lax.scan(body, (cache, first), length=gamma - 1)
        written = jnp.concatenate([first[:, None], others.T], 1)
        proposed, count = in_target_tokens(params.writing, written, gamma)
        valid = (jnp.arange(gamma, dtype=jnp.int32)[None] < count[:, None]) & reader.room(params, state)[:, None]
        valid = jnp.pad(valid, ((0, 0), (1, 0)), constant_values=True)
        return Draft(jnp.concatenate([pending[:, None], proposed], 1), valid, None), state._replace(cache=cache)

    def commit(params: BridgeParams, state: BridgeDraft, committed: Commit):
        # The draft's own tokens are dropped: the committed text is converted again by the table.
        spelling = params.reading.spelling
        new = jnp.arange(committed.tokens.shape[1], dtype=jnp.int32)[None] < committed.length[:, None]
        counts = jnp.where(new, spelling.count[committed.tokens], 0)
        queue, count = pack(spelling.tokens[committed.tokens], counts, state.queue.shape[1])
        silent = count == 0
        again = jnp.zeros_like(queue).at[:, 0].set(_column(state.queue, state.count - 1))
        queue = jnp.where(silent[:, None], again, queue)
        kept = state.count - silent.astype(jnp.int32)
        return reader.settle(params, state, committed.length, kept, queue, jnp.maximum(count, 1))

    return Drafter(
        trees.chain(gamma), functools.partial(reader.init, queue_size), propose, commit, siblings=Siblings.POINTS
    )


class _Reader(NamedTuple):
    """How a draft model reads target tokens, in both bridges.

    init: (queue_size, params, prompt, length, cache_len, prefilled) -> BridgeDraft.
    feed: (params, state) -> logits [B,V] after the queue, and the cache with it.
    room: (params, state) -> whether the row may draft [B]: before `feed`.
    settle: (params, state after a round, length, kept, queue, count) -> BridgeDraft. Keeps `kept` of the tokens that
        the round fed; a row that committed nothing, or has no room, stays as it was before.
    """

    init: Callable[..., BridgeDraft]
    feed: Callable[..., tuple[Float[Array, "B V"], Cache]]
    room: Callable[..., Bool[Array, "B"]]
    settle: Callable[..., BridgeDraft]


def _reader(lm: LanguageModel, gamma: int, stretch: int) -> _Reader:
    positions = lm.positions

    def limit(params: BridgeParams, text, queue: int):
        """Draft tokens that each row's cache may hold before a round, from its own text alone."""
        most = stretch * text + SLACK + params.reading.opening.shape[0]
        return most if positions is None else jnp.minimum(most, max(positions - queue - gamma, 1))

    def init(queue_size, params: BridgeParams, prompt, length, cache_len, prefilled):
        del prefilled
        spelling, begin = params.reading.spelling, params.reading.opening
        queue = queue_size(spelling.tokens.shape[1])
        at = jnp.arange(prompt.shape[1], dtype=jnp.int32)[None]
        skipped = (at == 0) & (prompt == params.reading.skip)
        counts = jnp.where((at < length[:, None]) & ~skipped, spelling.count[prompt], 0)
        # of a text that is too long, the draft reads the end
        most = limit(params, length, queue) - begin.shape[0]
        if lm.encoder_decoder:  # the encoder has room of its own
            most = stretch * length + SLACK
        width = min(spelling.tokens.shape[1], stretch) * prompt.shape[1] + SLACK
        if positions is not None:
            width = min(width, positions)
        body, count = pack(spelling.tokens[prompt], counts, width, most=jnp.clip(most, 1, width))
        opened = jnp.broadcast_to(begin, (prompt.shape[0], begin.shape[0]))
        whole = jnp.concatenate([opened, body], 1)
        slots = stretch * cache_len + SLACK + begin.shape[0] + queue + gamma
        slots = slots if lm.encoder_decoder else max(slots, whole.shape[1])
        read = lm.prefill(params.model, whole, jnp.maximum(count + begin.shape[0], 1), slots)
        waiting = jnp.zeros((prompt.shape[0], queue), jnp.int32).at[:, 0].set(read.pending)
        text = jnp.ones_like(length) if lm.encoder_decoder else length
        return BridgeDraft(read.cache, waiting, jnp.ones_like(length), text)

    def feed(params: BridgeParams, state: BridgeDraft):
        block = trees.chain(state.queue.shape[1] - 1)
        out, cache = lm.extend(params.model, state.queue, state.cache, block.mask, block.depth)
        logits = jnp.take_along_axis(out.logits, (state.count - 1)[:, None, None], axis=1)[:, 0]
        return logits, lm.keep(cache, None, state.count)

    def room(params: BridgeParams, state: BridgeDraft):
        return state.cache.length <= limit(params, state.text, state.queue.shape[1])

    def settle(params: BridgeParams, state: BridgeDraft, length, kept, queue, count):
        fed = state.count + gamma - 1
        before = lm.keep(state.cache, None, -fed)
        moves = (length > 0) & room(params, state._replace(cache=before))
        cache = lm.keep(before, None, jnp.where(moves, kept, 0))
        queue = jnp.where(moves[:, None], queue, state.queue)
        count = jnp.where(moves, count, state.count)
        return BridgeDraft(cache, queue, count, state.text + jnp.where(moves, length, 0))

    return _Reader(init, feed, room, settle)


def onto(source: Int[Array, "V"], logits: Float[Array, "B U"]) -> Float[Array, "B V"]:
    """The draft's logits at the target's tokens, -inf where a token is not shared."""
    return jnp.where(source[None] == NONE, -jnp.inf, logits[:, jnp.maximum(source, 0)])


def in_target_tokens(
    writing: Writing, written: Int[Array, "B n"], width: int
) -> tuple[Int[Array, "B G"], Int[Array, "B"]]:
    """Draft tokens as target tokens: the first `width`, and how many there are.

    written   un  believ  ably   s          unbeliev is one target token, ably is two, s is one
    begins    x           x      x
    result    unbeliev    ab ly  s
    """
    longest, joined = match(writing.joins, written, writing.spelling.tokens.shape[1])
    one = longest > 0
    tokens = writing.spelling.tokens[written]
    tokens = jnp.where(one[..., None], joined[..., None], tokens)
    count = jnp.where(one, 1, writing.spelling.count[written])
    step = jnp.where(one, longest, 1)
    following, begins = jnp.zeros_like(written[:, 0]), []
    for at in range(written.shape[1]):
        here = following == at
        following = jnp.where(here, at + step[:, at], following)
        begins.append(here)
    begin = jnp.stack(begins, 1)
    silent = jnp.cumsum(begin & (count == 0), axis=1) > 0
    return pack(tokens, jnp.where(begin & ~silent, count, 0), width)


def match(joins: Joins, written: Int[Array, "B n"], reach: int) -> tuple[Int[Array, "B n"], Int[Array, "B n"]]:
    """The longest run that begins at each place and is one target token: how long (0: there is none), and the token."""
    state = jnp.zeros_like(written)
    longest, joined = jnp.zeros_like(written), jnp.zeros_like(written)
    for ahead in range(min(reach, written.shape[1])):
        label = jnp.pad(written[:, ahead:], ((0, 0), (0, ahead)), constant_values=NONE)  # no edge past the end
        state = _child(joins, state, label)
        gives = jnp.where(state == NONE, NONE, joins.gives[jnp.maximum(state, 0)])
        longest = jnp.where(gives == NONE, longest, ahead + 1)
        joined = jnp.where(gives == NONE, joined, gives)
    return longest, joined


def _child(joins: Joins, state: Int[Array, "B n"], label: Int[Array, "B n"]) -> Int[Array, "B n"]:
    """The state that each label leads to, NONE where there is no such edge: a binary search among the state's edges."""
    edges = joins.label.shape[0]
    low, end = joins.first[jnp.maximum(state, 0)], joins.first[jnp.maximum(state, 0) + 1]
    high = end
    for _ in range(edges.bit_length()):
        middle = (low + high) // 2
        below = (low < high) & (joins.label[jnp.minimum(middle, edges - 1)] < label)
        low, high = jnp.where(below, middle + 1, low), jnp.where(below, high, middle)
    found = (state != NONE) & (low < end) & (joins.label[jnp.minimum(low, edges - 1)] == label)
    return jnp.where(found, low + 1, NONE)


def pack(
    tokens: Int[Array, "B n K"], count: Int[Array, "B n"], width: int, *, most: Int[Array, "B"] | None = None
) -> tuple[Int[Array, "B width"], Int[Array, "B"]]:
    """The first count[b, i] tokens of each group, one group after the other, left-aligned; and how many there are.

    What does not fit into `width` is dropped at the end; with `most`, only the last most[b] are kept.
    """
    ends = jnp.cumsum(count, axis=1)
    total = ends[:, -1]
    skip = jnp.zeros_like(total) if most is None else jnp.maximum(total - most, 0)
    inside = jnp.arange(tokens.shape[2], dtype=jnp.int32)[None, None]
    at = (ends - count - skip[:, None])[..., None] + inside
    at = jnp.where((inside < count[..., None]) & (at >= 0), at, width)  # past the end: dropped
    rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None, None]
    packed = jnp.zeros((tokens.shape[0], width), jnp.int32).at[rows, at].set(tokens, mode="drop")
    return packed, jnp.minimum(total - skip, width)


def _column(tokens: Int[Array, "B n"], at: Int[Array, "B"]) -> Int[Array, "B"]:
    return jnp.take_along_axis(tokens, at[:, None], axis=1)[:, 0]


# --- constructors ------------------------------------------------------------------------------------------


def bridge(draft: Any, target: Any, *, gamma: int = 5, width: int = 4, stretch: int = 2) -> LoadedDrafter:
    """A smaller model with another tokenizer drafts, restricted to the tokens that both vocabularies share.

    Lossless with any lossless verifier of chains. TLI, Timor et al. 2025, arXiv 2502.05202, section 4.

    Args:
      draft: a model from `specjax.load` with its tokenizer.
      target: the model that will be the target, from `specjax.load`, with its tokenizer.
      gamma: draft tokens per round, at least 1.
      width: most draft tokens that one target token becomes; of a longer one the draft reads the end.
      stretch: room of the draft per target token, in draft tokens; a row that needs more decodes plainly.

    Returns:
      The drafter of this target.

    Raises:
      ValueError: an argument that is not a loaded model, a model without a tokenizer, or tokenizers that share nothing.

    >>> import specjax as sj
    >>> target, draft = sj.load("bundled/opt-target"), sj.load("bundled/opt-draft")
    >>> sj.drafters.bridge(draft, target, gamma=3).name
    'bundled/opt-draft x3 by shared tokens'
    """
    ours, theirs, found, spelled = _compared(draft, target, gamma=gamma, width=width, stretch=stretch)
    reading = _vocabulary.reading(ours, theirs, spelled, width=width)
    made = intersection(draft.lm, target.vocab_size, gamma, stretch=stretch)
    tables = jax.tree.map(jnp.asarray, (reading, _vocabulary.shared(found, theirs)))
    name = f"{draft.name} x{gamma} by shared tokens"
    return LoadedDrafter(name, made, BridgeParams(draft.params, *tables), draft, target=target)


def reencode(draft: Any, target: Any, *, gamma: int = 5, width: int = 4, stretch: int = 2) -> LoadedDrafter:
    """A smaller model with another tokenizer decodes greedily, and its text is proposed in the target's tokens.

    Lossless with any lossless verifier of chains. Universal assisted generation, as in transformers; SLEM in Timor et
    al. 2025, arXiv 2502.05202, section 3.

    Args:
      draft: a model from `specjax.load` with its tokenizer.
      target: the model that will be the target, from `specjax.load`, with its tokenizer.
      gamma: tokens that the draft decodes per round, and most tokens that are proposed, at least 1.
      width: most tokens of one vocabulary that one token of the other becomes.
      stretch: room of the draft per target token, in draft tokens; a row that needs more decodes plainly.

    Returns:
      The drafter of this target.

    Raises:
      ValueError: an argument that is not a loaded model, a model without a tokenizer, or tokenizers that share nothing.

    >>> import specjax as sj
    >>> target, draft = sj.load("bundled/opt-target"), sj.load("bundled/opt-draft")
    >>> sj.drafters.reencode(draft, target, gamma=3).name
    'bundled/opt-draft x3 re-encoded'
    """
    ours, theirs, found, spelled = _compared(draft, target, gamma=gamma, width=width, stretch=stretch)
    reading = _vocabulary.reading(ours, theirs, spelled, width=width)
    writing = _vocabulary.writing(ours, theirs, spelled, found, width=width)
    made = reencoding(draft.lm, gamma, stretch=stretch)
    tables = jax.tree.map(jnp.asarray, (reading, writing))
    return LoadedDrafter(
        f"{draft.name} x{gamma} re-encoded", made, BridgeParams(draft.params, *tables), draft, target=target
    )


def _compared(draft: Any, target: Any, **numbers: int):
    """Both vocabularies, their pairs, and the target's tokens in the draft's, after checks of the arguments."""
    for name, value in numbers.items():
        checks.integer(name, value, least=1)
    check_model("draft", draft)
    check_model("target", target)
    ours, theirs = _vocabulary.vocabulary(draft), _vocabulary.vocabulary(target)
    found = _vocabulary.pairs(ours, theirs)
    return ours, theirs, found, _vocabulary.spellings(theirs, ours, found)
