"""Quantized self-speculation: the target with int8 weights drafts for the target with its own.

Over the target's cache (`borrowed.py`), so that only weights are held twice, the second time in a quarter of the bytes
of float32. int8 with a scale for each output channel; QuantSpec (Tiwari et al. 2025, arXiv 2502.10424) goes to 4 bits.
"""

from typing import Any

from specjax.base import LanguageModel
from specjax.models import quantize
from specjax.types import Params


def int8(target: Any) -> tuple[LanguageModel, Params]:
    """The target's functions over int8 weights and its own caches, and those weights, made once on the device.

    Raises:
      ValueError: the target is quantized already.
    """
    if target.fmt.dtype == quantize.INT8:
        raise ValueError(f"{target.name} has int8 weights already: its quantized draft would be the target itself")
    weights = quantize.quantized(target.params, fmt=target.fmt)
    return target.variant(fmt=quantize.format_of(target.fmt)), weights
