"""Model families as Flax modules: `OPT`, `Llama`, `T5` and their configurations."""

from specjax.models.llama import Llama, LlamaConfig
from specjax.models.opt import OPT, OPTConfig
from specjax.models.t5 import T5, T5Config

__all__ = ["OPT", "T5", "Llama", "LlamaConfig", "OPTConfig", "T5Config"]
