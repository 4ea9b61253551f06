"""Safetensors: eight bytes of header length, a JSON header, then the bytes of the tensors.

Reads the header without the safetensors package, so that every tensor is mapped separately (see `sources.mapped`),
bfloat16 and float8 need no framework, and errors name the file.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from specjax.convert.sources import StoredTensor, mapped

HEADER_LIMIT = 100_000_000  # limit of the format: a longer header means a corrupted length
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


class Entry(NamedTuple):
    """A tensor of a file: `offset` is that of its first byte in the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int


def read_safetensors(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file.

    Raises:
      ValueError: not safetensors, corrupted, or truncated.
    """
    with file.open("rb") as stream:

        def read(start: int, stop: int) -> bytes:
            stream.seek(start)
            return stream.read(stop - start)

        found = entries(read, file.stat().st_size, str(file))
    return {name: mapped(file, *entry) for name, entry in found.items()}


def entries(read: Callable[[int, int], bytes], size: int, file: str) -> dict[str, Entry]:
    """The tensors that the header of a file lists.

    Args:
      read: (start, stop) -> those bytes of the file.
      size: of the file.
      file: its name, for messages.

    Raises:
      ValueError: not safetensors, corrupted, or truncated.
    """
    header, start = _header(read, size, file)
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        try:
            dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(int(n) for n in entry["shape"])
            begin, end = (int(n) for n in entry["data_offsets"])
            if any(isinstance(n, float) for n in (*entry["shape"], *entry["data_offsets"])):
                raise ValueError("not an integer")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{file} is corrupted: bad header entry of {name}: {entry}") from error
        if begin < 0 or any(n < 0 for n in shape) or end - begin != int(np.prod(shape, dtype=object)) * dtype.itemsize:
            raise ValueError(f"{file} is corrupted: {name} has {end - begin} bytes for shape {shape} of {dtype}")
        if start + end > size:
            raise ValueError(f"{file} is truncated: {size} bytes, but {name} ends at byte {start + end}")
        found[name] = Entry(dtype, shape, start + begin)
    return found


def _header(read: Callable[[int, int], bytes], size: int, file: str) -> tuple[dict[str, Any], int]:
    """(JSON header, offset of the data)."""
    prefix = read(0, min(size, 8))
    if len(prefix) < 8:
        raise ValueError(f"{file} is truncated: {size} bytes are too few for a safetensors header")
    if prefix == b"version ":
        raise ValueError(f"{file} is a git-lfs pointer instead of the weights: run git lfs pull")
    (length,) = struct.unpack("<Q", prefix)
    if length > HEADER_LIMIT:
        raise ValueError(f"{file} is not a safetensors file, or is corrupted: header of {length} bytes")
    if 8 + length > size:
        raise ValueError(f"{file} is truncated: {size} bytes, but its header alone ends at byte {8 + length}")
    try:
        header = json.loads(read(8, 8 + length))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is corrupted: its safetensors header is not JSON") from error
    if not isinstance(header, dict):
        raise ValueError(f"{file} is corrupted: its safetensors header is not a table of tensors")
    return header, 8 + length
