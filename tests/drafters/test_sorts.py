"""No drafter sorts a vocabulary, or the text of a row, to find its few best entries: read in the compiled loop."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from specjax import categorical, drafters, trees
from specjax import decoding as loop
from specjax.drafters import Siblings, token_tree
from specjax.model import Model
from specjax.models import opt
from specjax.planning import program as hlo
from specjax.sampling import sampling_params
from specjax.stopping import rules
from specjax.verify import TABLE
from tests import battery

VOCAB = 700
SHORT = 64  # rows of so many numbers may be sorted: nodes of a tree
TREE = trees.Tree((-1, 0, 0, 0, 1, 1, 2, 4, 4))  # levels of several nodes, of which each has its own number of children
POINTS = "deterministic"  # the verifier of point masses


def model(seed: int) -> Model:
    config = dataclasses.replace(battery.FAMILIES["opt"][1], vocab_size=VOCAB, max_positions=256)
    return Model("wide", opt.FAMILY, config, battery.FMT, opt.FAMILY.init(jax.random.key(seed), config, battery.FMT))


MADE = {
    "tree of the best": (lambda: drafters.tree(model(1), TREE, siblings=Siblings.POINTS), POINTS),
    "tree, drawn": (lambda: drafters.tree(model(1), TREE), "multiround-without"),
    "dynamic tree": (lambda: drafters.dynamic_tree(model(1), size=8, depth=3, width=3), POINTS),
    "suffix tree": (lambda: drafters.suffix_tree(size=8, depth=4), POINTS),
    "suffix": (lambda: drafters.suffix(gamma=4), "token"),
    "lookahead": (lambda: drafters.lookahead(window=4, ngram=3, guesses=4), POINTS),
    "disco": (lambda: drafters.model(model(1), policy=battery.RULES["disco"](4)), "token"),
}


def sorts(drafter: str, temperature: float) -> list[hlo.Instruction]:
    """Of long rows, in the loop of a batch of two."""
    make, verifier = MADE[drafter]
    loaded, target, rows = make(), model(0), 2
    warm = sampling_params(rows, VOCAB, temperature=temperature)
    params = loop.DecodeParams(target.params, loaded.params, warm, rules(VOCAB))
    static = {"model": target.lm, "drafter": loaded.drafter}
    tokens, lengths = jnp.ones((rows, 8), jnp.int32), jnp.full((rows,), 8, jnp.int32)
    state = loop.prefill(
        params, loop.row_keys(0, jnp.arange(rows)), tokens, lengths, jnp.full((rows,), 9, jnp.int32), **static,
        cache_len=128, max_new=9,
    )  # fmt: skip
    text = loop.generate.lower(params, state, verify=TABLE[verifier].fn, **static).compile().as_text()
    return [one for one in hlo.program(text) if one.opcode == "sort" and max(one.shape, default=0) > SHORT]


@pytest.mark.slow
@pytest.mark.parametrize(("drafter", "temperature"), list(itertools.product(MADE, [0.0, 1.0])))
def test_no_long_row_is_sorted(drafter, temperature):
    assert sorts(drafter, temperature) == []


@pytest.mark.slow
def test_the_check_sees_a_sort(monkeypatch):
    """Control: without the barrier the tree's picks are merged into the selection, which is then a sort."""
    monkeypatch.setattr("specjax.drafters.token_tree.largest", lax.top_k)
    token_tree.static_tree.cache_clear()
    try:
        assert sorts("tree of the best", 0.0)
    finally:
        token_tree.static_tree.cache_clear()


def test_the_largest_are_those_of_a_stable_sort():
    x = np.random.default_rng(0).integers(0, 9, (3, 5, 40)).astype(np.float32)
    x[0, 0, 7:] = -np.inf
    best, index = jax.jit(categorical.largest, static_argnums=1)(x, 11)
    order = np.argsort(-x, axis=-1, kind="stable")[..., :11]
    np.testing.assert_array_equal(index, order)
    np.testing.assert_array_equal(best, np.take_along_axis(x, order, -1))
