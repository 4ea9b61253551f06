"""What the batteries share: small target and draft models of every family, and runs of the decoding loop on them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax import decoding as loop
from specjax import drafters, sampling, stopping
from specjax.drafters import Guide
from specjax.model import Model
from specjax.models import llama, opt, t5
from specjax.models.format import Format
from specjax.verify.token import token_level

VOCAB, MAX_POSITIONS = 13, 64
FMT = Format()
FAMILIES = {
    "opt": (opt, opt.OPTConfig(
        vocab_size=VOCAB, width=16, embed_width=16, layers=2, heads=2, mlp_width=32, max_positions=MAX_POSITIONS,
    )),
    "llama": (llama, llama.LlamaConfig(
        vocab_size=VOCAB, width=16, layers=2, heads=4, kv_heads=2, head_width=4, mlp_width=24,
        max_positions=MAX_POSITIONS,
    )),
    "t5": (t5, t5.T5Config(
        vocab_size=VOCAB, width=16, head_width=4, heads=3, mlp_width=24, encoder_layers=1, decoder_layers=2, buckets=8,
        max_distance=16, gated=True, activation="gelu_new", tied=False,
    )),
}  # fmt: skip
SEEDS = {"opt": 1, "llama": 1, "t5": 1}  # weights whose greedy texts do not settle on one token
ROWS = 8
LENGTHS = np.array([1, 2, 3, 16, 9, 5, 4, 12], np.int32)


@functools.cache
def target(family: str) -> Model:
    """A model whose greedy continuations vary."""
    module, config = FAMILIES[family]
    leaves, structure = jax.tree.flatten(module.init(jax.random.key(0), config, FMT))
    keys = jax.random.split(jax.random.key(SEEDS[family]), len(leaves))
    drawn = [p + 0.6 * jax.random.normal(k, p.shape) for p, k in zip(leaves, keys, strict=True)]
    return Model(family, module, config, FMT, jax.tree.unflatten(structure, drawn), eos=(2,))


@functools.cache
def draft(family: str, noise: float = 0.1) -> Model:
    """The target with noise on every weight: right some of the time."""
    model = target(family)
    leaves, structure = jax.tree.flatten(model.params)
    keys = jax.random.split(jax.random.key(9), len(leaves))
    near = [p + noise * jnp.std(p) * jax.random.normal(k, p.shape) for p, k in zip(leaves, keys, strict=True)]
    return dataclasses.replace(model, name=f"{family} draft", params=jax.tree.unflatten(structure, near))


def guide(kind: str, family: str) -> Guide:
    """A drafter by its name in the table: plain, ngram-G, model-G."""
    name, _, gamma = kind.partition("-")
    if name == "plain":
        return drafters.plain()
    if name == "ngram":
        return drafters.ngram(gamma=int(gamma))
    return drafters.model(draft(family), gamma=int(gamma))


def prompts() -> np.ndarray:
    """[ROWS, 16] left-aligned tokens; what lies past each row's length is other rubbish in every column."""
    return np.random.default_rng(5).integers(0, VOCAB, (ROWS, 16)).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Setting:
    """Arguments of one run, as arrays of the loop."""

    max_new: int = 24
    cache_len: int = 60
    seed: int = 0
    eos: tuple[int, ...] = ()
    transitions: np.ndarray | None = None


def run(family, guide, temperature=0.0, *, tokens=None, lengths=None, rows=None, budget=None, verify=token_level,
        setting=None, params=None, **sampled):  # fmt: skip
    """`decoding.generate` on a batch; returns the final state."""
    setting = setting or Setting()
    model = target(family)
    tokens = prompts() if tokens is None else tokens
    lengths = LENGTHS if lengths is None else lengths
    batch = len(lengths)
    warm, stages = sampling.sampling_params(batch, VOCAB, temperature=temperature, **sampled)
    codes = stopping.rules(VOCAB, eos=setting.eos).codes
    transitions = None if setting.transitions is None else jnp.asarray(setting.transitions)
    weights = model.params if params is None else params
    decode = loop.DecodeParams(weights, guide.params, warm, stopping.StopRules(codes, transitions))
    static = {"model": model.lm, "drafter": guide.drafter, "stages": stages}
    numbers = jnp.arange(batch) if rows is None else jnp.asarray(rows)
    limit = np.full((batch,), setting.max_new) if budget is None else np.asarray(budget)
    state = loop.prefill(
        decode, loop.row_keys(setting.seed, numbers), jnp.asarray(tokens), jnp.asarray(lengths),
        jnp.asarray(limit, jnp.int32), **static, cache_len=setting.cache_len, max_new=setting.max_new,
    )  # fmt: skip
    return loop.generate(decode, state, verify=verify, **static)


def texts(state) -> list[list[int]]:
    """The tokens of each row."""
    tokens, length = jax.device_get((state.tokens, state.length))
    return [tokens[b, :n].tolist() for b, n in enumerate(length)]


def scores(family: str, prompt: np.ndarray, length: int, new: np.ndarray) -> np.ndarray:
    """Logits [n + 1, V] that the model gives after the prompt and after each of the new tokens, without a cache."""
    model = target(family)
    if family == "t5":
        inputs = np.concatenate([[model.config.start_token], new]).astype(np.int32)
        source = prompt[None, :length]
        out = t5.score(
            model.params,
            model.config,
            FMT,
            jnp.asarray(source),
            jnp.asarray([length], jnp.int32),
            jnp.asarray(inputs[None]),
        )
        return np.asarray(out)[0]
    whole = np.concatenate([prompt[:length], new]).astype(np.int32)
    return np.asarray(model.family.score(model.params, model.config, FMT, jnp.asarray(whole[None])))[0, length - 1 :]
