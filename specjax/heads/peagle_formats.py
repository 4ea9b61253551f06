"""The file format of P-EAGLE heads: that of EAGLE-3 in the package `speculators`, with a mask token and its feature."""

import dataclasses
from typing import Any

from specjax.heads import eagle_formats as eagle_files
from specjax.heads.head import Head, HeadFormat, Stored
from specjax.heads.peagle import PEagleConfig
from specjax.models.published import Published

NAMES = dataclasses.replace(eagle_files.NAMES_3, entries=(*eagle_files.NAMES_3.entries, ("mask_hidden", "mask_hidden")))


def read_speculators_peagle(stored: Stored) -> PEagleConfig:
    """P-EAGLE, as `speculators` writes it."""
    shape = eagle_files.read_speculators_eagle3(stored)
    mask = eagle_files.mask_token(Published(stored.config, "the configuration of the head"), stored)
    return PEagleConfig(**vars(shape), mask_token=mask, tokens=eagle_files.proposed_tokens(stored.config, 8))


def publish_speculators_peagle(head: Head) -> dict[str, Any]:
    """config.json of P-EAGLE for `speculators` and vLLM."""
    config = head.config
    entries = eagle_files.publish_speculators_eagle3(head)
    return entries | eagle_files.envelope(head, "peagle", "PEagleDraftModel", config.tokens) | {
        "mask_token_id": config.mask_token, "embed_requires_grad": True,
    }  # fmt: skip


PEAGLE_FORMATS = (
    HeadFormat(
        "speculators", eagle_files.written_by_speculators("peagle"), read_speculators_peagle, publish_speculators_peagle
    ),
)
