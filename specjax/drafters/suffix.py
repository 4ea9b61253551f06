"""Suffix matching: what followed the longest match of the last tokens, in the request and in a corpus of past outputs.

SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975) keeps suffix trees on the host, REST (He et al. 2023, 2311.08252)
a suffix array; here everything stays inside jit. Some continuations of the longest matches are taken side by side, and
counting their beginnings makes the tree of what followed, a chain by its most frequent branches or a tree of the most
frequent ones. The request counts as text that ends where it ends; of matches in the request and in the corpus the
longer ones count, and equally long ones together.

    continuations     a b c     counts    a 3 ── b 2 ── c 1      chain    a b c
                      a b d               │      │   ╰─ d 1      tree of 4, the root included: a, a b, and e
                      a e                 │      ╰ e 1                    or what is equally frequent first

Point masses: `log_q` is None.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax import trees
from specjax.base import Drafter
from specjax.categorical import largest
from specjax.drafters import history
from specjax.drafters.corpus import END, NOTHING, Corpus, matches
from specjax.drafters.history import History
from specjax.drafters.ngram import runs
from specjax.programs import memoize
from specjax.trees import ROOT, dynamic
from specjax.types import Commit, Draft, Siblings

OWN, PAST = 8, 24  # continuations that are compared: the latest of the request, a sample of the corpus


class Continuations(NamedTuple):
    """Texts that may follow, side by side: what comes after the longest matches."""

    tokens: Int[Array, "B C D"]  # END where a text is over
    alive: Bool[Array, "B C"]  # whether the match before it is of the longest


@memoize
def suffix(gamma: int = 8, longest: int = 16, shortest: int = 1, confidence: float = 0.1) -> Drafter:
    """A chain: from the longest match on, the token that followed most often, again and again.

    Its params are a `Corpus`, or () for the request alone.

    Args:
      gamma: draft tokens a round.
      longest, shortest: tokens that a match may have.
      confidence: a node is proposed while at least this share of the matches goes on through it.
    """

    def propose(params, key, state: History, pending, warp):
        del key, warp
        texts = continuations(params, state, gamma, longest=longest, shortest=shortest)
        copied, share = most_frequent(texts)
        valid = (share > 0) & (share.astype(jnp.float32) >= confidence * matched(texts)[:, None])
        tokens = jnp.concatenate([pending[:, None], copied], 1)
        return Draft(tokens, jnp.concatenate([jnp.ones_like(valid[:, :1]), valid], 1), None), state

    return Drafter(trees.chain(gamma), _init, propose, _commit, siblings=Siblings.POINTS, rewind=_rewind)


@memoize
def suffix_tree(
    size: int = 16, depth: int = 8, longest: int = 16, shortest: int = 1, confidence: float = 0.1
) -> Drafter:
    """A tree for each row and round: the `size` - 1 most frequent beginnings of what followed the longest match.

    Its params are a `Corpus`, or () for the request alone. Other arguments as for `suffix`.

    Raises:
      ValueError: a size that the depth does not allow.
    """
    tree = dynamic.envelope(size, depth)
    if size - 1 > OWN * depth:  # so many beginnings there are without a corpus
        raise ValueError(f"size must lie in {depth + 1}..{OWN * depth + 1} at depth {depth}, got {size}")

    def propose(params, key, state: History, pending, warp):
        del key, warp
        texts = continuations(params, state, depth, longest=longest, shortest=shortest)
        return beginnings(texts, pending, size=size, confidence=confidence), state

    return Drafter(tree, _init, propose, _commit, siblings=Siblings.POINTS, dynamic=True, rewind=_rewind)


def continuations(params: Corpus | tuple[()], state: History, depth: int, *, longest: int, shortest: int):
    """What followed the longest matches, in the request and where there is a corpus in it."""
    tokens, length = state.tokens, state.length
    run = runs(tokens, length, longest)
    best = jnp.max(run, axis=1)
    best = jnp.where(best >= shortest, best, 0)
    at = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    ends = (run == best[:, None]) & (best[:, None] > 0)
    found, _ = largest(jnp.where(ends, at, -1).astype(jnp.float32), OWN)  # exact: no row has 2^24 tokens
    latest = found.astype(jnp.int32)
    ahead = jnp.arange(1, depth + 1, dtype=jnp.int32)[None, None]
    texts = _read(tokens, latest[..., None] + ahead, length[:, None, None])
    alive = latest >= 0
    if not isinstance(params, Corpus):
        return Continuations(texts, alive)
    back = length[:, None] - 1 - jnp.arange(longest, dtype=jnp.int32)[None]
    context = jnp.where(back >= 0, jnp.take_along_axis(tokens, jnp.maximum(back, 0), axis=1), NOTHING)
    place, there, matched_past = matches(params, context, shortest=shortest, count=PAST)
    ahead = place[..., None] + ahead - 1
    past = jnp.where(ahead < len(params.text), params.text[jnp.minimum(ahead, len(params.text) - 1)], END)
    past = jnp.where(jnp.cumprod(past != END, axis=2, dtype=jnp.int32) == 1, past, END)
    alive = alive & (best >= matched_past)[:, None]
    there = there & (matched_past >= best)[:, None]
    return Continuations(jnp.concatenate([texts, past], 1), jnp.concatenate([alive, there], 1))


def agreeing(texts: Continuations) -> Bool[Array, "B D C C"]:
    """Which continuations agree up to and with each of their tokens; none with one that is over, or not alive."""
    tokens = jnp.moveaxis(texts.tokens, 2, 1)  # [B, D, C]
    here = (tokens != END) & texts.alive[:, None]
    same = (tokens[..., None] == tokens[..., None, :]) & here[..., None] & here[..., None, :]
    return jnp.cumprod(same, axis=1, dtype=jnp.int32) == 1


def matched(texts: Continuations) -> Float[Array, "B"]:
    """How many matches there are, those that nothing follows included."""
    return jnp.sum(texts.alive, axis=1, dtype=jnp.float32)


def most_frequent(texts: Continuations) -> tuple[Int[Array, "B D"], Int[Array, "B D"]]:
    """The most frequent token, and after it again, with its count; of equal counts the continuation that comes first.

    A count of 0: nothing follows.
    """
    same = agreeing(texts)
    going, tokens, counts = texts.alive, [], []
    for depth in range(texts.tokens.shape[2]):
        count = jnp.where(going, jnp.sum(same[:, depth], axis=2, dtype=jnp.int32), 0)
        chosen = jnp.argmax(count, axis=1)[:, None]
        tokens.append(jnp.take_along_axis(texts.tokens[:, :, depth], chosen, axis=1))
        counts.append(jnp.take_along_axis(count, chosen, axis=1))
        going = jnp.take_along_axis(same[:, depth], chosen[..., None], axis=1)[:, 0]
    counts, tokens = jnp.concatenate(counts, 1), jnp.concatenate(tokens, 1)
    return jnp.where(counts > 0, tokens, 0), counts


def beginnings(texts: Continuations, pending: Int[Array, "B"], *, size: int, confidence: float) -> Draft:
    """The tree of the most frequent beginnings; of equal counts the shorter, then the continuation that comes first.

    A beginning is at least as frequent as what goes on from it, and is chosen before it.
    """
    same = agreeing(texts)
    rows, depth, width = same.shape[:3]
    count = jnp.sum(same, axis=3, dtype=jnp.int32)
    oldest = jnp.argmax(same, axis=3).astype(jnp.int32)  # the representative of all that agree
    first = (oldest == jnp.arange(width, dtype=jnp.int32)[None, None]) & (count > 0)
    enough = count.astype(jnp.float32) >= confidence * matched(texts)[:, None, None]
    score = jnp.where(first & enough, count, 0).astype(jnp.float32).reshape(rows, depth * width)
    _, chosen = largest(score, size - 1)
    chosen = jnp.sort(chosen, axis=1).astype(jnp.int32)  # parents, a level above, come first
    valid = jnp.take_along_axis(score, chosen, axis=1) > 0
    level = chosen // width
    flat = jnp.moveaxis(texts.tokens, 2, 1).reshape(rows, depth * width)
    tokens = jnp.where(valid, jnp.take_along_axis(flat, chosen, axis=1), 0)
    above = jnp.take_along_axis(oldest.reshape(rows, -1), jnp.maximum(chosen - width, 0), axis=1)
    place = jnp.sum(chosen[:, None] < ((level - 1) * width + above)[..., None], axis=2, dtype=jnp.int32) + 1
    parents = jnp.where(valid & (level > 0), place, 0)
    first = jnp.ones_like(pending)[:, None]
    return Draft(
        jnp.concatenate([pending[:, None], tokens], 1),
        jnp.concatenate([first == 1, valid], 1),
        None,
        jnp.concatenate([first * ROOT, parents], 1),
    )


def _read(tokens: Int[Array, "B T"], at: Int[Array, "B C D"], length: Int[Array, "B 1 1"]) -> Int[Array, "B C D"]:
    """Tokens of the request, END past its end."""
    flat = jnp.take_along_axis(tokens, at.reshape(at.shape[0], -1), axis=1, mode="clip").reshape(at.shape)
    return jnp.where(at < length, flat, END)


def _init(params, prompt, length, cache_len, prefilled) -> History:
    del params, prefilled
    return history.start(prompt, length, max(cache_len, OWN))


def _commit(params, state: History, committed: Commit) -> History:
    del params
    return history.append(state, committed)


def _rewind(params, state: History, back: Int[Array, "B"], token: Int[Array, "B"]) -> History:
    del params
    return history.rewind(state, back, token)
