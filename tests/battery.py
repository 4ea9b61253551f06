"""What the batteries share: small target and draft models of every family, and runs of the decoding loop on them."""

import dataclasses
import functools
import itertools
from collections.abc import Container, Iterable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import decoding as loop
from specjax import drafters, policies, sampling, stopping, theory
from specjax.base import Drafter
from specjax.drafters import LoadedDrafter
from specjax.model import Model
from specjax.models import llama, opt, t5
from specjax.models.format import Format, default_format
from specjax.types import Commit
from specjax.verify.token import token_level
from tests import distributions
from tests.models.small import laid_out, noisy

VOCAB, MAX_POSITIONS = 13, 64


def others_slow(values: Iterable, keep: Container) -> list:
    """Parameters of a test, those outside `keep` marked slow: one for each kind of case runs by default."""
    spread = lambda value: value if isinstance(value, tuple) else (value,)
    return [value if value in keep else pytest.param(*spread(value), marks=pytest.mark.slow) for value in values]


FMT = default_format("float32", platform="cpu")
FAMILIES = {
    "opt": (opt.FAMILY, opt.OPTConfig(
        vocab_size=VOCAB, width=16, embed_width=16, layers=2, heads=2, mlp_width=32, max_positions=MAX_POSITIONS,
    )),
    "llama": (llama.FAMILY, llama.LlamaConfig(
        vocab_size=VOCAB, width=16, layers=2, heads=4, kv_heads=2, head_width=4, mlp_width=24,
        max_positions=MAX_POSITIONS,
    )),
    "t5": (t5.FAMILY, t5.T5Config(
        vocab_size=VOCAB, width=16, head_width=4, heads=3, mlp_width=24, encoder_layers=1, decoder_layers=2, buckets=8,
        max_distance=16, gated=True, activation="gelu_new", tied=False,
    )),
}  # fmt: skip
SEEDS = {"opt": 1, "llama": 1, "t5": 1}  # weights whose greedy texts do not settle on one token
ROWS = 8
LENGTHS = np.array([1, 2, 3, 16, 9, 5, 4, 12], np.int32)
WIDTH = 40  # of texts that are read without a cache: a prompt and what is decoded after it


@functools.cache
def target(family: str) -> Model:
    """A model whose greedy continuations vary."""
    module, config = FAMILIES[family]
    initial = module.init(jax.random.key(0), config, Format())
    params = noisy(initial, SEEDS[family], lambda leaf: 0.6)
    return Model(family, module, config, FMT, laid_out(params, FMT), eos=(2,))


@functools.cache
def draft(family: str, noise: float = 0.1) -> Model:
    """The target with noise on every weight: right some of the time."""
    model = target(family)
    params = noisy(laid_out(model.params, FMT), 9, lambda leaf: noise * np.std(leaf))  # kernels (in, out)
    return dataclasses.replace(model, name=f"{family} draft", params=laid_out(params, FMT))


def drafter_for(kind: str, family: str) -> LoadedDrafter:
    """A drafter by its name in the table: plain, ngram-G, model-G, or a policy's name and its G."""
    name, _, gamma = kind.partition("-")
    if name == "plain":
        return drafters.plain()
    if name == "ngram":
        return drafters.ngram(gamma=int(gamma))
    if name in RULES:
        return drafters.model(draft(family), policy=RULES[name](int(gamma)))
    return drafters.model(draft(family), gamma=int(gamma))


def _guessing(gamma: int) -> policies.Rule:
    """A classifier that was not trained: its lengths vary."""
    rng = np.random.default_rng(0)
    shapes = {"hidden": (12, 4), "hidden_bias": (4,), "out": (4,)}
    drawn = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    return policies.disco(policies.Disco(**drawn, out_bias=jnp.float32(0.5), stop=jnp.float32(0.45)), gamma_max=gamma)


RULES = {
    "heuristic": lambda gamma: policies.heuristic(gamma_max=gamma),
    "threshold": lambda gamma: policies.threshold(0.6, gamma_max=gamma),
    "disco": _guessing,
    "goodput": lambda gamma: policies.goodput(
        theory.StepTime(0.0, 0.02, 1.0), draft=theory.StepTime(0.0, 0.0, 0.3), gamma_max=gamma
    ),
}  # fmt: skip


def prompts() -> np.ndarray:
    """[ROWS, 16] left-aligned tokens; what is past each row's length is other rubbish in every column."""
    return np.random.default_rng(5).integers(0, VOCAB, (ROWS, 16)).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Setting:
    """Arguments of one run, as arrays of the loop."""

    max_new: int = 24
    cache_len: int = 60
    seed: int = 0
    eos: tuple[int, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    automaton: stopping.StopAutomaton | None = None  # of stop strings


def prepare(family, drafter, temperature=0.0, *, tokens=None, lengths=None, rows=None, budget=None, setting=None,
            params=None, **sampled):  # fmt: skip
    """What a run of the loop needs: (DecodeParams, state after prefill, static arguments but the verifier)."""
    setting = setting or Setting()
    model = target(family)
    tokens = prompts() if tokens is None else tokens
    lengths = LENGTHS if lengths is None else lengths
    batch = len(lengths)
    warm = sampling.sampling_params(batch, VOCAB, temperature=temperature, **sampled)
    rules = stopping.rules(VOCAB, eos=setting.eos, stop_tokens=setting.stop_tokens)
    if setting.automaton is not None:
        rules = rules._replace(automaton=jax.tree.map(jnp.asarray, setting.automaton))
    weights = model.params if params is None else params
    decode = loop.DecodeParams(weights, drafter.params, warm, rules)
    lm = model.variant(capture=drafter.drafter.capture)
    static = {"model": lm, "drafter": drafter.drafter}
    numbers = jnp.arange(batch) if rows is None else jnp.asarray(rows)
    limit = np.full((batch,), setting.max_new) if budget is None else np.asarray(budget)
    state = loop.prefill(
        decode, loop.row_keys(setting.seed, numbers), jnp.asarray(tokens), jnp.asarray(lengths),
        jnp.asarray(limit, jnp.int32), **static, cache_len=setting.cache_len, max_new=setting.max_new,
    )  # fmt: skip
    return decode, state, static


def run(family, drafter, temperature=0.0, *, verify=token_level, **options):
    """`decoding.generate` on a batch; returns the final state. Options are those of `prepare`."""
    decode, state, static = prepare(family, drafter, temperature, **options)
    return loop.generate(decode, state, verify=verify, **static)


def jitted(drafter: Drafter) -> Drafter:
    """A drafter for tests that call its functions themselves: one program each, not one for each operation."""
    return drafter._replace(
        init=jax.jit(drafter.init, static_argnums=3),
        propose=jax.jit(drafter.propose, static_argnums=4),
        commit=jax.jit(drafter.commit),
    )


def commit_of(tokens, length, argmax=None) -> Commit:
    """A `Commit` of hand-made tokens [B, W], without features."""
    tokens = jnp.asarray(tokens, jnp.int32)
    found = jnp.zeros_like(tokens) if argmax is None else argmax
    return Commit(tokens, jnp.asarray(length, jnp.int32), jnp.zeros((*tokens.shape, 0), jnp.float32), found)


def texts(state) -> list[list[int]]:
    """The tokens of each row."""
    tokens, length = jax.device_get((state.tokens, state.length))
    return [tokens[b, :n].tolist() for b, n in enumerate(length)]


@functools.cache
def plain(family: str) -> list[list[int]]:
    """Greedy rows of plain decoding."""
    return texts(run(family, drafters.plain()))


def scores(family: str, prompt: np.ndarray, length: int, new: np.ndarray) -> np.ndarray:
    """Logits [n + 1, V] that the model gives after the prompt and after each of the new tokens, without a cache.

    New tokens [B, n] after one and the same prompt give [B, n + 1, V].
    """
    model, news = target(family), np.atleast_2d(new).astype(np.int32)
    if family == "t5":
        given, counts = np.tile(prompt, (len(news), 1)), np.full((len(news),), length, np.int32)
        inputs = np.pad(news, ((0, 0), (1, 0)), constant_values=model.config.start_token)
        out = _score(model.params, given, inputs, family=family, encoder_length=counts)
    else:
        given = np.tile(prompt[:length], (len(news), 1))
        after = np.zeros((len(news), WIDTH - length - news.shape[1]), np.int32)
        out = _score(model.params, np.concatenate([given, news, after], 1), family=family)
        out = out[:, length - 1 : length + news.shape[1]]
    return np.asarray(out)[0] if np.ndim(new) == 1 else np.asarray(out)


@functools.partial(jax.jit, static_argnames="family")
def _score(params, *tokens, family, **lengths):
    module, config = FAMILIES[family]
    return module.score(params, config, FMT, *tokens, **lengths)


@functools.cache
def pair_logits(family: str, row: int) -> np.ndarray:
    """[V, V, 3, V] float64: the target's logits after a prompt, after each next token, and after each two."""
    pairs = np.array(list(itertools.product(range(VOCAB), repeat=2)), np.int32)
    logits = scores(family, prompts()[row], int(LENGTHS[row]), pairs)
    return logits.astype(np.float64).reshape(VOCAB, VOCAB, 3, VOCAB)


def exact_model(family: str, row: int, temperature: float, **choice) -> distributions.Model:
    """The target's next-token distribution after one of `prompts()` and up to two tokens, from scores alone."""
    logits = pair_logits(family, row)
    first = {target(family).config.start_token} if family == "t5" else set(prompts()[row, : LENGTHS[row]].tolist())

    def probs(prefix: tuple[int, ...]) -> np.ndarray:
        at = (*prefix, 0, 0)[:2]
        return plain_distribution(logits[at][len(prefix)], first | set(prefix), temperature, **choice)

    return probs


def plain_distribution(
    logits, seen, temperature, *, top_k=0, top_p=1.0, min_p=0.0, penalty=1.0, bias=None
) -> np.ndarray:
    """The warped distribution by its definition: by sorting, in float64. Ties are not met here."""
    x = np.array(logits, np.float64)
    for token, value in (bias or {}).items():
        x[token] += value
    for token in seen:
        x[token] *= penalty if x[token] < 0 else 1 / penalty
    if temperature == 0:
        return np.eye(len(x))[x.argmax()]
    probs = np.exp((x - x.max()) / temperature)
    order = np.argsort(-probs)
    if top_k:
        probs[order[top_k:]] = 0.0
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= top_p * probs.sum()]] = 0.0
    probs[probs < min_p * probs.max()] = 0.0
    return probs / probs.sum()
