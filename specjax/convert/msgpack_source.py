"""Flax msgpack checkpoints (flax_model.msgpack): opening reads only the structure.

Arrays are msgpack extensions of type 1 with (shape, dtype name, bytes); `flax.serialization` splits arrays above 1 GiB
into flat chunks. Nothing in the format is executable.
"""

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specjax.convert.sources import Index, StoredTensor, mapped, transposed

NDARRAY = 1  # flax's extension code
CHUNKED = "__msgpack_chunked_array__"
MAX_DEPTH = 64
LEAVES = {"kernel": "weight", "embedding": "weight", "scale": "weight"}  # Flax's last name -> PyTorch's


class _MsgpackArray(NamedTuple):
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int


SIZED = {  # first byte -> (kind, struct of the length)
    0xC4: ("bin", ">B"), 0xC5: ("bin", ">H"), 0xC6: ("bin", ">I"),
    0xC7: ("ext", ">B"), 0xC8: ("ext", ">H"), 0xC9: ("ext", ">I"),
    0xD9: ("str", ">B"), 0xDA: ("str", ">H"), 0xDB: ("str", ">I"),
    0xDC: ("array", ">H"), 0xDD: ("array", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip
SCALARS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
FIXED_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


class _MsgpackReader:
    """A cursor over msgpack bytes; arrays are returned as their positions."""

    def __init__(self, data: mmap.mmap):
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        start = self.skip(n)
        return self.data[start : self.at]

    def skip(self, n: int) -> int:
        """Advances by n bytes and returns the previous position."""
        start, self.at = self.at, self.at + n
        if self.at > len(self.data):
            raise ValueError(f"truncated: {len(self.data)} bytes, but an object ends at byte {self.at}")
        return start

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def head(self) -> tuple[str, Any]:
        """The kind of the next object, and its length (for scalars, its value)."""
        byte = self.take(1)[0]
        if byte < 0x80 or byte >= 0xE0:
            return "value", byte if byte < 0x80 else byte - 256
        if byte < 0xC0:
            return ("map", byte & 15) if byte < 0x90 else ("array", byte & 15) if byte < 0xA0 else ("str", byte & 31)
        if byte in CONSTANTS:
            return "value", CONSTANTS[byte]
        if byte in SCALARS:
            return "value", self.number(SCALARS[byte])
        if byte in FIXED_EXT:
            return "ext", FIXED_EXT[byte]
        if byte in SIZED:
            kind, form = SIZED[byte]
            return kind, self.number(form)
        raise ValueError(f"corrupted: byte {byte:#x} at {self.at - 1} is not the start of a msgpack object")

    def object(self, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"corrupted: nested deeper than {MAX_DEPTH}")
        kind, value = self.head()
        if kind == "map":
            return {str(self.object(depth + 1)): self.object(depth + 1) for _ in range(value)}
        if kind == "array":
            return [self.object(depth + 1) for _ in range(value)]
        if kind == "str":
            return self.take(value).decode()
        if kind == "bin":
            return slice(self.skip(value), self.at)  # the arguments are evaluated in order: start, then end
        return self.array(value, depth) if kind == "ext" else value

    def array(self, length: int, depth: int) -> _MsgpackArray | None:
        """An extension of `length` bytes: an array, or None for other types."""
        code = self.number(">b")
        end = self.at + length
        if code != NDARRAY:
            self.skip(length)
            return None
        shape, name, body = self.object(depth + 1)
        dtype = np.dtype(name)
        if self.at != end or body.stop - body.start != int(np.prod(shape, dtype=object)) * dtype.itemsize:
            raise ValueError(
                f"corrupted: an array of {name} at byte {body.start} does not fit its shape {tuple(shape)}"
            )
        return _MsgpackArray(dtype, tuple(shape), body.start)


def read_msgpack(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one Flax msgpack file by PyTorch name; dense kernels are transposed to (out, in).

    Raises:
      ValueError: not msgpack, not a tree of arrays, corrupted, or truncated.
    """
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is truncated: 0 bytes")
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = _MsgpackReader(data)
            tree = reader.object()
            if reader.at != len(data) or not isinstance(tree, dict):
                raise ValueError("not a msgpack tree of arrays")
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} cannot be read as Flax msgpack: {error}") from error
    return dict(_flatten(file, tree, ()))


def torch_name(path: tuple[str, ...]) -> str:
    """The PyTorch name of a Flax parameter path."""
    path = path[1:] if path[0] == "params" else path
    return ".".join((*path[:-1], LEAVES.get(path[-1], path[-1])))


def _flatten(file: Path, tree: Any, path: tuple[str, ...]):
    if isinstance(tree, dict) and CHUNKED not in tree:
        for key, value in tree.items():
            yield from _flatten(file, value, (*path, *key.split("/")))
        return
    if isinstance(tree, dict):
        tensor = _chunked(file, tree)
    elif isinstance(tree, _MsgpackArray):
        tensor = mapped(file, *tree)
    else:
        raise ValueError(f"{file} contains {type(tree).__name__} at {'.'.join(path)}, not an array")
    yield torch_name(path), transposed(tensor) if path[-1] == "kernel" and len(tensor.shape) == 2 else tensor


def _chunked(file: Path, tree: dict[str, Any]) -> StoredTensor:
    """An array stored as flat chunks: rows are gathered from the chunks that contain them."""
    try:
        shape = tuple(tree["shape"][str(i)] for i in range(len(tree["shape"])))
        chunks: list[_MsgpackArray] = [tree["chunks"][str(i)] for i in range(len(tree["chunks"]))]
        ends = np.cumsum([chunk.shape[0] for chunk in chunks])
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{file} is corrupted: an array in chunks lacks its shape or a chunk") from error
    row = int(np.prod(shape[1:], dtype=object))
    if not chunks or ends[-1] != shape[0] * row:
        raise ValueError(f"{file} is corrupted: an array of shape {shape} has chunks of {ends.tolist()} elements")

    def load(index: Index) -> np.ndarray:
        rows = range(shape[0])[index[0]]
        first, last = rows.start * row, rows.stop * row
        parts = []
        for chunk, end in zip(chunks, ends.tolist(), strict=True):
            begin = end - chunk.shape[0]
            low, high = max(first, begin), min(last, end)
            if low < high:
                parts.append(mapped(file, *chunk).load((slice(low - begin, high - begin),)))
        flat = np.concatenate(parts) if parts else np.empty((0,), chunks[0].dtype)
        return flat.reshape(len(rows), *shape[1:])[(slice(None), *index[1:])]

    return StoredTensor(shape, chunks[0].dtype, load, file.name)
