"""Parameters from any tensor source to the nested dict of a model, and back.

Tensors are read one at a time into their final dtype, orientation and placement, so the host holds about one copy of
the weights; on a mesh each host reads only the slices of its own devices.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.convert.sources import Index, TensorSource
from specjax.models import quantize
from specjax.models.family import NameTable
from specjax.models.format import Format
from specjax.types import Params

Place = Callable[[str, tuple[int, ...]], jax.sharding.Sharding]  # (path, shape) -> sharding of the parameter
Progress = Callable[[int, int], None]

NAMED = 5  # maximum number of tensors named per kind of error
CHANNELS_BYTES = 1 << 26  # float32 weights that are quantized at a time
TILE = 128  # rows and columns of a transposing copy, sized for the cache


class Leaf(NamedTuple):
    """One parameter of the model and the stored tensors that it consists of."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    pieces: tuple[str, ...]  # paths of separate layers: one, or L if layers are stacked
    stacked: bool
    flipped: bool  # stored (out, in), wanted (in, out)
    part: tuple[int, int] = (0, 1)  # index of this array and number of arrays per stored tensor
    scales: "Leaf | None" = None  # the int8 weight whose scales these are

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of each stored tensor in Hugging Face's layout."""
        if self.scales is not None:
            return self.scales.stored_shape
        shape = self.shape[1:] if self.stacked else self.shape
        if self.part[1] > 1:
            return shape[0], shape[1] * self.part[1]
        return shape[::-1] if self.flipped else shape

    def stored_index(self, index: Index) -> Index:
        """The index in the stored tensor of a slice of this array (of one layer, if stacked)."""
        number, count = self.part
        if count == 1:
            return index[::-1] if self.flipped else index
        start, stop, step = index[1].indices(self.shape[1])
        before = number * self.shape[1]
        return index[0], slice(before + start, before + stop, step)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def leaves(params: Params, fmt: Format) -> list[Leaf]:
    """Every parameter of a nested dict of arrays or shapes (from `jax.eval_shape`), by dotted path."""
    found = []
    for keys, value in jax.tree_util.tree_flatten_with_path(params)[0]:
        path = ".".join(str(key.key) for key in keys)
        stacked = fmt.stacked and "layers" in path.split(".")
        pieces = (path,)
        if stacked:
            pieces = tuple(path.replace("layers.", f"layers.{i}.", 1) for i in range(value.shape[0]))
        flipped = path.endswith(".kernel") and not fmt.products.out_in
        base, _, number = path.rpartition(".")
        part = (0, 1)
        if base.endswith(".kernel"):
            pieces, part = (base,), (int(number), len(lookup(params, base)))
        found.append(Leaf(path, tuple(value.shape), np.dtype(value.dtype), pieces, stacked, flipped, part))
    whole = {leaf.path.rpartition(".")[0]: leaf for leaf in found if leaf.dtype == np.int8}

    def of_weight(leaf: Leaf) -> Leaf:
        parent, _, name = leaf.path.rpartition(".")
        weight = whole.get(parent) if name == "scale" else None
        return leaf if weight is None else leaf._replace(pieces=weight.pieces, scales=weight)

    return [of_weight(leaf) for leaf in found]


def load_params(
    source: TensorSource,
    table: NameTable,
    abstract: Params,
    *,
    fmt: Format,
    place: Place | None = None,
    progress: Progress | None = None,
) -> Params:
    """Reads the parameters of a model.

    Args:
      source: the stored tensors.
      table: the name table of the model.
      abstract: nested dict of shapes and dtypes in the format's own layout: `jax.eval_shape` of the model's `init`.
      fmt: orientation of kernels, and whether layers are stacked.
      place: sharding of each parameter; None: the default device.
      progress: called after each parameter with (bytes read, total bytes) of the model.

    Returns:
      The nested dict of arrays.

    Raises:
      ValueError: tensors are missing, unexpected, of the wrong shape or of an integer dtype; names them.
    """
    wanted = leaves(abstract, fmt)
    names = _resolve(source, table, wanted)
    params: dict[str, Any] = {}
    done, total = 0, sum(leaf.nbytes for leaf in wanted)
    for leaf in wanted:
        *parents, last = leaf.path.split(".")
        node = params
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = _read(source, leaf, [names[piece] for piece in leaf.pieces], place)
        done += leaf.nbytes
        if progress is not None:
            progress(done, total)
    return params


def _resolve(source: TensorSource, table: NameTable, wanted: list[Leaf]) -> dict[str, str]:
    """Parameter path -> name in the source; collects all mismatches into one error."""
    shapes = {piece: leaf.stored_shape for leaf in wanted for piece in leaf.pieces}
    claims: dict[str, list[tuple[int, str]]] = {}
    unexpected = []
    for name in source.names():
        hits = [hit for hit in table.candidates(name) if hit[1] in shapes]
        if hits:
            rank, path = min(hits)
            claims.setdefault(path, []).append((rank, name))
        elif not table.is_ignored(name):
            unexpected.append(name)
    found = {path: min(names) for path, names in claims.items()}
    missing = [table.name(path) for path in shapes if path not in found]
    misshaped = [
        f"{name} has shape {source.shape(name)}, not {shapes[path]}"
        for path, (_, name) in found.items()
        if source.shape(name) != shapes[path]
    ]
    unfit = [
        f"{name} has dtype {source.dtype(name)}, which is not floating-point"
        for _, name in found.values()
        if not jnp.issubdtype(source.dtype(name), jnp.floating)
    ]
    conflicting = [
        f"{name} and {found[path][1]} differ but name the same parameter"
        for path, names in claims.items()
        for _, name in names
        if name != found[path][1] and not source.same(name, found[path][1])
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("wrong shape", misshaped), ("wrong dtype", unfit),
             ("conflicting", conflicting))  # fmt: skip
    faults = [
        f"{kind}: {', '.join(items[:NAMED])}{f' and {len(items) - NAMED} more' if len(items) > NAMED else ''}"
        for kind, items in kinds
        if items
    ]
    if faults:
        raise ValueError(f"{source.where} does not match its configuration - {'; '.join(faults)}")
    return {path: name for path, (_, name) in found.items()}


def _read(source: TensorSource, leaf: Leaf, names: list[str], place: Place | None) -> jax.Array:
    def gather(index: Index) -> np.ndarray:
        out = np.empty([len(range(n)[s]) for n, s in zip(leaf.shape, index, strict=True)], leaf.dtype)
        inner = index[1:] if leaf.stacked else index
        chosen = names[index[0]] if leaf.stacked else names
        for part, name in zip(out if leaf.stacked else (out,), chosen, strict=True):
            if leaf.dtype == np.int8:
                _read_int8(source, name, leaf, inner, weight=part)
            elif leaf.scales is not None:
                _read_int8(source, name, leaf.scales, inner, scale=part)
            else:
                stored = source.read(name, leaf.stored_index(inner))
                copy_into(part, stored.T if leaf.flipped else stored)
        return out

    if place is None:
        return jax.device_put(gather(tuple(slice(0, n) for n in leaf.shape)))
    read: dict[tuple[tuple[int, int, int], ...], np.ndarray] = {}  # replicas on this host share one read

    def once(index: Index | None) -> np.ndarray:
        bounds = index or (slice(None),) * len(leaf.shape)
        key = tuple(s.indices(n) for s, n in zip(bounds, leaf.shape, strict=True))
        if key not in read:
            read[key] = gather(tuple(slice(*bound) for bound in key))
        return read[key]

    return jax.make_array_from_callback(leaf.shape, place(leaf.path, leaf.shape), once)


def _read_int8(
    source: TensorSource, name: str, leaf: Leaf, index: Index, *, weight: np.ndarray | None = None,
    scale: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Fills a slice of an int8 weight, or of its scales, a few output channels at a time.

    Args:
      leaf: the weight.
      index: of the weight, or of its output channels. A channel's scale requires all of its inputs, also those of
        other devices' shards.
    """
    outputs, inputs = leaf.stored_shape
    if weight is None:
        channels, taken = index[0], slice(None)
    else:
        channels, taken = index[::-1] if leaf.flipped else index
    numbers = range(outputs)[channels]
    step = max(CHANNELS_BYTES // (4 * inputs), 1)
    for at in range(0, len(numbers), step):
        some = numbers[at : at + step]
        floats = np.asarray(source.read(name, (slice(some.start, some.stop), slice(0, inputs))), np.float32)
        int8, scales = quantize.channels(floats, axis=-1, xp=np)
        if scale is not None:
            scale[at : at + step] = scales
        elif weight is not None:
            copy_into((weight.T if leaf.flipped else weight)[at : at + step], np.asarray(int8)[:, taken])


def copy_into(out: np.ndarray, values: np.ndarray) -> None:
    """Copies and casts; in tiles if it transposes, since a large matrix would miss the cache at every entry."""
    if out.ndim != 2 or values.flags.c_contiguous:
        out[...] = values
        return
    for top in range(0, out.shape[0], TILE):
        for left in range(0, out.shape[1], TILE):
            tile = np.s_[top : top + TILE, left : left + TILE]
            out[tile] = values[tile]


def stored_tensors(params: Params, table: NameTable, fmt: Format) -> list[tuple[str, Leaf, int]]:
    """(Hugging Face name, parameter, layer index) of every tensor to write, in the order of the parameters.

    A kernel in parts is represented by its first part.
    """
    firsts = [leaf for leaf in leaves(params, fmt) if leaf.part[0] == 0]
    return [(table.name(piece), leaf, number) for leaf in firsts for number, piece in enumerate(leaf.pieces)]


def lookup(params: Mapping[str, Any], path: str) -> Any:
    """The leaf at a dotted path."""
    node: Any = params
    for key in path.split("."):
        node = node[key]
    return node
