"""PyTorch checkpoints (pytorch_model.bin), read by the optional torch: tensors only, pickled code is never run."""

import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from specjax.convert.sources import Index, StoredTensor


def read_torch(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one PyTorch file, memory-mapped.

    Raises:
      ValueError: torch is not installed, the file is corrupted, or it contains other objects than tensors.
    """
    try:
        import torch
    except ImportError as error:
        raise ValueError(f"{file} is a PyTorch file: reading it needs torch (pip install 'specjax[torch]')") from error
    try:
        try:
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files from before torch 1.6 are not zip archives and cannot be mapped
            state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{file} is corrupted or contains pickled code, which is not run") from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise ValueError(f"{file} is truncated or corrupted: torch cannot read it") from error
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise ValueError(f"{file} is not a table of tensors by name")
    plain = {name: tensor.detach() for name, tensor in state.items()}  # parameters require gradients
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
    half = tensor.dtype == torch.bfloat16  # numpy() does not support bfloat16: transfer its bits as int16
    dtype = np.dtype(ml_dtypes.bfloat16) if half else torch.empty(0, dtype=tensor.dtype).numpy().dtype

    def load(index: Index) -> np.ndarray:
        part = tensor[index] if index else tensor
        return part.view(torch.int16).numpy().view(dtype) if half else part.numpy()

    return StoredTensor(tuple(tensor.shape), dtype, load, file)
