"""Tables for `drafters.table`: counted from tokens or text; saved and loaded.

The distribution after a context is built from the shortest one upwards,

    q(x | context) = mass of x among the successors listed for the context + back-off mass * q(x | shorter context)

down to the unigram, which gives every token some mass: a proper distribution over the whole vocabulary (Witten and
Bell 1991).
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from specjax import checks, files

SUCCESSORS = 32  # m: successors listed for a context
BUCKETS = 1 << 18  # rows of a level whose contexts have two tokens or more
SMOOTHING = 0.01  # occurrences that every token is given beyond its own, so that none is without mass
FORMAT = "specjax-table-1"

MIXER = np.uint32(0x9E3779B1)  # odd, near 2**32 over the golden ratio: multiplying by it spreads neighbors
SHIFT = np.uint32(15)


class Level(NamedTuple):
    """The likeliest successors of every context of one length; R rows, m successors, V where a row has fewer."""

    successors: Int[Array | np.ndarray, "R m"]
    log_mass: Float[Array | np.ndarray, "R m"]  # -inf where a row has fewer
    log_back: Float[Array | np.ndarray, "R"]  # what the listed masses leave to the shorter context


class Table(NamedTuple):
    """Fitted distributions: 4 V bytes, and 8 m + 4 bytes for each context (V = 50,000 and m = 32: 13 MB for a bigram).

    levels[n - 2] is for contexts of n - 1 tokens: one row a token, or where there are more, one row a bucket of
    contexts, so that a drafter of any order has a fixed size. Contexts in one bucket share a distribution.
    """

    log_unigram: Float[Array | np.ndarray, "V"]
    levels: tuple[Level, ...] = ()

    @property
    def order(self) -> int:
        """1 for a unigram, 2 for a bigram, n for contexts of n - 1 tokens."""
        return len(self.levels) + 1

    @property
    def vocab_size(self) -> int:
        return self.log_unigram.shape[0]


def fit(
    sequences: Iterable[Sequence[int] | np.ndarray],
    *,
    vocab_size: int,
    order: int = 2,
    successors: int = SUCCESSORS,
    buckets: int = BUCKETS,
    smoothing: float = SMOOTHING,
) -> Table:
    """Counts tokens and what follows them. Nothing is counted across the border of two sequences.

    A context seen n times, followed by d different tokens, gives count / (n + d) to each of its `successors` most
    frequent ones and the rest to the shorter context (Witten and Bell 1991): a context seen once is believed half.

    Args:
      sequences: token ids; more are needed for a higher order.
      vocab_size: V of the target (`model.vocab_size`).
      order: 1 unigram, 2 bigram, n looks at n - 1 tokens.
      successors: listed for each context, at most.
      buckets: rows for contexts of two tokens or more, which are hashed into them.
      smoothing: above 0, added to the count of every token in the unigram.

    Returns:
      Arrays of numpy.

    Raises:
      ValueError: no token, tokens outside the vocabulary, or a number out of its range.
    """
    sizes = {"vocab_size": vocab_size, "order": order, "successors": successors, "buckets": buckets}
    for name, value in sizes.items():
        checks.integer(name, value, least=1)
    checks.number("smoothing", smoothing, least=checks.POSITIVE)
    parts = [np.asarray(part, np.int64).reshape(-1) for part in sequences]
    tokens = np.concatenate([*parts, np.zeros((0,), np.int64)])
    if not tokens.size:
        raise ValueError("there is nothing to fit a table to: give at least one token")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        worst = tokens.min() if tokens.min() < 0 else tokens.max()
        raise ValueError(f"token {worst} is outside the vocabulary of {vocab_size} tokens")
    # how many tokens of its own sequence precede each token
    before = np.concatenate([np.arange(len(part)) for part in parts])
    counts = np.bincount(tokens, minlength=vocab_size) + float(smoothing)
    unigram = np.log(counts / counts.sum()).astype(np.float32)
    levels = [
        _level(tokens, before, size, vocab_size, vocab_size if size == 1 else buckets, successors)
        for size in range(1, order)
    ]
    return Table(unigram, tuple(levels))


def _level(tokens: np.ndarray, before: np.ndarray, size: int, vocab_size: int, rows: int, most: int) -> Level:
    """The successors of all contexts of `size` tokens."""
    at = np.flatnonzero(before >= size)
    context = np.stack([tokens[at - back] for back in range(size, 0, -1)], -1)
    pairs, count = np.unique(
        bucket(context, rows).astype(np.int64) * vocab_size + tokens[at], return_counts=True
    )  # fmt: skip
    row, token = pairs // vocab_size, pairs % vocab_size
    seen = np.bincount(row, weights=count, minlength=rows)
    distinct = np.bincount(row, minlength=rows)
    order = np.lexsort((token, -count, row))  # by row, and in it the most frequent first
    row, token, count = row[order], token[order], count[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    width = int(min(most, rank.max(initial=0) + 1))
    row, token, count, rank = (x[rank < width] for x in (row, token, count, rank))
    mass = count / (seen + distinct)[row]
    successors = np.full((rows, width), vocab_size, np.int32)
    log_mass = np.full((rows, width), -np.inf, np.float32)
    successors[row, rank], log_mass[row, rank] = token, np.log(mass)
    left = 1.0 - np.bincount(row, weights=mass, minlength=rows)
    return Level(successors, log_mass, np.log(left).astype(np.float32))


def bucket(context: Int[Array | np.ndarray, "*lead n"], rows: int) -> Int[Array | np.ndarray, "*lead"]:
    """The row of each context in its level: the token itself, or a hash of several. The same in numpy and in jax."""
    if context.shape[-1] == 1:
        return context[..., 0]
    mixed = context[..., 0].astype(np.uint32) * MIXER
    for column in range(1, context.shape[-1]):
        mixed = (mixed ^ (mixed >> SHIFT) ^ context[..., column].astype(np.uint32)) * MIXER
    return ((mixed ^ (mixed >> SHIFT)) % np.uint32(rows)).astype(np.int32)


def fit_texts(model: Any, texts: Iterable[str], **options: Any) -> Table:
    """`fit` to texts, by the tokenizer of a model from `specjax.load`; options are those of `fit`.

    Raises:
      ValueError: the model has no tokenizer.
    """
    if model.text is None:
        raise ValueError(f"{model.name} has no tokenizer: give token ids to fitting.fit")
    return fit((model.text.encode(text) for text in texts), vocab_size=model.vocab_size, **options)


def fit_file(target: Any, text: str | os.PathLike[str], *, order: int = 2) -> Table:
    """`fit_texts` to a text file with one document per line.

    Args:
      target: model from `specjax.load`; its tokenizer encodes the text.
      text: text file to fit a table to, one document per line.
      order: order of the table fitted to a text: 1 unigram, 2 bigram, n looks at n - 1 tokens.
    """
    return fit_texts(target, files.read_lines(os.fspath(text)), order=order)


def save(table: Table, path: str | os.PathLike[str]) -> None:
    """Writes a table as one safetensors file, under a temporary name until it is whole."""
    from safetensors.numpy import save_file

    path = Path(path)
    arrays = {"unigram": np.asarray(table.log_unigram)}
    for order, level in enumerate(table.levels, start=2):
        arrays |= {f"{order}.{name}": np.asarray(array) for name, array in level._asdict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.whole(path) as aside:
        save_file(arrays, aside, metadata={"format": FORMAT})


def load(path: str | os.PathLike[str]) -> Table:
    """A table that `save` wrote.

    Raises:
      ValueError: there is no such file, or it is no table; it is named.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no table at {path}: write one with drafters.fitting.save")
    try:
        with safe_open(path, framework="numpy") as file:
            kind = (file.metadata() or {}).get("format")
            arrays = {name: file.get_tensor(name) for name in file.keys()} if kind == FORMAT else {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from None
    if kind != FORMAT:
        raise ValueError(f"{path} is not a table: its format is {kind!r}, expected {FORMAT!r}")
    orders = sorted({int(name.split(".")[0]) for name in arrays if re.match(r"\d+\.", name)})
    try:
        levels = [Level(*(arrays[f"{order}.{name}"] for name in Level._fields)) for order in orders]
        found = Table(arrays["unigram"], tuple(levels))
    except KeyError as missing:
        raise ValueError(f"{path} is an incomplete table: {missing} is not in it") from None
    check(found, str(path))
    return found


def check(table: Table, name: str = "the table") -> None:
    """Raises ValueError unless the shapes agree and every distribution sums to 1."""
    unigram = np.asarray(table.log_unigram)
    if unigram.ndim != 1 or not np.isfinite(unigram).all() or abs(np.exp(unigram, dtype=np.float64).sum() - 1) > 1e-4:
        raise ValueError(f"{name} needs a unigram distribution: finite log-probabilities [V] that sum to 1")
    size = len(unigram)
    for order, level in enumerate(table.levels, start=2):
        successors, log_mass, log_back = map(np.asarray, level)
        rows = size if order == 2 else len(log_back)
        if log_back.shape != (rows,) or log_mass.shape != successors.shape or log_mass.shape[:-1] != (rows,):
            raise ValueError(
                f"{name}: level {order} has arrays of shapes {successors.shape}, {log_mass.shape}, {log_back.shape}; "
                f"they must be ({rows}, m), ({rows}, m), ({rows},)"
            )
        if successors.min() < 0 or successors.max() > size:
            raise ValueError(f"{name}: level {order} lists tokens outside the vocabulary of {size}")
        ranked = np.sort(successors, axis=1)
        if np.any((ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] < size)):
            raise ValueError(f"{name}: level {order} lists a successor twice")
        total = np.exp(np.where(successors < size, log_mass, -np.inf), dtype=np.float64).sum(1) + np.exp(log_back)
        if not np.all(np.abs(total - 1) < 1e-4):
            raise ValueError(f"{name}: level {order} has masses that do not sum to 1")
