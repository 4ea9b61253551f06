"""Presets: a run as a frozen record, and `build`, which loads its models and its drafter.

Only this module and the command line know `RunConfig`; the library takes models and functions.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from specjax import api, checks, defaults, presets, sampling, verify
from specjax.checks import check_name
from specjax.drafters import LoadedDrafter
from specjax.loading import load
from specjax.model import Model
from specjax.strategy import Strategy


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Models, drafter and options of a run; see `api.generate` for the sampling options.

    Attributes:
      target, draft: names for `specjax.load`; draft None where the drafter needs no model, several for a cascade.
      drafter: as for `specjax generate --drafter`: "model", "tree:shape=3x2", "small-kv:budget=256,cache=snapkv".
      gamma: draft tokens per round, short for gamma=N of the drafter; None: the drafter's default.
      verifier: a name in `verify.TABLE`; None: the default of the drafter.
      lossless: raise an error if the verifier is lossy.
    """

    target: str
    draft: str | tuple[str, ...] | None = None
    drafter: str = "model"
    gamma: int | None = None
    verifier: str | None = None
    lossless: bool = False
    dtype: str = "float32"
    max_new_tokens: int = defaults.MAX_NEW_TOKENS
    temperature: float = defaults.TEMPERATURE
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = defaults.SEED
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, kinds in KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or (isinstance(value, bool) and kinds != (bool,)):
                wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                raise ValueError(f"{name} of a preset must be {wanted}, got {value!r}")
        for name, value in (("draft", self.drafts), ("stop", self.stop)):
            if not all(isinstance(one, str) for one in value):
                raise ValueError(f"{name} of a preset must be texts, got {value!r}")
        check_name(self.dtype, DTYPES, "dtype")
        checks.integer("max_new_tokens", self.max_new_tokens, least=1, most=defaults.LARGEST_NEW)
        checks.integer("seed", self.seed, least=0, most=defaults.LARGEST_SEED)
        checks.stop_strings(self.stop)
        ranges = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        sampling.sampling_params(1, 2, **{name: getattr(self, name) for name in ranges})  # their ranges
        needed = self.strategy.needs
        if len(self.drafts) != needed:
            raise ValueError(f"drafter {self.drafter!r} with draft={self.draft!r}: it takes {needed} draft model(s)")
        if self.verifier is not None:
            chosen = verify.get(self.verifier)
            if self.lossless:
                chosen.require_lossless()

    @property
    def drafts(self) -> tuple[str, ...]:
        """Names of the draft models."""
        if self.draft is None:
            return ()
        return (self.draft,) if isinstance(self.draft, str) else tuple(self.draft)

    @property
    def strategy(self) -> Strategy:
        """The drafter with its draft length."""
        found = Strategy.parse(self.drafter)
        return found if self.gamma is None else found.replace_settings(gamma=self.gamma)


DTYPES = ("float32", "bfloat16", "float16")
KINDS: dict[str, tuple[type, ...]] = {
    "target": (str,), "draft": (str, tuple, list, type(None)), "drafter": (str,), "gamma": (int, type(None)),
    "verifier": (str, type(None)), "lossless": (bool,), "dtype": (str,), "max_new_tokens": (int,),
    "temperature": (float, int), "top_k": (int,), "top_p": (float, int),
    "min_p": (float, int), "repetition_penalty": (float, int), "seed": (int,), "stop": (tuple, list),
}  # fmt: skip


class Run(NamedTuple):
    """A built preset: `run.generate(prompts)`."""

    config: RunConfig
    target: Model
    drafter: LoadedDrafter

    def generate(self, prompts: api.Prompts, **changes: Any) -> api.Generation:
        """`specjax.generate` with the preset's options; `changes` override them."""
        own = (
            "verifier", "lossless", "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
            "seed", "stop",
        )  # fmt: skip
        options = {name: getattr(self.config, name) for name in own} | changes
        return api.generate(self.target, prompts, drafter=self.drafter, **options)


def build(config: RunConfig) -> Run:
    """Loads the models of a preset and joins them with its drafter."""
    target = load(config.target, dtype=config.dtype)
    drafts = [load(name, dtype=config.dtype) for name in config.drafts]
    return Run(config, target, config.strategy.build(target, drafts))


def read(file: Path | str) -> RunConfig:
    """Reads the `CONFIG` of a preset file, which is Python and is executed: read only files that you trust.

    Raises:
      FileNotFoundError: no such file.
      ValueError: the file does not run, uses an unknown option, or defines no CONFIG.
    """
    return presets.bound(file, "CONFIG", RunConfig)
