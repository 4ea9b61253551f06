"""Past outputs as a sorted array, in which suffix drafters look up matches besides the request itself.

The positions of the text are sorted by the tokens before them, read backwards: a suffix array of the reversed text. The
continuations of all matches of the last m tokens are then adjacent, and two binary searches find them.

    text      a  b  c  END  x  b  c  d  END        "b c" has positions 3 and 7: c is followed by END, and by d
    position  0  1  2  3    4  5  6  7  8
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from specjax import checks, files

END = -1  # after every document, and in the padding of the array
NOTHING = -2  # before the first token of a request: equals nothing, precedes everything
LEAST = 256  # sizes are powers of two from here on, so that a corpus may grow without another compilation
FORMAT = "specjax corpus 1"


class Corpus(NamedTuple):
    """Tokens of documents, END after each, and their positions in sorted order. A pytree of arrays."""

    text: Int[Array, "n"]
    order: Int[Array, "n"]
    depth: Int[Array, ""]  # tokens before a position that it was sorted by: the longest match that can be looked up


def corpus(documents: Iterable[Sequence[int]], *, depth: int = 16) -> Corpus:
    """The corpus of some documents, on the host: `depth` stable sorts.

    Args:
      documents: lists of token ids, such as `Generation.tokens`.
      depth: longest match that can be looked up, at least 1.

    Returns:
      The `past` of `drafters.suffix` and `drafters.suffix_tree`.

    Raises:
      ValueError: no token at all, a token below 0, or a depth below 1.

    >>> import specjax as sj
    >>> past = sj.drafters.corpus([[5, 6, 7], [5, 8]], depth=4)
    >>> int(past.depth)
    4
    """
    checks.integer("depth", depth, least=1)
    pieces: list[np.ndarray] = []
    for number, document in enumerate(documents):
        tokens = np.asarray(document).reshape(-1)
        if tokens.size and not np.issubdtype(tokens.dtype, np.integer):
            raise ValueError(f"document {number} has dtype {tokens.dtype}: documents are lists of token ids")
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < 2**31:
            bad = tokens.min() if tokens.min() < 0 else tokens.max()
            raise ValueError(f"document {number} has token {bad}: token ids are in 0..{2**31 - 1}")
        pieces += [tokens.astype(np.int32), np.array([END], np.int32)]
    count = sum(len(piece) for piece in pieces)
    if count == len(pieces) // 2:
        raise ValueError("documents must contain a token, but all are empty")
    size = max(LEAST, 1 << (count - 1).bit_length())
    text = np.full((size,), END, np.int32)
    text[:count] = np.concatenate(pieces)
    padded = np.concatenate([np.full((depth,), END, np.int32), text])
    order = np.arange(size)
    for back in range(depth, 0, -1):  # the farthest token first: each sort keeps the order of the one before
        order = order[np.argsort(padded[depth - back :][order], kind="stable")]
    return Corpus(jnp.asarray(text), jnp.asarray(order.astype(np.int32)), jnp.asarray(depth, jnp.int32))


def save_corpus(past: Corpus, path: str | os.PathLike[str]) -> None:
    """Writes a corpus as a safetensors file, which appears whole or not at all.

    Args:
      past: from `corpus`.
      path: file to write.
    """
    from safetensors.numpy import save as dump

    path = Path(path)
    data = dump({name: np.asarray(part) for name, part in past._asdict().items()}, {"format": FORMAT})
    with files.whole(path) as aside:
        aside.write_bytes(data)


def load_corpus(path: str | os.PathLike[str]) -> Corpus:
    """Reads what `save_corpus` wrote.

    Args:
      path: a file of `save_corpus`.

    Returns:
      The corpus.

    Raises:
      ValueError: the file is missing, is not a safetensors file, or does not contain a corpus.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            if (file.metadata() or {}).get("format") != FORMAT:
                raise ValueError(f"{path} is not a corpus: write one with drafters.corpus(...) and save_corpus")
            parts = {name: file.get_tensor(name) for name in Corpus._fields}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read as a corpus: {error}") from None
    text, order, depth = (parts[name] for name in Corpus._fields)
    sound = text.ndim == 1 and text.shape == order.shape and depth.shape == () and depth >= 1
    sound = sound and all(part.dtype == np.int32 for part in parts.values())
    if not (sound and (np.sort(order) == np.arange(len(order))).all() and text.min() >= END):
        raise ValueError(f"{path} is damaged: its text and order are not a corpus")
    return Corpus(*(jnp.asarray(part) for part in (text, order, depth)))


def read_corpus(target: Any, path: str | os.PathLike[str], *, longest: int = 16) -> Corpus:
    """The corpus of a file: a saved one (.safetensors), or a text file with one document per line.

    Args:
      target: model from `specjax.load`; its tokenizer encodes the text.
      path: past outputs: a saved corpus, or a text file with one document per line.
      longest: longest match that will be looked up.

    Returns:
      The corpus.

    Raises:
      ValueError: the file cannot be read, or holds text and the target has no tokenizer.
    """
    if os.fspath(path).endswith(".safetensors"):
        return load_corpus(path)
    if target.text is None:
        raise ValueError(f"{target.name} has no tokenizer: pass a saved corpus (.safetensors), got {path}")
    return corpus([target.text.encode(line) for line in files.read_lines(os.fspath(path))], depth=max(16, longest))


def matches(
    past: Corpus, context: Int[Array, "B L"], *, shortest: int, count: int
) -> tuple[Int[Array, "B C"], Bool[Array, "B C"], Int[Array, "B"]]:
    """Positions that follow the longest match of each row's last tokens.

    Where there are more than `count`, they are spread evenly over the sorted range: a sample of all continuations.

    Args:
      context: the last tokens, the latest first, then NOTHING.

    Returns:
      Positions of the text, which of them there are, and the length of the match, 0 where it is below `shortest`.
    """
    slots, longest = past.text.shape[0], context.shape[1]
    whole = jnp.broadcast_to(jnp.minimum(past.depth, longest), context.shape[:1])
    at = _bound(past, context, whole, upper=False)
    beside = jnp.stack([jnp.maximum(at - 1, 0), jnp.minimum(at, slots - 1)], 1)  # the longest match is one of these
    run = jnp.cumprod(_before(past, beside, longest) == context[:, None], axis=2, dtype=jnp.int32)
    length = jnp.minimum(jnp.max(jnp.sum(run, axis=2, dtype=jnp.int32), axis=1), past.depth)
    length = jnp.where(length >= shortest, length, 0)
    first, end = (_bound(past, context, length, upper=upper) for upper in (False, True))
    found = jnp.where(length > 0, end - first, 0)[:, None]
    step = jnp.arange(count, dtype=jnp.int32)[None]
    spread = step * (found // count) + step * (found % count) // count
    index = first[:, None] + jnp.where(found <= count, step, spread)
    return past.order[jnp.minimum(index, slots - 1)], step < found, length


def _before(past: Corpus, index: Int[Array, "B K"], longest: int) -> Int[Array, "B K L"]:
    """What precedes the positions at some places of the order, the nearest token first."""
    back = jnp.arange(1, longest + 1, dtype=jnp.int32)[None, None]
    at = past.order[index][..., None] - back
    return jnp.where(at >= 0, past.text[jnp.maximum(at, 0)], END)


def _bound(past: Corpus, context: Int[Array, "B L"], length: Int[Array, "B"], *, upper: bool) -> Int[Array, "B"]:
    """The first place of the order whose `length` nearest tokens do not precede the context's; upper: that succeed."""
    slots, longest = past.text.shape[0], context.shape[1]
    matters = jnp.arange(longest, dtype=jnp.int32)[None] < length[:, None]

    def halve(_, ends):
        low, high = ends
        middle = (low + high) // 2
        key = _before(past, jnp.minimum(middle, slots - 1)[:, None], longest)[:, 0]
        differs = (key != context) & matters
        place = jnp.argmax(differs, axis=1)[:, None]
        gap = jnp.take_along_axis(key - context, place, axis=1)[:, 0]
        gap = jnp.where(jnp.any(differs, axis=1), gap, 0)
        right = ((gap <= 0) if upper else (gap < 0)) & (low < high)
        return jnp.where(right, middle + 1, low), jnp.where(right, high, middle)

    ends = (jnp.zeros_like(length), jnp.full_like(length, slots))
    low, _ = lax.fori_loop(0, slots.bit_length(), halve, ends)
    return low
