"""The file format of SPIRe drafts, of which none is published: tensors are named as in their target's files."""

import dataclasses
from typing import Any

from specjax.heads.eagle_formats import check_taps
from specjax.heads.head import Head, HeadFormat, Stored, layers_of
from specjax.heads.spire import LAYERS, SpireConfig
from specjax.model import Model
from specjax.models import llama, opt
from specjax.models.family import NameTable
from specjax.models.published import Published

TABLES = {llama.LlamaConfig: llama.NAMES, opt.OPTConfig: opt.NAMES}
MIX = "memory.mix"


def names(config: SpireConfig) -> NameTable:
    """Names of the tensors: those of the target's layers and last norm, and the weights of the mixes."""
    table = TABLES[type(config.layer)]
    own = tuple((name, path) for name, path in table.entries if path.startswith(("layers.", "final_norm.")))
    return NameTable(((MIX, "mix"), *own), prefixes=table.prefixes, bare=(MIX,))


def shape(target: Model, taps: tuple[int, ...], window: int, sinks: int) -> SpireConfig:
    """The shape of a draft whose layers copy those that the taps enter.

    Raises:
      ValueError: a target of another family, one with norms behind its layers, or layers that it lacks.
    """
    if type(target.config) not in LAYERS or not getattr(target.config, "pre_norm", True):
        raise ValueError(f"spire drafts for Llama and OPT targets with norms before their layers, not {target.name}")
    if check_taps(taps, target)[-1] == layers_of(target):
        raise ValueError(f"the taps {list(taps)} of spire are layers to copy: {target.name} has {layers_of(target)}")
    layer = dataclasses.replace(target.config, layers=len(taps))
    return SpireConfig(layer, (len(taps) + 1) * layer.width, taps, target.vocab_size, window=window, sinks=sinks)


def read(stored: Stored) -> SpireConfig:
    """The configuration."""
    given = Published(stored.config, "the configuration of the head")
    taps = given.entries.get("copied_layers")
    if not isinstance(taps, list) or not all(isinstance(tap, int) for tap in taps):
        raise ValueError(f"copied_layers must be a list of whole numbers, got {taps!r}")
    return shape(stored.target, tuple(taps), given.whole("sliding_window"), given.whole("attention_sinks", least=0))


def publish(head: Head) -> dict[str, Any]:
    """Contents of config.json."""
    config = head.config
    return {
        "architectures": ["SpireDraft"], "model_type": "spire", "base_model_name_or_path": head.target.name,
        "copied_layers": list(config.taps), "sliding_window": config.window, "attention_sinks": config.sinks,
    }  # fmt: skip


SPIRE_FORMATS = (
    HeadFormat("original", lambda config, names: config.get("model_type") == "spire", read, publish, table=names),
)
