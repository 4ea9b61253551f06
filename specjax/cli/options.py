"""Options of `specjax generate`, shared with `specjax trace`, and presets below them. Docstrings are the help texts."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from specjax import config as presets
from specjax import registry
from specjax.cli import process
from specjax.cli.arguments import parse
from specjax.cli.prompts import Prompt, read_prompts
from specjax.config import Drafting, Flag, Models, Processes, RunConfig, Sampling, Stopping, arg
from specjax.strategy import Strategy

R = TypeVar("R", bound="Request")
C = TypeVar("C", bound="Configured")
HELP = "help"  # instead of the name of a drafter or a policy
LISTS = ("draft", "stop", "stop_token", "logit_bias")  # tyro appends to their default, so a preset's is filled in later


@dataclasses.dataclass(frozen=True)
class Configured:
    """With which models and options is decoded."""

    chat: Flag = False
    """The prompts are messages to a chat model, by its own template."""
    config: Annotated[Path | None, arg(metavar="FILE.py", help_behavior_hint="(default: none)")] = None
    """A preset, as in configs/: default values for options that are not given. It is Python code and is executed."""
    models: Models = dataclasses.field(default_factory=Models)
    drafting: Drafting = dataclasses.field(default_factory=Drafting)
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    stopping: Stopping = dataclasses.field(default_factory=Stopping)


@dataclasses.dataclass(frozen=True)
class Request(Configured):
    """What is decoded, with which models and options."""

    prompt: Annotated[tyro.conf.Positional[tuple[str, ...]], arg(metavar="PROMPT ...", help_behavior_hint="")] = ()
    """Text to continue; several prompts form a batch."""
    prompts: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """File of prompts: text with one prompt per line, or .jsonl with a "prompt" in each line, text or a list of
    token ids; - reads stdin."""


@dataclasses.dataclass(frozen=True)
class Printing:
    """What is printed. Text and tables go to stdout, progress and warnings to stderr."""

    show_draft: Flag = False
    """Mark tokens: accepted draft tokens green, rejected ones red, the target's own blue; without color [-red-] and
    {+blue+}."""
    compare: Flag = False
    """Also decode without a draft: print the speed-up, and whether greedy texts are equal."""
    repeats: Annotated[int, arg(metavar="N")] = 5
    """Timed runs of each kind for --compare; medians are reported."""
    json: Flag = False
    """Print one JSON object instead: texts, tokens, stop reasons, statistics, models, versions."""
    output: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Also write that JSON object to a file, atomically."""
    quiet: Flag = False
    """Print only the new text."""


@dataclasses.dataclass(frozen=True)
class Options(Request):
    """Continue text with speculative decoding: several tokens per target forward pass, the same output distribution.

    specjax generate "Once upon a time"

    specjax generate "Once upon a time" --show-draft --compare

    specjax generate --target facebook/opt-1.3b --draft facebook/opt-125m --temperature 0 "Once upon a time"

    specjax generate --drafter tree:shape=3x2 "Once upon a time"

    specjax generate --prompts questions.jsonl --drafter ngram --json > answers.json
    """

    printing: Printing = Printing()
    hosts: Processes = dataclasses.field(default_factory=Processes)


def read_request(kind: type[R], args: Sequence[str], prog: str) -> tuple[R, RunConfig, list[Prompt]] | None:
    """Options, configuration and prompts of a command line; None after printing what `help` names.

    Raises:
      ValueError, OSError: bad input.
    """
    found = read_options(kind, args, prog)
    if found is None:
        return None
    options, preset = found
    prompts = read_prompts(options.prompt, options.prompts)
    if options.chat and not all(isinstance(prompt, str) for prompt in prompts):
        raise ValueError("--chat takes messages as text, and --prompts has token ids: leave one of them out")
    process.import_library()
    return options, merged(options, preset), prompts


def read_options(kind: type[C], args: Sequence[str], prog: str) -> tuple[C, RunConfig | None] | None:
    """Options of a command line over those of its preset, and the preset; None after printing what `help` names.

    Raises:
      ValueError, OSError: bad input.
    """
    args = joined(args, "--temperature")
    options = parse(kind, args, prog=prog)
    if HELP in (options.drafting.drafter, options.drafting.policy):
        process.import_library()
        print(registry.help_text("drafter" if options.drafting.drafter == HELP else "policy"))
        return None
    if options.config is None:
        return options, None
    process.import_library()
    preset = presets.read(options.config)
    required = [field.name for field in dataclasses.fields(kind) if _is_required(field)]
    base = kind(**{name: getattr(options, name) for name in required})
    return parse(kind, args, prog=prog, default=with_defaults(base, preset)), preset


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def joined(args: Sequence[str], option: str) -> list[str]:
    """`option 0 0.8` as `option 0,0.8`, so that the words after the numbers are not read as numbers.

    >>> joined(["--temperature", "0", "0.8", "Once"], "--temperature")
    ['--temperature', '0,0.8', 'Once']
    """
    found: list[str] = []
    more = False  # numbers of the option may follow
    for place, word in enumerate(args):
        if word == "--":
            return found + list(args[place:])
        number = is_number(word)
        if more and number and found[-1] != option:
            found[-1] += "," + word
        else:
            found.append(word)
        more = word.partition("=")[0] == option or (more and number)
    return found


def is_number(word: str) -> bool:
    """Whether the word can be read as a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def with_defaults(options: C, preset: RunConfig) -> C:
    """The options with the values of a preset, apart from lists and the drafter, which `merged` fills in."""
    groups = {}
    for name in ("models", "sampling", "stopping"):
        group = getattr(options, name)
        own = [field.name for field in dataclasses.fields(group) if field.name not in LISTS]
        groups[name] = dataclasses.replace(group, **{field: getattr(preset, field) for field in own})
    return dataclasses.replace(options, **groups)


def merged(options: Configured, preset: RunConfig | None = None) -> RunConfig:
    """The configuration that options parsed over `with_defaults(..., preset)` describe.

    A list on the command line replaces that of the preset. A drafter or draft model on the command line replaces draft,
    drafter, gamma, policy and verifier of the preset where they do not fit.
    """
    groups = (options.models, options.drafting, options.sampling, options.stopping)
    given = {name: value for group in groups for name, value in vars(group).items()}
    if preset is None:
        return RunConfig(**given)
    for name in LISTS:
        if name != "draft" and not given[name]:
            given[name] = getattr(preset, name)
    given["lossless"] = given["lossless"] or preset.lossless
    given |= _drafting(options.drafting, options.models.draft, preset)
    if not given["draft"]:
        needed = len(preset.draft) if given["drafter"] is None else Strategy.parse(given["drafter"]).needs
        given["draft"] = preset.draft[:needed] if len(preset.draft) >= needed else ()
    return RunConfig(**given)


def _drafting(given: Drafting, drafts: tuple[str, ...], preset: RunConfig) -> dict[str, Any]:
    """Drafter, gamma, policy and verifier."""
    own = Strategy.parse(preset.drafter or preset.strategy.name)
    if given.drafter is not None and Strategy.parse(given.drafter) != own:
        return {}
    length = {"gamma": given.gamma, "policy": given.policy}
    if not any(length.values()):
        length = {"gamma": preset.gamma, "policy": preset.policy}
    if drafts and len(drafts) != own.needs:
        return length | {"drafter": None}
    if given.drafter is None and (given.policy or given.gamma):  # they replace those of the preset's drafter
        own = own.replace_settings(**{key: None for key in ("gamma", "policy") if own.get(key) is not None})
    return length | {"drafter": own.text, "verifier": given.verifier or preset.verifier}
