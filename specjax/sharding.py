"""Placement of parameters and caches on a mesh by the partition rules of a model family (`models/family.py`).

    axis     what is split over it
    data     rows of the batch: tokens, lengths, keys, caches
    model    heads (q, k, v by columns, o by rows), feed-forward (gate, up by columns, down by rows), vocabulary
    wide     the same as model, apart from keys and values where their heads do not divide over both

Each layer then needs two all-reduces, one after `o` and one after `down`. Models do not refer to meshes: parameters
are passed in sharded, `on_mesh` pins the caches, and XLA's partitioner does the rest. Where the model axis does not
divide the key-value heads, attention and its caches are whole on every device of that axis.
Tensor parallelism after Shoeybi et al. 2019 (arXiv 1909.08053).
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from specjax import hosts
from specjax.base import LanguageModel
from specjax.models.cache import KV
from specjax.models.family import MODEL, WIDE, Rule, Rules
from specjax.models.format import Format
from specjax.models.kernels import Split
from specjax.programs import memoize
from specjax.types import Params, PyTree, Shared

DATA = "data"
Axes = str | tuple[str, ...] | None
AnyMesh = Mesh | AbstractMesh  # without devices, for shapes alone


def make_mesh(data: int = 1, model: int = 1, wide: int = 1, *, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of `data` x `model` x `wide` devices, its axes of type Auto (XLA propagates the shardings).

    On TPUs, neighbors on an axis are neighbors in the slice as far as its shape allows. Of several slices, each has its
    own rows: `model` and `wide` stay inside a slice.

    Args:
      data: number of parts of a batch's rows.
      model: number of parts of heads, feed-forward and vocabulary.
      wide: splits each part of `model` again, apart from keys and values where their heads do not divide. 1: the mesh
        has no such axis.
      devices: which devices; default all that jax sees.

    Raises:
      ValueError: a factor below 1, factors whose product is not the number of devices, or more slices than `data` can
        be divided among.
    """
    devices = list(jax.devices() if devices is None else devices)
    if min(data, model, wide) < 1:
        raise ValueError(f"mesh axes must be at least 1, got data={data}, model={model}, wide={wide}")
    shape = (data, model, wide) if wide > 1 else (data, model)
    if math.prod(shape) != len(devices):
        factors = " x ".join(f"{name}={size}" for name, size in zip((DATA, MODEL, WIDE), shape, strict=False))
        raise ValueError(
            f"a mesh of {factors} takes {math.prod(shape)} devices, there are {len(devices)}: "
            f"choose factors of {len(devices)}, or name {math.prod(shape)} devices with devices=..."
        )
    slices = len({getattr(device, "slice_index", None) for device in devices})
    if data % slices:
        raise ValueError(
            f"data={data} is not a multiple of the {slices} slices, so that weights would be split across slices: "
            f"use data={slices * -(-data // slices)}, or one process group and one mesh for each slice"
        )
    if slices > 1:
        inside, across = (data // slices, *shape[1:]), (slices, *(1 for _ in shape[1:]))
        grid = mesh_utils.create_hybrid_device_mesh(inside, across, devices, allow_split_physical_axes=True)
    else:
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    names = (DATA, MODEL, WIDE)[: len(shape)]
    return Mesh(grid, names, axis_types=(AxisType.Auto,) * len(names))


def check_axes(mesh: Any) -> None:
    """Raises ValueError unless it is a mesh with the axes of `make_mesh`, of one process or of all."""
    names = getattr(mesh, "axis_names", None)
    if names is None or not {DATA, MODEL} <= set(names):
        given = type(mesh).__name__ if names is None else f"one of axes {', '.join(map(str, names))}"
        raise ValueError(f"mesh must be one of specjax.sharding.make_mesh, with axes {DATA} and {MODEL}; got {given}")
    hosts.check_mesh(mesh)


def replicated(rules: Rules) -> Rules:
    """The same parameters, each whole on every device: best for a small draft model, whose layers would wait for
    their all-reduces longer than they compute."""
    table = tuple(Rule(r.pattern, (P(*(None for _ in r.specs[0])),)) for r in rules.table)
    return Rules(table, heads=None, vocabulary=None)


def path_of(keys: tuple) -> str:
    """The dotted path of a leaf: "layers.0.attn.q.kernel"."""
    return jax.tree_util.keystr(keys, simple=True, separator=".")


def _candidates(path: str, rules: Rules, fmt: Format) -> tuple[P, ...]:
    """The specs that the first matching rule allows, in the array's own orientation and rank."""
    name = re.sub(r"(?<=\blayers\.)\d+\.|(?<=\.kernel)\.\d+$", "", path)
    specs = _specs(name, rules)
    if specs is None and name.endswith(".scale"):  # of an int8 weight: placed as its output channels are
        whole = name.removesuffix("scale")
        kernel, table = _specs(whole + "kernel", rules), _specs(whole + "table", rules)
        specs = tuple(P(spec[-1]) for spec in kernel) if kernel else tuple(P(spec[0]) for spec in table or ()) or None
    if specs is None:
        raise ValueError(f"no sharding rule names the parameter {path!r}: add it to the rules of its family")
    if fmt.products.out_in and name.endswith(".kernel"):
        specs = tuple(P(*reversed(spec)) for spec in specs)
    if fmt.stacked and re.search(r"\blayers\.", name):
        specs = tuple(P(None, *spec) for spec in specs)
    return specs


def _specs(name: str, rules: Rules) -> tuple[P, ...] | None:
    return next((rule.specs for rule in rules.table if re.fullmatch(rule.pattern, name)), None)


def spec_for(path: str, rules: Rules, fmt: Format) -> P:
    """The PartitionSpec of one parameter where every dimension divides: transposed for (out, in) kernels, one leading
    None for stacked layers.

    Args:
      path: dotted, with or without layer numbers: "layers.3.attn.q.kernel".

    Raises:
      ValueError: no rule names the parameter.
    """
    return _candidates(path, rules, fmt)[0]


def attention_split(mesh: AnyMesh, rules: Rules, kv_heads: int) -> Split:
    """How attention is laid over a mesh, for kernels: as keys and values are."""
    return Split(mesh, DATA, _axes(kv_heads, mesh, rules.heads))


def _axes(count: int, mesh: AnyMesh, axis: str | None) -> Axes:
    """The axes that split `count` heads or words, as many as divide them: `wide` with that of the rules, or not."""
    wide = [(MODEL, WIDE)] if WIDE in mesh.shape and axis == MODEL else []
    return next((axes for axes in (*wide, axis) if count % _parts(axes, mesh) == 0), None)


def _parts(axis: Axes, mesh: AnyMesh) -> int:
    return math.prod(mesh.shape[name] for name in ((axis,) if isinstance(axis, str) else axis or ()))


def _divides(shape: tuple[int, ...], spec: P, mesh: AnyMesh) -> bool:
    return all(n % _parts(axis, mesh) == 0 for n, axis in zip(shape, spec, strict=True))


def _choices(path: str, specs: tuple[P, ...], mesh: AnyMesh, rules: Rules, heads: Axes) -> tuple[P, ...]:
    """The specs on this mesh, the preferred one first; `heads` are the axes that split the key-value heads."""
    if rules.heads is not None and heads is None and re.search(rules.attention, path):
        return (P(*(None for _ in specs[0])),)
    if WIDE not in mesh.shape or (heads == rules.heads and re.search(rules.narrow, path)):
        return specs
    wider = lambda spec: P(*((MODEL, WIDE) if axis == MODEL else axis for axis in spec))
    return tuple(each for spec in specs for each in (wider(spec), spec))


def shardings(params: Params, mesh: AnyMesh, rules: Rules, fmt: Format, *, kv_heads: int) -> PyTree:
    """A NamedSharding for every parameter, in the tree's own structure.

    Args:
      params: arrays or their shapes (`jax.eval_shape` of a model's `init`).
      kv_heads: heads of keys and values. Where the model axis does not divide them, attention is whole on every device
        of that axis: exact, at the cost of its memory.

    Raises:
      ValueError: no rule names a parameter, its rank is not the rule's, or its shape does not divide.
    """
    heads = _axes(kv_heads, mesh, rules.heads)

    def one(keys: tuple, leaf) -> NamedSharding:
        path = path_of(keys)
        specs = _candidates(path, rules, fmt)
        if len(specs[0]) != len(leaf.shape):
            raise ValueError(
                f"{path} has shape {leaf.shape}, its sharding rule speaks of {len(specs[0])} axes: "
                f"is the format right (stacked={fmt.stacked})?"
            )
        for spec in _choices(path, specs, mesh, rules, heads):
            if _divides(leaf.shape, spec, mesh):
                return NamedSharding(mesh, spec)
        raise ValueError(
            f"{path} of shape {leaf.shape} does not divide over {specs[-1]} of a mesh of {dict(mesh.shape)}: "
            "choose a smaller model axis"
        )

    return jax.tree_util.tree_map_with_path(one, params)


def place(params: Params, mesh: AnyMesh, rules: Rules, fmt: Format, *, kv_heads: int) -> Params:
    """Places parameters on the mesh; each device receives only its own shards. See `shardings`."""
    return hosts.lay(params, shardings(params, mesh, rules, fmt, kv_heads=kv_heads))


def row_sharding(mesh: AnyMesh) -> NamedSharding:
    """For arrays whose first axis is the rows of a batch: prompts, lengths, budgets."""
    return NamedSharding(mesh, P(DATA))


def data_size(mesh: AnyMesh | None) -> int:
    """Number of parts that rows are split in; 1 without a mesh."""
    return 1 if mesh is None else mesh.shape[DATA]


def check_rows(rows: int, mesh: AnyMesh) -> None:
    """Raises ValueError where a batch of `rows` does not divide over the data axis."""
    if rows % mesh.shape[DATA]:
        raise ValueError(
            f"a batch of {rows} rows does not divide over {DATA}={mesh.shape[DATA]}: pad it to "
            f"{-(-rows // mesh.shape[DATA]) * mesh.shape[DATA]} rows or use a smaller data axis"
        )


def _kv_spec(rank: int, heads: Axes) -> P:
    axes = (*(None for _ in range(rank - 4)), DATA, heads)  # [L,] B, K, T, H
    return P(*axes) if heads else P(*axes[:-1])  # no trailing None: jax tells equal specs apart by it


def cache_shardings(cache: PyTree, mesh: AnyMesh, rules: Rules) -> PyTree:
    """Shardings of a cache, or of any state that holds some: rows on data, heads of keys and values on the rules' axis
    where it divides them.

    Leaves apart from keys and values are led by rows (lengths, tokens, visibility); scalars and `Shared` parts are
    replicated.
    """

    def one(leaf) -> PyTree:
        if isinstance(leaf, Shared):
            return jax.tree.map(lambda _: NamedSharding(mesh, P()), leaf)
        if isinstance(leaf, KV):
            heads = _axes(jax.tree.leaves(leaf)[0].shape[-3], mesh, rules.heads)
            return jax.tree.map(lambda a: NamedSharding(mesh, _kv_spec(len(a.shape), heads)), leaf)
        return NamedSharding(mesh, P(DATA) if leaf.shape else P())

    return jax.tree.map(one, cache, is_leaf=lambda node: isinstance(node, KV | Shared))


@memoize
def on_mesh(model: LanguageModel, mesh: AnyMesh, rules: Rules) -> LanguageModel:
    """The same model, whose caches keep their sharding: they leave `prefill`, `extend` and `keep` as
    `cache_shardings` has it, whatever XLA would have preferred.

    Logits leave `extend` whole on every device of the model axis: one all-gather a call, after which warping, drawing
    and verifying run as they do without a mesh. Cached: the same arguments give the same static argument of `generate`.
    """
    axis = _axes(model.vocab_size, mesh, rules.vocabulary)

    def pin(cache: PyTree) -> PyTree:
        return jax.lax.with_sharding_constraint(cache, cache_shardings(cache, mesh, rules))

    def gathered(logits):
        # Split first, then whole: of the second constraint alone, XLA makes a gather of the head's weights.
        for spec in (P(DATA, None, axis), P(DATA, None, None)):
            logits = jax.lax.with_sharding_constraint(logits, NamedSharding(mesh, spec))
        return logits

    def prefill(params, prompt, length, cache_len, known=None):
        check_rows(prompt.shape[0], mesh)
        read = model.prefill(params, prompt, length, cache_len, known)
        return read._replace(cache=pin(read.cache))

    def extend(params, tokens, cache, mask, depth, offset=0):
        out, cache = model.extend(params, tokens, cache, mask, depth, offset)
        return out._replace(logits=gathered(out.logits)), pin(cache)

    def keep(cache, path, n):
        return pin(model.keep(cache, path, n))

    return model._replace(prefill=prefill, extend=extend, keep=keep)
