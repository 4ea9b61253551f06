"""A run as data: the options of `specjax generate` and `specjax trace`, and of presets, which are Python files.

    from specjax.config import RunConfig

    CONFIG = RunConfig(target="bundled/opt-target", draft="bundled/opt-draft", gamma=3, temperature=0.0)

The docstrings of the fields are the help texts of the command line. Importing this module does not import jax.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from specjax import checks, defaults, presets, registry
from specjax.defaults import DRAFTS, GAMMA, TARGET
from specjax.strategy import Choice, Strategy

if TYPE_CHECKING:
    from specjax.api import Generation
    from specjax.drafters import LoadedDrafter
    from specjax.engine import Serving
    from specjax.model import Model
    from specjax.prompts import Prompts
    from specjax.verify import Verifier

arg = tyro.conf.arg
Flag = Annotated[bool, arg(help_behavior_hint="")]
Several = tyro.conf.UseAppendAction[tuple[str, ...]]
DTYPES = ("float32", "bfloat16", "float16")
CACHES = (*DTYPES, "int8")
CacheDtype = Literal["float32", "bfloat16", "float16", "int8"]
PerPrompt = Annotated[  # one number, or one for each prompt, which `options.joined` separates by commas
    float | tuple[float, ...],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="T ...",
        instance_from_str=lambda words: _numbers(words[0]),
        is_instance=lambda value: isinstance(value, float | int | tuple),
        str_from_instance=lambda value: [",".join(map(str, value)) if isinstance(value, tuple) else str(value)],
    ),
]
BY_DRAFTS = {1: "model", 2: "cascade"}  # the default drafter by the number of draft models

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
        Several, arg(metavar="MODEL", help=DRAFT_HELP, help_behavior_hint=f"(default: {DRAFTS[0]} for {TARGET})")
    ] = ()
    head: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = None
    """A trained head that drafts for the target instead of a draft model: a folder, or a Hugging Face id."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the weights. In float32, greedy text equals that of plain decoding token for token."""
    weights: Annotated[Literal["int8"] | None, arg(metavar="int8", help_behavior_hint="(default: as dtype)")] = None
    """Store the target's weights in int8, a scale per output channel. Lossy: the target is the quantized model."""
    cache_dtype: Annotated[CacheDtype | None, arg(metavar="DTYPE", help_behavior_hint="(default: by platform)")] = None
    """Number format of the target's keys and values. int8 is lossy: it changes the target's distribution."""
    draft_cache_dtype: Annotated[
        CacheDtype | None, arg(metavar="DTYPE", help_behavior_hint="(default: by platform)")
    ] = None
    """Number format of the draft models' keys and values. It changes only how many draft tokens are accepted."""
    mesh: Annotated[str | None, arg(metavar="DATAxMODEL", help_behavior_hint="(default: one device)")] = None
    """Shard over several devices: 2x4 splits the batch in 2 and the weights in 4. The product must be the number of
    devices. A third number splits weights further, apart from keys and values: 1x8x2."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """Several processes run the same command, each with its own devices, and a mesh spans all of them. The first one
    prints and writes files. On TPU slices and in Slurm steps these options are not needed: start the command on every
    host."""

    coordinator: Annotated[str | None, arg(metavar="HOST:PORT", help_behavior_hint="(default: found)")] = None
    """Address of process 0."""
    processes: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: found)")] = None
    """Number of processes."""
    index: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: found)")] = None
    """Number of this process, from 0."""


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

    temperature: PerPrompt = defaults.TEMPERATURE
    """0: always the most probable token (greedy). 1: the model's own distribution. Several: one for each prompt."""
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


RANGED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # `sampling_params` checks their ranges


@dataclasses.dataclass(frozen=True)
class RunConfig(Stopping, Sampling, Drafting, Models):
    """Models, drafter and options of a run, checked without reading a model.

    Attributes:
      target, draft, dtype, mesh: names of models for `specjax.load`; `draft` is one name, or several for a cascade.
      weights, cache_dtype, draft_cache_dtype: as for `specjax.load`, the first two of the target.
      head: folder or id of a trained head; the same as the setting folder=NAME of the drafter "head".
      drafter, gamma, policy, verifier, lossless: as for `specjax generate`: `drafter="tree:shape=3x2"`.
      temperature, top_k, top_p, min_p, repetition_penalty, seed: as for `specjax.generate`, with one
        temperature for all prompts or one for each.
      logit_bias: biases as "TOKEN=VALUE".
      max_new_tokens, stop, stop_token, ignore_eos: as for `specjax generate`.

    Raises:
      ValueError: an unknown name, a number out of range, or options that exclude each other.
    """

    draft: Any = ()

    def __post_init__(self) -> None:
        from specjax import sampling

        given = () if self.draft is None else (self.draft,) if isinstance(self.draft, str) else tuple(self.draft)
        object.__setattr__(self, "draft", given)
        object.__setattr__(self, "stop", checks.stop_strings(self.stop))
        warmth = checks.items(self.temperature)
        object.__setattr__(self, "temperature", self.temperature if warmth is None else tuple(warmth))
        checks.check_name(self.dtype, DTYPES, "dtype")
        for name, known in (("weights", ("int8",)), ("cache_dtype", CACHES), ("draft_cache_dtype", CACHES)):
            if getattr(self, name) is not None:
                checks.check_name(getattr(self, name), known, name)
        _ = self.drafts, self.biases, self.mesh_shape  # checked where they are computed
        self.strategy.check_files()
        gamma = () if self.gamma is None else self.gamma
        checks.decoding(temperature=self.temperature, max_new_tokens=self.max_new_tokens, seed=self.seed, gamma=gamma)
        checks.at_least(0, stop_token=self.stop_token)
        ranged = {name: getattr(self, name) for name in RANGED}
        sampling.sampling_params(len(checks.items(self.temperature) or [0]), 1, **ranged)
        if self.named_verifier is not None and self.lossless:
            self.named_verifier.require_lossless()

    @functools.cached_property
    def strategy(self) -> Strategy:
        """The drafter that is named, or the default for the models, with its draft length or policy."""
        if self.drafter is None and len(self.draft) > max(BY_DRAFTS):
            raise ValueError(f"drafter is required with {len(self.draft)} draft models")
        default = BY_DRAFTS.get(len(self.draft), "model" if self.target == TARGET else "ngram")
        if self.head is not None:
            default = "head"
        strategy = Strategy.parse(with_folder(default if self.drafter is None else self.drafter, self.head))
        if self.policy is not None:
            if strategy.get("policy") is not None:
                raise ValueError(f"policy and drafter {strategy.text} both set the policy: leave one of them out")
            strategy = strategy.replace_settings(policy=Choice.parse("policy", self.policy))
        if self.gamma is not None:
            if strategy.get("gamma", self.gamma) != self.gamma:
                raise ValueError(f"gamma {self.gamma} and drafter {strategy.text} differ: leave one of them out")
            try:
                return strategy.replace_settings(gamma=self.gamma)
            except ValueError as error:
                raise ValueError(f"gamma {self.gamma}: {error}") from None
        bundled = self.target == TARGET and not self.draft and strategy == Strategy("model")
        return strategy.replace_settings(gamma=GAMMA) if bundled else strategy

    @functools.cached_property
    def drafts(self) -> tuple[str, ...]:
        """Names of the draft models: those that were given, or those of the bundled target."""
        strategy, given, needed = self.strategy, self.draft, self.strategy.needs
        if not given and self.target == TARGET and needed <= len(DRAFTS):
            return DRAFTS[:needed]
        if len(given) < needed:
            tokens = "another tokenizer" if strategy.name in ("bridge", "reencode") else f"that of {self.target}"
            times = "" if needed == 1 else f" {needed} times, the largest first"
            raise ValueError(f"drafter {strategy.name!r} requires draft{times}: a smaller model with {tokens}")
        if len(given) > needed:
            raise ValueError(f"draft {given[needed]} is not used by drafter {strategy.text}: leave it out")
        return given

    @functools.cached_property
    def named_verifier(self) -> "Verifier | None":
        """The verifier; None: the lossless one that suits the drafter."""
        from specjax import verify

        return None if self.verifier is None else verify.get(self.verifier)

    @functools.cached_property
    def biases(self) -> dict[int, float] | None:
        """Token id -> bias."""
        found = {}
        for pair in self.logit_bias:
            token, _, value = pair.partition("=")
            try:
                found[int(token)] = float(value)
            except ValueError:
                raise ValueError(f"logit_bias {pair!r} is not TOKEN=VALUE, such as 50=-2.5 or 50=-inf") from None
        return found or None

    @functools.cached_property
    def mesh_shape(self) -> tuple[int, ...] | None:
        """Sizes of the axes of the mesh; None: one device."""
        return None if self.mesh is None else checks.mesh_shape(self.mesh)

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `specjax.generate` and `specjax.stream`, without the drafter."""
        same = (*RANGED, "lossless", "seed", "max_new_tokens", "stop", "ignore_eos")
        return {name: getattr(self, name) for name in same} | {
            "verifier": self.named_verifier, "logit_bias": self.biases, "stop_tokens": self.stop_token,
        }  # fmt: skip


def _numbers(words: str) -> float | tuple[float, ...]:
    """Numbers separated by commas; a single one as itself."""
    first, *more = map(float, words.split(","))
    return (first, *more) if more else first


def with_folder(drafter: str, head: str | None) -> str:
    """The text of a drafter, with the folder of its head."""
    if head is None:
        return drafter
    name, colon, rest = drafter.partition(":")
    if name.strip() != "head":
        raise ValueError(f"head {head} is not used by drafter {drafter}: leave it out, or use --drafter head")
    return f"head:folder=({head})" + (f",{rest}" if colon else "")


class Run(NamedTuple):
    """A built configuration: `run.generate(prompts)`."""

    config: RunConfig
    target: "Model"
    drafts: "list[Model]"
    drafter: "LoadedDrafter"

    @property
    def verifier(self) -> "Verifier":
        """The verifier that is named, or the default of the drafter."""
        from specjax.request import named_verifier

        return named_verifier(self.drafter, self.config.verifier)

    def generate(self, prompts: "Prompts", **changes: Any) -> "Generation":
        """`specjax.generate` with the options of the configuration; `changes` override them."""
        from specjax import api

        return api.generate(self.target, prompts, drafter=self.drafter, **(self.config.options | changes))

    def serve(self, prompts: "Prompts", *, slots: int, **changes: Any) -> "Serving":
        """`specjax.serve_batch` with the options of the configuration; `changes` override them."""
        from specjax import engine

        options = self.config.options | changes
        return engine.serve_batch(self.target, prompts, slots=slots, drafter=self.drafter, **options)


def build(config: RunConfig, progress: Callable[[str], None] = lambda text: None) -> Run:
    """Loads the models of a configuration and builds its drafter.

    Args:
      progress: receives what is being loaded.

    Raises:
      ValueError: a model that cannot be read, a mesh of another number of devices, or models that do not fit together.
    """
    from specjax import sharding

    mesh = None if config.mesh_shape is None else sharding.make_mesh(*config.mesh_shape)
    load = functools.partial(load_model, dtype=config.dtype, progress=progress, mesh=mesh)
    target = load(config.target, weights=config.weights, cache_dtype=config.cache_dtype)
    drafts = [load(name, replicate=mesh is not None, cache_dtype=config.draft_cache_dtype) for name in config.drafts]
    return Run(config, target, drafts, config.strategy.build(target, drafts))


def load_model(name: str, *, progress: Callable[[str], None], **options: Any) -> "Model":
    """`specjax.load` that reports which model is being loaded, and how much of it."""
    import specjax  # `load` is looked up when it is called

    progress(f"loading {name}")
    report = lambda done, total: progress(f"loading {name}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
    return specjax.load(name, progress=report, **options)


def read(file: Path | str) -> RunConfig:
    """Reads the `CONFIG` of a preset file, which is Python and is executed: read only files that you trust.

    Raises:
      FileNotFoundError: no such file.
      ValueError: the file does not run, uses an unknown option, or defines no CONFIG.
    """
    return presets.bound(file, "CONFIG", RunConfig)
