"""The recipe of DISCO's classifier (Mamou et al. 2024, arXiv 2405.04304): record rounds, fit, choose where to stop.

    traces = disco.record(target, draft, prompts)     rounds of gamma_max drafts: features of each, how many passed
    params = disco.fit(traces)                        the chance that a draft token is accepted
    params = disco.tune(params, traces, c=0.2)        where drafting on no longer pays on this machine
    drafter = drafters.model(draft, policy=policies.disco(params))

Seconds of work, for a classifier of about 450 numbers. The pair, the temperature and the kind of text should be those
of its use: what it learns is how often this draft, as sure as it is, is right about this target.
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

from specjax import api, drafters, files, theory
from specjax import decoding as loop
from specjax.policies.drafting import TOP, Disco, features, score
from specjax.policies.policy import Policy, Rule, as_planned, check_gamma, learn_nothing

HIDDEN, STEPS, RATE = 32, 600, 1e-2
FEATURES = TOP + 2
GRID = 200  # thresholds that `tune` tries


class Traces(NamedTuple):
    """Rounds in which gamma_max tokens were drafted whatever they were."""

    features: Float[np.ndarray, "R G F"]
    accepted: Int[np.ndarray, "R"]


class Tuned(NamedTuple):
    """A tuned policy's numbers, and what the recorded rounds say of speeds over plain decoding.

    Attributes:
      disco, best_fixed, oracle: tokens over costs if the recorded rounds had been cut where the policy, the best fixed
        length and one who knows what will be accepted would have cut them.
      gamma: the best fixed length.
    """

    params: Disco
    disco: float
    best_fixed: float
    gamma: int
    oracle: float


@functools.cache
def _recorder(gamma_max: int) -> Policy:
    """Drafts gamma_max tokens always, and keeps the features of all in its state."""

    def go_on(params, state, drawn, position):
        del params
        seen = jax.lax.dynamic_update_slice_in_dim(state, features(drawn.logits, position)[:, None], position - 1, 1)
        return jnp.ones(drawn.token.shape, bool), seen

    start = lambda params, length: jnp.zeros((*length.shape, gamma_max, FEATURES), jnp.float32)
    return Policy(gamma_max, start, as_planned(gamma_max), go_on, learn_nothing)


def record(target: Any, draft: Any, prompts: api.Prompts, *, gamma_max: int = 16, **options: Any) -> Traces:
    """Decodes the prompts with drafts of gamma_max tokens and notes each round.

    Args:
      target, draft: models from `specjax.load`.
      options: of `specjax.generate`; temperature, max_new_tokens and seed among them.
    """
    rule = Rule(f"record {gamma_max}", _recorder(check_gamma(gamma_max)))
    job = api.prepare(target, prompts, drafter=drafters.model(draft, policy=rule, buckets=()), **options)
    seen, accepted = [], []
    for state, info in loop.stream(job.params, job.state, **job.static):
        # The state is lent to the next round: what is kept of it is copied.
        active, count, read = jax.device_get((info.active, info.accepted, state.draft.policy))
        seen.append(np.array(read)[active])
        accepted.append(count[active])
    return Traces(np.concatenate(seen), np.concatenate(accepted))


def fit(traces: Traces, *, steps: int = STEPS, rate: float = RATE, seed: int = 0) -> Disco:
    """The classifier of least cross-entropy on the tokens that were tested; `stop` is 0 until it is tuned.

    Raises:
      ValueError: no round.
    """
    if not len(traces.accepted):
        raise ValueError("no round to learn from: record some first")
    gamma = traces.features.shape[1]
    at = np.arange(gamma)[None]
    tested = at < np.minimum(traces.accepted + 1, gamma)[:, None]  # past the first refusal nothing is known
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
    """Adam on all of it at once, the rate falling to nothing."""
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
    """Chooses `stop` for the most tokens a cost on the recorded rounds: the policy asked where to cut each of them.

    Args:
      c: a step of the draft over one of the target.
      verify_cost: [gamma_max + 1], see `theory.best_gamma`. overhead: what else a round takes.

    Raises:
      ValueError: costs out of range, or a curve of another length.
    """
    gamma = traces.features.shape[1]
    theory.best_gamma(0.5, c, gamma_max=gamma, verify_cost=verify_cost, overhead=overhead)  # checks the costs
    check = np.ones(gamma + 1) if verify_cost is None else np.asarray(verify_cost, float)
    price = np.arange(gamma + 1) * c + check + overhead

    def speed(drafted: np.ndarray) -> float:
        return float((np.minimum(drafted, traces.accepted) + 1).sum() / price[drafted].sum())

    chance = np.asarray(jax.nn.sigmoid(score(params, jnp.asarray(traces.features))), np.float64)
    alive = np.cumprod(chance, axis=1)[:, :-1]  # falling: after token i, it goes on while this is at least `stop`
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
    """One safetensors file, under a temporary name until it is whole."""
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.whole(file) as aside:
        save_file({name: np.asarray(value) for name, value in params._asdict().items()}, aside)


def load(file: Path | str) -> Disco:
    """What `save` wrote.

    Raises:
      ValueError: no such file, or one that holds something else; it is named.
    """
    file = Path(file)
    if not file.is_file():
        raise ValueError(f"there is no classifier at {file}: write one with specjax.training.disco.save")
    try:
        found = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file: {error}") from error
    if set(found) != set(Disco._fields):
        raise ValueError(f"{file} holds {', '.join(sorted(found))}; a classifier is {', '.join(Disco._fields)}")
    return Disco(**{name: jnp.asarray(value) for name, value in found.items()})
