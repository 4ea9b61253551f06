"""Speculative decoding in JAX: several times faster, without changing a single probability.

What is named here is imported when it is first used, so that `import specjax` and `specjax --help` do not wait for jax.
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
    from specjax.loading import load as load
    from specjax.model import Model as Model
    from specjax.programs import compiled_programs as compiled_programs
    from specjax.programs import limit_programs as limit_programs
    from specjax.stopping import Stop as Stop

__version__ = "0.1.0"
__all__ = [
    "Advice", "Event", "Generation", "Model", "Stop", "Stream", "__version__", "advise", "compiled_programs",
    "drafters", "generate", "limit_programs", "load", "policies", "stream", "trees", "verify",
]  # fmt: skip

_HOMES = {
    "Advice": "advisor", "advise": "advisor",
    "Event": "api", "Generation": "api", "Stream": "api", "generate": "api", "stream": "api",
    "load": "loading", "Model": "model", "Stop": "stopping",
    "compiled_programs": "programs", "limit_programs": "programs",
}  # fmt: skip


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
