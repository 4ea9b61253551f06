"""The file format of Falcon heads: that of the code that its authors published, EAGLE-1's with an LSTM."""

import dataclasses
from typing import Any

from specjax.heads import eagle_formats as eagle_files
from specjax.heads.falcon import FalconConfig
from specjax.heads.head import Head, HeadFormat, Stored
from specjax.models.published import Published

NAMES = dataclasses.replace(
    eagle_files.NAMES,
    entries=(
        *eagle_files.NAMES.entries,
        *(
            (f"lstm.{part}_{side}_l{layer}", f"fc.cells.{layer}.{side}.{path}")
            for layer in range(2) for side in ("ih", "hh") for part, path in (("weight", "kernel"), ("bias", "bias"))
        ),
    ),
)  # fmt: skip


def read(stored: Stored) -> FalconConfig:
    """The configuration: that of EAGLE-1, and the number of tokens per pass."""
    given = Published(stored.config, "the configuration of the head")
    return FalconConfig(**vars(eagle_files.read_eagle(stored)), block=given.whole("k_mask", 2))


def publish(head: Head) -> dict[str, Any]:
    """config.json in the form of the authors."""
    entries = eagle_files.publish_original(head)
    del entries["bias"]
    return entries | {"k_mask": head.config.block, "qkv_bias": head.config.layer.qkv_bias}


FALCON_FORMATS = (HeadFormat("original", lambda config, names: "lstm.weight_ih_l0" in names, read, publish),)
