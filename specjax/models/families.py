"""The table of model families: one line for each."""

from collections.abc import Mapping
from typing import Any

from specjax.models import llama, opt, t5
from specjax.models.family import Family

FAMILIES: dict[str, Family] = {family.name: family for family in (opt.FAMILY, t5.FAMILY, llama.FAMILY)}


def family_of(published: Mapping[str, Any]) -> Family:
    """The family of a published configuration (the contents of config.json).

    Raises:
      ValueError: an unsupported model type.
    """
    kind = published.get("model_type")
    for family in FAMILIES.values():
        if kind in family.model_types:
            return family
    known = ", ".join(kind for family in FAMILIES.values() for kind in family.model_types)
    raise ValueError(f"model_type {kind!r} is not supported: specjax runs {known}")
