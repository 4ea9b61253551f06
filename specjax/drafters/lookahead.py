"""Lookahead decoding: the target drafts for itself by Jacobi iteration (Fu et al. 2024, arXiv 2402.02057).

Every target forward pass reads, beside the last token, a window of W columns that run N - 1 steps deep, and up to G
n-grams that were seen to begin with that token. Window W = 4, N = 4, at its positions after the last token t:

    row 0     t  a  b  c               drafted three rounds ago
    row 1        d  e  f  g            two rounds ago
    row 2           h  i  j  k         in the last round
    argmax             l  m  n  o      the new row; the columns t d h l, a e i m, b f j n, c g k o go into the pool

A node of row r and column c attends to row 0 up to column c, and to its own column above it: one text without a gap.
The pool keeps the G newest n-grams of every first token, at first those of the prompt. The n-grams of the last token
are branches of point masses, so that every temperature is supported.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from specjax import checks
from specjax.base import Drafter
from specjax.defaults import LARGEST_TREE
from specjax.drafters.loaded import LoadedDrafter
from specjax.programs import memoize
from specjax.trees import ROOT, SCRATCH, Tree
from specjax.types import Commit, Draft, Siblings

EMPTY = -1  # `Pool.first` where there is no n-gram
BUCKETS = 1024  # first tokens that the pool distinguishes: a text uses fewer


def lookahead(*, window: int = 7, ngram: int = 5, guesses: int = 7) -> LoadedDrafter:
    """The target drafts for itself by Jacobi iteration while it verifies, in one forward pass.

    Verifier: "deterministic", lossless. Lookahead decoding, Fu et al. 2024, arXiv 2402.02057, sections 3.1 and 3.2.

    Args:
      window: W, columns of the Jacobi window, at least 1.
      ngram: N, tokens of an n-gram, at least 2; a round commits at most N.
      guesses: G, n-grams that are verified per round, at least 1.

    Returns:
      The drafter; a forward pass reads (W + G)(N - 1) nodes.

    Raises:
      ValueError: a number out of range.

    >>> import specjax as sj
    >>> sj.drafters.lookahead(window=5, ngram=3, guesses=5).drafter.tree.size
    20
    """
    for name, value, least in (("window", window, 1), ("ngram", ngram, 2), ("guesses", guesses, 1)):
        checks.integer(name, value, least=least)
    nodes = (guesses + window) * (ngram - 1)
    if nodes > LARGEST_TREE:
        raise ValueError(
            f"a round of window={window}, ngram={ngram}, guesses={guesses} would read {nodes} nodes, and at most "
            f"{LARGEST_TREE} are supported: lower one of them"
        )
    return LoadedDrafter(f"lookahead {window},{ngram},{guesses}", lookahead_drafter(window, ngram, guesses))


class Pool(NamedTuple):
    """N-grams by their first token, the newest first. Tokens that share a bucket compete for its G places."""

    first: Int[Array, "B H G"]  # the token that the rest follows, or EMPTY
    rest: Int[Array, "B H G R"]  # R = N - 1


class LookaheadDraft(NamedTuple):
    """The Jacobi window, R rows of C columns, and the pool of n-grams taken from it."""

    window: Int[Array, "B R C"]  # [:, 0, 0] is the last committed token
    pool: Pool


@memoize
def lookahead_drafter(window: int, ngram: int, guesses: int, buckets: int = BUCKETS) -> Drafter:
    """W, N and G of the paper: columns of the window, tokens of an n-gram, n-grams verified per round.

    The target reads 1 + G (N - 1) + W (N - 1) - 1 nodes per round, and a round commits up to N tokens.
    """
    tree, last_row = layout(window, ngram, guesses)
    rest = ngram - 1

    def init(params, prompt, length, cache_len, prefilled):
        del params, cache_len, prefilled
        rows = prompt.shape[0]
        shape = (rows, buckets, guesses)
        pool = Pool(jnp.full(shape, EMPTY, jnp.int32), jnp.zeros((*shape, rest), jnp.int32))
        return LookaheadDraft(first_window(prompt, length, rest, window), seeded(pool, prompt, length))

    def propose(params, key, state: LookaheadDraft, pending, warp):
        del params, key, warp
        rows = pending.shape[0]
        filled = state.window.at[:, 0, 0].set(pending)
        first, found = recall(state.pool, pending)
        known = first == pending[:, None]
        tokens = [pending[:, None], found.reshape(rows, -1), filled.reshape(rows, -1)[:, 1:]]
        valid = [jnp.ones((rows, 1), bool), jnp.repeat(known, rest, axis=1), jnp.zeros_like(tokens[2], bool)]
        draft = Draft(jnp.concatenate(tokens, 1), jnp.concatenate(valid, 1), None)
        return draft, LookaheadDraft(filled, state.pool)

    def commit(params, state: LookaheadDraft, committed: Commit):
        del params
        fresh = committed.argmax[:, last_row]
        columns = jnp.concatenate([state.window, fresh[:, None]], axis=1)  # [B, N, C]
        running = committed.length > 0

        def gather(pool: Pool, column):  # the first column, which begins with what was committed, comes last
            return remember(pool, column[:, 0], column[:, 1:], running), None

        pool, _ = lax.scan(gather, state.pool, jnp.moveaxis(columns, 2, 0), reverse=True)
        return LookaheadDraft(advanced(columns, committed.length), pool)

    def rewind(params, state: LookaheadDraft, back, token):
        del params, token
        return state._replace(window=moved_back(state.window, jnp.maximum(back - 1, 0)))

    return Drafter(tree, init, propose, commit, siblings=Siblings.POINTS, rewind=rewind)


def layout(window: int, ngram: int, guesses: int) -> tuple[Tree, np.ndarray]:
    """The tree that the target reads, and its nodes of the window's last row: the root, G chains, the window."""
    rest = ngram - 1
    parents = [ROOT]
    for _ in range(guesses):
        first = len(parents)
        parents += [0, *range(first, first + rest - 1)]
    start = len(parents) - 1  # the root is row 0, column 0
    node = lambda row, column: start + row * window + column if row + column else 0
    attends = []
    for row in range(rest):
        for column in range(window):
            if row + column:
                above = [node(0, c) for c in range(column + 1)] + [node(r, column) for r in range(1, row)]
                attends.append((node(row, column), tuple(n for n in above if n != node(row, column))))
    tree = Tree((*parents, *[SCRATCH] * len(attends)), tuple(attends))
    return tree, np.array([node(rest - 1, column) for column in range(window)], np.int32)


def first_window(prompt: Int[Array, "B P"], length: Int[Array, "B"], rows: int, columns: int) -> Int[Array, "B R C"]:
    """Columns that are pieces of the prompt, evenly spread."""
    spread = jnp.maximum(length - rows, 1)[:, None, None]
    start = jnp.arange(columns, dtype=jnp.int32)[None, None] * spread // columns
    at = start + jnp.arange(rows, dtype=jnp.int32)[None, :, None]
    at = jnp.minimum(at, length[:, None, None] - 1)
    return jnp.take_along_axis(prompt[:, None], at.reshape(len(length), 1, -1), axis=2).reshape(-1, rows, columns)


def advanced(columns: Int[Array, "B N C"], length: Int[Array, "B"]) -> Int[Array, "B R C"]:
    """The window after `length` tokens were committed, all its rows one up; a row that has stopped keeps its own.

    Position i + length moves to i. Columns that the text has passed are reused at the end of the window.
    """
    count = columns.shape[2]
    shifted = (jnp.arange(count, dtype=jnp.int32)[None] + length[:, None] - 1) % count
    moved = jnp.take_along_axis(columns[:, 1:], shifted[:, None], axis=2)
    return jnp.where((length > 0)[:, None, None], moved, columns[:, :-1])


def moved_back(window: Int[Array, "B R C"], count: Int[Array, "B"]) -> Int[Array, "B R C"]:
    """Moves the window back by `count` positions: columns that `advanced` moved to its end return to the front.

    The pool keeps its n-grams: those of rejected text are candidates like any other.
    """
    columns = window.shape[2]
    shifted = (jnp.arange(columns, dtype=jnp.int32)[None] - count[:, None]) % columns
    return jnp.take_along_axis(window, shifted[:, None], axis=2)


def recall(pool: Pool, first: Int[Array, "B"]) -> tuple[Int[Array, "B G"], Int[Array, "B G R"]]:
    """The bucket of each row's token."""
    at = first % pool.first.shape[1]
    pick = jax.vmap(lambda table, bucket: lax.dynamic_index_in_dim(table, bucket, keepdims=False))
    return pick(pool.first, at), pick(pool.rest, at)


def remember(pool: Pool, first: Int[Array, "B"], rest: Int[Array, "B R"], active: Bool[Array, "B"]) -> Pool:
    """Puts an n-gram of each active row first in its bucket; it leaves its old place there, or the oldest goes."""
    held, tails = recall(pool, first)
    places = held.shape[1]
    same = (held == first[:, None]) & jnp.all(tails == rest[:, None], axis=-1)
    left = jnp.where(jnp.any(same, axis=1), jnp.argmax(same, axis=1).astype(jnp.int32), places - 1)
    at = jnp.arange(places, dtype=jnp.int32)[None]
    source = jnp.where(at <= left[:, None], jnp.maximum(at - 1, 0), at)
    held = jnp.take_along_axis(held, source, axis=1).at[:, 0].set(first)
    tails = jnp.take_along_axis(tails, source[..., None], axis=1).at[:, 0].set(rest)
    buckets = pool.first.shape[1]
    bucket = jnp.where(active, first % buckets, buckets)  # past the end: dropped
    put = jax.vmap(lambda table, index, new: table.at[index].set(new, mode="drop"))
    return Pool(put(pool.first, bucket, held), put(pool.rest, bucket, tails))


def seeded(pool: Pool, prompt: Int[Array, "B P"], length: Int[Array, "B"]) -> Pool:
    """The pool with every n-gram of the prompt, the latest one newest."""
    size = pool.rest.shape[3] + 1
    at = jnp.arange(size, dtype=jnp.int32)

    def step(start, pool: Pool) -> Pool:
        piece = lax.dynamic_slice_in_dim(prompt, start, size, axis=1)
        return remember(pool, piece[:, 0], piece[:, 1:], start + at[-1] < length)

    return lax.fori_loop(jnp.int32(0), jnp.int32(max(prompt.shape[1] - size + 1, 0)), step, pool)
