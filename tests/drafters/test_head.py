"""Trained heads of every kind draft exactly: chains, trees and dynamic trees, on every family they draft for."""

import functools

import jax
import numpy as np
import pytest

from specjax import drafters, trees
from specjax.heads.eagle import EagleConfig
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.models.llama import LlamaConfig
from specjax.types import Siblings
from tests import battery
from tests.drafters import drafting

WIDTH = 16
LAYER = LlamaConfig(vocab_size=battery.VOCAB, width=WIDTH, layers=1, heads=4, kv_heads=2, head_width=4, mlp_width=24)
CONFIGS = {
    "eagle": EagleConfig(LAYER, WIDTH),
    "eagle3": EagleConfig(LAYER, 3 * WIDTH, (0, 1, 2), 9),
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


@functools.cache
def head(kind: str, family: str, **changed) -> Head:
    """A random head for the target of the battery."""
    config = CONFIGS[kind]
    params = KINDS[kind].init(jax.random.key(1), config, battery.FMT)
    params = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim == 2 else leaf, params)
    tokens = np.array([0, 1, 2, 4, 5, 7, 8, 10, 12], np.int32) if config.draft_vocab else None
    return Head(f"a {kind} head", KINDS[kind], config, battery.FMT, params, battery.target(family), tokens)


@pytest.mark.parametrize("family", ["opt", "llama"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", CONFIGS)
def test_greedy_equals_plain(kind, shape, family):
    loaded = drafters.head(head(kind, family), **SHAPES[shape])
    drafting.greedy_equals_plain(family, loaded, VERIFIERS[shape])
