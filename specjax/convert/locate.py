"""From a name to a checkpoint: a folder, a GGUF file, a bundled model or a Hugging Face id; only ids download."""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specjax import stores
from specjax.convert.gguf_config import gguf_config, gguf_tokenizer
from specjax.convert.gguf_source import gguf_source, open_gguf
from specjax.convert.remote import open_remote
from specjax.convert.shards import FORMATS, FileFormat, open_source
from specjax.convert.sources import TensorSource
from specjax.models.families import family_of
from specjax.models.family import Family

BUNDLED = "bundled/"
BUNDLED_FOLDER = Path(__file__).resolve().parent.parent / "bundled"
CONFIG_FILES = ("*.json", "*.model", "*.txt", "*.jinja")  # configuration and tokenizer files
TOKENIZER_FILES = ("tokenizer*", "spiece.model", "vocab.*", "merges.txt")
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
HUB_SECONDS = 15.0  # timeout of the hub


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A local model whose tensors are opened but not read.

    Attributes:
      path: its folder or GGUF file.
      family: the family of its model type.
      config: contents of config.json, with ties as in the weights.
      source: its tensors; close it after reading.
      tokenizer: () -> transformers tokenizer built from these files, or None.
    """

    path: Path
    family: Family
    config: dict[str, Any]
    source: TensorSource
    tokenizer: Callable[[], Any]


def locate(name: str | os.PathLike[str]) -> Checkpoint:
    """Opens a checkpoint.

    Args:
      name: a folder in Hugging Face's layout, a GGUF file (or a folder with one and no other weights),
        "bundled/<name>", a folder of safetensors in an object store such as "gs://bucket/folder", or a Hugging Face hub
        id. A hub id is looked up in the local cache first and downloaded only if it is absent: safetensors, else Flax,
        else PyTorch.

    Raises:
      FileNotFoundError: nothing was found; the message lists where.
      ValueError: not a model, corrupted, or of an unsupported kind.
    """
    text = os.fspath(name)
    if stores.is_remote(text):
        return _from_store(text)
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # ~name of an unknown user
        raise FileNotFoundError(f"{text!r} is not a file or folder: {_line(error)}") from None
    if path.is_file():
        return _from_file(path)
    if text and path.is_dir():
        return _from_folder(path)
    if text.startswith(BUNDLED):
        return _from_folder(_bundled(text.removeprefix(BUNDLED)))
    if HUB_ID.fullmatch(text) and path.suffix != ".gguf":
        return _from_folder(_download(text))
    raise FileNotFoundError(f"{text!r} is not a file, folder or Hugging Face id")


def local_folder(name: str | os.PathLike[str], formats: Sequence[FileFormat] = FORMATS) -> Path:
    """A folder, that of "bundled/<name>", or that of a Hugging Face hub id, downloaded if it is not in the local cache.

    Raises:
      FileNotFoundError: nothing was found; the message lists where.
    """
    text = os.fspath(name)
    path = Path(text).expanduser()
    if path.is_dir():
        return path
    if text.startswith(BUNDLED):
        return _bundled(text.removeprefix(BUNDLED))
    if HUB_ID.fullmatch(text):
        return _download(text, formats)
    raise FileNotFoundError(f"{text!r} is not a folder or Hugging Face id")


def _from_file(path: Path) -> Checkpoint:
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        raise ValueError(f"{path} is not a GGUF file: pass the folder of a Hugging Face checkpoint or a .gguf file")
    gguf = open_gguf(path)
    try:
        config = gguf_config(gguf)
        tokenizer = lambda: _complete(path, lambda: gguf_tokenizer(gguf))
        return Checkpoint(path, family_of(config), config, gguf_source(gguf), tokenizer)
    except KeyError as missing:
        raise ValueError(f"{path} is incomplete: it lacks {missing}") from None


def _complete(path: Path, make: Callable[[], Any]) -> Any:
    """Calls `make`; a missing metadata entry raises ValueError."""
    try:
        return make()
    except KeyError as missing:
        raise ValueError(f"{path} has an incomplete tokenizer: it lacks {missing}") from None


def _from_folder(folder: Path, opened: Callable[[Path], TensorSource] = open_source) -> Checkpoint:
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        if len(ggufs) == 1:
            return _from_file(ggufs[0])
        many = f"; it contains {len(ggufs)} GGUF files: pass one of them" if ggufs else ""
        raise FileNotFoundError(f"{folder} is not a model: looked for config.json or one .gguf file{many}")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder / 'config.json'} is corrupted: not JSON ({error})") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ValueError(f"{folder / 'config.json'} is not a model configuration: it has no model_type")
    try:
        family = family_of(config)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    source = opened(folder)
    return Checkpoint(
        folder, family, family.ties(config, source.names(), source.same), source, lambda: _tokenizer(folder)
    )


def _from_store(name: str) -> Checkpoint:
    folder = stores.copied(name, CONFIG_FILES)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{name} is not a model: it has no config.json")
    return _from_folder(folder, functools.partial(open_remote, name))


def _tokenizer(folder: Path) -> Any:
    if not any(file for pattern in TOKENIZER_FILES for file in folder.glob(pattern)):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the loaders raise many types; the remedy is the same
        cause = _line(error)
        cause = "" if cause.endswith(":") else f": {cause}"  # the introduction of a list of causes
        raise ValueError(
            f"{folder} contains no tokenizer that transformers can read; add its tokenizer.json{cause}"
        ) from error


def _bundled(name: str) -> Path:
    """The folder of a bundled model or head."""
    present = sorted(folder.name for folder in BUNDLED_FOLDER.glob("*") if (folder / "config.json").is_file())
    if name not in present:
        raise FileNotFoundError(f"unknown bundled model {name!r}: available are {', '.join(present) or 'none'}")
    return BUNDLED_FOLDER / name


def _download(name: str, formats: Sequence[FileFormat] = FORMATS) -> Path:
    """The local snapshot of a hub id: from the cache if complete, else from the network."""
    from huggingface_hub import HfApi, snapshot_download

    for form in formats:  # since the cache holds one of them, and calls a snapshot without the others partial
        try:
            folder = Path(snapshot_download(name, local_files_only=True, allow_patterns=_patterns(form)))
            open_source(folder, formats).close()
            if (folder / "config.json").is_file():
                return folder
        except (OSError, ValueError):  # absent from the cache or incomplete
            pass
    try:
        files = {entry.rfilename for entry in HfApi().model_info(name, timeout=HUB_SECONDS).siblings or ()}
    except Exception as error:  # the hub's errors have no common base class across versions
        raise _not_found(name, error) from error
    held = [form for form in formats if form.single in files or form.index in files]
    if not held:
        looked = ", ".join(form.single for form in formats)
        raise FileNotFoundError(f"{name} on the Hugging Face hub contains no weights: looked for {looked}")
    try:
        return Path(snapshot_download(name, allow_patterns=_patterns(held[0])))
    except Exception as error:
        raise _not_found(name, error) from error


def _patterns(form: FileFormat) -> list[str]:
    return [form.pattern, form.index, *CONFIG_FILES]


def _not_found(name: str, error: Exception) -> FileNotFoundError:
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error  # the hub client wraps the reason
    return FileNotFoundError(
        f"{name} is not a local file or folder, and was not downloaded from the Hugging Face hub: {_line(cause)}"
    )


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
