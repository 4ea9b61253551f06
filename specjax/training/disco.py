"""Training of DISCO's classifier (Mamou et al. 2024, arXiv 2405.04304): record rounds, fit, tune the threshold.

    traces = disco.record(target, draft, prompts)     rounds of gamma_max draft tokens: features, number accepted
    params = disco.fit(traces)                        the probability that a draft token is accepted
    tuned = disco.tune(params, traces, c=0.2)         the threshold where drafting stops to pay on this machine
    drafter = drafters.model(draft, policy=policies.disco(tuned.params))

The classifier has about 450 parameters and trains in seconds. Record with the models, temperature and kind of text of
the later use: the classifier learns how often this draft agrees with this target, given its confidence.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from specjax import api, checks, drafters, files, theory
from specjax import decoding as loop
from specjax.policies.drafting import TOP, Disco, features, score
from specjax.policies.policy import Policy, Rule, as_planned, learn_nothing
from specjax.request import prepare

HIDDEN, STEPS, RATE = 32, 600, 1e-2
FEATURES = TOP + 2
GRID = 200  # number of thresholds tried by `tune`


class Traces(NamedTuple):
    """R rounds in which always gamma_max tokens were drafted."""

    features: Float[np.ndarray, "R G F"]
    accepted: Int[np.ndarray, "R"]


class Tuned(NamedTuple):
    """Tuned parameters, and the speeds over plain decoding on the recorded rounds.

    Attributes:
      params: the classifier with its tuned threshold.
      disco: tokens per cost if the policy had truncated the recorded rounds.
      best_fixed: the same for the best fixed length.
      gamma: the best fixed length.
      oracle: the same if the number of accepted tokens were known in advance.
    """

    params: Disco
    disco: float
    best_fixed: float
    gamma: int
    oracle: float


@functools.cache
def _recorder(gamma_max: int) -> Policy:
    """A policy that always drafts gamma_max tokens and stores the features of all in its state."""

    def go_on(params, state, drawn, position):
        del params
        seen = jax.lax.dynamic_update_slice_in_dim(state, features(drawn.logits, position)[:, None], position - 1, 1)
        return jnp.ones(drawn.token.shape, bool), seen

    start = lambda params, length: jnp.zeros((*length.shape, gamma_max, FEATURES), jnp.float32)
    return Policy(gamma_max, start, as_planned(gamma_max), go_on, learn_nothing)


def record(target: Any, draft: Any, prompts: api.Prompts, *, gamma_max: int = 16, **options: Any) -> Traces:
    """Decodes the prompts with gamma_max draft tokens per round and records each round.

    Args:
      target: model from `specjax.load`.
      draft: model from `specjax.load`.
      prompts: as in `specjax.generate`.
      gamma_max: draft tokens per round.
      options: of `specjax.generate`, such as temperature, max_new_tokens and seed.
    """
    checks.integer("gamma_max", gamma_max, least=1)
    rule = Rule(f"record {gamma_max}", _recorder(gamma_max))
    job = prepare(target, prompts, drafter=drafters.model(draft, policy=rule, buckets=()), **options).begin()
    seen, accepted = [], []
    for state, info in loop.stream(job.params, job.state, **job.static):
        # The next round donates the state: copy what is kept.
        active, count, read = jax.device_get((info.active, info.accepted, state.draft.policy))
        seen.append(np.array(read)[active])
        accepted.append(count[active])
    return Traces(np.concatenate(seen), np.concatenate(accepted))


def fit(traces: Traces, *, steps: int = STEPS, rate: float = RATE, seed: int = 0) -> Disco:
    """Fits the classifier by cross-entropy on the tested tokens; `stop` is 0 until `tune`.

    Raises:
      ValueError: traces contain no round.
    """
    if not len(traces.accepted):
        raise ValueError("traces must contain at least one round")
    gamma = traces.features.shape[1]
    at = np.arange(gamma)[None]
    tested = at < np.minimum(traces.accepted + 1, gamma)[:, None]  # tokens after the first rejection were not tested
    label = at < traces.accepted[:, None]
    key = jax.random.key(seed)
    params = Disco(
        hidden=jax.random.normal(key, (FEATURES, HIDDEN)) * FEATURES**-0.5,
        hidden_bias=jnp.zeros((HIDDEN,)),
        out=jnp.zeros((HIDDEN,)),
        out_bias=jnp.zeros(()),
        stop=jnp.zeros(()),
    )
    data = jnp.asarray(traces.features[tested]), jnp.asarray(label[tested], jnp.float32)
    return _descend(params, *data, steps=steps, rate=rate)


@functools.partial(jax.jit, static_argnames=("steps", "rate"))
def _descend(params: Disco, read: Float[Array, "n F"], label: Float[Array, "n"], *, steps: int, rate: float) -> Disco:
    """Full-batch Adam with a cosine-decayed rate."""
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def loss(params):
        return jnp.mean(optax.sigmoid_binary_cross_entropy(score(params, read), label))

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return (cast(Disco, optax.apply_updates(params, updates)), state), None

    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
        (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), length=steps)
    return params


def tune(
    params: Disco,
    traces: Traces,
    *,
    c: float | int,
    verify_cost: Sequence[float] | np.ndarray | None = None,
    overhead: float = 0.0,
) -> Tuned:
    """Selects the `stop` with the most tokens per cost on the recorded rounds, truncated as the policy would.

    Args:
      params: from `fit`.
      traces: from `record`.
      c: time of a draft step over that of a target step.
      verify_cost: [gamma_max + 1], see `theory.best_gamma`.
      overhead: other time per round.

    Raises:
      ValueError: costs out of range, or a cost curve of the wrong length.
    """
    gamma = traces.features.shape[1]
    theory.best_gamma(0.5, c, gamma_max=gamma, verify_cost=verify_cost, overhead=overhead)  # validates the costs
    check = np.ones(gamma + 1) if verify_cost is None else np.asarray(verify_cost, float)
    price = np.arange(gamma + 1) * c + check + overhead

    def speed(drafted: np.ndarray) -> float:
        return float((np.minimum(drafted, traces.accepted) + 1).sum() / price[drafted].sum())

    chance = np.asarray(jax.nn.sigmoid(score(params, jnp.asarray(traces.features))), np.float64)
    alive = np.cumprod(chance, axis=1)[:, :-1]  # drafting continues after token i while this is at least `stop`
    cut = lambda stop: 1 + (alive >= stop).sum(axis=1)
    stops = np.unique(np.quantile(alive, np.linspace(0, 1, GRID))) if alive.size else np.zeros(1)
    speeds = [speed(cut(stop)) for stop in stops]
    best = int(np.argmax(speeds))
    fixed = [speed(np.full_like(traces.accepted, g)) for g in range(1, gamma + 1)]
    stop = jnp.asarray(stops[best], jnp.float32)
    return Tuned(
        params._replace(stop=stop), speeds[best], max(fixed), 1 + int(np.argmax(fixed)), speed(traces.accepted)
    )


def save(params: Disco, file: Path | str) -> None:
    """Writes the classifier as one safetensors file, atomically."""
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.whole(file) as aside:
        save_file({name: np.asarray(value) for name, value in params._asdict().items()}, aside)


def load(file: Path | str) -> Disco:
    """Reads a classifier written by `save`.

    Args:
      file: a classifier that `training.disco.save` wrote.

    Raises:
      ValueError: no such file, or the file contains something else.
    """
    file = Path(file)
    if not file.is_file():
        raise ValueError(f"{file} does not exist: write a classifier with specjax.training.disco.save")
    try:
        found = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is not a safetensors file: {error}") from error
    if set(found) != set(Disco._fields):
        raise ValueError(f"{file} contains {', '.join(sorted(found))}, expected {', '.join(Disco._fields)}")
    return Disco(**{name: jnp.asarray(value) for name, value in found.items()})
