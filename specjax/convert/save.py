"""Writing checkpoints: safetensors in Hugging Face's layout, tensor by tensor, atomically."""

import contextlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax.convert.assemble import Leaf, copy_into, lookup, stored_tensors
from specjax.convert.safetensors_source import DTYPES
from specjax.models.families import family_of
from specjax.models.family import NameTable
from specjax.models.format import Format
from specjax.models.products import in_order
from specjax.types import Params

SHARD_BYTES = 5_000_000_000  # the shard size of Hugging Face
ALIGN = 8
INDEX = "model.safetensors.index.json"


class PendingTensor(NamedTuple):
    """A tensor to be written."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    fetch: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


def save_pretrained(
    folder: str | os.PathLike[str],
    params: Params,
    config: Mapping[str, Any],
    *,
    fmt: Format,
    table: NameTable | None = None,
    rename: Callable[[str], str] = str,
    more: Mapping[str, np.ndarray] = MappingProxyType({}),
    tokenizer: Any = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes config.json, the weights and the tokenizer as a folder that `transformers` loads.

    Files are written to a temporary folder and renamed when all are complete; weights of an earlier save are removed.
    Each tensor keeps its dtype.

    Args:
      folder: created if absent.
      params: nested dict of arrays in the layout of `fmt`, addressable from this process.
      config: contents of config.json, including model_type.
      fmt: the layout of `params`.
      table: names of the tensors; None: those of the family of the model type.
      rename: a name of the table -> the name in the file.
      more: tensors that are no parameters, by their names in the file.
      tokenizer: a transformers tokenizer (anything with save_pretrained(folder)), or None.
      shard_bytes: larger weights are split into several files.

    Raises:
      ValueError: an unknown model type, a parameter without a name, or arrays on other hosts.
    """
    table = family_of(config).names(config) if table is None else table
    far = [leaf for leaf in jax.tree.leaves(params) if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable]
    if far:
        raise ValueError("params are sharded over several hosts: gather them first, or save with specjax.checkpoint")
    tensors = pending(params, table, fmt, rename)
    tensors += [PendingTensor(name, one.dtype, one.shape, lambda one=one: one) for name, one in more.items()]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as aside:
        work = Path(aside)
        described = {key: value for key, value in config.items() if key != "torch_dtype"} | {"dtype": fmt.dtype}
        _write_weights(work, tensors, shard_bytes)
        if tokenizer is not None:
            tokenizer.save_pretrained(work)
        (work / "config.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        stale = {file.name for file in (*folder.glob("model*.safetensors"), *folder.glob(INDEX))}
        fresh = sorted(work.iterdir(), key=lambda file: file.suffix == ".json")  # index and config last
        for file in fresh:
            if file.is_dir() and (folder / file.name).exists():
                shutil.rmtree(folder / file.name)
            os.replace(file, folder / file.name)
        for name in stale - {file.name for file in fresh}:
            with contextlib.suppress(FileNotFoundError):
                (folder / name).unlink()


def pending(params: Params, table: NameTable, fmt: Format, rename: Callable[[str], str] = str) -> list[PendingTensor]:
    """The tensors of parameters by their names in the file, fetched when they are written."""
    kept: dict[str, np.ndarray] = {}  # the last parameter copied to the host: stacked layers share one transfer
    return [
        PendingTensor(rename(name), leaf.dtype, leaf.stored_shape, _fetcher(params, leaf, number, kept))
        for name, leaf, number in stored_tensors(params, table, fmt)
    ]


def _fetcher(params: Params, leaf: Leaf, number: int, kept: dict[str, np.ndarray]) -> Callable[[], np.ndarray]:
    def fetch() -> np.ndarray:
        if leaf.path not in kept:
            kept.clear()
            kept[leaf.path] = _on_host(params, leaf)
        value = kept[leaf.path][number] if leaf.stacked else kept[leaf.path]
        if not leaf.flipped:
            return np.ascontiguousarray(value)
        out = np.empty(leaf.stored_shape, leaf.dtype)
        copy_into(out, value.T)
        return out

    return fetch


def _on_host(params: Params, leaf: Leaf) -> np.ndarray:
    """The array, or the whole kernel if it is the first of several parts."""
    if leaf.part[1] == 1:
        return np.asarray(lookup(params, leaf.path))
    parts = in_order(lookup(params, leaf.path.rpartition(".")[0]))
    return np.concatenate([np.asarray(part) for part in parts], axis=1)


def _write_weights(folder: Path, tensors: list[PendingTensor], shard_bytes: int) -> None:
    shards: list[list[PendingTensor]] = [[]]
    for tensor in tensors:
        if shards[-1] and sum(t.nbytes for t in shards[-1]) + tensor.nbytes > shard_bytes:
            shards.append([])
        shards[-1].append(tensor)
    if len(shards) == 1:
        write_safetensors(folder / "model.safetensors", shards[0])
        return
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        write_safetensors(folder / name, shard)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors)},
        "weight_map": {t.name: name for name, shard in zip(names, shards, strict=True) for t in shard},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_safetensors(file: Path, tensors: list[PendingTensor]) -> None:
    """Writes one safetensors file, fetching tensors one by one."""
    codes = {np.dtype(dtype): code for code, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # required by transformers
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.nbytes
        entry = {"dtype": codes[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        header[tensor.name] = entry
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGN)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            stream.write(tensor.fetch().reshape(-1).view(np.uint8).data)
