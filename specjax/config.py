"""Presets: a run as a frozen record, and `build`, which makes the models and the drafter of it.

Only this module and the command line know `RunConfig`; the library takes models and functions.
"""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

from specjax import api, drafters, verify
from specjax.drafters import Guide
from specjax.load import load
from specjax.model import Model


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What to decode with; see `api.generate` for the sampling options.

    Attributes:
      target, draft: names for `specjax.load`; draft None where the drafter needs no model.
      drafter: "model", "ngram" or "plain". gamma: draft tokens a round; None: the drafter's own default.
      verifier: a name of `verify.TABLE`.
    """

    target: str
    draft: str | None = None
    drafter: str = "model"
    gamma: int | None = None
    verifier: str = "token"
    dtype: str = "float32"
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.drafter not in DRAFTERS:
            raise ValueError(f"no drafter is named {self.drafter!r}; there are: {', '.join(DRAFTERS)}")
        if (self.drafter == "model") != (self.draft is not None):
            raise ValueError(f"drafter {self.drafter!r} with draft={self.draft!r}: only 'model' takes a draft model")
        verify.get(self.verifier)


DRAFTERS = ("model", "ngram", "plain")


class Run(NamedTuple):
    """A built preset: `run.generate(prompts)`."""

    config: RunConfig
    target: Model
    guide: Guide

    def generate(self, prompts: api.Prompts, **changes: Any) -> api.Generation:
        """`specjax.generate` with the preset's options, `changes` over them."""
        own = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop")
        options = {name: getattr(self.config, name) for name in own} | {"verifier": self.config.verifier} | changes
        return api.generate(self.target, prompts, drafter=self.guide, **options)


def build(config: RunConfig) -> Run:
    """Loads the models of a preset and joins them with its drafter."""
    target = load(config.target, dtype=config.dtype)
    options = {} if config.gamma is None else {"gamma": config.gamma}
    if config.drafter == "plain":
        guide = drafters.plain()
    elif config.drafter == "ngram":
        guide = drafters.ngram(**options)
    else:
        guide = drafters.model(load(str(config.draft), dtype=config.dtype), **options)
    return Run(config, target, guide)


def read(file: Path | str) -> RunConfig:
    """The `CONFIG` of a preset file, which is Python and is executed: read only files that you trust.

    Raises:
      FileNotFoundError: no such file. ValueError: it holds no CONFIG.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such preset")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = getattr(module, "CONFIG", None)
    if not isinstance(config, RunConfig):
        raise ValueError(f"{path} is no preset: it defines no CONFIG = RunConfig(...)")
    return config
