"""Checkpoints of parameters and training states by orbax, restored directly into the requested shardings.

    FOLDER/tree         the arrays, each device writing and reading its own shards
    FOLDER/about        JSON: the model's family, configuration and weight format
    FOLDER/tokenizer    of `save_model`: the tokenizer, if the model has one

A checkpoint is written under a temporary name and renamed when complete, so a folder of the given name is either
complete or absent. It can be restored onto another mesh than the one it was saved from. FOLDER may be on Cloud Storage,
`gs://bucket/name`, with the extra `gcs`.
"""

import contextlib
import dataclasses
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import Mesh

from specjax import hosts, sharding, stores, text
from specjax.checks import lookup
from specjax.model import Model
from specjax.models.cpu import CPUProducts
from specjax.models.families import FAMILIES
from specjax.models.format import Format, default_format
from specjax.models.kernels import prompt_kernel
from specjax.models.products import PLAIN, Products, TPUProducts
from specjax.sharding import path_of
from specjax.types import PyTree

VERSION = 3
AnyPath = Any  # a Path, or that of a store, an epath.Path
PLAIN_FIELDS = ("dtype", "stacked", "cache_dtype", "int8_weights", "int8_cache", "fill", "apart")  # of a format
_TREE, _ABOUT, _TOKENIZER = "tree", "about", "tokenizer"


class About(NamedTuple):
    """The description of a checkpoint.

    Attributes:
      family: of the model: "opt", "t5" or "llama".
      config: fields of the model's configuration.
      fmt: layout of the weights; arrays of different layouts are incompatible.
      notes: other JSON values that were saved.
    """

    family: str
    config: dict[str, Any]
    fmt: Format
    notes: dict[str, Any]


def save(
    folder: str | Path, tree: PyTree, *, family: str, config: Any, fmt: Format, notes: Mapping[str, Any] | None = None
) -> None:
    """Writes a tree of arrays (parameters, optimizer state, typed keys, numbers) and its description.

    Args:
      folder: must not exist.
      tree: the arrays.
      family: of the model.
      config: the model's configuration, a dataclass of JSON values.
      fmt: layout of the weights.
      notes: further JSON values, such as the step.

    Raises:
      ValueError: the folder exists, or `notes` or `config` are not JSON.
    """
    home = check_new(folder)
    about = {
        "version": VERSION,
        "family": family,
        "config": dataclasses.asdict(config),
        "format": _format_record(fmt),
        "notes": dict(notes or {}),
    }
    try:
        json.dumps(about)
    except TypeError as error:
        raise ValueError(f"config and notes must be JSON: {error}") from None
    hosts.agree(checkpoint=home.name)  # before any process writes to the folder, all have checked that it is absent
    home.parent.mkdir(parents=True, exist_ok=True)
    with _checkpointer() as checkpointer:
        items = {_TREE: ocp.args.StandardSave(tree), _ABOUT: ocp.args.JsonSave(about)}
        checkpointer.save(home, ocp.args.Composite(**items))


def about(folder: str | Path) -> About:
    """Reads the description of a checkpoint, without its arrays.

    Raises:
      ValueError: the folder is not a checkpoint of specjax, or is damaged.
    """
    folder = _checked(folder)
    with _checkpointer() as checkpointer:
        try:
            stored = checkpointer.restore(folder, ocp.args.Composite(**{_ABOUT: ocp.args.JsonRestore()}))[_ABOUT]
        except (ValueError, OSError) as error:
            raise _damaged(folder, error) from error
    if not isinstance(stored, Mapping):
        raise ValueError(f"{folder} is damaged: its description is not a JSON object")
    if stored.get("version") != VERSION:
        raise ValueError(f"{folder} has version {stored.get('version')}, but this program reads version {VERSION}")
    try:
        return About(stored["family"], stored["config"], _read_format(stored["format"]), stored["notes"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder} is damaged: its description lacks an entry or has an invalid one") from error


def _format_record(fmt: Format) -> dict[str, Any]:
    fields = dataclasses.asdict(dataclasses.replace(fmt, kernel=None))  # of the platform, not of the arrays
    fields.pop("kernel")
    return fields.pop("products") | fields | {"out_in": fmt.products.out_in}


def _read_format(stored: Mapping[str, Any]) -> Format:
    """The inverse of `_format_record`; JSON has no tuples."""
    products: Products = PLAIN
    if stored["out_in"]:
        left = stored["left"] and (stored["left"][0], stored["left"][1])
        products = CPUProducts(stored["min_rows"], stored["part"], left, stored["flat_heads"])
    elif stored.get("min_rows", 1) > 1:
        products = TPUProducts(stored["min_rows"])
    plain = {name: stored[name] for name in PLAIN_FIELDS}
    return Format(**plain, narrow=tuple(stored["narrow"]), wide=tuple(stored["wide"]), products=products)


def like(tree: PyTree, shardings: PyTree | None = None) -> PyTree:
    """Shapes, dtypes and shardings of a tree: the argument of `restore`.

    Args:
      tree: arrays or their shapes (`jax.eval_shape` of a model's `init`).
      shardings: of the same structure, from `sharding.shardings`; None keeps those of the leaves.
    """
    if shardings is None:
        return jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
    return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), tree, shardings)


def restore(folder: str | Path, wanted: PyTree, *, fmt: Format | None = None) -> PyTree:
    """Restores a checkpoint into the structure, dtypes and shardings of `wanted`; each device reads only its shards.

    Args:
      wanted: from `like`.
      fmt: the format of `wanted`, which must be that of the checkpoint even if all shapes agree (the shape of a square
        kernel does not determine its orientation). None: not checked (for trees that are not weights).

    Returns:
      The tree of arrays.

    Raises:
      ValueError: the folder is not a checkpoint, is damaged, or contains other arrays than `wanted`; names the first.
    """
    folder = _checked(folder)
    if fmt is not None:
        _check_format(folder, about(folder).fmt, fmt)
    with _checkpointer() as checkpointer:
        try:
            held = checkpointer.metadata(folder).item_metadata[_TREE].tree
        except (ValueError, OSError, KeyError, AttributeError) as error:
            raise _damaged(folder, error) from error
        _check_arrays(folder, _shapes(held), _shapes(wanted))
        try:
            return checkpointer.restore(folder, ocp.args.Composite(**{_TREE: ocp.args.StandardRestore(wanted)}))[_TREE]
        except (RuntimeError, MemoryError):  # from the devices
            raise
        except Exception as error:  # TensorStore raises bare Exceptions for truncated files
            raise _damaged(folder, error) from error


def save_model(folder: str | Path, model: Model) -> None:
    """Writes a model: parameters, configuration, end tokens and tokenizer. `load_model` is the inverse.

    Args:
      folder: must not exist.
      model: from `specjax.load`, or with trained parameters (`Model.with_module`).

    Raises:
      ValueError: the folder exists.
    """
    notes = {"published": model.described(), "eos": list(model.eos)}
    save(folder, model.params, family=model.family.name, config=model.config, fmt=model.fmt, notes=notes)
    if hosts.leader() and model.text is not None and model.text.save_pretrained is not None:
        with tempfile.TemporaryDirectory() as local:
            model.text.save_pretrained(Path(local))
            _copy(Path(local), _path(folder) / _TOKENIZER)


def load_model(
    folder: str | Path, *, mesh: Mesh | None = None, replicate: bool = False, cache_dtype: str | None = None
) -> Model:
    """Restores a model that `save_model` wrote, in the weight format that it had. `specjax.load(folder)` calls this.

    Args:
      cache_dtype: of keys and values, as for `specjax.load`; None: that of the checkpoint.
      mesh: from `sharding.make_mesh`, of any shape; each device reads its own shards. None: one device.
      replicate: under a mesh, the whole model on every device.

    Raises:
      ValueError: the folder is not a checkpoint, is damaged, or holds no model.

    >>> import tempfile
    >>> import specjax as sj
    >>> from specjax import checkpoint
    >>> folder = tempfile.mkdtemp() + "/tiny"
    >>> checkpoint.save_model(folder, sj.load("bundled/opt-tiny"))
    >>> checkpoint.load_model(folder).vocab_size
    4096
    """
    family, _, fmt, notes = about(folder)
    if "published" not in notes:
        raise ValueError(f"{folder} holds no model of save_model: restore its arrays with `checkpoint.restore`")
    family = lookup(family, FAMILIES, "family")
    config = family.from_published(notes["published"])
    rules, split = sharding.replicated(family.rules) if replicate else family.rules, None
    if mesh is not None:
        fmt = dataclasses.replace(fmt, apart=None)  # each device has its own rows
        split = sharding.attention_split(mesh, rules, config.kv_heads)
    if cache_dtype is not None:
        caches = default_format(fmt.dtype, cache_dtype=cache_dtype)
        fmt = dataclasses.replace(fmt, cache_dtype=caches.cache_dtype, int8_cache=caches.int8_cache)
    fmt = dataclasses.replace(fmt, kernel=prompt_kernel(jax.default_backend(), fmt.cache_dtype, split))
    abstract = family.abstract(config, fmt)
    if mesh is None:
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        where = jax.tree.map(lambda _: device, abstract)
    else:
        where = sharding.shardings(abstract, mesh, rules, fmt, kv_heads=config.kv_heads)
    params = restore(folder, like(abstract, where), fmt=fmt)
    tokenizer = _tokenizer(_path(folder) / _TOKENIZER)
    return Model(
        str(folder), family, config, fmt, params, tokenizer, tuple(notes["eos"]), mesh, rules, notes["published"]
    )


def _copy(source: AnyPath, target: AnyPath) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())


def _tokenizer(folder: AnyPath) -> text.Text | None:
    """The tokenizer of a checkpoint; that of a store is copied to this machine."""
    if not stores.is_remote(str(folder)):
        return text.from_folder(Path(folder))
    if not folder.exists():
        return None
    return text.from_folder(stores.copied(str(folder)))


@contextlib.contextmanager
def _checkpointer() -> Iterator[Any]:
    """A checkpointer that does not warn about the tokenizer, which is stored beside the items."""
    handlers = {_TREE: ocp.StandardCheckpointHandler(), _ABOUT: ocp.JsonCheckpointHandler()}
    quiet = lambda record: f'Item "{_TOKENIZER}"' not in record.getMessage()
    logger = logging.getLogger("absl")
    logger.addFilter(quiet)
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler(**handlers)) as checkpointer:
            yield checkpointer
    finally:
        logger.removeFilter(quiet)


def check_new(folder: str | Path) -> AnyPath:
    """The folder of a checkpoint to write.

    Raises:
      ValueError: it exists.
    """
    path = _path(folder)
    if path.exists():
        raise ValueError(
            f"folder {path} exists, and checkpoints are never overwritten: choose another name or remove it"
        )
    return path


def is_checkpoint(folder: str | Path) -> bool:
    """Whether the folder holds what `save` wrote."""
    try:
        path = _path(folder)
        return (path / _TREE).is_dir() and (path / _ABOUT).is_dir()
    except (KeyError, RuntimeError, ImportError):  # a store that orbax does not write to, ~ of an unknown user
        return False


def _path(folder: str | Path) -> AnyPath:
    """The folder, absolute; orbax and TensorStore know `gs://` themselves."""
    if stores.is_remote(str(folder)):
        return epath.Path(folder)
    return Path(folder).expanduser().absolute()


def _checked(folder: str | Path) -> AnyPath:
    path = _path(folder)
    if not path.is_dir():
        raise ValueError(f"folder {path} does not exist")
    if not is_checkpoint(folder):
        raise ValueError(f"{path} is not a checkpoint of specjax: it lacks {_TREE!r} or {_ABOUT!r}")
    return path


def _damaged(folder: AnyPath, error: Exception) -> ValueError:
    return ValueError(f"checkpoint {folder} is damaged or truncated: {str(error).splitlines()[0]}")


def _check_format(folder: AnyPath, held: Format, wanted: Format) -> None:
    """Compares the fields that change the arrays; others (padding of rows, caches) may differ."""
    here, there = _format_record(held), _format_record(wanted)
    for field in ("dtype", "out_in", "stacked", "part"):
        if here.get(field) != there.get(field):
            raise ValueError(
                f"checkpoint {folder} has {field}={here.get(field)}, but fmt has {field}="
                f"{there.get(field)}: restore with the checkpoint's own format (`checkpoint.about(folder).fmt`)"
            )


def _shapes(tree: PyTree) -> dict[str, tuple[tuple[int, ...], str]]:
    """Path -> (shape, dtype). Typed keys are stored as integers; Python numbers have no shape."""
    shapes = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, dtype))
        shapes[path_of(keys)] = (tuple(getattr(leaf, "shape", ())), str(getattr(leaf, "dtype", "")))
    return shapes


def _check_arrays(folder: AnyPath, held: dict, wanted: dict) -> None:
    for what, names in (("lacks", wanted.keys() - held.keys()), ("has unexpected", held.keys() - wanted.keys())):
        if names:
            raise ValueError(
                f"checkpoint {folder} {what} {min(names)!r} ({len(names)} such arrays): is it the same model?"
            )
    for name, (shape, dtype) in wanted.items():
        if held[name][0] != shape:
            raise ValueError(f"{name} has shape {held[name][0]} in checkpoint {folder}, expected {shape}")
        if held[name][1] != dtype and dtype:
            raise ValueError(f"{name} has dtype {held[name][1]} in checkpoint {folder}, expected {dtype}")
