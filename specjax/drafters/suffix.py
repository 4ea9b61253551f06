"""Suffix matching: what followed the longest match of the last tokens, in the request and in a corpus of past outputs.

SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975) keeps suffix trees on the host, REST (He et al. 2023, 2311.08252)
a suffix array; here everything runs inside jit. Some continuations of the longest matches are gathered, and their
prefixes are counted: the draft is the chain of the most frequent branches, or the tree of the most frequent prefixes.
Of the matches in the request and in the corpus the longer ones count; equally long ones count together.

    continuations     a b c     counts    a 3 ── b 2 ── c 1      chain    a b c
                      a b d               │      │   ╰─ d 1      tree of 4, the root included: a, a b, and e
                      a e                 │      ╰ e 1                    or what is equally frequent first

Point masses: `log_q` is None.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax import checks, trees
from specjax.base import Drafter
from specjax.categorical import largest
from specjax.drafters.corpus import END, NOTHING, Corpus, matches
from specjax.drafters.loaded import LoadedDrafter
from specjax.drafters.ngram import History, check_matches, drafter_of_history, runs
from specjax.programs import memoize
from specjax.trees import ROOT, dynamic
from specjax.types import Draft

OWN, PAST = 8, 24  # continuations that are compared: the latest of the request, a sample of the corpus


def suffix(
    past: Corpus | None = None, *, gamma: int = 8, longest: int = 16, shortest: int = 1, confidence: float = 0.1
) -> LoadedDrafter:
    """Copies what most often followed the longest match of the last tokens, in the row and in past outputs.

    Lossless with any lossless verifier of chains. SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975, section 3;
    REST, He et al. 2023, arXiv 2311.08252.

    Args:
      past: from `drafters.corpus(documents)`, lists of token ids such as `Generation.tokens`. None: the row alone.
      gamma: draft tokens per round, at least 1.
      longest: tokens of the longest match, at most 64 and at most the depth of the corpus.
      shortest: tokens of the shortest match, at least 1.
      confidence: share of the matches that must continue with a token for it to be proposed, 0 to 1.

    Returns:
      The drafter.

    Raises:
      ValueError: a number out of range.

    >>> import specjax as sj
    >>> past = sj.drafters.corpus([[5, 6, 7, 8], [6, 7, 9]])
    >>> sj.drafters.suffix(past, gamma=4).name
    'suffix x4, corpus'
    """
    checks.integer("gamma", gamma, least=1)
    check_matches(longest, shortest, confidence)
    drafter = suffix_drafter(gamma, longest, shortest, confidence)
    return _of_corpus(f"suffix x{gamma}", drafter, past, longest)


def suffix_tree(
    past: Corpus | None = None,
    *,
    size: int = 16,
    depth: int = 8,
    longest: int = 16,
    shortest: int = 1,
    confidence: float = 0.1,
) -> LoadedDrafter:
    """As `suffix`, but proposes the most frequent continuations side by side, as a tree in every row and round.

    Verifier: "deterministic", lossless. SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975, section 3.

    Args:
      past: from `drafters.corpus(documents)`, lists of token ids such as `Generation.tokens`. None: the row alone.
      size: nodes that the target verifies, the root included; more than the depth, and at most 8 * depth + 1.
      depth: tokens of the longest continuation.
      longest: tokens of the longest match, at most 64 and at most the depth of the corpus.
      shortest: tokens of the shortest match, at least 1.
      confidence: share of the matches that must continue with a token for it to be proposed, 0 to 1.

    Returns:
      The drafter.

    Raises:
      ValueError: a number out of range.

    >>> import specjax as sj
    >>> sj.drafters.suffix_tree(size=12, depth=4).name
    'suffix tree of 12'
    """
    checks.integer("depth", depth, least=1)
    checks.integer("size", size, least=depth + 1, most=OWN * depth + 1)  # there are so many without a corpus
    check_matches(longest, shortest, confidence)
    drafter = suffix_tree_drafter(size, depth, longest, shortest, confidence)
    return _of_corpus(f"suffix tree of {size}", drafter, past, longest)


def _of_corpus(name: str, drafter: Drafter, past: Corpus | None, longest: int) -> LoadedDrafter:
    if past is None:
        return LoadedDrafter(name, drafter)
    if longest > int(past.depth):
        raise ValueError(
            f"longest={longest} is more than the depth of the corpus, {int(past.depth)}: pass "
            f"longest={int(past.depth)}, or build the corpus with depth={longest}"
        )
    return LoadedDrafter(f"{name}, corpus", drafter, past, largest=int(past.text.max()))


class Continuations(NamedTuple):
    """The texts after the longest matches."""

    tokens: Int[Array, "B C D"]  # END after the end of a text
    alive: Bool[Array, "B C"]  # whether the match before it is one of the longest


@memoize
def suffix_drafter(gamma: int, longest: int, shortest: int, confidence: float) -> Drafter:
    """A chain: from the longest match on, the token that followed most often, again and again.

    Its params are a `Corpus`, or () for the request alone. A node is proposed while at least `confidence` of the
    matches continue through it.
    """

    def propose(params, key, state: History, pending, warp):
        del key, warp
        texts = continuations(params, state, gamma, longest=longest, shortest=shortest)
        copied, share = most_frequent(texts)
        valid = (share > 0) & (share.astype(jnp.float32) >= confidence * matched(texts)[:, None])
        tokens = jnp.concatenate([pending[:, None], copied], 1)
        return Draft(tokens, jnp.concatenate([jnp.ones_like(valid[:, :1]), valid], 1), None), state

    return drafter_of_history(trees.chain(gamma), propose, room=OWN)


@memoize
def suffix_tree_drafter(size: int, depth: int, longest: int, shortest: int, confidence: float) -> Drafter:
    """A tree for each row and round: the `size` - 1 most frequent beginnings of what followed the longest match.

    Its params are a `Corpus`, or () for the request alone.
    """
    tree = dynamic.envelope(size, depth)

    def propose(params, key, state: History, pending, warp):
        del key, warp
        texts = continuations(params, state, depth, longest=longest, shortest=shortest)
        return beginnings(texts, pending, size=size, confidence=confidence), state

    return drafter_of_history(tree, propose, dynamic=True, room=OWN)


def continuations(params: Corpus | tuple[()], state: History, depth: int, *, longest: int, shortest: int):
    """The texts after the longest matches, in the request and in the corpus, if any."""
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
    """Which continuations agree up to and including each of their tokens; False for ended ones and those not alive."""
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

    A beginning is at least as frequent as its continuations, and is chosen before them.
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
