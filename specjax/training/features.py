"""What a target computes on the texts of a run, kept on disk: it reads each text once, not whenever a step draws it."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from specjax import files, jobs
from specjax.heads import Head
from specjax.training import eagle, lm
from specjax.training.eagle import Batch, Stored
from specjax.training.run import Say

RECORD = "features.json"


def kept(
    head: Head, parts: Mapping[str, Sequence[Batch]], folder: Path, *, tokens: int, mesh: Mesh | None, say: Say
) -> dict[str, tuple[Batch, ...]] | None:
    """Texts with their features, which the target computes where the folder does not hold them yet: for all texts, or
    for those that were appended since.

    For each width of texts the folder has one file of records, a record per text: `Stored`, with the streams in the
    target's dtype. The records are read as they are drawn from.

    Args:
      parts: texts by name.
      tokens: how many the target reads at once, with their padding.
      mesh: of the target.

    Returns:
      None: stopped by a signal; another call goes on.

    Raises:
      ValueError: the folder holds features of another target, of other streams, or of other texts.
      OSError: they do not fit on the disk.
    """
    arrays = {f"{name}-{part.tokens.shape[1]}.bin": part for name, every in parts.items() for part in every}
    start(head, arrays, folder)
    computed = jax.jit(lambda *given: computed_on(head, *given))
    records = {name: record_of(jax.eval_shape(computed, head.target.params, part)) for name, part in arrays.items()}
    there = {name: size_of(folder / name) // records[name].itemsize for name in arrays}
    missing = sum((len(part.tokens) - there[name]) * records[name].itemsize for name, part in arrays.items())
    if missing > (free := shutil.disk_usage(folder).free):
        raise OSError(f"{folder} needs {missing / 2**30:.1f} GiB of features, and its disk has {free / 2**30:.1f} left")
    every, done = sum(len(part.tokens) for part in arrays.values()), sum(there.values())
    with lm.signals() as received:
        for name, part in arrays.items():
            count = max(1, tokens // part.tokens.shape[1])
            with (folder / name).open("ab") as file:
                file.truncate(there[name] * records[name].itemsize)  # drops a part of a text
                for first in range(there[name], len(part.tokens), count):
                    if received:
                        return None
                    at = np.arange(first, first + count) % len(part.tokens)  # the last rows are filled up
                    found = computed(
                        head.target.params, lm.place(jax.tree.map(lambda array, at=at: array[at], part), mesh)
                    )
                    rows = min(count, len(part.tokens) - first)
                    record = np.empty((rows,), records[name])
                    for field, array in found._asdict().items():
                        record[field] = np.asarray(array[:rows])
                    file.write(record.tobytes())
                    done += rows
                    say(f"features of {done:,} of {every:,} texts")
    whole = {name: np.memmap(folder / name, record, "r") for name, record in records.items()}
    stored = {
        name: part._replace(stored=Stored(*(whole[name][field] for field in Stored._fields)))
        for name, part in arrays.items()
    }
    return {
        name: tuple(stored[f"{name}-{part.tokens.shape[1]}.bin"] for part in every) for name, every in parts.items()
    }


def computed_on(head: Head, fixed, batch: Batch) -> Stored:
    """What the target computes on texts."""
    seen, _ = eagle.read_target(head, fixed, batch)
    streams = jnp.stack([seen.features, *seen.hiddens], axis=2).astype(head.target.fmt.dtype)
    return Stored(streams, seen.logits.argmax(-1).astype(jnp.int32), jax.nn.logsumexp(seen.logits, axis=-1))


def record_of(shapes: Stored) -> np.dtype:
    """Of one text of a batch."""
    return np.dtype([(name, leaf.dtype, leaf.shape[1:]) for name, leaf in shapes._asdict().items()])


def start(head: Head, arrays: Mapping[str, Batch], folder: Path) -> None:
    """Writes the record of a folder, or compares it: the texts may be more than those it holds, none of them others."""
    own = {
        "target": jobs.fingerprint(head.target), "dtype": head.target.fmt.dtype, "taps": list(head.config.taps),
        "fields": list(Stored._fields),
    }  # fmt: skip
    texts = {name: [len(part.tokens), digest(part, len(part.tokens))] for name, part in arrays.items()}
    file = folder / RECORD
    if file.is_file():
        found = json.loads(files.read_text(file))
        same = isinstance(found.get("texts"), dict) and all(
            name in arrays and count <= len(arrays[name].tokens) and digest(arrays[name], count) == kept
            for name, (count, kept) in found["texts"].items()
        )
        other = [name for name, value in own.items() if found.get(name) != value] or ([] if same else ["texts"])
        if other:
            raise ValueError(f"features: {folder} holds those of other {other[0]}: name another folder, or delete it")
    folder.mkdir(parents=True, exist_ok=True)
    files.write_text(file, json.dumps(own | {"texts": texts}, indent=1) + "\n")


def digest(part: Batch, count: int) -> str:
    """Of the first texts, and what an encoder reads for them."""
    found = hashlib.blake2b(digest_size=16)
    for array in (part.tokens, part.source, part.length):
        rows = np.asarray(array, np.int32)[:count]
        found.update(f"{rows.shape} ".encode() + rows.tobytes())
    return found.hexdigest()


def size_of(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0
