"""PyTorch checkpoints (pytorch_model.bin), through the optional torch: tensors only, no pickled code is ever run."""

import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from specjax.convert.sources import Index, StoredTensor


def read_torch(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one PyTorch file, mapped into memory.

    Raises:
      ValueError: torch is not installed, the file is corrupted, or it holds anything beyond tensors.
    """
    try:
        import torch
    except ImportError as error:
        raise ValueError(f"{file} is a PyTorch file: reading it needs torch (pip install 'specjax[torch]')") from error
    try:
        try:
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files from before torch 1.6 are no zip archives and cannot be mapped
            state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{file} is corrupted or holds pickled code beyond tensors: refused") from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise ValueError(f"{file} is truncated or corrupted: torch cannot read it") from error
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise ValueError(f"{file} is no table of tensors by name")
    plain = {name: tensor.detach() for name, tensor in state.items()}  # parameters ask for gradients
    for name, tensor in plain.items():
        if (
            tensor.layout != torch.strided
            or tensor.is_quantized
            or tensor.is_meta
            or tensor.dtype not in _dtypes(torch)
        ):
            raise ValueError(f"{file}: {name} is of {tensor.dtype}, sparse, quantized or without values: not read")
    return {name: _stored(tensor, file.name, torch) for name, tensor in plain.items()}


def _dtypes(torch: Any) -> tuple[Any, ...]:
    return (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    )  # fmt: skip


def _stored(tensor: Any, file: str, torch: Any) -> StoredTensor:
    half = tensor.dtype == torch.bfloat16  # numpy() refuses bfloat16: carry its bits as int16
    dtype = np.dtype(ml_dtypes.bfloat16) if half else torch.empty(0, dtype=tensor.dtype).numpy().dtype

    def load(index: Index) -> np.ndarray:
        part = tensor[index] if index else tensor
        return part.view(torch.int16).numpy().view(dtype) if half else part.numpy()

    return StoredTensor(tuple(tensor.shape), dtype, load, file)
