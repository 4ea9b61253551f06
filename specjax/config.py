"""Presets: a run as a frozen record, and `build`, which makes the models and the drafter of it.

Only this module and the command line know `RunConfig`; the library takes models and functions.
"""

import dataclasses
import difflib
import re
import types
from pathlib import Path
from typing import Any, NamedTuple

from specjax import api, defaults, drafters, verify
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
            if not isinstance(value, kinds) or isinstance(value, bool):
                wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                raise ValueError(f"{name} of a preset must be {wanted}, got {value!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"no dtype is named {self.dtype!r}; there are: {', '.join(DTYPES)}")
        if self.drafter not in DRAFTERS:
            raise ValueError(f"no drafter is named {self.drafter!r}; there are: {', '.join(DRAFTERS)}")
        if (self.drafter == "model") != (self.draft is not None):
            raise ValueError(f"drafter {self.drafter!r} with draft={self.draft!r}: only 'model' takes a draft model")
        verify.get(self.verifier)


DRAFTERS = ("model", "ngram", "plain")
NEEDS_DRAFT = "model"
DTYPES = ("float32", "bfloat16", "float16")
KINDS: dict[str, tuple[type, ...]] = {
    "target": (str,), "draft": (str, type(None)), "drafter": (str,), "gamma": (int, type(None)), "verifier": (str,),
    "dtype": (str,), "max_new_tokens": (int,), "temperature": (float, int), "top_k": (int,), "top_p": (float, int),
    "min_p": (float, int), "repetition_penalty": (float, int), "seed": (int,), "stop": (tuple, list),
}  # fmt: skip


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
      FileNotFoundError: no such file. ValueError: it does not run, names an option that there is not, or holds no
        CONFIG; in one line.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such preset")
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except Exception as error:
        raise ValueError(f"preset {path}: {_told(error)}") from error
    config = getattr(module, "CONFIG", None)
    if not isinstance(config, RunConfig):
        raise ValueError(f"{path} is no preset: it defines no CONFIG = RunConfig(...)")
    return config


def _told(error: Exception) -> str:
    """What went wrong in a preset, with the option that may have been meant."""
    unknown = re.search(r"(?:^|RunConfig\S* )got an unexpected keyword argument '(\w+)'", str(error))
    if unknown is None:
        return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    known = [field.name for field in dataclasses.fields(RunConfig)]
    near = difflib.get_close_matches(unknown[1], known, n=1, cutoff=0.5)
    hint = f", did you mean {near[0]!r}?" if near else ""
    return f"no option is named {unknown[1]!r}{hint} (known: {', '.join(known)})"
