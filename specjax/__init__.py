"""Speculative decoding in JAX: fewer target forward passes, and exactly the distribution of the target model.

Names are imported when they are first used, so that `import specjax` and `specjax --help` do not import JAX.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specjax import drafters as drafters
    from specjax import policies as policies
    from specjax import trees as trees
    from specjax import verify as verify
    from specjax.advisor import Advice as Advice
    from specjax.advisor import advise as advise
    from specjax.api import Event as Event
    from specjax.api import Generation as Generation
    from specjax.api import Stream as Stream
    from specjax.api import generate as generate
    from specjax.api import stream as stream
    from specjax.base import Drafter as Drafter
    from specjax.base import LanguageModel as LanguageModel
    from specjax.base import Prefilled as Prefilled
    from specjax.base import VerifyFn as VerifyFn
    from specjax.calibration import calibrate as calibrate
    from specjax.compilation_cache import enable_compilation_cache as enable_compilation_cache
    from specjax.decoding import DecodeParams as DecodeParams
    from specjax.decoding import GenerationState as GenerationState
    from specjax.decoding import make_init as make_init
    from specjax.decoding import make_step as make_step
    from specjax.drafters import LoadedDrafter as LoadedDrafter
    from specjax.drafters.head import draft_logits as draft_logits
    from specjax.engine import Served as Served
    from specjax.engine import Serving as Serving
    from specjax.engine import serve_batch as serve_batch
    from specjax.heads import Head as Head
    from specjax.heads import load_head as load_head
    from specjax.loading import load as load
    from specjax.memory_use import Memory as Memory
    from specjax.memory_use import memory as memory
    from specjax.metrics import Stats as Stats
    from specjax.model import Model as Model
    from specjax.planning import Plan as Plan
    from specjax.planning import plan as plan
    from specjax.programs import compiled_programs as compiled_programs
    from specjax.programs import limit_programs as limit_programs
    from specjax.prompts import Prefix as Prefix
    from specjax.prompts import prefix as prefix
    from specjax.stopping import Stop as Stop
    from specjax.strategy import Strategy as Strategy
    from specjax.trees import Tree as Tree
    from specjax.types import Commit as Commit
    from specjax.types import Draft as Draft
    from specjax.types import Info as Info
    from specjax.types import Siblings as Siblings
    from specjax.types import Verdict as Verdict
    from specjax.verify import Verifier as Verifier

__version__ = "0.1.0"
__all__ = [
    "Advice", "Commit", "DecodeParams", "Draft", "Drafter", "Event", "Generation", "GenerationState", "Head", "Info",
    "LanguageModel", "LoadedDrafter", "Memory", "Model", "Plan", "Prefilled", "Prefix", "Served", "Serving", "Siblings",
    "Stats", "Stop", "Strategy", "Stream", "Tree", "Verdict", "Verifier", "VerifyFn", "__version__", "advise",
    "calibrate", "compiled_programs", "draft_logits", "drafters", "enable_compilation_cache", "generate",
    "limit_programs", "load", "load_head", "make_init", "make_step", "memory", "plan", "policies", "prefix",
    "serve_batch", "stream", "trees", "verify",
]  # fmt: skip

_NAMES = {
    "advisor": ("Advice", "advise"),
    "api": ("Event", "Generation", "Stream", "generate", "stream"),
    "base": ("Drafter", "LanguageModel", "Prefilled", "VerifyFn"),
    "calibration": ("calibrate",),
    "compilation_cache": ("enable_compilation_cache",),
    "decoding": ("DecodeParams", "GenerationState", "make_init", "make_step"),
    "drafters": ("LoadedDrafter",),
    "drafters.head": ("draft_logits",),
    "engine": ("Served", "Serving", "serve_batch"),
    "heads": ("Head", "load_head"),
    "loading": ("load",),
    "metrics": ("Stats",),
    "memory_use": ("Memory", "memory"),
    "model": ("Model",),
    "planning": ("Plan", "plan"),
    "programs": ("compiled_programs", "limit_programs"),
    "prompts": ("Prefix", "prefix"),
    "strategy": ("Strategy",),
    "stopping": ("Stop",),
    "trees": ("Tree",),
    "types": ("Commit", "Draft", "Info", "Siblings", "Verdict"),
    "verify": ("Verifier",),
}  # fmt: skip
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str):
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
