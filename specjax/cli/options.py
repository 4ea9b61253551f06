"""What `specjax generate` can be told. The docstrings are its help."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from specjax import defaults
from specjax.naming import drafting, policing

TARGET = "bundled/opt-target"  # what runs when no model is named
SMALLER = ("bundled/opt-draft", "bundled/opt-tiny")  # its draft models where none is named, as many as are needed
DRAFT = SMALLER[0]
GAMMA = 3  # drafts a round of this pair: faster than 5 at the default temperature (specjax/bundled/README.md)
REPEATS = 5

arg = tyro.conf.arg
Flag = Annotated[bool, arg(help_behavior_hint="")]
Several = tyro.conf.UseAppendAction[tuple[str, ...]]


def _overview(lines: dict[str, str], last: str) -> str:
    """One line a name, as tyro prints it."""
    return "\n".join([*(f"{name}: {about}." for name, about in lines.items()), last])


DRAFTER_HELP = _overview(
    {name: kind.about for name, kind in drafting.DRAFTERS.items()},
    '"help" prints all of them with their settings, such as small-kv:budget=256,cache=snapkv.',
)
POLICY_HELP = _overview(
    {name: kind.about for name, kind in policing.POLICIES.items()},
    'How long the drafter "model" drafts, by row; "help" prints all with their settings.',
)


DRAFT_HELP = (
    "A smaller model with the same tokenizer; for bridge and reencode, with another. Twice for a cascade: the middle "
    "model, then the smaller one."
)
VERIFIER_HELP = (
    "How draft tokens are accepted. Of chains: token, block. Of trees: multiround, multiround-without, traversal, "
    "traversal-without, kseq, deterministic. A baseline: non-iterative. These keep the text's law; lossy-typical, "
    "lossy-lenient, lossy-lenient-greedy, lossy-threshold do not."
)


@dataclasses.dataclass(frozen=True)
class Models:
    """A model is a Hugging Face id, a folder, a GGUF file, or bundled/NAME."""

    target: Annotated[str, arg(metavar="MODEL")] = TARGET
    """The model whose text you want."""
    draft: Annotated[
        Several, arg(metavar="MODEL", help=DRAFT_HELP, help_behavior_hint=f"(default: {DRAFT} for {TARGET})")
    ] = ()
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the weights. Greedy text is token for token that of plain decoding in float32."""
    mesh: Annotated[str | None, arg(metavar="DATAxMODEL", help_behavior_hint="(default: one device)")] = None
    """Devices to spread over, such as 2x4: rows of the batch in 2 parts, weights in 4. The product is all devices."""


@dataclasses.dataclass(frozen=True)
class Drafting:
    """How tokens are guessed before the target confirms them. A lossless verifier keeps the text's law."""

    drafter: Annotated[
        str | None,
        arg(
            metavar="NAME[:KEY=VALUE,...]", help=DRAFTER_HELP,
            help_behavior_hint="(default: model with a draft, cascade with two, else ngram)",
        ),
    ] = None  # fmt: skip
    gamma: Annotated[
        int | None, arg(metavar="N", help_behavior_hint="(default: the drafter's own, for the bundled pair 3)")
    ] = None
    """Draft tokens a round: short for gamma=N of the drafter."""
    policy: Annotated[
        str | None, arg(metavar="NAME[:KEY=VALUE,...]", help=POLICY_HELP, help_behavior_hint="(default: gamma)")
    ] = None
    verifier: Annotated[
        str | None,
        arg(metavar="NAME", help=VERIFIER_HELP, help_behavior_hint="(default: the one that suits the drafter)"),
    ] = None
    lossless: Flag = False
    """Refuse a lossy verifier."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    temperature: Annotated[float, arg(metavar="T")] = defaults.TEMPERATURE
    """0: always the most probable token (greedy). 1: the model's own law. The same default as in Python."""
    top_k: Annotated[int, arg(metavar="K", help_behavior_hint="(default: off)")] = 0
    """Draw from the K most probable tokens."""
    top_p: Annotated[float, arg(metavar="P", help_behavior_hint="(default: off)")] = 1.0
    """Draw from the fewest tokens that hold probability P together."""
    min_p: Annotated[float, arg(metavar="P", help_behavior_hint="(default: off)")] = 0.0
    """Drop tokens less probable than P times the most probable one."""
    repetition_penalty: Annotated[float, arg(metavar="X", help_behavior_hint="(default: 1, off)")] = 1.0
    """Above 1: tokens already there become less likely."""
    logit_bias: Annotated[Several, arg(metavar="TOKEN=VALUE")] = ()
    """Add VALUE to a token id's logit; -inf bans it."""
    seed: Annotated[int, arg(metavar="N")] = defaults.SEED
    """Of the random draws: the same seed gives the same text."""


@dataclasses.dataclass(frozen=True)
class Stopping:
    """When a text ends."""

    max_new_tokens: Annotated[int, arg(metavar="N")] = defaults.MAX_NEW_TOKENS
    """At most this many new tokens for each prompt."""
    stop: Annotated[Several, arg(metavar="STRING")] = ()
    """End before this string."""
    stop_token: Annotated[tyro.conf.UseAppendAction[tuple[int, ...]], arg(metavar="ID")] = ()
    """End at this token id."""
    ignore_eos: Flag = False
    """Go on past the model's own end of text."""


@dataclasses.dataclass(frozen=True)
class Printing:
    """What is printed, and where it goes. Text and tables go to stdout, progress and warnings to stderr."""

    show_draft: Flag = False
    """Show every guess: accepted tokens green, rejected red, the target's own blue; without color [-red-] {+blue+}."""
    compare: Flag = False
    """Decode plainly too: print the measured speed-up, and whether the texts are equal."""
    repeats: Annotated[int, arg(metavar="N")] = REPEATS
    """Timed runs of each kind for --compare; the median counts."""
    json: Flag = False
    """Print one JSON object instead: texts, tokens, stop reasons, statistics, models, versions."""
    output: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Write that JSON object to a file too; the file appears whole or not at all."""
    quiet: Flag = False
    """Print the new text alone."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Continue text, several tokens a call of the model, without changing a single probability.

    specjax generate "Once upon a time"

    specjax generate "Once upon a time" --show-draft --compare

    specjax generate --target facebook/opt-1.3b --draft facebook/opt-125m --temperature 0 "Once upon a time"

    specjax generate --drafter tree:shape=3x2 "Once upon a time"

    specjax generate --prompts questions.jsonl --drafter ngram --json > answers.json
    """

    prompt: Annotated[tyro.conf.Positional[tuple[str, ...]], arg(metavar="PROMPT ...", help_behavior_hint="")] = ()
    """Text to continue; several make a batch."""
    prompts: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """More prompts: a text file, one a line, or .jsonl with a "prompt" in each line; - reads stdin."""
    config: Annotated[Path | None, arg(metavar="FILE.py", help_behavior_hint="(default: none)")] = None
    """A preset, as in configs/: what it says holds where the command line says nothing. It is Python, and is run."""
    models: Models = Models()
    drafting: Drafting = Drafting()
    sampling: Sampling = Sampling()
    stopping: Stopping = Stopping()
    printing: Printing = Printing()
