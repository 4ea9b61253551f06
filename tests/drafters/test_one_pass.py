"""What heads draft that draft all positions in one forward pass, P-EAGLE and DFlash, computed independently.

That decoding stays exact with them: test_head.py.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, trees
from specjax.drafters import LoadedDrafter
from specjax.drafters.head import draft_logits
from specjax.heads.dflash import DFlashConfig
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.heads.peagle import PEagleConfig
from specjax.model import Model
from specjax.models.llama import LlamaConfig
from specjax.types import Commit
from tests import battery
from tests.drafters.heads import read_again
from tests.drafters.test_head import dot, rms

WIDTH, MASK, GAMMA = 16, 3, 3
TAPS = (0, 1, 2)
LAYER = LlamaConfig(battery.VOCAB, WIDTH, layers=2, heads=4, kv_heads=2, head_width=4, mlp_width=24)
NORMED = dataclasses.replace(LAYER, qk_norm=True)
TOKENS = np.array([0, 1, 2, 4, 5, 7, 8, 10, 12], np.int32)
FEW = len(TOKENS)
CONFIGS = {
    "peagle": PEagleConfig(LAYER, 3 * WIDTH, TAPS, FEW, own_embedding=True, mask_token=MASK, tokens=5),
    "peagle window": PEagleConfig(
        NORMED, 3 * WIDTH, TAPS, battery.VOCAB, window=4, norm_before_residual=True, fc_norm=True, mask_token=MASK
    ),
    "dflash": DFlashConfig(NORMED, TAPS, MASK, 5, (None, None)),
    "dflash window": DFlashConfig(NORMED, (1,), MASK, 4, (3, None), causal=True, from_anchor=True, draft_vocab=FEW),
}


@functools.cache
def head(kind: str, family: str) -> Head:
    """A random head whose every parameter matters, for the target of the battery."""
    config, of, numbers = CONFIGS[kind], KINDS[kind.split()[0]], np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: of.init(jax.random.key(0), config, battery.FMT))

    def draw(leaf):
        drawn = numbers.normal(0, 0.3, leaf.shape) if leaf.ndim > 1 else numbers.uniform(0.5, 1.5, leaf.shape)
        return jnp.asarray(drawn, leaf.dtype)

    tokens = TOKENS if config.draft_vocab == FEW else None
    return Head(f"a {kind} head", of, config, battery.FMT, jax.tree.map(draw, shapes), battery.target(family), tokens)


# --- an independent computation, in float64 --------------------------------------------------------------------------


def rotated(x: np.ndarray, first: int) -> np.ndarray:
    """Heads [n, H, W] turned to positions `first`, `first` + 1, ..."""
    half = x.shape[-1] // 2
    angle = (first + np.arange(len(x)))[:, None, None] * LAYER.rope_theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def attention(params: dict, asking: np.ndarray, seen: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Queries of the last rows [n, D], keys and values of all of them [m, D] from position 0; visible [n, m]."""

    def split(x: np.ndarray, name: str) -> np.ndarray:
        x = dot(x, params[name]).reshape(len(x), -1, LAYER.head_width)
        return rms(x, params[f"{name}_norm"]) if f"{name}_norm" in params else x

    q, k, v = rotated(split(asking, "q"), len(seen) - len(asking)), rotated(split(seen, "k"), 0), split(seen, "v")
    k, v = (np.repeat(a, LAYER.heads // LAYER.kv_heads, 1) for a in (k, v))
    scores = np.where(visible, np.einsum("qhd,khd->hqk", q, k) / np.sqrt(LAYER.head_width), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
    return dot(mixed.reshape(len(asking), -1), params["o"])


def with_mlp(x: np.ndarray, params: dict) -> np.ndarray:
    read, params = rms(x, params["mlp_norm"]), params["mlp"]
    gate = dot(read, params["gate"])
    return x + dot(gate / (1 + np.exp(-gate)) * dot(read, params["up"]), params["down"])


def embedding(of: Head) -> np.ndarray:
    own = of.params["embed"] if "embed" in of.params else of.target.params["embed"]["tokens"]
    return np.asarray(own["table"], np.float64)


def peagle(of: Head, states: np.ndarray, text: list[int], count: int) -> np.ndarray:
    """Logits over the draft vocabulary, from the streams [n - 1, 3 D] of a text of n tokens."""
    config, params, last = of.config, of.params, len(text) - 2
    taps = np.concatenate([states, np.tile(np.asarray(params["mask_hidden"][0]), (count - 1, 1))])
    if config.fc_norm:
        parts = enumerate(np.split(taps, 3, -1))
        taps = np.concatenate([rms(part, params["fc_norm"][str(index)]) for index, part in parts], -1)
    given, tokens = dot(taps, params["fc"]), [*text[1:], *[MASK] * (count - 1)]
    row = np.arange(len(tokens))
    visible = row[:, None] >= row
    if config.window is not None:  # a chain of masks always sees itself, and the pair that it follows
        visible &= (row > row[:, None] - config.window) | (row >= last)
    normed = rms(given, params["hidden_norm"])
    x = normed if config.norm_before_residual else given
    attended = np.concatenate([rms(embedding(of)[tokens], params["embed_norm"]), normed], -1)
    for index in range(LAYER.layers):
        layer = params["layers"][str(index)]
        attended = attended if index == 0 else rms(x, layer["attn_norm"])
        x = with_mlp(x + attention(layer["attn"], attended, attended, visible), layer)
    return dot(rms(x[last:], params["final_norm"]), params["head"])


def dflash(of: Head, states: np.ndarray, text: list[int], count: int) -> np.ndarray:
    """Logits over the draft vocabulary, from the streams [n - 1, taps D] of a text of n tokens."""
    config, params, known = of.config, of.params, len(text) - 1
    context = rms(dot(states, params["fc"]), params["hidden_norm"])
    x = embedding(of)[[text[-1], *[MASK] * (config.block - 1)]]
    for index, window in enumerate(config.windows):
        layer = params["layers"][str(index)]
        read = rms(x, layer["attn_norm"])
        visible = np.ones((config.block, known + config.block), bool)
        if window is not None:
            visible[:, : max(known - window, 0)] = False
            visible[:, known:] = np.tri(config.block, dtype=bool)
        x = with_mlp(x + attention(layer["attn"], read, np.concatenate([context, read]), visible), layer)
    x = rms(x, params["final_norm"])[0 if config.from_anchor else 1 :][:count]
    if config.draft_vocab:
        return dot(x, params["head"])
    target = of.target.params
    return dot(x, target["head"]) if "head" in target else x @ embedding(of).T


def expected(of: Head, states: np.ndarray, text: list[int], count: int) -> np.ndarray:
    """Logits [count, V] over the target's vocabulary, from the streams of all tokens but the last."""
    compute = {"peagle": peagle, "dflash": dflash}[of.kind.name]
    found = compute(of, np.asarray(states[: len(text) - 1], np.float64), text, count)
    if of.draft_tokens is None:
        return found
    wide = np.full((count, battery.VOCAB), -np.inf)
    wide[:, of.draft_tokens] = found
    return wide


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


# --- drafts ----------------------------------------------------------------------------------------------------------


def stages(loaded: LoadedDrafter, model: Model):
    """The jitted functions of a drafter, with distributions that are not warped."""
    part, params, lm = loaded.drafter, loaded.params, model.variant(capture=loaded.drafter.capture)

    def init(prompt, length):
        return part.init(params, prompt, length, 40, lm.prefill(model.params, prompt, length, 40))

    def propose(key, memory, pending):
        return part.propose(params, key, memory, pending, lambda logits, ancestors=None: jax.nn.log_softmax(logits))

    def commit(memory, tokens, length, hiddens):
        return part.commit(params, memory, Commit(tokens, length, hiddens[-1], jnp.zeros_like(tokens), hiddens))

    assert part.rewind is not None
    return *map(jax.jit, (init, propose, commit)), jax.jit(functools.partial(part.rewind, params))


ROUNDS = [  # tokens that each row commits, and how many of all are then replaced by one other
    ([1, 2, 3, 4, 0, 3, 2, 4], [0, 0, 0, 0, 0, 0, 0, 0]),
    ([4, 1, 0, 2, 3, 1, 2, 3], [0, 1, 0, 2, 1, 0, 2, 3]),
    ([2, 3, 1, 1, 1, 0, 4, 1], [3, 0, 2, 2, 0, 2, 1, 4]),
]


@pytest.mark.parametrize(("kind", "family"), battery.others_slow(
    [(k, f) for k in CONFIGS for f in ("opt", "llama")],
    [("dflash window", "opt")],
))  # fmt: skip
def test_drafts_are_those_of_the_true_features(kind, family):
    """Logits within 1e-4: after ragged prompts, ragged rounds, rounds that leave rows alone, and rollbacks."""
    of, numbers, rows = head(kind, family), np.random.default_rng(3), battery.ROWS
    loaded = drafters.head(of, gamma=GAMMA)
    capture = loaded.drafter.capture
    new = numbers.integers(0, battery.VOCAB, (rows, 12)).tolist()
    states = read_again(of.target, new, capture)
    starts = [row[:n].tolist() for row, n in zip(battery.prompts(), battery.LENGTHS, strict=True)]
    texts = [start + more for start, more in zip(starts, new, strict=True)]
    init, propose, commit, rewind = stages(loaded, of.target)

    def check(memory, length):
        pending = np.array([text[n - 1] for text, n in zip(texts, length, strict=True)], np.int32)
        draft, memory = propose(jax.random.split(jax.random.key(1), rows), memory, pending)
        valid, log_q = np.asarray(draft.valid), np.asarray(draft.log_q)
        for row, n in enumerate(length):
            assert valid[row].tolist() == [True] + [n > 1] * GAMMA  # one token has no feature before it
            if n > 1:
                wanted = log_softmax(expected(of, states[row], texts[row][:n], GAMMA))
                np.testing.assert_allclose(log_q[row, :GAMMA], wanted, atol=1e-4, rtol=0)
        return memory

    length = battery.LENGTHS.copy()
    memory = check(init(battery.prompts(), length), length)
    for counts, back in ROUNDS:
        tokens = np.full((rows, GAMMA + 1), 5, np.int32)
        fed = np.full((rows, GAMMA + 1, states[0].shape[1]), 1e3, np.float32)  # undefined past the length
        for row, (n, count) in enumerate(zip(length, counts, strict=True)):
            tokens[row, :count] = texts[row][n : n + count]
            fed[row, :count] = states[row][n - 1 : n - 1 + count]
        memory = commit(memory, tokens, np.array(counts, np.int32), tuple(np.split(fed, len(capture), -1)))
        length = length + counts
        length = np.where(back, length - back + 1, length)
        token = numbers.integers(0, battery.VOCAB, rows).astype(np.int32)
        for row, n in enumerate(length):
            texts[row][n - 1] = int(token[row]) if back[row] else texts[row][n - 1]
        memory = check(rewind(memory, np.array(back, np.int32), token), length)


@pytest.mark.parametrize("kind", ["peagle", pytest.param("dflash window", marks=pytest.mark.slow)])
def test_draft_logits_are_those_of_one_pass(kind):
    of = head(kind, "llama")
    loaded, text = drafters.head(of), battery.prompts()[3].tolist()
    steps = {"peagle": 5, "dflash window": 4}[kind]
    assert loaded.drafter.tree.size == steps + 1  # by default, what the file names, or a whole block
    tokens, logits = draft_logits(of.target, text, loaded, steps=steps)
    states = read_again(of.target, [[0]] * battery.ROWS, of.config.taps)[3]
    wanted = expected(of, states, text, steps)
    np.testing.assert_allclose(logits, wanted, atol=1e-4, rtol=0)
    assert tokens.tolist() == wanted.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("peagle", {"dynamic": 8}, "dynamic"),
        ("dflash", {"dynamic": 8}, "dynamic"),
        ("dflash", {"gamma": 5}, "gamma"),
        ("dflash window", {"gamma": 5}, "gamma"),
        ("dflash", {"tree": trees.chain(5)}, "tree"),
    ],
)
def test_what_the_head_cannot_draft_is_refused(kind, options, name):
    with pytest.raises(ValueError, match=name):
        drafters.head(head(kind, "llama"), **options)
