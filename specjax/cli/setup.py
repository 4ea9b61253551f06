"""From options to what decodes: models, drafter, verifier, mesh. What is wrong is said before any weight is read."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from specjax import drafters, sampling, verify
from specjax.cli.arguments import lookup
from specjax.cli.options import DRAFT, GAMMA, TARGET, Options
from specjax.drafters import Guide
from specjax.model import Model
from specjax.verify import Verifier


class Kind(NamedTuple):
    """A drafter that can be named: how it is made from (draft model, gamma or None), and whether it runs a model."""

    make: Callable[..., Guide]
    needs_model: bool = False


def _with_gamma(make: Callable[..., Guide], *args: Any, gamma: int | None) -> Guide:
    return make(*args) if gamma is None else make(*args, gamma=gamma)


DRAFTERS = {
    "model": Kind(lambda draft, gamma: _with_gamma(drafters.model, draft, gamma=gamma), needs_model=True),
    "ngram": Kind(lambda draft, gamma: _with_gamma(drafters.ngram, gamma=gamma)),
    "plain": Kind(lambda draft, gamma: drafters.plain()),
}


class Plan(NamedTuple):
    """Choices that were checked without reading a model."""

    drafter: str
    draft: str | None  # name of the draft model, where the drafter runs one
    gamma: int | None
    verifier: Verifier
    logit_bias: dict[int, float] | None
    mesh: tuple[int, int] | None


def plan(options: Options) -> Plan:
    """Checks all that can be checked without a model.

    Raises:
      ValueError: a name that does not exist, a number out of its range, options that contradict each other.
    """
    models, chosen = options.models, options.drafting
    draft, gamma = models.draft, chosen.gamma
    if draft is None and models.target == TARGET and chosen.drafter in (None, "model"):
        draft, gamma = DRAFT, GAMMA if gamma is None else gamma
    name = chosen.drafter or ("model" if draft else "ngram")
    kind = lookup(name, DRAFTERS, "drafter")
    if kind.needs_model and draft is None:
        raise ValueError(f"the drafter {name!r} needs --draft, a smaller model with {models.target}'s tokenizer")
    if draft is not None and not kind.needs_model:
        raise ValueError(f"--draft {draft} is not used by the drafter {name!r}: leave one of them out")
    if chosen.gamma is not None and name == "plain":
        raise ValueError("--gamma has no meaning for the drafter 'plain': leave it out")
    if chosen.gamma is not None and chosen.gamma < 1:
        raise ValueError(f"--gamma must be at least 1, got {chosen.gamma}; for plain decoding use --drafter plain")
    if options.stopping.max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens must be at least 1, got {options.stopping.max_new_tokens}")
    if options.printing.repeats < 1:
        raise ValueError(f"--repeats must be at least 1, got {options.printing.repeats}")
    if any(not stop for stop in options.stopping.stop):
        raise ValueError("--stop must not be empty: it would end every text at once")
    if not 0 <= options.sampling.seed < 2**32:
        raise ValueError(f"--seed must lie in 0..{2**32 - 1}, got {options.sampling.seed}")
    sampling.sampling_params(1, 1, **_laws(options))
    verifier = lookup(chosen.verifier, verify.TABLE, "verifier")
    return Plan(name, draft, gamma, verifier, _bias(options.sampling.logit_bias), _mesh_shape(models.mesh))


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


def load_models(options: Options, chosen: Plan, tell: Callable[[str], None]) -> tuple[Model, Guide]:
    """The target, and the drafter with its weights. `tell` hears what is being loaded."""
    import specjax  # `load` is looked up when it is called

    mesh = make_mesh(chosen.mesh)

    def load(name: str, *, replicate: bool = False) -> Model:
        tell(f"loading {name}")
        progress = lambda done, total: tell(f"loading {name}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        return specjax.load(name, dtype=options.models.dtype, mesh=mesh, replicate=replicate, progress=progress)

    target = load(options.models.target)
    draft = None if chosen.draft is None else load(chosen.draft, replicate=mesh is not None)
    return target, DRAFTERS[chosen.drafter].make(draft, chosen.gamma)


def decode_options(options: Options, chosen: Plan) -> dict[str, Any]:
    """The keyword arguments of `specjax.generate` and `specjax.stream` but for the drafter."""
    ends = options.stopping
    return {
        **_laws(options), "verifier": chosen.verifier, "logit_bias": chosen.logit_bias, "seed": options.sampling.seed,
        "max_new_tokens": ends.max_new_tokens, "stop": ends.stop, "stop_tokens": ends.stop_token,
        "ignore_eos": ends.ignore_eos,
    }  # fmt: skip
