"""`--config FILE.py`: a preset below the command line, which has the last word."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from specjax.cli.options import Drafting, Options
from specjax.config import RunConfig
from specjax.config import read as read
from specjax.naming import drafting

T = TypeVar("T")
LISTS = ("stop", "draft")  # repeatable options, which a parser would append to those of the preset


def as_options(config: RunConfig) -> Options:
    """The preset as defaults of the command line. Its lists, and what it says of the drafter, are left to `settle`."""
    values = {name: value for name, value in dataclasses.asdict(config).items() if name not in LISTS}
    plain = Options()
    return dataclasses.replace(
        plain,
        models=_take(plain.models, values),
        sampling=_take(plain.sampling, values),
        stopping=_take(plain.stopping, values),
    )


def settle(options: Options, config: RunConfig) -> Options:
    """The options as parsed over `as_options(config)`, with what the preset says of things that hang together.

    A list on the command line replaces that of the preset. A drafter or a draft model on the command line puts away the
    preset's own draft, drafter, gamma and verifier where they do not go with it.
    """
    models, stopping = options.models, options.stopping
    if not stopping.stop:
        stopping = dataclasses.replace(stopping, stop=tuple(config.stop))
    chosen = _settled_drafting(options.drafting, models.draft, config)
    if not models.draft:
        needed = len(config.drafts) if chosen.drafter is None else drafting.needs(drafting.parse(chosen.drafter))
        models = dataclasses.replace(models, draft=config.drafts[:needed] if len(config.drafts) >= needed else ())
    return dataclasses.replace(options, models=models, drafting=chosen, stopping=stopping)


def _settled_drafting(given: Drafting, drafts: tuple[str, ...], config: RunConfig) -> Drafting:
    """What is said of the drafter: by the command line, else by the preset where it goes with that."""
    own = drafting.parse(config.drafter)
    given = dataclasses.replace(given, lossless=given.lossless or config.lossless)
    if given.drafter is not None and drafting.parse(given.drafter) != own:
        return given
    if drafts and len(drafts) != drafting.needs(own):
        gamma = config.gamma if given.gamma is None else given.gamma
        return dataclasses.replace(given, drafter=None, gamma=None if given.policy else gamma)
    chosen = dataclasses.replace(given, drafter=config.drafter, verifier=given.verifier or config.verifier)
    if given.policy is not None:  # it says what the preset's gamma would
        own = own._replace(settings={key: own.settings[key] for key in own.settings if key not in ("gamma", "policy")})
        return dataclasses.replace(chosen, drafter=drafting.label(own))
    if given.gamma is None:
        return dataclasses.replace(chosen, gamma=config.gamma)
    if "gamma" in own.settings and given.drafter is None:
        return dataclasses.replace(chosen, drafter=drafting.label(drafting.with_gamma(own, given.gamma)), gamma=None)
    return chosen


def _take(group: T, values: Mapping[str, Any]) -> T:
    """The group of options with those of the values that are its own."""
    names = {field.name for field in dataclasses.fields(group)}  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(group, **{k: v for k, v in values.items() if k in names})  # pyright: ignore
