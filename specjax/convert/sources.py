"""Where tensors come from: one face for every checkpoint format, read tensor by tensor and slice by slice.

Each format module turns a file into {name: StoredTensor}, by Hugging Face's PyTorch names and orientation (a linear
map is (out, in)) whatever the file's own; shards are merged in `shards.py`. Opening reads headers only.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes  # noqa: F401  registers bfloat16 and the float8 types with numpy
import numpy as np

ROWS = 4096  # compared at a time

Index = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor that still lies in its file.

    Attributes:
      shape: of the whole tensor.
      dtype: as stored (as dequantized, where the file is quantized).
      load: index -> array. One slice per axis. What comes back may be a view of the file: copy what is kept.
      file: where it lies, for messages.
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
    """A tensor that lies as plain row-major bytes at `offset`.

    The file is mapped anew by every read and unmapped with its result, so pages that were read do not pile up.
    """

    def load(index: Index) -> np.ndarray:
        if 0 in shape:
            return np.empty(shape, dtype)[index]
        return np.asarray(np.memmap(file, dtype, "r", offset, shape))[index]

    return StoredTensor(shape, dtype, load, file.name)


def transposed(tensor: StoredTensor) -> StoredTensor:
    """The same tensor with its axes reversed."""
    return dataclasses.replace(tensor, shape=tensor.shape[::-1], load=lambda index: tensor.load(index[::-1]).T)


class TensorSource:
    """The tensors of one checkpoint, by Hugging Face's names. A context manager: reading after `close` is an error."""

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
        """The tensor, or the part that `index` (one slice an axis, steps of 1) names; only that part is read.

        Returns a read-only view of the file where the format allows it: copy what is kept.
        """
        tensor = self._get(name)
        return tensor.load(tensor.everything if index is None else index)

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors hold the same numbers, NaN in the same places. They are read once, by blocks of rows."""
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

    def close(self) -> None:
        self._tensors = None

    def __enter__(self) -> "TensorSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
