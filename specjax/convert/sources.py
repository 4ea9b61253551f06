"""Tensor sources: one interface for every checkpoint format, read tensor by tensor and slice by slice.

Each format module turns a file into {name: StoredTensor} with Hugging Face's PyTorch names and orientation (a linear
map is (out, in)); `shards.py` merges shards. Opening reads only headers.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes  # noqa: F401  registers bfloat16 and the float8 types with numpy
import numpy as np

ROWS = 4096  # rows compared at a time

Index = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, not yet read.

    Attributes:
      shape: of the whole tensor.
      dtype: as stored, or as dequantized.
      load: index (one slice per axis) -> array, possibly a view of the file: copy what is kept.
      file: its name, for messages.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[Index], np.ndarray]
    file: str

    @property
    def everything(self) -> Index:
        """The index of the whole tensor."""
        return tuple(slice(0, n) for n in self.shape)


def mapped(file: Path, dtype: np.dtype, shape: tuple[int, ...], offset: int) -> StoredTensor:
    """A tensor stored as row-major bytes at `offset`.

    Every read maps the file and unmaps it with the result, so that pages do not accumulate.
    """

    def load(index: Index) -> np.ndarray:
        if 0 in shape:
            return np.empty(shape, dtype)[index]
        return np.asarray(np.memmap(file, dtype, "r", offset, shape))[index]

    return StoredTensor(shape, dtype, load, file.name)


def transposed(tensor: StoredTensor) -> StoredTensor:
    """The same tensor with its axes reversed."""
    return dataclasses.replace(tensor, shape=tensor.shape[::-1], load=lambda index: tensor.load(index[::-1]).T)


def with_rows(tensor: StoredTensor, rows: np.ndarray) -> StoredTensor:
    """Rows of a tensor, in the given order."""

    def load(index: Index) -> np.ndarray:
        return tensor.load((slice(0, tensor.shape[0]), *index[1:]))[rows[index[0]]]

    return dataclasses.replace(tensor, shape=(len(rows), *tensor.shape[1:]), load=load)


class TensorSource:
    """The tensors of one checkpoint by Hugging Face name. A context manager: reading after `close` is an error."""

    def __init__(self, tensors: Mapping[str, StoredTensor], where: str):
        self._tensors: Mapping[str, StoredTensor] | None = tensors
        self.where = where
        self._same: dict[tuple[str, str], bool] = {}

    def _get(self, name: str) -> StoredTensor:
        if self._tensors is None:
            raise ValueError(f"{self.where} is closed: open it again to read {name}")
        if name not in self._tensors:
            raise ValueError(f"{self.where} has no tensor {name}")
        return self._tensors[name]

    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors or ())

    def shape(self, name: str) -> tuple[int, ...]:
        return self._get(name).shape

    def dtype(self, name: str) -> np.dtype:
        return self._get(name).dtype

    def read(self, name: str, index: Index | None = None) -> np.ndarray:
        """Reads the tensor, or only the part given by `index` (one slice per axis, step 1).

        May return a read-only view of the file: copy what is kept.
        """
        tensor = self._get(name)
        return tensor.load(tensor.everything if index is None else index)

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors are equal, including NaN positions. Compared once, by blocks of rows."""
        if (one, other) not in self._same:
            self._same[one, other] = self._compared(one, other)
        return self._same[one, other]

    def _compared(self, one: str, other: str) -> bool:
        shape = self.shape(one)
        if shape != self.shape(other):
            return False
        rest = tuple(slice(0, n) for n in shape[1:])
        blocks = [(slice(i, min(i + ROWS, shape[0])), *rest) for i in range(0, shape[0], ROWS)] if shape else [()]
        return all(np.array_equal(self.read(one, part), self.read(other, part), equal_nan=True) for part in blocks)

    def renamed(self, names: Mapping[str, str]) -> "TensorSource":
        """Some of the tensors: new name -> the name here."""
        return TensorSource({new: self._get(old) for new, old in names.items()}, self.where)

    def cut(self, pattern: str, rows: np.ndarray) -> "TensorSource":
        """The same tensors. Those whose names match have only these rows, unless they have no more than that."""
        found = {name: self._get(name) for name in self.names()}
        for name, tensor in found.items():
            if re.fullmatch(pattern, name) and tensor.shape[0] > len(rows):
                found[name] = with_rows(tensor, rows)
        return TensorSource(found, self.where)

    def close(self) -> None:
        self._tensors = None

    def __enter__(self) -> "TensorSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
