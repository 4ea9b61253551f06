"""The table of verifiers: names, guarantees, and the drafts that each supports."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import trees, verify
from specjax.request import named_verifier
from specjax.types import Draft, Siblings
from specjax.verify import TABLE
from tests import battery
from tests.verify.rounds import drafted

WITH, WITHOUT, POINTS = Siblings.WITH_REPLACEMENT, Siblings.WITHOUT_REPLACEMENT, Siblings.POINTS
CHAIN, TREE = trees.chain(2), trees.regular((2, 2))


@pytest.mark.parametrize("name", TABLE)
def test_name_and_first_docstring_line_state_the_guarantee(name):
    found = TABLE[name]
    assert found.name == name
    if found.lossless:
        assert (found.fn.__doc__ or "").startswith("Lossless")
        found.require_lossless()
        return
    make = getattr(verify, name.replace("-", "_"))
    assert name.startswith("lossy") or name == "simulated"
    assert make.__doc__.startswith("LOSSY")
    assert make() is found.fn
    with pytest.raises(ValueError, match=name):
        found.require_lossless()


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ValueError, match="'block'"):
        verify.get("blok")
    assert verify.get("kseq") is TABLE["kseq"]


def test_the_default_supports_the_draft_and_is_lossless():
    names = {(CHAIN, WITH): "token", (CHAIN, POINTS): "token", (TREE, WITH): "multiround",
             (TREE, WITHOUT): "multiround-without", (TREE, POINTS): "deterministic"}  # fmt: skip
    for (tree, kind), name in names.items():
        found = verify.default(tree, kind)
        assert found.name == name and found.lossless
        found.check(tree, kind)
    assert verify.default(trees.chain(0), POINTS).name == "token"  # plain decoding
    found = verify.default(CHAIN, POINTS, dynamic=True)
    assert found.name == "deterministic"
    found.check(CHAIN, POINTS, dynamic=True)


def test_a_request_without_a_verifier_uses_the_default():
    chain = battery.drafter_for("model-2", "opt")
    tree = specjax.drafters.tree(battery.draft("opt"), TREE)
    named = lambda drafter: named_verifier(drafter, None).name
    assert (named(chain), named(tree)) == ("token", "multiround-without")


SUPPORTED = {  # chain of samples, chain of points; trees: with, without, points
    "token": (1, 1, 0, 0, 0), "block": (1, 1, 0, 0, 0), "multiround": (1, 1, 1, 0, 1),
    "multiround-without": (1, 1, 1, 1, 1), "kseq": (1, 0, 1, 0, 0), "traversal": (1, 1, 1, 0, 1),
    "traversal-without": (1, 1, 1, 1, 1), "deterministic": (0, 1, 0, 0, 1), "coupled": (1, 1, 1, 1, 1),
    "non-iterative": (1, 0, 1, 0, 0),
    "lossy-typical": (1, 1, 1, 1, 1), "lossy-lenient": (1, 1, 0, 0, 0), "lossy-lenient-greedy": (1, 1, 1, 1, 1),
    "lossy-threshold": (1, 1, 1, 1, 1), "simulated": (1, 1, 1, 1, 1),
}  # fmt: skip
DRAFTS = ((CHAIN, WITH), (CHAIN, POINTS), (TREE, WITH), (TREE, WITHOUT), (TREE, POINTS))


@pytest.mark.parametrize("name", TABLE)
def test_supported_drafts(name):
    assert tuple(int(TABLE[name].supports(*draft)) for draft in DRAFTS) == SUPPORTED[name]
    assert all(TABLE[name].supports(trees.chain(0), kind) for kind in Siblings)
    assert TABLE[name].supports(CHAIN, WITHOUT) == TABLE[name].supports(CHAIN, WITH)


@pytest.mark.parametrize("name", TABLE)
def test_unsupported_combinations_raise_and_name_both(name):
    for supported, (tree, kind) in zip(SUPPORTED[name], DRAFTS, strict=True):
        if supported:
            TABLE[name].check(tree, kind, "mine")
        else:
            with pytest.raises(ValueError, match=rf"'{name}'.*mine"):
                TABLE[name].check(tree, kind, "mine")


def raises(name, tree, points) -> bool:
    rows = 2
    tokens = jnp.zeros((rows, tree.size), jnp.int32)
    log_p = jnp.full((rows, tree.size, 4), -np.log(4.0), jnp.float32)
    draft = Draft(tokens, jnp.ones_like(tokens, dtype=bool), None if points else log_p)
    try:
        jax.eval_shape(lambda k: TABLE[name].fn(k, tree, draft, log_p), jax.random.split(jax.random.key(0), rows))
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("name", TABLE)
def test_functions_raise_for_unsupported_drafts_too(name):
    """Except for siblings with and without replacement, which only `check` can distinguish."""
    for supported, (tree, kind) in zip(SUPPORTED[name], DRAFTS, strict=True):
        if kind is not WITHOUT:
            assert raises(name, tree, kind is POINTS) == (not supported)


@pytest.mark.parametrize("name", battery.others_slow(TABLE, ["traversal-without"]))
def test_rows_are_independent_of_their_position(name):
    rows, kind = 6, POINTS if name == "deterministic" else WITH
    tree = TREE if TABLE[name].supports(TREE, kind) else CHAIN
    keys = lambda n: jax.random.split(jax.random.key(n), rows)
    log_q = lambda previous: jax.nn.log_softmax(
        jnp.sin(jnp.arange(7.0)[None] * (1 + previous[:, None]).astype(jnp.float32))
    )
    draft = jax.jit(lambda keys: drafted(keys, tree, kind, jnp.arange(rows) % 3, log_q))(keys(1))
    log_p = jax.nn.log_softmax(jax.random.normal(jax.random.key(2), (rows, tree.size, 7)))
    run = jax.jit(TABLE[name].fn, static_argnames="tree")
    verdict = run(keys(5), tree, draft, log_p)
    order = jnp.array([4, 0, 5])
    pick = lambda x: x[order]
    moved = run(pick(keys(5)), tree, jax.tree.map(pick, draft), log_p[order])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[order], b), verdict, moved)


@pytest.mark.parametrize(("verifier", "drafter"), [("kseq", "ngram-2"), ("deterministic", "model-2")])
def test_a_request_with_an_unsupported_combination_raises(verifier, drafter):
    with pytest.raises(ValueError, match=f"'{verifier}'"):
        made = battery.drafter_for(drafter, "opt")
        specjax.generate(battery.target("opt"), [[1, 2]], drafter=made, verifier=verifier)
