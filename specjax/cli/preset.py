"""`--config FILE.py`: a preset below the command line, which has the last word."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from specjax.cli.options import Options
from specjax.config import NEEDS_DRAFT, RunConfig
from specjax.config import read as read

T = TypeVar("T")
LISTS = ("stop",)  # repeatable options, which a parser would append to those of the preset


def as_options(config: RunConfig) -> Options:
    """The preset as defaults of the command line. Its lists are left to `settle`."""
    values = {name: value for name, value in dataclasses.asdict(config).items() if name not in LISTS}
    plain = Options()
    return dataclasses.replace(
        plain,
        models=_take(plain.models, values),
        drafting=_take(plain.drafting, values),
        sampling=_take(plain.sampling, values),
        stopping=_take(plain.stopping, values),
    )


def settle(options: Options, config: RunConfig) -> Options:
    """The options as parsed over `as_options(config)`, with what the preset says of things that hang together.

    A list on the command line replaces that of the preset. A drafter or a draft model on the command line puts away the
    preset's own draft, drafter and gamma where they do not go with it.
    """
    models, drafting, stopping = options.models, options.drafting, options.stopping
    if not stopping.stop:
        stopping = dataclasses.replace(stopping, stop=config.stop)
    if drafting.drafter != config.drafter:
        if drafting.drafter != NEEDS_DRAFT and models.draft == config.draft:
            models = dataclasses.replace(models, draft=None)
        if drafting.gamma == config.gamma:
            drafting = dataclasses.replace(drafting, gamma=None)
    elif models.draft != config.draft:
        drafting = dataclasses.replace(drafting, drafter=NEEDS_DRAFT)
    return dataclasses.replace(options, models=models, drafting=drafting, stopping=stopping)


def _take(group: T, values: Mapping[str, Any]) -> T:
    """The group of options with those of the values that are its own."""
    names = {field.name for field in dataclasses.fields(group)}  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(group, **{k: v for k, v in values.items() if k in names})  # pyright: ignore
