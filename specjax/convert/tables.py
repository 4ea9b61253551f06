"""Which name table belongs to a configuration."""

from collections.abc import Mapping
from typing import Any

from specjax.convert.llama import LLAMA
from specjax.convert.opt import OPT
from specjax.convert.t5 import T5, T5_GATED
from specjax.convert.table import NameTable


def table_for(config: Mapping[str, Any]) -> NameTable:
    """The name table of a Hugging Face configuration (the contents of config.json).

    Raises:
      ValueError: a model type that specjax does not run.
    """
    kind = config.get("model_type")
    gated = str(config.get("feed_forward_proj", "relu")).startswith("gated")
    known = {"opt": OPT, "llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "t5": T5_GATED if gated else T5}
    if kind not in known:
        raise ValueError(f"model_type {kind!r} is not supported: specjax runs {', '.join(known)}")
    return known[kind]
