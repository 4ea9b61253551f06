"""Checkpoints of parameters and training states, by orbax: read straight into the shardings that are wanted.

    FOLDER/tree     the arrays, each device writing and reading its own shards
    FOLDER/about    JSON: the model's family, configuration and weight format

A checkpoint is written under a temporary name and renamed when it is whole, so a folder of the given name is either
complete or absent. It may be read onto another mesh than the one it was written from.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from specjax.models.format import Format
from specjax.sharding import path_of
from specjax.types import PyTree

VERSION = 1
_TREE, _ABOUT = "tree", "about"


class About(NamedTuple):
    """What a checkpoint says of itself.

    Attributes:
      family: name of the model's file: "opt", "t5", "llama".
      config: fields of the model's configuration.
      fmt: layout of the weights. Arrays of one layout do not fit another.
      notes: whatever else was saved, JSON.
    """

    family: str
    config: dict[str, Any]
    fmt: Format
    notes: dict[str, Any]


def save(
    folder: str | Path, tree: PyTree, *, family: str, config: Any, fmt: Format, notes: Mapping[str, Any] | None = None
) -> None:
    """Writes a tree of arrays (parameters, optimizer state, typed keys, numbers) and what it is.

    Args:
      folder: must not exist.
      config: the model's configuration, a dataclass of JSON values.
      notes: further JSON values: step, position in the data, ...

    Raises:
      ValueError: the folder exists, or `notes` or `config` are not JSON.
    """
    folder = Path(folder).absolute()
    if folder.exists():
        raise ValueError(f"{folder} exists: a checkpoint is never overwritten; choose another name or remove it")
    about = {
        "version": VERSION,
        "family": family,
        "config": dataclasses.asdict(config),
        "format": dataclasses.asdict(fmt),
        "notes": dict(notes or {}),
    }
    try:
        json.dumps(about)
    except TypeError as error:
        raise ValueError(f"config and notes of the checkpoint {folder} must be JSON: {error}") from None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _checkpointer() as checkpointer:
        items = {_TREE: ocp.args.StandardSave(tree), _ABOUT: ocp.args.JsonSave(about)}
        checkpointer.save(folder, ocp.args.Composite(**items))


def about(folder: str | Path) -> About:
    """What a checkpoint says of itself; reads no array.

    Raises:
      ValueError: the folder is no checkpoint of specjax, or is damaged.
    """
    folder = _checked(folder)
    with _checkpointer() as checkpointer:
        try:
            told = checkpointer.restore(folder, ocp.args.Composite(**{_ABOUT: ocp.args.JsonRestore()}))[_ABOUT]
        except (ValueError, OSError) as error:
            raise _damaged(folder, error) from error
    if not isinstance(told, Mapping):
        raise ValueError(f"{folder} is no checkpoint of specjax: what it says of itself is no table")
    if told.get("version") != VERSION:
        raise ValueError(f"{folder} is of version {told.get('version')}, this program reads version {VERSION}")
    try:
        return About(told["family"], told["config"], read_format(told["format"]), told["notes"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder} is damaged: what it says of itself lacks an entry, or has a wrong one") from error


def read_format(told: Mapping[str, Any]) -> Format:
    """From JSON, which has no tuples; `left` was one number once, with `left_inputs` beside it."""
    fields = dict(told)
    left, inputs = fields.pop("left", ()), fields.pop("left_inputs", None)
    pairs = left if inputs is None else [(inputs, left)] if left else []
    return Format(**fields, left=tuple((least, rows) for least, rows in pairs))


def like(tree: PyTree, shardings: PyTree | None = None) -> PyTree:
    """Shapes, dtypes and shardings without the arrays: what `restore` wants.

    Args:
      tree: arrays, or their shapes (`jax.eval_shape` of a model's `init`).
      shardings: of the same structure, as `sharding.shardings` gives; None keeps those that the leaves have.
    """
    if shardings is None:
        return jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
    return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), tree, shardings)


def restore(folder: str | Path, wanted: PyTree, *, fmt: Format | None = None) -> PyTree:
    """Reads a checkpoint into the structure, dtypes and shardings of `wanted`; each device reads its own shards only.

    Args:
      wanted: from `like`.
      fmt: the format that `wanted` is meant in; another one than the checkpoint's is an error, even where all shapes
        agree (a square kernel does not show its orientation). None: not checked (trees that are no weights).

    Raises:
      ValueError: the folder is no checkpoint, is damaged, or holds other arrays than wanted: the first is named.
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
        except (RuntimeError, MemoryError):  # of the devices
            raise
        except Exception as error:  # TensorStore's of a file that is cut short is of no class
            raise _damaged(folder, error) from error


def _checkpointer() -> ocp.Checkpointer:
    handlers = {_TREE: ocp.StandardCheckpointHandler(), _ABOUT: ocp.JsonCheckpointHandler()}
    return ocp.Checkpointer(ocp.CompositeCheckpointHandler(**handlers))


def _checked(folder: str | Path) -> Path:
    folder = Path(folder).absolute()
    if not folder.is_dir():
        raise ValueError(f"there is no checkpoint at {folder}")
    if not (folder / _TREE).is_dir() or not (folder / _ABOUT).is_dir():
        raise ValueError(f"{folder} is no checkpoint of specjax: it has no {_TREE!r} and {_ABOUT!r} inside")
    return folder


def _damaged(folder: Path, error: Exception) -> ValueError:
    return ValueError(
        f"checkpoint {folder} cannot be read, it is damaged or was cut short: {str(error).splitlines()[0]}"
    )


def _check_format(folder: Path, held: Format, wanted: Format) -> None:
    """Fields that change the arrays; the others (padding of rows, caches) may differ."""
    for field in ("dtype", "out_in", "stacked", "part"):
        if getattr(held, field) != getattr(wanted, field):
            raise ValueError(
                f"checkpoint {folder} has weights of {field}={getattr(held, field)}, wanted are {field}="
                f"{getattr(wanted, field)}: restore with the checkpoint's own format (`checkpoint.about(folder).fmt`)"
            )


def _shapes(tree: PyTree) -> dict[str, tuple[tuple[int, ...], str]]:
    """Path -> (shape, dtype). Typed keys are stored as the integers behind them; plain numbers have no shape."""
    shapes = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, dtype))
        shapes[path_of(keys)] = (tuple(getattr(leaf, "shape", ())), str(getattr(leaf, "dtype", "")))
    return shapes


def _check_arrays(folder: Path, held: dict, wanted: dict) -> None:
    for what, names in (("lacks", wanted.keys() - held.keys()), ("has unexpected", held.keys() - wanted.keys())):
        if names:
            raise ValueError(f"checkpoint {folder} {what} {min(names)!r} ({len(names)} such arrays): is it this model?")
    for name, (shape, dtype) in wanted.items():
        if held[name][0] != shape:
            raise ValueError(f"{name} has shape {held[name][0]} in checkpoint {folder}, wanted is {shape}")
        if held[name][1] != dtype and dtype:
            raise ValueError(f"{name} has dtype {held[name][1]} in checkpoint {folder}, wanted is {dtype}")
