"""Hyperparameters of a training run. Importing this module does not import jax."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from specjax import checks
from specjax.defaults import LARGEST_SEED

if TYPE_CHECKING:
    import jax
    import optax
    from jax.typing import ArrayLike

DIVERGENCES = ("ce", "kl", "reverse-kl", "jsd", "tv", "log-alpha", "lk", "ce-tv")  # in losses.py, which imports jax
TEXTS = ("data", "target", "student", "mixed")
LARGEST = 2**30  # steps, which are counted in 32 bits


@dataclasses.dataclass(frozen=True)
class Distillation:
    """How a student learns from its teacher: DistillSpec, Zhou et al. 2023, arXiv 2310.08461, section 3."""

    distill: float = 0.9
    """Weight of the divergence from the teacher, in [0, 1]; the rest is cross-entropy on the data."""
    divergence: str = "kl"
    """From the teacher's distribution: kl, reverse-kl, jsd, tv, or another one of train head."""
    texts: str = "data"
    """The texts that are learned from. data: the files. target, student: the teacher or the student itself writes on
    from the first quarter of a window, or writes the output for a source. mixed: the student writes half of the rows.
    On written texts the loss is the divergence alone."""

    def __post_init__(self) -> None:
        checks.number("distill", self.distill, least=0, most=1)
        checks.check_name(self.divergence, DIVERGENCES, "divergence")
        checks.check_name(self.texts, TEXTS, "texts")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Steps, learning rate and optimizer."""

    steps: int = 10_000
    """Total number of steps; a finished run is extended by a larger number."""
    rate: float = 1e-3
    """Peak learning rate, in (0, 1): warm-up, constant, then linear decay to a tenth."""
    warmup: int = 100
    """Steps of warm-up."""
    decay: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(default: the last third)")] = None
    """Steps of decay, at the end."""
    weight_decay: float = 0.1
    """Weight decay, of matrices only."""
    accumulate: int = 1
    """Batches whose gradients are averaged in a step: larger steps in the same memory."""
    clip: float = 1.0
    """Largest global norm of the gradient."""
    muon: bool = False
    """Use Muon instead of AdamW for the layers' kernels: fewer steps for the same loss."""
    half: bool = False
    """Multiply in bfloat16, a teacher too; master weights stay float32."""
    every: int = 300
    """Steps between evaluations and checkpoints."""
    seed: int = 0
    """Seed of the initialization and the batches."""

    def __post_init__(self) -> None:
        for name, least in {"steps": 1, "every": 1, "accumulate": 1, "warmup": 0, "decay": 0}.items():
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), least=least, most=LARGEST)
        checks.integer("seed", self.seed, least=0, most=LARGEST_SEED)
        if not 0.0 < self.rate < 1.0:
            raise ValueError(f"rate must be between 0 and 1, got {self.rate}")

    def schedule(self, step: "ArrayLike") -> "jax.Array":
        """Warm-up, constant, linear decay to a tenth (WSD). A later run can extend the constant part.

        >>> recipe = Recipe(steps=100, warmup=10, decay=20, rate=1e-3)
        >>> [round(float(recipe.schedule(step)), 5) for step in (0, 50, 99)]
        [0.0001, 0.001, 0.00014]
        """
        import jax.numpy as jnp

        decay = self.steps // 3 if self.decay is None else self.decay
        step = jnp.asarray(step)
        up = jnp.minimum(1.0, (step + 1) / max(self.warmup, 1))
        down = jnp.clip((self.steps - step) / max(decay, 1), 0.0, 1.0)
        return self.rate * up * (0.1 + 0.9 * down)

    def optimizer(self) -> "optax.GradientTransformation":
        """AdamW; or Muon (Jordan et al. 2024) for the layers' kernels, with AdamW's step size (Liu et al. 2025, arXiv
        2502.16982), and AdamW for the rest."""
        import jax
        import optax
        import optax.contrib

        clip = optax.clip_by_global_norm(self.clip)
        if not self.muon:
            matrices = lambda params: jax.tree.map(lambda p: p.ndim >= 2, params)
            adam = optax.adamw(self.schedule, b1=0.9, b2=0.95, weight_decay=self.weight_decay, mask=matrices)
            return optax.chain(clip, adam)
        muon = optax.contrib.muon(
            self.schedule, weight_decay=self.weight_decay, adam_b2=0.95, adam_weight_decay=0.0, consistent_rms=0.2,
            muon_weight_dimension_numbers=orthogonal,
        )  # fmt: skip
        return optax.chain(clip, muon)


def orthogonal(params: Any) -> Any:
    """Parameters updated by Muon: kernels [in, out], or [layers, in, out] if layers are stacked; no output matrix."""
    import jax
    from optax.contrib import MuonDimensionNumbers

    def one(keys: tuple, leaf: Any) -> MuonDimensionNumbers | None:
        *above, name = jax.tree_util.keystr(keys, simple=True, separator=".").split(".")
        inner = name == "kernel" and not any(part.endswith(("head", "heads")) for part in above)
        return MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1) if inner else None

    return jax.tree_util.tree_map_with_path(one, params)
