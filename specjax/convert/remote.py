"""Safetensors in an object store, read by ranges: a device's part of a tensor, and no other rows."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from specjax import stores
from specjax.convert.safetensors_source import Entry, entries
from specjax.convert.sources import Index, StoredTensor, TensorSource

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
BLOCK = 64 << 20  # bytes of one request, so that the rows of a slice of columns are never all in memory


def open_remote(name: str, folder: Path) -> TensorSource:
    """Opens the safetensors of a folder in an object store; reads their headers alone.

    Args:
      name: of the folder in the store.
      folder: a local copy of its JSON files.

    Raises:
      FileNotFoundError: no safetensors, or a shard of the index is missing.
      ValueError: a corrupted or truncated file.
    """
    system, root = stores.opened(name.rstrip("/"))
    homes: dict[str, str] = {}
    if (folder / INDEX).is_file():
        try:
            homes = {key: str(home) for key, home in json.loads((folder / INDEX).read_text())["weight_map"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{name}/{INDEX} is corrupted: not JSON with a weight_map") from error
    tensors: dict[str, StoredTensor] = {}
    for home in sorted(set(homes.values())) or [SINGLE]:
        held = _read(system, f"{root}/{home}", f"{name.rstrip('/')}/{home}")
        tensors |= {key: tensor for key, tensor in held.items() if homes.get(key, home) == home}
    if absent := [key for key in homes if key not in tensors]:
        raise ValueError(f"{name}/{INDEX} lists {absent[0]} in {homes[absent[0]]}, which does not contain it")
    return TensorSource(tensors, name)


def _read(system: Any, path: str, file: str) -> dict[str, StoredTensor]:
    try:
        size = int(system.size(path))
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} does not exist: a folder in a store must hold safetensors") from None
    read = lambda start, stop: system.cat_file(path, start=start, end=stop)
    return {name: ranged(system, path, file, entry) for name, entry in entries(read, size, file).items()}


def ranged(system: Any, path: str, file: str, entry: Entry) -> StoredTensor:
    """A tensor stored as row-major bytes. A slice of its rows is read alone; of columns, all columns of those rows are
    read, block by block."""
    shape, dtype = entry.shape or (1,), entry.dtype
    row = math.prod(shape[1:]) * dtype.itemsize

    def load(index: Index) -> np.ndarray:
        bounds = [range(n)[one] for one, n in zip(index or (slice(None),), shape, strict=True)]
        out = np.empty([len(one) for one in bounds], dtype)
        if out.size == 0:
            return out
        rest = tuple(slice(one.start, one.stop) for one in bounds[1:])
        rows = max(1, BLOCK // row)
        for start in range(bounds[0].start, bounds[0].stop, rows):
            stop = min(start + rows, bounds[0].stop)
            content = system.cat_file(path, start=entry.offset + start * row, end=entry.offset + stop * row)
            block = np.frombuffer(content, dtype).reshape(stop - start, *shape[1:])
            at = start - bounds[0].start
            out[at : at + stop - start] = block[(slice(None), *rest)]
        return out if entry.shape else out[0]

    return StoredTensor(entry.shape, dtype, load, file)
