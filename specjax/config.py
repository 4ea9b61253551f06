"""A decoding run as a frozen record, and what it builds: presets under configs/ bind one as `CONFIG`."""

import dataclasses
import runpy
from pathlib import Path
from typing import Any, NamedTuple

from specjax import drafters
from specjax.drafters import Guide
from specjax.load import load
from specjax.model import Model

DRAFTERS = ("model", "ngram", "plain")


class Run(NamedTuple):
    """What `specjax.generate` takes: `generate(run.target, run.prompts, **run.options)`."""

    target: Model
    prompts: tuple[str, ...]
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Models, drafter, verifier, sampling and prompts of one run. See `specjax.generate` for the options."""

    target: str
    prompts: tuple[str, ...]
    drafter: str = "model"
    draft: str | None = None
    gamma: int = 5
    verifier: str = "token"
    dtype: str = "float32"
    max_new_tokens: int = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self):
        if self.drafter not in DRAFTERS:
            raise ValueError(f"drafter {self.drafter!r} is none of {', '.join(DRAFTERS)}")
        if (self.drafter == "model") != (self.draft is not None):
            raise ValueError(f'drafter "model", and only it, takes a draft; got {self.drafter!r} with {self.draft!r}')

    def build(self) -> Run:
        """Loads the models and makes the drafter."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("target", "prompts", "drafter", "draft", "gamma", "dtype"):
            del options[name]
        return Run(load(self.target, dtype=self.dtype), self.prompts, options | {"drafter": self._guide()})

    def _guide(self) -> Guide:
        if self.draft is not None:
            return drafters.model(load(self.draft, dtype=self.dtype), gamma=self.gamma)
        return drafters.ngram(gamma=self.gamma) if self.drafter == "ngram" else drafters.plain()


def read(file: Path | str) -> RunConfig:
    """The CONFIG of a preset, which is run as Python: read only files that you trust.

    Raises:
      ValueError: the file binds no CONFIG of type RunConfig.
    """
    config = runpy.run_path(str(file)).get("CONFIG")
    if not isinstance(config, RunConfig):
        raise ValueError(f"{file} binds no CONFIG = RunConfig(...)")
    return config
