"""Options of `specjax generate`, shared with `trace`, and presets below them. The docstrings are the help texts."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from specjax import defaults, registry
from specjax.strategy import Strategy

if TYPE_CHECKING:
    from specjax.config import RunConfig

T = TypeVar("T")
TARGET = "bundled/opt-target"  # the default target
SMALLER = ("bundled/opt-draft", "bundled/opt-tiny")  # its draft models where none is named, as many as are needed
DRAFT = SMALLER[0]
GAMMA = 3  # draft length of this pair: faster than 5 at the default temperature (specjax/bundled/README.md)
REPEATS = 5

arg = tyro.conf.arg
Flag = Annotated[bool, arg(help_behavior_hint="")]
Several = tyro.conf.UseAppendAction[tuple[str, ...]]

DRAFTER_HELP = (
    f"How draft tokens are proposed: {', '.join(registry.DRAFTERS)}. Settings follow a colon: ngram:gamma=4, "
    'small-kv:budget=256,cache=snapkv. "help" prints all drafters with their settings and defaults.'
)
POLICY_HELP = (
    f'Draft length of the drafter "model", chosen per row while decoding: {", ".join(registry.POLICIES)}. '
    '"help" prints all policies with their settings.'
)
DRAFT_HELP = (
    "A smaller model with the same tokenizer; for the drafters bridge and reencode, with another one. Give it twice "
    "for a cascade: the middle model, then the smaller one."
)
VERIFIER_HELP = (
    "How draft tokens are accepted. For chains: token, block. For trees: multiround, multiround-without, traversal, "
    "traversal-without, kseq, deterministic. As a baseline: non-iterative. These are lossless: the text follows the "
    "target distribution exactly. lossy-typical, lossy-lenient, lossy-lenient-greedy and lossy-threshold do not."
)


@dataclasses.dataclass(frozen=True)
class Models:
    """Each model is a Hugging Face id, a folder, a GGUF file, or bundled/NAME."""

    target: Annotated[str, arg(metavar="MODEL")] = TARGET
    """The model that the output comes from."""
    draft: Annotated[
        Several, arg(metavar="MODEL", help=DRAFT_HELP, help_behavior_hint=f"(default: {DRAFT} for {TARGET})")
    ] = ()
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the weights. In float32, greedy text equals that of plain decoding token for token."""
    mesh: Annotated[str | None, arg(metavar="DATAxMODEL", help_behavior_hint="(default: one device)")] = None
    """Shard over several devices: 2x4 splits the batch in 2 and the weights in 4. The product must be the number of
    devices."""


@dataclasses.dataclass(frozen=True)
class Drafting:
    """How draft tokens are proposed and verified. With a lossless verifier the output distribution is the target's."""

    drafter: Annotated[
        str | None,
        arg(
            metavar="NAME[:KEY=VALUE,...]", help=DRAFTER_HELP,
            help_behavior_hint="(default: model with one draft, cascade with two, else ngram)",
        ),
    ] = None  # fmt: skip
    gamma: Annotated[
        int | None, arg(metavar="N", help_behavior_hint="(default: that of the drafter; 3 for the bundled pair)")
    ] = None
    """Draft tokens per round; the same as the setting gamma=N of the drafter."""
    policy: Annotated[
        str | None, arg(metavar="NAME[:KEY=VALUE,...]", help=POLICY_HELP, help_behavior_hint="(default: gamma)")
    ] = None
    verifier: Annotated[
        str | None,
        arg(metavar="NAME", help=VERIFIER_HELP, help_behavior_hint="(default: the one that suits the drafter)"),
    ] = None
    lossless: Flag = False
    """Fail if the verifier is lossy."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are sampled."""

    temperature: Annotated[float, arg(metavar="T")] = defaults.TEMPERATURE
    """0: always the most probable token (greedy). 1: the model's own distribution."""
    top_k: Annotated[int, arg(metavar="K", help_behavior_hint="(default: off)")] = 0
    """Sample from the K most probable tokens."""
    top_p: Annotated[float, arg(metavar="P", help_behavior_hint="(default: off)")] = 1.0
    """Sample from the smallest set of tokens with total probability P."""
    min_p: Annotated[float, arg(metavar="P", help_behavior_hint="(default: off)")] = 0.0
    """Drop tokens less probable than P times the most probable one."""
    repetition_penalty: Annotated[float, arg(metavar="X", help_behavior_hint="(default: 1, off)")] = 1.0
    """Above 1: tokens that occurred before become less likely."""
    logit_bias: Annotated[Several, arg(metavar="TOKEN=VALUE")] = ()
    """Add VALUE to the logit of the token id TOKEN; -inf bans the token. May be repeated."""
    seed: Annotated[int, arg(metavar="N")] = defaults.SEED
    """Seed of the random numbers: the same seed gives the same text."""


@dataclasses.dataclass(frozen=True)
class Stopping:
    """When a text ends."""

    max_new_tokens: Annotated[int, arg(metavar="N")] = defaults.MAX_NEW_TOKENS
    """At most this many new tokens for each prompt."""
    stop: Annotated[Several, arg(metavar="STRING")] = ()
    """Stop before this string. May be repeated."""
    stop_token: Annotated[tyro.conf.UseAppendAction[tuple[int, ...]], arg(metavar="ID")] = ()
    """Stop at this token id. May be repeated."""
    ignore_eos: Flag = False
    """Continue past the model's end-of-text token."""


@dataclasses.dataclass(frozen=True)
class Printing:
    """What is printed. Text and tables go to stdout, progress and warnings to stderr."""

    show_draft: Flag = False
    """Mark tokens: accepted draft tokens green, rejected ones red, the target's own blue; without color [-red-] and
    {+blue+}."""
    compare: Flag = False
    """Also decode without a draft: print the speed-up, and whether greedy texts are equal."""
    repeats: Annotated[int, arg(metavar="N")] = REPEATS
    """Timed runs of each kind for --compare; medians are reported."""
    json: Flag = False
    """Print one JSON object instead: texts, tokens, stop reasons, statistics, models, versions."""
    output: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Also write that JSON object to a file, atomically."""
    quiet: Flag = False
    """Print only the new text."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Continue text with speculative decoding: several tokens per target forward pass, the same output distribution.

    specjax generate "Once upon a time"

    specjax generate "Once upon a time" --show-draft --compare

    specjax generate --target facebook/opt-1.3b --draft facebook/opt-125m --temperature 0 "Once upon a time"

    specjax generate --drafter tree:shape=3x2 "Once upon a time"

    specjax generate --prompts questions.jsonl --drafter ngram --json > answers.json
    """

    prompt: Annotated[tyro.conf.Positional[tuple[str, ...]], arg(metavar="PROMPT ...", help_behavior_hint="")] = ()
    """Text to continue; several prompts form a batch."""
    prompts: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """File of prompts: text with one prompt per line, or .jsonl with a "prompt" in each line; - reads stdin."""
    config: Annotated[Path | None, arg(metavar="FILE.py", help_behavior_hint="(default: none)")] = None
    """A preset, as in configs/: default values for options that are not given. It is Python code and is executed."""
    models: Models = Models()
    drafting: Drafting = Drafting()
    sampling: Sampling = Sampling()
    stopping: Stopping = Stopping()
    printing: Printing = Printing()


# --- presets ---------------------------------------------------------------------------------------------------------

LISTS = ("stop", "draft")  # repeatable options: parsed values would be appended to those of the preset


def preset_defaults(config: "RunConfig") -> Options:
    """The preset as default values. Lists and everything about the drafter are left to `merge_preset`."""
    values = {name: value for name, value in dataclasses.asdict(config).items() if name not in LISTS}
    plain = Options()
    return dataclasses.replace(
        plain,
        models=_take(plain.models, values),
        sampling=_take(plain.sampling, values),
        stopping=_take(plain.stopping, values),
    )


def merge_preset(options: Options, config: "RunConfig") -> Options:
    """Options parsed over `preset_defaults(config)`, completed with the lists, drafter and draft models of the preset.

    A list on the command line replaces that of the preset. A drafter or draft model on the command line replaces draft,
    drafter, gamma and verifier of the preset where they do not fit.
    """
    models, stopping = options.models, options.stopping
    if not stopping.stop:
        stopping = dataclasses.replace(stopping, stop=tuple(config.stop))
    chosen = _merge_drafting(options.drafting, models.draft, config)
    if not models.draft:
        needed = len(config.drafts) if chosen.drafter is None else Strategy.parse(chosen.drafter).needs
        models = dataclasses.replace(models, draft=config.drafts[:needed] if len(config.drafts) >= needed else ())
    return dataclasses.replace(options, models=models, drafting=chosen, stopping=stopping)


def _merge_drafting(given: Drafting, drafts: tuple[str, ...], config: "RunConfig") -> Drafting:
    own = Strategy.parse(config.drafter)
    given = dataclasses.replace(given, lossless=given.lossless or config.lossless)
    if given.drafter is not None and Strategy.parse(given.drafter) != own:
        return given
    if drafts and len(drafts) != own.needs:
        gamma = config.gamma if given.gamma is None else given.gamma
        return dataclasses.replace(given, drafter=None, gamma=None if given.policy else gamma)
    chosen = dataclasses.replace(given, drafter=config.drafter, verifier=given.verifier or config.verifier)
    if given.policy is not None:  # it replaces the preset's draft length
        return dataclasses.replace(chosen, drafter=own.replace_settings(gamma=None, policy=None).text)
    if given.gamma is None:
        return dataclasses.replace(chosen, gamma=config.gamma)
    if own.get("gamma") is not None and given.drafter is None:
        return dataclasses.replace(chosen, drafter=own.replace_settings(gamma=given.gamma).text, gamma=None)
    return chosen


def _take(group: T, values: Mapping[str, Any]) -> T:
    """The group of options with the values that belong to it."""
    names = {field.name for field in dataclasses.fields(group)}  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(group, **{k: v for k, v in values.items() if k in names})  # pyright: ignore
