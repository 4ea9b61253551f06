"""What `specjax train head` trains: for each kind a new head, its recipe, and its losses."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from specjax import checks, sharding
from specjax.heads.dflash import DFlashConfig
from specjax.heads.eagle_formats import check_taps, default_taps
from specjax.heads.falcon import FalconConfig
from specjax.heads.head import Head
from specjax.heads.head import layers_of as layers_of_target
from specjax.heads.kinds import KINDS
from specjax.heads.medusa import MedusaConfig
from specjax.heads.mlp import MLPConfig
from specjax.heads.peagle import PEagleConfig
from specjax.heads.spire_formats import shape as spire_shape
from specjax.model import Model
from specjax.models.family import Rules
from specjax.models.format import Format
from specjax.models.llama import LlamaConfig
from specjax.models.products import in_order
from specjax.training import dflash, eagle, falcon, joint, peagle, staged
from specjax.training.lm import FORMAT
from specjax.training.losses import DIVERGENCES, TEXT
from specjax.types import Params, PyTree

if TYPE_CHECKING:
    from specjax.training.head_run import HeadRun

WINDOW, SINKS = 64, 1  # of SPIRe
Chosen = np.ndarray | None  # tokens of a draft vocabulary, ascending; None: all


class TrainedKind(NamedTuple):
    """A kind of head as it is trained.

    Attributes:
      kind: of `heads.kinds.KINDS`.
      new: (run, target, draft vocabulary) -> a head without parameters.
      recipe: as published; `steps` drafted tokens at each position, and a `divergence`.
      loss, measure: (head, recipe, params, fixed, batch[, key]), as those of `TrainingTask`.
      options: options of `HeadRun` that it has, of those that not all kinds have.
      init: (head, recipe, key) -> parameters: those of the head, if it has some already.
      divergences: names of its divergences.
      layers: decoder layers, or blocks, by default.
      shardings: (parameters, mesh, rules of the head) -> their shardings.
      rate: (recipe, path of a parameter) -> its learning rate, relative to that of the run.
      save: (head, recipe, parameters, folder): writes the trained head.
    """

    kind: str
    new: Callable[["HeadRun", Model, Chosen], Head]
    recipe: Any
    loss: Callable[..., Any]
    measure: Callable[..., Any]
    options: tuple[str, ...] = ()
    init: Callable[[Head, Any, jax.Array], Params] = lambda head, how, key: (
        head.params or head.kind.init(key, head.config, FORMAT)
    )
    divergences: tuple[str, ...] = tuple(DIVERGENCES)
    layers: int = 1
    shardings: Callable[[Params, Mesh, Rules], PyTree] = functools.partial(sharding.shardings, fmt=FORMAT, kv_heads=1)
    rate: Callable[[Any, str], float] | None = None
    save: Callable[[Head, Any, Params, Path], None] = lambda head, how, params, folder: dataclasses.replace(
        head, params=params
    ).save_pretrained(folder)


def layers_of(run: "HeadRun") -> int:
    return run.layers or TRAINED[run.kind].layers


def new_layers(run: "HeadRun", target: Model) -> LlamaConfig:
    """Of the shape that the options name."""
    width, part = run.width or target.config.width, target.config.head_width
    if run.width % part or width > target.config.width:
        raise ValueError(
            f"width is {width}: it must be a multiple of {part}, the width of an attention head of {target.name}, and "
            f"at most {target.config.width}"
        )
    return eagle.new_layers(target, layers_of(run), run.mlp_width or 3 * width, run.kv_heads, width)


def new_eagle(run: "HeadRun", target: Model, chosen: Chosen) -> Head:
    drafted = target.vocab_size if chosen is None else len(chosen)
    config = eagle.new_config(run.kind, new_layers(run, target), target, draft_vocab=drafted, taps=run.taps)
    kind, form = KINDS[TRAINED[run.kind].kind], "original" if config.own_embedding else "speculators"
    return Head(str(run.out / "head"), kind, config, FORMAT, {}, target, chosen, form)


def new_medusa(run: "HeadRun", target: Model, chosen: Chosen) -> Head:
    """With the target's output matrix; with one matrix for all heads over a draft vocabulary; or with one for each."""
    heads = run.unroll or TRAINED[run.kind].recipe.steps
    matrices = heads if run.own_matrices else int(chosen is not None)
    config = MedusaConfig(
        target.vocab_size, target.config.width, heads, layers_of(run), matrices,
        target.vocab_size if chosen is None else len(chosen),
    )  # fmt: skip
    form = "original" if chosen is None else "vllm"
    return Head(str(run.out / "head"), KINDS["medusa"], config, FORMAT, {}, target, chosen, form)


def new_mlp(run: "HeadRun", target: Model, chosen: Chosen) -> Head:
    width, stages = target.config.width, run.unroll or TRAINED[run.kind].recipe.steps
    config = MLPConfig(target.vocab_size, width, run.mlp_width or width, stages)
    return Head(str(run.out / "head"), KINDS["mlp"], config, FORMAT, {}, target, chosen, "original")


def new_parallel(run: "HeadRun", target: Model, chosen: Chosen) -> Head:
    """P-EAGLE, DFlash and Falcon."""
    kind = KINDS[run.kind]
    layer = new_layers(run, target)
    steps, mask = run.unroll or TRAINED[run.kind].recipe.steps, target.vocab_size - 1
    if run.mask_token is not None:
        mask = checks.integer("mask_token", run.mask_token, least=0, most=target.vocab_size - 1)
    drafted = target.vocab_size if chosen is None else len(chosen)
    if run.kind == "falcon":
        config: Any = FalconConfig(layer, layer.width, block=steps)
    else:
        taps = check_taps(run.taps or default_taps(target.config.layers), target)
        config = PEagleConfig(
            layer, len(taps) * layer.width, taps, drafted, own_embedding=True, mask_token=mask, tokens=steps
        )
        if run.kind == "dflash":
            layer = dataclasses.replace(layer, qk_norm=True)
            own = 0 if chosen is None else drafted
            config = DFlashConfig(layer, taps, mask, steps + 1, (None,) * layer.layers, draft_vocab=own)
    return Head(str(run.out / "head"), kind, config, FORMAT, {}, target, chosen, kind.formats[0].name)


def new_spire(run: "HeadRun", target: Model, chosen: Chosen) -> Head:
    """A draft cut from the last layers of the target, or from those that the taps enter."""
    del chosen
    layers = layers_of_target(target)
    taps = run.taps or tuple(range(max(0, layers - layers_of(run)), layers))
    kind = KINDS["spire"]
    config = spire_shape(target, taps, window=run.window or WINDOW, sinks=SINKS)
    return Head(str(run.out / "head"), kind, config, FORMAT, {}, target, None, kind.formats[0].name)


def init_spire(head: Head, how: Any, key: jax.Array) -> Params:
    """The copied layers, and the norm that leaves the target; every mix is the mean of the streams."""
    del how
    if head.params:
        return head.params
    target, params = head.target, head.kind.init(key, head.config, FORMAT)
    layers = target.params["layers"]
    of = lambda tap: jax.tree.map(lambda leaf: leaf[tap], layers) if target.fmt.stacked else layers[str(tap)]
    copied = {str(place): plain(of(tap), target.fmt) for place, tap in enumerate(head.config.taps)}
    found = params | {"layers": copied, "final_norm": target.params["final_norm"]}
    return jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), found)  # copies: a step donates them


def plain(params: Params, fmt: Format) -> Params:
    """Parameters of a layer in the layout of `FORMAT`."""
    found: Params = {}
    for name, child in params.items():
        if name == "kernel":
            whole = jnp.concatenate(in_order(child), axis=1) if isinstance(child, Mapping) else child
            found[name] = whole.T if fmt.products.out_in != FORMAT.products.out_in else whole
        else:
            found[name] = plain(child, fmt) if isinstance(child, Mapping) else child
    return found


def init_with_ends(head: Head, how: Any, key: jax.Array) -> Params:
    """Random layers; an embedding and an output matrix of the head's own begin as the target's.

    A narrower head begins with the target's matrices projected on the principal components of its embedding. The head's
    last norm begins with scales of 1, so that the target's are multiplied into the output matrix.
    """
    del how
    if head.params:
        return head.params
    params, target = head.kind.init(key, head.config, FORMAT), head.target
    outer = target.family.without_layers(target.params)
    ends = target.family.ends(target.config, target.fmt)(outer)
    table = ends.embed.tokens(jnp.arange(target.vocab_size, dtype=jnp.int32)[None])[0].astype(jnp.float32)
    narrow = lambda rows: rows
    if head.config.width < table.shape[1]:
        basis = jnp.linalg.svd(table, full_matrices=False)[2][: head.config.width]
        narrow = lambda rows: rows @ basis.T
    if "embed" in params:
        params = params | {"embed": {"table": narrow(table)}}
    if "head" in params:
        scale = outer.get("final_norm", {}).get("scale", jnp.ones((table.shape[1],), jnp.float32))
        params = params | {"head": {"kernel": eagle.kernel(narrow(eagle.output_rows(head) * scale[None]))}}
    return params


SHAPE = ("layers", "mlp_width", "kv_heads", "features")
EAGLE = (*SHAPE, "start", "kept")
PARALLEL = (*SHAPE, "draft_vocab", "taps", "mask_token")
STAGED = (TEXT, *DIVERGENCES)
TRAINED = {
    "eagle": TrainedKind(
        "eagle", new_eagle, eagle.RECIPES["eagle"], eagle.loss, eagle.measure, (*EAGLE, "feature_loss"),
    ),
    "hass": TrainedKind(
        "eagle", new_eagle, eagle.RECIPES["hass"], eagle.loss, eagle.measure, (*EAGLE, "feature_loss"),
    ),
    "eagle3": TrainedKind(
        "eagle3", new_eagle, eagle.RECIPES["eagle3"], eagle.loss, eagle.measure,
        (*EAGLE, "width", "draft_vocab", "taps"), init_with_ends,
    ),
    "spire": TrainedKind(
        "spire", new_spire, eagle.RECIPES["spire"], eagle.loss, eagle.measure,
        ("layers", "taps", "window", "start", "kept", "features"), init_spire, layers=2,
    ),
    "medusa": TrainedKind(
        "medusa", new_medusa, staged.Staged(steps=5), staged.loss, staged.measure,
        ("layers", "draft_vocab", "own_matrices", "start", "features"), staged.init_medusa, STAGED,
    ),
    "medusa-2": TrainedKind(
        "medusa", new_medusa, joint.Joint(), joint.loss, joint.measure, ("layers", "own_matrices", "rank", "start"),
        joint.init, STAGED, shardings=joint.shardings, rate=joint.rate,
        save=joint.save,
    ),
    "mlp": TrainedKind(
        "mlp", new_mlp, staged.Staged(steps=3), staged.loss, staged.measure, ("mlp_width", "features"),
        divergences=STAGED,
    ),
    "peagle": TrainedKind(
        "peagle", new_parallel, eagle.RECIPES["peagle"], peagle.loss, peagle.measure, (*PARALLEL, "kept"),
        init_with_ends, layers=4,
    ),
    "dflash": TrainedKind(
        "dflash", new_parallel, dflash.Blocks(), dflash.loss, dflash.measure, PARALLEL, init_with_ends,
        (TEXT, dflash.D_PACE, *DIVERGENCES), layers=5,
    ),
    "falcon": TrainedKind(
        "falcon", new_parallel, falcon.Glancing(), falcon.loss, falcon.measure,
        ("mlp_width", "kv_heads", "feature_loss", "glance", "features"),
    ),
}  # fmt: skip
