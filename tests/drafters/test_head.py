"""Trained heads of every kind draft exactly: chains, trees and dynamic trees, on every family they draft for."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, trees
from specjax.heads import spire_formats
from specjax.heads.dflash import DFlashConfig
from specjax.heads.eagle import EagleConfig
from specjax.heads.falcon import FalconConfig
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.heads.peagle import PEagleConfig
from specjax.models.llama import LlamaConfig
from specjax.trace import rounds
from specjax.types import Siblings
from tests import battery, distributions
from tests.drafters import drafting, heads

WIDTH = 16
LAYER = LlamaConfig(vocab_size=battery.VOCAB, width=WIDTH, layers=1, heads=4, kv_heads=2, head_width=4, mlp_width=24)
CONFIGS = {
    "eagle": EagleConfig(LAYER, WIDTH),
    "eagle3": EagleConfig(LAYER, 3 * WIDTH, (0, 1, 2), 9),
    "peagle": PEagleConfig(LAYER, 3 * WIDTH, (0, 1, 2), 9, own_embedding=True, mask_token=3),
    "falcon": FalconConfig(LAYER, WIDTH, block=2),
    "dflash": DFlashConfig(dataclasses.replace(LAYER, layers=2, qk_norm=True), (1, 2), 3, 5, (None, None)),
    "spire": None,  # that of the target's layers
}
SHAPES = {
    "chain": {"gamma": 3},
    "tree": {"tree": trees.regular((3, 2))},
    "sampled tree": {"tree": trees.regular((3, 2)), "siblings": Siblings.WITHOUT_REPLACEMENT},
    "dynamic": {"dynamic": 8, "depth": 3, "width": 3},
}
VERIFIERS = {
    "chain": "token",
    "tree": "deterministic",
    "sampled tree": "multiround-without",
    "dynamic": "deterministic",
}
FAMILIES = ("opt", "llama")
ONE_PASS = ("peagle", "dflash")  # which grow no dynamic tree; what they draft: test_one_pass.py
CASES = [
    (kind, shape, family)
    for kind, shape, family in itertools.product(CONFIGS, SHAPES, FAMILIES)
    if kind not in ONE_PASS or shape != "dynamic"
]
GREEDY = [
    ("eagle3", "dynamic", "llama"), ("peagle", "sampled tree", "opt"),
    ("dflash", "chain", "llama"), ("spire", "chain", "opt"),
]  # fmt: skip


@functools.cache
def head(kind: str, family: str, **changed) -> Head:
    """A random head for the target of the battery."""
    config = CONFIGS[kind] or spire_formats.shape(battery.target(family), (0, 1), window=3, sinks=1)
    params = KINDS[kind].init(jax.random.key(1), config, battery.FMT)
    params = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim == 2 else leaf, params)
    tokens = np.array([0, 1, 2, 4, 5, 7, 8, 10, 12], np.int32) if config.draft_vocab else None
    return Head(f"a {kind} head", KINDS[kind], config, battery.FMT, params, battery.target(family), tokens)


@pytest.mark.parametrize(("kind", "shape", "family"), battery.others_slow(CASES, GREEDY))
def test_greedy_equals_plain(kind, shape, family):
    loaded = drafters.head(head(kind, family), **SHAPES[shape])
    drafting.greedy_equals_plain(family, loaded, VERIFIERS[shape])


# --- an independent computation of what a head drafts ----------------------------------------------------------------


def dot(x: np.ndarray, linear: dict) -> np.ndarray:
    kernel = linear["kernel"]
    kernel = np.concatenate([kernel[n] for n in sorted(kernel)], 1) if isinstance(kernel, dict) else kernel
    y = x @ (np.asarray(kernel).T if battery.FMT.products.out_in else np.asarray(kernel))
    return y + np.asarray(linear["bias"]) if "bias" in linear else y


def rms(x: np.ndarray, norm: dict) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + LAYER.eps) * np.asarray(norm["scale"])


def layer(x: np.ndarray, attended: np.ndarray, params: dict) -> np.ndarray:
    """One layer of Llama over whole rows [n, D], in float64."""
    n, half = len(x), LAYER.head_width // 2
    angle = np.arange(n)[:, None] * LAYER.rope_theta ** (-np.arange(half) / half)
    turn = lambda a: np.concatenate(
        [a[..., :half] * np.cos(angle) - a[..., half:] * np.sin(angle),
         a[..., half:] * np.cos(angle) + a[..., :half] * np.sin(angle)], -1,
    )  # fmt: skip
    split = lambda name: dot(attended, params["attn"][name]).reshape(n, -1, LAYER.head_width).transpose(1, 0, 2)
    q, k, v = turn(split("q")), turn(split("k")), split("v")
    k, v = (np.repeat(a, LAYER.heads // LAYER.kv_heads, 0) for a in (k, v))
    scores = np.where(np.tri(n, dtype=bool), q @ k.transpose(0, 2, 1) / np.sqrt(LAYER.head_width), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weights / weights.sum(-1, keepdims=True)) @ v
    x = x + dot(mixed.transpose(1, 0, 2).reshape(n, -1), params["attn"]["o"])
    mlp, read = params["mlp"], rms(x, params["mlp_norm"])
    gate = dot(read, mlp["gate"])
    return x + dot(gate / (1 + np.exp(-gate)) * dot(read, mlp["up"]), mlp["down"])


def drafted(of: Head, states: np.ndarray, text: list[int], steps: int) -> list[int]:
    """The greedy chain after a text, from the hidden states of all its tokens but the last."""
    params, target = of.params, of.target
    table = np.asarray(target.params["embed"]["tokens"]["table"], np.float64)
    given = dot(states, params["fc"]) if of.kind.name == "eagle3" else states
    new: list[int] = []
    for _ in range(steps):
        embedded = table[[*text[1:], *new]]
        if of.kind.name == "eagle3":
            attended = np.concatenate([rms(embedded, params["embed_norm"]), rms(given, params["hidden_norm"])], -1)
            out = layer(given, attended, params["layers"]["0"])
            logits = dot(rms(out[-1:], params["final_norm"]), params["head"])[0]
            assert of.draft_tokens is not None
            new.append(int(of.draft_tokens[logits.argmax()]))
        else:
            x = dot(np.concatenate([embedded, given], -1), params["fc"])
            out = layer(x, x, params["layers"]["0"])
            tied = "head" not in target.params
            logits = out[-1] @ table.T if tied else dot(out[-1:], target.params["head"])[0]
            new.append(int(logits.argmax()))
        given = np.concatenate([given, out[-1:]])
    return new


@pytest.mark.parametrize(
    ("kind", "family", "block", "apart"),
    battery.others_slow(
        [(*case, *how) for case in itertools.product(["eagle", "eagle3"], FAMILIES)
         for how in ((2, 2), (2, None), (32, None))],
        [("eagle3", "llama", 2, 2)],
    ),
)  # fmt: skip
def test_drafts_are_those_of_the_true_features(kind, family, block, apart):
    """After prompts that are read in blocks, row by row, or at once, and after rounds that accepted different numbers
    of tokens."""
    fmt = dataclasses.replace(battery.FMT, narrow=(block,), apart=apart)
    of = dataclasses.replace(head(kind, family), fmt=fmt)
    prompts = [row[:n].tolist() for row, n in zip(battery.prompts(), battery.LENGTHS, strict=True)]
    options = {"temperature": 0.0, "max_new_tokens": battery.Setting.max_new, "ignore_eos": True}
    trace = rounds.record(of.target, prompts, drafters.head(of, gamma=3), options)
    plain = battery.plain(family)
    states = heads.read_again(of.target, plain, of.config.taps)
    texts, seen = [list(prompt) for prompt in prompts], set()
    for one in trace.rounds:
        for row in one.rows:
            text = texts[row.row]
            if len(text) > 1:
                expected = drafted(of, np.asarray(states[row.row][: len(text) - 1], np.float64), text, 3)
                assert [node.token for node in row.nodes] == expected
                seen.add(row.accepted)
            texts[row.row] = text + list(row.tokens)
    assert [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)] == plain and len(seen) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "shape", "family"), CASES)
def test_sampled_rows_follow_the_joint_distribution(kind, shape, family):
    loaded = drafters.head(head(kind, family), **SHAPES[shape])
    found = drafting.follows_the_joint_distribution(family, loaded, VERIFIERS[shape])
    assert min(found.values()) > distributions.ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle3", "peagle"])
def test_control_a_draft_vocabulary_that_is_not_the_heads_own(kind):
    """Probabilities of other tokens than those that are drafted."""
    loaded = drafters.head(head(kind, "llama"), gamma=3)
    places = loaded.params.places
    propose = loaded.drafter.propose

    def wrong(params, key, state, pending, warp):
        draft, state = propose(params, key, state, pending, warp)
        return draft._replace(log_q=jnp.roll(draft.log_q, 1, axis=-1)), state

    assert places is not None
    broken = loaded._replace(drafter=loaded.drafter._replace(propose=wrong))
    found = drafting.follows_the_joint_distribution("llama", broken, "token")
    assert min(found.values()) < distributions.ALPHA


@pytest.mark.parametrize(
    ("kind", "shape", "family"),
    battery.others_slow(CASES, []),
)
def test_rows_are_independent(kind, shape, family):
    loaded = drafters.head(head(kind, family), **SHAPES[shape])
    drafting.rows_are_independent(family, loaded, VERIFIERS[shape])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "shape", "family"), [case for case in CASES if case[2] == "llama"])
def test_a_full_cache_stops_at_the_same_token(kind, shape, family):
    loaded = drafters.head(head(kind, family), **SHAPES[shape])
    drafting.a_full_cache_stops_at_the_same_token(family, loaded, VERIFIERS[shape])


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_head_of_the_middle_model_in_a_cascade(kind):
    """It is rolled back by one token and by whole rounds."""
    middle = battery.draft("opt")
    inner = drafters.head(dataclasses.replace(head(kind, "opt"), target=middle), gamma=2)
    loaded = drafters.cascade(middle, inner, gamma=4)
    drafting.greedy_equals_plain("opt", loaded, "token")
    found = drafting.follows_the_joint_distribution("opt", loaded, "token")
    assert min(found.values()) > distributions.ALPHA
