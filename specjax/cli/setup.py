"""From options to what decodes: models, drafter, verifier, mesh. What is wrong is said before any weight is read."""

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
from specjax.naming import drafting
from specjax.naming.grammar import Spec
from specjax.verify import Verifier


class Plan(NamedTuple):
    """Choices that were checked without reading a model."""

    drafter: Spec
    drafts: tuple[str, ...]  # names of the draft models
    verifier: Verifier | None  # None: the one that suits the drafter
    logit_bias: dict[int, float] | None
    mesh: tuple[int, int] | None


def plan(options: Options) -> Plan:
    """Checks all that can be checked without a model.

    Raises:
      ValueError: a name that does not exist, a number out of its range, options that contradict each other.
    """
    drafter, drafts = choose(options.models.target, options.models.draft, options.drafting)
    drafting.check_files(drafter)
    ends = options.stopping
    chosen = options.sampling
    checks.request(temperature=chosen.temperature, max_new_tokens=ends.max_new_tokens, seed=chosen.seed)
    checks.at_least(1, repeats=options.printing.repeats)
    checks.at_least(0, stop_token=ends.stop_token)
    if any(not stop for stop in ends.stop):
        raise ValueError("--stop must not be empty: it would end every text at once")
    stop_strings(ends.stop)
    sampling.sampling_params(1, 1, **_laws(options))
    return Plan(
        drafter, drafts, choose_verifier(options.drafting), _bias(chosen.logit_bias),
        _mesh_shape(options.models.mesh),
    )  # fmt: skip


def choose(target: str, drafts: tuple[str, ...], chosen: Drafting) -> tuple[Spec, tuple[str, ...]]:
    """The drafter that was asked for, or the one that goes with the models; and the names of its draft models.

    Raises:
      ValueError: a drafter, setting or policy that there is not, or draft models that it does not go with.
    """
    names = {0: "model" if target == TARGET else "ngram", 1: "model", 2: "cascade"}
    if chosen.drafter is None and len(drafts) not in names:
        raise ValueError(f"{len(drafts)} draft models are named: say which --drafter uses them")
    spec = drafting.parse(names[len(drafts)] if chosen.drafter is None else chosen.drafter)
    if chosen.policy is not None:
        spec = drafting.with_policy(spec, chosen.policy)
    bundled = target == TARGET and not drafts
    found = given_drafts(spec, target, drafts)
    if chosen.gamma is not None:
        if chosen.gamma < 1:
            raise ValueError(f"--gamma must be at least 1, got {chosen.gamma}; for plain decoding use --drafter plain")
        try:
            spec = drafting.with_asked_gamma(spec, chosen.gamma)
        except ValueError as error:
            raise ValueError(f"--gamma {chosen.gamma}: {error}") from None
    elif bundled and spec == drafting.parse("model"):
        spec = drafting.with_gamma(spec, GAMMA)
    return spec, found


def given_drafts(spec: Spec, target: str, drafts: tuple[str, ...]) -> tuple[str, ...]:
    """The draft models that a drafter uses: those that were named, or those of the bundled target.

    Raises:
      ValueError: more or fewer than it needs.
    """
    wanted = drafting.needs(spec)
    if not drafts and target == TARGET and wanted <= len(SMALLER):
        return SMALLER[:wanted]
    if len(drafts) < wanted:
        each = "a smaller model with" if wanted == 1 else f"{wanted} times, ever smaller models with"
        other = "another tokenizer" if spec.name in ("bridge", "reencode") else f"{target}'s tokenizer"
        got = f" (got {len(drafts)})" if drafts else ""
        raise ValueError(f"the drafter {spec.name!r} needs --draft, {each} {other}{got}")
    if len(drafts) > wanted:
        raise ValueError(
            f"--draft {drafts[wanted]} is not used by the drafter {drafting.label(spec)!r}: leave one of them out"
        )
    return drafts


def choose_verifier(chosen: Drafting) -> Verifier | None:
    """The verifier that was named; None where none was.

    Raises:
      ValueError: no such name, or a lossy one under --lossless.
    """
    if chosen.verifier is None:
        return None
    verifier = verify.get(chosen.verifier)
    if chosen.lossless:
        verifier.require_lossless()
    return verifier


def _laws(options: Options) -> dict[str, Any]:
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
            bias[int(token)] = float(value)
        except ValueError:
            raise ValueError(f"--logit-bias {pair!r} is not TOKEN=VALUE, such as 50=-2.5 or 50=-inf") from None
        if math.isnan(bias[int(token)]) or bias[int(token)] == math.inf:
            raise ValueError(f"--logit-bias {pair!r}: use a finite number, or -inf to ban the token")
        if int(token) < 0 or sampling.LARGEST_BIAS < abs(bias[int(token)]) < math.inf:
            raise ValueError(f"--logit-bias {pair!r}: a token is at least 0, a bias at most {sampling.LARGEST_BIAS:g}")
    return bias or None


def _mesh_shape(mesh: str | None) -> tuple[int, int] | None:
    if mesh is None:
        return None
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", mesh)
    if not found:
        raise ValueError(f"--mesh {mesh!r} is not DATAxMODEL, such as 1x8 or 2x4")
    return int(found[1]), int(found[2])


def make_mesh(shape: tuple[int, int] | None) -> Any:
    """The mesh of all devices, None for one device.

    Raises:
      ValueError: the product of its sides is not the number of devices.
    """
    if shape is None:
        return None
    from specjax import sharding

    return sharding.make_mesh(*shape)


def load_models(options: Options, chosen: Plan, tell: Callable[[str], None]) -> tuple[Model, LoadedDrafter]:
    """The target, and the drafter with its weights. `tell` hears what is being loaded."""
    target, drafts = load_parts(options, chosen, tell)
    return target, drafting.make(chosen.drafter, target, drafts)


def load_parts(options: Options, chosen: Plan, tell: Callable[[str], None]) -> tuple[Model, list[Model]]:
    """The target and the draft models."""
    import specjax  # `load` is looked up when it is called

    mesh = make_mesh(chosen.mesh)

    def load(name: str, *, replicate: bool = False) -> Model:
        tell(f"loading {name}")
        progress = lambda done, total: tell(f"loading {name}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        return specjax.load(name, dtype=options.models.dtype, mesh=mesh, replicate=replicate, progress=progress)

    target = load(options.models.target)
    return target, [load(name, replicate=mesh is not None) for name in chosen.drafts]


def decode_options(options: Options, chosen: Plan) -> dict[str, Any]:
    """The keyword arguments of `specjax.generate` and `specjax.stream` but for the drafter."""
    ends = options.stopping
    return {
        **_laws(options), "verifier": chosen.verifier, "lossless": options.drafting.lossless,
        "logit_bias": chosen.logit_bias, "seed": options.sampling.seed,
        "max_new_tokens": ends.max_new_tokens, "stop": ends.stop, "stop_tokens": ends.stop_token,
        "ignore_eos": ends.ignore_eos,
    }  # fmt: skip
