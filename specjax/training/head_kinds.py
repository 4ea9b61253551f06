"""What `specjax train head` trains: for each kind a new head, its recipe, and its losses."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.heads.medusa import MedusaConfig
from specjax.heads.mlp import MLPConfig
from specjax.model import Model
from specjax.training import eagle, staged
from specjax.training.lm import FORMAT
from specjax.training.losses import DIVERGENCES, TEXT
from specjax.types import Params

if TYPE_CHECKING:
    from specjax.training.head_run import HeadRun

Chosen = np.ndarray | None  # tokens of a draft vocabulary, ascending; None: all


class TrainedKind(NamedTuple):
    """A kind of head as it is trained.

    Attributes:
      kind: of `heads.kinds.KINDS`.
      new: (run, target, draft vocabulary) -> a head without parameters.
      recipe: as published; `steps` drafted tokens at each position, and a `divergence`.
      loss, measure: (head, recipe, params, fixed, batch[, key]), as those of `TrainingTask`.
      options: options of `HeadRun` that it has, of those that not all kinds have.
      init: (head, key) -> parameters.
      divergences: names of its divergences.
    """

    kind: str
    new: Callable[["HeadRun", Model, Chosen], Head]
    recipe: Any
    loss: Callable[..., Any]
    measure: Callable[..., Any]
    options: tuple[str, ...] = ()
    init: Callable[[Head, jax.Array], Params] = lambda head, key: head.kind.init(key, head.config, FORMAT)
    divergences: tuple[str, ...] = tuple(DIVERGENCES)


def new_eagle(run: "HeadRun", target: Model, chosen: Chosen) -> Head:
    config = eagle.new_config(
        run.kind, target, layers=run.layers, mlp_width=run.mlp_width or 3 * target.config.width,
        draft_vocab=target.vocab_size if chosen is None else len(chosen), taps=run.taps,
    )  # fmt: skip
    kind = KINDS[TRAINED[run.kind].kind]
    return Head(str(run.out / "head"), kind, config, FORMAT, {}, target, chosen, "speculators")


def new_medusa(run: "HeadRun", target: Model, chosen: Chosen) -> Head:
    """With the target's output matrix; with one matrix for all heads over a draft vocabulary; or with one for each."""
    heads = run.unroll or TRAINED[run.kind].recipe.steps
    matrices = heads if run.own_matrices else int(chosen is not None)
    config = MedusaConfig(
        target.vocab_size, target.config.width, heads, run.layers, matrices,
        target.vocab_size if chosen is None else len(chosen),
    )  # fmt: skip
    form = "original" if chosen is None else "vllm"
    return Head(str(run.out / "head"), KINDS["medusa"], config, FORMAT, {}, target, chosen, form)


def new_mlp(run: "HeadRun", target: Model, chosen: Chosen) -> Head:
    width, stages = target.config.width, run.unroll or TRAINED[run.kind].recipe.steps
    config = MLPConfig(target.vocab_size, width, run.mlp_width or width, stages)
    return Head(str(run.out / "head"), KINDS["mlp"], config, FORMAT, {}, target, chosen, "original")


EAGLE = ("layers", "mlp_width")
STAGED = (TEXT, *DIVERGENCES)
TRAINED = {
    "eagle": TrainedKind("eagle", new_eagle, eagle.RECIPES["eagle"], eagle.loss, eagle.measure, EAGLE),
    "hass": TrainedKind("eagle", new_eagle, eagle.RECIPES["hass"], eagle.loss, eagle.measure, EAGLE),
    "eagle3": TrainedKind(
        "eagle3", new_eagle, eagle.RECIPES["eagle3"], eagle.loss, eagle.measure, (*EAGLE, "draft_vocab", "taps"),
    ),
    "medusa": TrainedKind(
        "medusa", new_medusa, staged.Staged(steps=5), staged.loss, staged.measure,
        ("layers", "draft_vocab", "own_matrices"), staged.init_medusa, STAGED,
    ),
    "mlp": TrainedKind(
        "mlp", new_mlp, staged.Staged(steps=3), staged.loss, staged.measure, ("mlp_width",), divergences=STAGED,
    ),
}  # fmt: skip
