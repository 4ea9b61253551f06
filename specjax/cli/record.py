"""A run as one JSON object."""

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from specjax import __version__
from specjax.api import Generation
from specjax.cli.comparing import Comparison
from specjax.cli.session import Work
from specjax.model import Model


def record(
    out: Generation, work: Work, verifier: str, settings: Mapping[str, Any], compared: Comparison | None
) -> dict[str, Any]:
    """Everything about a run as plain values for JSON."""
    described_models = {"target": _model_record(work.target)}
    if work.guide.source is not None:
        described_models["draft"] = _model_record(work.guide.source)
    return finite({
        "texts": out.texts, "tokens": out.tokens, "stop_reasons": out.stop_reasons, "prompts": list(work.prompts),
        "lossless": out.lossless, "verifier": verifier, "drafter": work.guide.name, "stats": out.stats.as_dict(),
        "compare": None if compared is None else compared.as_dict(), "settings": dict(settings),
        "models": described_models, "versions": {"specjax": __version__, "jax": jax.__version__},
    })  # fmt: skip


def to_json(value: Mapping[str, Any]) -> str:
    """Strict JSON: every number is finite."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2)


def tell(content: str) -> None:
    """Prints JSON. Where stdout has no UTF-8, what it lacks is written as JSON's escapes: the values stay the same."""
    try:
        content.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        content = "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in content)
    print(content, flush=True)


def _model_record(model: Model) -> dict[str, Any]:
    return {
        "name": model.name, "family": model.family.__name__.rpartition(".")[2], "parameters": model.size,
        "dtype": model.fmt.dtype, "vocab_size": model.vocab_size,
    }  # fmt: skip


def finite(value: Any) -> Any:
    """The same with nan and infinities as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def settings(options: Any) -> dict[str, Any]:
    """The options of a command as a flat dict."""
    flat: dict[str, Any] = {}
    for name, value in dataclasses.asdict(options).items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat
