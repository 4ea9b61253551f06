"""From text to batches: documents, held-out splits by hash, tokens packed on disk, batches as functions of the step."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specjax import files

if TYPE_CHECKING:
    from specjax.model import Model

SEPARATOR = "<|endofbook|>"  # a line of its own between two documents of a text file


def documents(file: Path | str) -> Iterator[str]:
    """Documents of a text file (separated by SEPARATOR lines) or of a JSONL file.

    A line of the latter holds one, as `text`, or as the `prompt` and `answer` of `specjax train answers`, whose first
    line, which has neither, says what wrote the others.

    Raises:
      ValueError: the file cannot be read, or a JSONL line has none; names file and line.
    """
    if ".jsonl" in Path(file).suffixes:
        for number, line in files.lines(file, "documents"):
            try:
                entry = json.loads(line)
                if number == 1 and "kind" in entry:
                    continue
                text = entry["text"] if "text" in entry else entry["prompt"] + entry["answer"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file}, line {number}: expected a JSON object with a text") from error
            if not isinstance(text, str):
                raise ValueError(f"{file}, line {number}: the text must be a string")
            yield text
        return
    held: list[str] = []
    for _, line in files.lines(file, "documents"):
        if line.strip() == SEPARATOR:
            yield "".join(held)
            held = []
        else:
            held.append(line)
    if held:
        yield "".join(held)


def pairs(file: Path | str) -> Iterator[tuple[str, str]]:
    """(source, target) pairs of a file, one tab-separated pair per line."""
    for number, line in files.lines(file, "pairs"):
        cells = line.rstrip("\n").split("\t")
        if len(cells) < 2:
            raise ValueError(f"{file}, line {number}: expected two tab-separated columns")
        yield cells[0], cells[1]


def share(text: str) -> float:
    """A hash of the text in [0, 1): texts below a threshold are held out, reproducibly on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


class Split(NamedTuple):
    """Training documents and held-out documents."""

    train: list[str]
    held_out: list[str]


def split(texts: Iterable[str], held_out: float) -> Split:
    """Splits by hash of each document's first 1,000 characters."""
    parts = Split([], [])
    for text in texts:
        (parts.held_out if share(text[:1000]) < held_out else parts.train).append(text)
    return parts


def pack(
    texts: Sequence[str],
    encode: Callable[[list[str]], list[list[int]]],
    file: Path,
    *,
    vocab_size: int,
    before: Sequence[int] = (),
    end: int,
    block: int = 20_000,
) -> None:
    """Writes the tokens of all documents, each between `before` and `end`, to disk as one array.

    Long documents are encoded in pieces that end at line breaks, so that the tokenizer can process several at once.

    Args:
      encode: texts -> token ids without special tokens.
      block: minimum number of characters per piece.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.whole(file) as aside, aside.open("wb") as stream:
        for text in texts:
            for ids in (before, *encode(_pieces(text, block)), [end]):
                np.asarray(ids, _packed(vocab_size)).tofile(stream)


def _pieces(text: str, block: int) -> list[str]:
    pieces, start = [], 0
    while start < len(text):
        cut = text.find("\n", start + block)
        stop = len(text) if cut < 0 else cut + 1
        pieces.append(text[start:stop])
        start = stop
    return pieces


def _packed(vocab_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def tokens(file: Path, vocab_size: int) -> np.ndarray:
    """Memory-maps a packed file."""
    return np.memmap(file, _packed(vocab_size), mode="r")


def batch(packed: np.ndarray, *, seed: int, step: int, rows: int, length: int) -> np.ndarray:
    """Random windows [rows, length + 1] int32: a function of (seed, step), so resuming needs no state."""
    rng = np.random.Generator(np.random.Philox(key=[seed, step]))
    starts = rng.integers(0, len(packed) - length, size=rows)  # the last window ends at the end of the file
    return np.stack([packed[s : s + length + 1] for s in starts]).astype(np.int32)


class PairBatch(NamedTuple):
    """A batch of pairs, padded with 0; the decoder's inputs are the labels shifted right."""

    source: np.ndarray  # [rows, P]
    length: np.ndarray  # [rows]
    inputs: np.ndarray  # [rows, S]
    labels: np.ndarray  # [rows, S]


class Pairs(NamedTuple):
    """Encoded pairs, padded with 0 to a fixed width; longer pairs are dropped."""

    source: np.ndarray
    target: np.ndarray


def encode_pairs(
    examples: Sequence[tuple[str, str]], encode: Callable[[list[str]], list[list[int]]], *, width: int
) -> Pairs:
    """Token ids including the end token, [n, width] for each side."""
    sides = [encode([example[side] for example in examples]) for side in (0, 1)]
    kept = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= width]
    arrays = [np.zeros((len(kept), width), np.int32) for _ in sides]
    for row, pair in enumerate(kept):
        for array, ids in zip(arrays, pair, strict=True):
            array[row, : len(ids)] = ids
    return Pairs(*arrays)


def own_outputs(
    teacher: "Model", pairs: Pairs, *, folder: Path, name: str, most: int, say: Callable[[str], None], rows: int = 64
) -> Pairs:
    """Replaces targets by the teacher's greedy outputs, for at most `most` evenly spaced sources.

    The result is cached in `folder`, so that a run can resume. Outputs are truncated at the width of the pairs.
    """
    from specjax import api, hosts

    file = folder / f"own_{name}.npz"
    width = pairs.target.shape[1]
    count = min(most, len(pairs.source))
    sources = pairs.source[np.linspace(0, len(pairs.source) - 1, count).astype(np.int64)]
    hosts.agree(own_outputs=file.is_file())  # before the leader writes it
    if file.is_file():
        with np.load(file, allow_pickle=False) as kept:
            found = Pairs(kept["source"], kept["target"])
        if len(found.source) == len(sources):
            return found
    targets = np.zeros((len(sources), width), np.int32)
    for start in range(0, len(sources), rows):
        part = [row[row != 0].tolist() for row in sources[start : start + rows]]
        full = part + [part[0]] * (rows - len(part))  # one shape compiles
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty output is taken as it is
            out = api.generate(teacher, full, max_new_tokens=width, temperature=0.0)
        for row, tokens in enumerate(out.tokens[: len(part)]):
            targets[start + row, : len(tokens)] = tokens
        say(f"the teacher's own outputs: {min(start + rows, len(sources))} of {len(sources)}")
    folder.mkdir(parents=True, exist_ok=True)
    if hosts.leader():
        with files.whole(file) as aside:
            np.savez(aside, source=sources, target=targets)  # named .npz already, so numpy adds nothing
    return Pairs(sources, targets)


def buckets(pairs: Pairs, widths: Sequence[int]) -> tuple[Pairs, ...]:
    """Groups pairs by the narrowest of the increasing `widths` that fits both sides; drops empty buckets.

    Short sentences are not padded to the longest width; each bucket compiles once.
    """
    longest = np.maximum(*((side != 0).sum(1) for side in pairs))
    found, least = [], 0
    for width in widths:
        inside = (longest > least) & (longest <= width)
        least = width
        if inside.any():
            found.append(Pairs(*(side[inside, :width] for side in pairs)))
    return tuple(found)


def pair_batch(parts: Sequence[Pairs], *, seed: int, step: int, tokens: int) -> PairBatch:
    """Random pairs from one bucket, about `tokens` target tokens including padding: a function of (seed, step).

    Buckets are sampled in proportion to their number of batches, so all pairs are equally likely.
    """
    rng = np.random.Generator(np.random.Philox(key=[seed, step]))
    rows = [max(1, tokens // part.target.shape[1]) for part in parts]
    batches = np.array([len(part.source) / n for part, n in zip(parts, rows, strict=True)])
    chosen = int(rng.choice(len(parts), p=batches / batches.sum()))
    return shifted(parts[chosen], rng.integers(0, len(parts[chosen].source), size=rows[chosen]))


def split_pairs(
    examples: Iterable[tuple[str, str]], held_out: float
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(train, held out) by hash of the source, without held-out pairs whose target occurs in the training pairs."""
    parts: tuple[list, list] = ([], [])
    for source, target in examples:
        parts[share(source) < held_out].append((source, target))
    known = {target for _, target in parts[0]}
    return parts[0], [pair for pair in parts[1] if pair[1] not in known]


def prefixed(examples: Iterable[tuple[str, str]], prefix: str) -> list[tuple[str, str]]:
    """The pairs, half of them, chosen by hash, with the prefix before the source."""
    return [(prefix * (share(f"prefix {source}") < 0.5) + source, target) for source, target in examples]


def dropped(batch: PairBatch, share: float, unknown: int, *, seed: int, step: int) -> PairBatch:
    """The batch with a share of its input tokens, of both sides, replaced by `unknown`; labels stay as they are."""
    if not share:
        return batch
    rng = np.random.Generator(np.random.Philox(key=[seed, step], counter=1 << 128))  # apart from `pair_batch`

    def drop(tokens: np.ndarray) -> np.ndarray:
        return np.where((rng.random(tokens.shape) < share) & (tokens != 0), np.int32(unknown), tokens)

    return batch._replace(source=drop(batch.source), inputs=drop(batch.inputs))


def shifted(data: Pairs, index: np.ndarray) -> PairBatch:
    """The selected pairs as a batch; T5's decoder starts with the padding token, 0."""
    source, labels = (a[index].astype(np.int32) for a in data)
    inputs = np.pad(labels, ((0, 0), (1, 0)))[:, :-1]
    return PairBatch(source, (source != 0).sum(1).astype(np.int32), inputs, labels)
