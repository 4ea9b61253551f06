"""From options to models and a drafter. What can be checked without a model is checked before one is read."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from specjax import sampling, verify
from specjax.checks import stop_strings
from specjax.cli import checks
from specjax.cli.options import GAMMA, SMALLER, TARGET, Drafting, Options
from specjax.drafters import LoadedDrafter
from specjax.model import Model
from specjax.strategy import Choice, Strategy
from specjax.verify import Verifier

BY_DRAFTS = {1: "model", 2: "cascade"}  # the default drafter by the number of draft models


class Plan(NamedTuple):
    """Choices that were checked without reading a model.

    Attributes:
      drafts: names of the draft models.
      verifier: None: the lossless one that suits the drafter.
      mesh: devices for data and model parallelism; None: one device.
    """

    drafter: Strategy
    drafts: tuple[str, ...]
    verifier: Verifier | None
    logit_bias: dict[int, float] | None
    mesh: tuple[int, int] | None


def plan(options: Options) -> Plan:
    """Checks everything that can be checked without a model.

    Raises:
      ValueError: an unknown name, a number out of range, or options that exclude each other.
    """
    strategy, drafts = choose(options.models.target, options.models.draft, options.drafting)
    strategy.check_files()
    stops, chosen = options.stopping, options.sampling
    checks.request(temperature=chosen.temperature, max_new_tokens=stops.max_new_tokens, seed=chosen.seed)
    checks.at_least(1, repeats=options.printing.repeats)
    checks.at_least(0, stop_token=stops.stop_token)
    stop_strings(stops.stop)
    sampling.sampling_params(1, 1, **_sampling(options))
    verifier = None if options.drafting.verifier is None else verify.get(options.drafting.verifier)
    if verifier is not None and options.drafting.lossless:
        verifier.require_lossless()
    return Plan(strategy, drafts, verifier, _bias(chosen.logit_bias), _mesh_shape(options.models.mesh))


def choose(target: str, drafts: tuple[str, ...], chosen: Drafting) -> tuple[Strategy, tuple[str, ...]]:
    """The drafter that was named, or the default for the models, and the names of its draft models.

    Raises:
      ValueError: an unknown drafter, setting or policy, or draft models that do not fit the drafter.
    """
    if chosen.drafter is None and len(drafts) > max(BY_DRAFTS):
        raise ValueError(f"--drafter is required with {len(drafts)} draft models")
    default = BY_DRAFTS.get(len(drafts), "model" if target == TARGET else "ngram")
    strategy = Strategy.parse(default if chosen.drafter is None else chosen.drafter)
    if chosen.policy is not None:
        if strategy.get("policy") is not None:
            raise ValueError(f"--policy and --drafter {strategy.text} both set the policy: leave one of them out")
        strategy = strategy.replace_settings(policy=Choice.parse("policy", chosen.policy))
    found = given_drafts(strategy, target, drafts)
    if chosen.gamma is not None:
        checks.at_least(1, gamma=chosen.gamma)
        if strategy.get("gamma", chosen.gamma) != chosen.gamma:
            raise ValueError(f"--gamma {chosen.gamma} and --drafter {strategy.text} differ: leave one of them out")
        try:
            strategy = strategy.replace_settings(gamma=chosen.gamma)
        except ValueError as error:
            raise ValueError(f"--gamma {chosen.gamma}: {error}") from None
    elif target == TARGET and not drafts and strategy == Strategy("model"):
        strategy = strategy.replace_settings(gamma=GAMMA)
    return strategy, found


def given_drafts(strategy: Strategy, target: str, drafts: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the draft models: those that were given, or those of the bundled target.

    Raises:
      ValueError: more or fewer than the drafter needs.
    """
    needed = strategy.needs
    if not drafts and target == TARGET and needed <= len(SMALLER):
        return SMALLER[:needed]
    if len(drafts) < needed:
        tokenizer = "another tokenizer" if strategy.name in ("bridge", "reencode") else f"the tokenizer of {target}"
        times = "" if needed == 1 else f" {needed} times, the largest first"
        raise ValueError(f"drafter {strategy.name!r} requires --draft{times}: a smaller model with {tokenizer}")
    if len(drafts) > needed:
        raise ValueError(f"--draft {drafts[needed]} is not used by --drafter {strategy.text}: leave it out")
    return drafts


def _sampling(options: Options) -> dict[str, Any]:
    chosen = options.sampling
    return {
        "temperature": chosen.temperature, "top_k": chosen.top_k, "top_p": chosen.top_p, "min_p": chosen.min_p,
        "repetition_penalty": chosen.repetition_penalty,
    }  # fmt: skip


def _bias(pairs: tuple[str, ...]) -> dict[int, float] | None:
    bias = {}
    for pair in pairs:
        token, _, value = pair.partition("=")
        try:
            number, bias[int(token)] = int(token), float(value)
        except ValueError:
            raise ValueError(f"--logit-bias {pair!r} is not TOKEN=VALUE, such as 50=-2.5 or 50=-inf") from None
        large = abs(bias[number]) > sampling.LARGEST_BIAS and bias[number] != -math.inf
        if number < 0 or large or math.isnan(bias[number]):
            raise ValueError(f"--logit-bias {pair!r}: TOKEN must be at least 0, VALUE a finite number or -inf")
    return bias or None


def _mesh_shape(mesh: str | None) -> tuple[int, int] | None:
    if mesh is None:
        return None
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", mesh)
    if not found:
        raise ValueError(f"--mesh {mesh!r} is not DATAxMODEL, such as 1x8 or 2x4")
    return int(found[1]), int(found[2])


def load_models(options: Options, chosen: Plan, tell: Callable[[str], None]) -> tuple[Model, LoadedDrafter]:
    """The target, and the drafter with its weights. `tell` is called with what is being loaded."""
    target, drafts = load_parts(options, chosen, tell)
    return target, chosen.drafter.build(target, drafts)


def load_parts(options: Options, chosen: Plan, tell: Callable[[str], None]) -> tuple[Model, list[Model]]:
    """The target and the draft models.

    Raises:
      ValueError: a model that cannot be read, or a mesh that does not have as many devices as there are.
    """
    import specjax  # `load` is looked up when it is called
    from specjax import sharding

    mesh = None if chosen.mesh is None else sharding.make_mesh(*chosen.mesh)

    def load(name: str, *, replicate: bool = False) -> Model:
        tell(f"loading {name}")
        progress = lambda done, total: tell(f"loading {name}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        return specjax.load(name, dtype=options.models.dtype, mesh=mesh, replicate=replicate, progress=progress)

    target = load(options.models.target)
    return target, [load(name, replicate=mesh is not None) for name in chosen.drafts]


def decode_options(options: Options, chosen: Plan) -> dict[str, Any]:
    """The keyword arguments of `specjax.generate` and `specjax.stream`, without the drafter."""
    stops = options.stopping
    return {
        **_sampling(options), "verifier": chosen.verifier, "lossless": options.drafting.lossless,
        "logit_bias": chosen.logit_bias, "seed": options.sampling.seed,
        "max_new_tokens": stops.max_new_tokens, "stop": stops.stop, "stop_tokens": stops.stop_token,
        "ignore_eos": stops.ignore_eos,
    }  # fmt: skip
