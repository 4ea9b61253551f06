"""From a folder to its tensors: which weight files it contains, single or sharded, in order of preference."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from specjax.convert.msgpack_source import read_msgpack, torch_name
from specjax.convert.safetensors_source import read_safetensors
from specjax.convert.sources import StoredTensor, TensorSource
from specjax.convert.torch_source import read_torch


class FileFormat(NamedTuple):
    """A format of weight files in a Hugging Face folder."""

    single: str
    index: str  # JSON with a weight_map from tensor name to shard
    pattern: str  # all files of the format, for downloads
    read: Callable[[Path], dict[str, StoredTensor]]
    rename: Callable[[str], str]  # from the names of the weight_map to those of `read`


FORMATS = (
    FileFormat("model.safetensors", "model.safetensors.index.json", "model*.safetensors", read_safetensors, str),
    FileFormat(
        "flax_model.msgpack",
        "flax_model.msgpack.index.json",
        "flax_model*.msgpack",
        read_msgpack,
        lambda name: torch_name(tuple(name.split("/"))),
    ),
    FileFormat("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model*.bin", read_torch, str),
)


HEAD_FORMATS = (  # of draft heads: Medusa has file names of its own, in a folder that may contain the target too
    FileFormat(
        "medusa_lm_head.safetensors",
        "medusa_lm_head.safetensors.index.json",
        "medusa*.safetensors",
        read_safetensors,
        str,
    ),
    FileFormat("medusa_lm_head.pt", "medusa_lm_head.pt.index.json", "medusa*.pt", read_torch, str),
    *FORMATS,
)


def open_source(folder: Path, formats: Sequence[FileFormat] = FORMATS) -> TensorSource:
    """Opens the tensors of a Hugging Face folder: safetensors, else Flax msgpack, else PyTorch; an index before a file.

    Raises:
      FileNotFoundError: no weight file, or a shard of the index is missing.
      ValueError: a corrupted, truncated or unsafe file.
    """
    for form in formats:
        if (folder / form.index).is_file():
            return TensorSource(_sharded(folder / form.index, form), str(folder))
        if (folder / form.single).is_file():
            return TensorSource(form.read(folder / form.single), str(folder / form.single))
    looked = ", ".join(name for form in formats for name in (form.index, form.single))
    raise FileNotFoundError(f"{folder} contains no weights: looked for {looked}")


def _sharded(index: Path, form: FileFormat) -> Mapping[str, StoredTensor]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        homes = {form.rename(name): str(home) for name, home in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index} is corrupted: not JSON with a weight_map") from error
    tensors: dict[str, StoredTensor] = {}
    for home in sorted(set(homes.values())):
        if Path(home).name != home:
            raise ValueError(f"{index} names the shard {home!r}: shards must be in the same folder")
        if not (index.parent / home).is_file():
            raise FileNotFoundError(f"{index} names the shard {home}, which is missing: download it again")
        held = form.read(index.parent / home)
        tensors |= {name: tensor for name, tensor in held.items() if homes.get(name, home) == home}
    absent = [name for name in homes if name not in tensors]
    if absent:
        raise ValueError(f"{index} lists {absent[0]} in {homes[absent[0]]}, which does not contain it")
    return tensors
