"""Between two vocabularies: which tokens mean the same, and how the tokens of one are written in those of the other.

A token means its bytes, however its vocabulary writes them: "Ġthe" of a byte-level BPE and "▁the" of SentencePiece are
both b" the". A special token has no bytes and means its role, the end of text, or else its name. All of this is made
once, on the host, in numpy; what comes out are tables of static shape for `drafters.bridge`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

NONE = -1  # no token, no state
ANCHOR = "\n"  # text before a piece, so that the tokenizer writes the piece as it does within a text


class Vocabulary(NamedTuple):
    """What a bridge needs of a tokenizer.

    Attributes:
      name: of its model, for messages.
      size: of the model's logits; ids past the tokenizer's are holes.
      pieces: bytes of each id; empty for special tokens and holes.
      special: names of the special tokens, by id.
      ends: tokens that end a text, the one that the model writes first.
      encode: text -> ids.
    """

    name: str
    size: int
    pieces: Sequence[bytes]
    special: dict[int, str]
    ends: tuple[int, ...]
    encode: Callable[[str], list[int]]


class Spelling(NamedTuple):
    """Each token of one vocabulary as tokens of another.

    Attributes:
      tokens: [V,K] int32, left-aligned.
      count: [V] int32, 0..K; 0 for tokens that cannot be written there: special ones without a counterpart, holes.
    """

    tokens: Any
    count: Any


class Reading(NamedTuple):
    """How target tokens become draft tokens.

    Attributes:
      spelling: of the target's tokens in the draft's; of longer ones the last K tokens.
      skip: the special token with which the target's tokenizer begins a text, NONE where it has none.
      opening: [O] those with which the draft's begins a text: they replace `skip` before every prompt.
    """

    spelling: Spelling
    skip: Any
    opening: Any


class Joins(NamedTuple):
    """A trie over sequences of draft tokens that together are one target token.

    State 0 is the start; edge e, from the state s with first[s] <= e < first[s + 1], leads to state e + 1. The edges of
    a state are sorted by label.

    Attributes:
      first: [E + 2] int32. label: [E] int32, the draft token of each edge.
      gives: [E + 1] int32, the target token that ends in each state, NONE where none does.
    """

    first: Any
    label: Any
    gives: Any


class Writing(NamedTuple):
    """How draft tokens become target tokens.

    Attributes:
      joins: runs of draft tokens that are one target token.
      spelling: of the draft's tokens in the target's, where no run begins; longer ones are left out.
    """

    joins: Joins
    spelling: Spelling


def vocabulary(model: Any) -> Vocabulary:
    """The vocabulary of a model from `specjax.load`.

    Raises:
      ValueError: the model has no tokenizer.
    """
    if model.text is None:
        raise ValueError(
            f"{model.name} has no tokenizer: a bridge between vocabularies needs the tokenizers of both models"
        )
    size, pieces = model.vocab_size, model.text.pieces()
    padded = [*pieces[:size], *[b""] * (size - len(pieces))]
    ends = tuple(token for token in model.eos if token < size)
    return Vocabulary(model.name, size, padded, model.text.special(), ends, model.text.encode)


def pairs(draft: Vocabulary, target: Vocabulary) -> dict[int, int]:
    """Target tokens, and the draft tokens that mean the same.

    No token of either side is in two pairs, so that a draft distribution restricted to its tokens in the pairs is
    one of the target's tokens. The ends of text are a pair whatever their names; then special tokens of one name; then
    tokens of the same bytes. Of several tokens with the same bytes ("a" and the byte token <0x61> of SentencePiece)
    the one counts that the tokenizer writes.

    Raises:
      ValueError: nothing is shared.
    """
    found: dict[int, int] = {}
    taken: set[int] = set()

    def pair(ours: int | None, theirs: int) -> None:
        if ours is not None and theirs not in found and ours not in taken:
            found[theirs] = ours
            taken.add(ours)

    if draft.ends and target.ends:
        pair(draft.ends[0], target.ends[0])
    names = {name: token for token, name in draft.special.items()}
    for token, name in target.special.items():
        pair(names.get(name), token)
    written = by_bytes(draft)
    for piece, token in by_bytes(target).items():
        pair(written.get(piece), token)
    if not found:
        raise ValueError(f"draft {draft.name} and target {target.name} share no token: there is nothing to draft with")
    return found


def shared(found: dict[int, int], target: Vocabulary) -> np.ndarray:
    """[target.size] int32: the draft's token of each pair, NONE for target tokens that are in no pair."""
    source = np.full((target.size,), NONE, np.int32)
    source[list(found)] = list(found.values())
    return source


def spellings(source: Vocabulary, into: Vocabulary, found: dict[int, int]) -> list[list[int]]:
    """Each token of `source` in tokens of `into`: any number of them, none if it cannot be written.

    A token in a pair becomes its counterpart; any other is written as the tokenizer of `into` writes its bytes within a
    text, or if it does not, as the fewest tokens with these bytes.

    Args:
      found: pairs, source -> into.
    """
    known = by_bytes(into)
    longest = max(map(len, known), default=0)
    same = _counterparts(source, into) | found

    def write(token: int, piece: bytes) -> list[int]:
        if token in same:
            return [same[token]]
        if piece in known:
            return [known[piece]]
        if not piece:
            return []
        tokens = encoded(into, piece)
        return cover(known, piece, longest) if tokens is None else tokens

    return [write(token, piece) for token, piece in enumerate(source.pieces)]


def reading(draft: Vocabulary, target: Vocabulary, spelled: Sequence[Sequence[int]], *, width: int) -> Reading:
    """Target tokens as draft tokens, `spelled`: of more than `width` of them, the last."""
    tokens, count = np.zeros((target.size, width), np.int32), np.zeros((target.size,), np.int32)
    for token, ids in enumerate(spelled):
        count[token] = len(ids[-width:])
        tokens[token, : count[token]] = ids[-width:]
    return Reading(Spelling(tokens, count), np.int32((*opening(target), NONE)[0]), np.array(opening(draft), np.int32))


def writing(
    draft: Vocabulary, target: Vocabulary, spelled: Sequence[Sequence[int]], found: dict[int, int], *, width: int
) -> Writing:
    """Draft tokens as target tokens, in runs of at most `width` tokens on either side.

    Args:
      spelled, found: target tokens in the draft's, and those in pairs.
    """
    tokens, count = np.zeros((draft.size, width), np.int32), np.zeros((draft.size,), np.int32)
    for token, ids in enumerate(spellings(draft, target, {ours: theirs for theirs, ours in found.items()})):
        if len(ids) <= width:
            count[token] = len(ids)
            tokens[token, : len(ids)] = ids
    written = {*by_bytes(target).values(), *found}  # what the target's tokenizer never writes is not proposed
    runs = {tuple(ids): token for token, ids in enumerate(spelled) if token in written and 0 < len(ids) <= width}
    return Writing(joins(runs), Spelling(tokens, count))


def joins(runs: dict[tuple[int, ...], int]) -> Joins:
    """The trie of these runs, level by level."""
    children: dict[tuple[int, ...], list[int]] = {(): []}
    for run in sorted(runs):
        for end in range(len(run)):
            if run[: end + 1] not in children:
                children[run[: end + 1]] = []
                children[run[:end]].append(run[end])
    states: list[tuple[int, ...]] = [()]
    first, label = [0], []
    for state in states:  # grows as it is walked: a state is numbered when the edge to it is written
        for token in sorted(children[state]):
            label.append(token)
            states.append((*state, token))
        first.append(len(label))
    gives = [runs.get(state, NONE) for state in states]
    return Joins(np.array(first, np.int32), np.array(label, np.int32), np.array(gives, np.int32))


def opening(vocabulary: Vocabulary) -> list[int]:
    """The special tokens with which the tokenizer begins a text."""
    found: list[int] = []
    for token in vocabulary.encode("a"):
        if token >= vocabulary.size or vocabulary.pieces[token]:
            break
        found.append(token)
    return found


def by_bytes(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The token of each piece; of several with the same bytes the one that the tokenizer writes, else the last."""
    found: dict[bytes, list[int]] = {}
    for token, piece in enumerate(vocabulary.pieces):
        if piece and token not in vocabulary.special:
            found.setdefault(piece, []).append(token)
    return {piece: ids[0] if len(ids) == 1 else _usual(vocabulary, piece, ids) for piece, ids in found.items()}


def encoded(vocabulary: Vocabulary, piece: bytes) -> list[int] | None:
    """How the tokenizer writes these bytes within a text.

    None if its output does not determine it: half a character, normalized text, a token across the piece's border.
    """
    try:
        written = vocabulary.encode(ANCHOR + piece.decode())
    except UnicodeDecodeError:
        return None
    ids = [token for token in written if token < vocabulary.size and vocabulary.pieces[token]]
    begin, missing = len(ids), len(piece)
    while missing > 0 and begin > 0:
        begin -= 1
        missing -= len(vocabulary.pieces[ids[begin]])
    same = b"".join(vocabulary.pieces[token] for token in ids[begin:]) == piece
    return ids[begin:] if same else None


def cover(known: dict[bytes, int], piece: bytes, longest: int) -> list[int]:
    """The fewest tokens with these bytes, the longer ones first among equals; none where there are no such tokens.

    Args:
      longest: bytes of the longest token known.
    """
    size = len(piece)
    best: list[tuple[int, int] | None] = [None] * size + [(0, 0)]  # from each byte on: tokens needed, minus the next
    for at in range(size - 1, -1, -1):
        ways = [
            (1 + rest[0], -end)
            for end in range(at + 1, min(size, at + longest) + 1)
            if (rest := best[end]) is not None and piece[at:end] in known
        ]
        best[at] = min(ways) if ways else None
    tokens, at = [], 0
    while at < size and (step := best[at]) is not None:
        tokens.append(known[piece[at : -step[1]]])
        at = -step[1]
    return tokens


def _usual(vocabulary: Vocabulary, piece: bytes, ids: list[int]) -> int:
    written = encoded(vocabulary, piece)
    return written[0] if written is not None and len(written) == 1 and written[0] in ids else max(ids)


def _counterparts(source: Vocabulary, into: Vocabulary) -> dict[int, int]:
    """What every special token and every end of text of `source` is in `into`, where it is anything."""
    names = {name: token for token, name in into.special.items()}
    found = {token: names[name] for token, name in source.special.items() if name in names}
    if into.ends:
        found |= dict.fromkeys(source.ends, into.ends[0])
    return found
