"""Lossless verifiers are exact: enumeration of every draft and outcome, through the shipped walks."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import trees
from specjax.trees import Tree
from specjax.types import Siblings
from specjax.verify import block, kseq, multiround, non_iterative, token, traversal, walk
from tests import battery, distributions
from tests.distributions import GREEDY_Q, PAIRS, P, Q
from tests.verify.enumerate import all_drafts, emitted, emitted_by_following, tables, target_joint

WITH, WITHOUT, POINTS = Siblings.WITH_REPLACEMENT, Siblings.WITHOUT_REPLACEMENT, Siblings.POINTS
WALKS = {
    "block": block.walk,
    "multiround": multiround.walk_with,
    "multiround-without": multiround.walk_without,
    "kseq": kseq.walk,
    "traversal": traversal.walk_with,
    "traversal-without": traversal.walk_without,
    "non-iterative": non_iterative.walk,
}
P2, Q2 = distributions.random_model(11, 2, sharpness=1.0), distributions.random_model(12, 2, sharpness=1.5)
UNEVEN = Tree((-1, 0, 1, 0, 3, 3, 0, 4))  # depth-first numbers, a leaf at depth 1, arms of different length


def error(name: str, p, q, vocab: int, tree: Tree, siblings: Siblings, **more) -> float:
    """The largest difference between the emitted joint distribution and the target's."""
    return distance(WALKS.get(name), p, q, vocab, tree, siblings, **more)


def distance(walk, p, q, vocab: int, tree: Tree, siblings: Siblings, **more) -> float:
    """`error` of a walk; None is the deterministic verifier."""
    drafts = all_drafts(p, q, vocab, tree, siblings, **more)
    run = emitted_by_following(drafts, tree) if walk is None else emitted(walk, drafts, tree)
    return float(np.abs(run[0] - target_joint(p, tree)).max())


def exact_for(name: str) -> list[Siblings]:
    """The sibling kinds for which a verifier is exact."""
    if name.endswith("without"):
        return [WITHOUT, POINTS, WITH]  # among independent siblings, a repeated token is skipped
    if name == "deterministic":
        return [POINTS]
    return [WITH] if name in ("kseq", "non-iterative") else [WITH, POINTS]


EVERY = [(name, kind) for name in (*WALKS, "deterministic") for kind in exact_for(name)]
ON_TREES = [(name, kind) for name, kind in EVERY if name != "block"]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("name", "kind"), EVERY)
@pytest.mark.parametrize("gamma", battery.others_slow((0, 1, 3), [3]))
def test_chains_are_exact(gamma, name, kind, pair):
    assert error(name, *PAIRS[pair], 3, trees.chain(gamma), kind) < 1e-12


@pytest.mark.parametrize(("name", "kind"), battery.others_slow(EVERY, [("block", WITH)]))
def test_chains_of_four_are_exact(name, kind):
    assert error(name, P, Q, 3, trees.chain(4), kind) < 1e-12


@pytest.mark.parametrize("pair", battery.others_slow(PAIRS, ["dense", "zero masses", "greedy target"]))
@pytest.mark.parametrize(("name", "kind"), ON_TREES)
def test_trees_of_two_by_two_are_exact(name, kind, pair):
    assert error(name, *PAIRS[pair], 3, trees.regular((2, 2)), kind) < 1e-12


@pytest.mark.parametrize(
    ("name", "kind"),
    battery.others_slow(ON_TREES, [("multiround-without", WITHOUT), ("traversal-without", WITHOUT), ("kseq", WITH)]),
)
def test_trees_of_three_by_two_are_exact(name, kind):
    """Two tokens and three children: without replacement, no token is left for the third."""
    assert error(name, P2, Q2, 2, trees.regular((3, 2)), kind) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), ON_TREES)
def test_trees_of_three_by_two_by_one_are_exact(name, kind):
    """32,768 drafts."""
    assert error(name, P2, Q2, 2, trees.regular((3, 2, 1)), kind) < 1e-12


@pytest.mark.parametrize(
    ("name", "kind"),
    battery.others_slow(
        ON_TREES,
        [("multiround", WITH), ("multiround-without", WITHOUT), ("traversal", POINTS), ("traversal-without", WITHOUT),
         ("non-iterative", WITH), ("deterministic", POINTS)],
    ),
)  # fmt: skip
def test_uneven_trees_are_exact(name, kind):
    assert error(name, P2, Q2, 2, UNEVEN, kind) < 1e-12


def ragged(code, node):
    """Which nodes are proposed: depends on the parent's prefix, the same for siblings."""
    return (code + 2 * (node > 2)) % 3 != 1


def truncated_families(code, node):
    """Only the oldest child after some prefixes; both at the root."""
    return (node % 2 == 1) | (code % 2 == 0)


@pytest.mark.parametrize("proposes", (ragged, truncated_families))
@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_drafts_truncated_by_their_prefix_are_exact(name, kind, proposes):
    tree = trees.chain(3) if name == "block" else trees.regular((2, 2))
    assert error(name, P, Q, 3, tree, kind, proposes=proposes) < 1e-12


@pytest.mark.parametrize(("name", "equivalent"), [("traversal", "block"), ("kseq", "multiround")])
def test_equivalent_verifiers_on_chains(name, equivalent):
    """On a chain, traversal is block verification and K-SEQ is token-level rejection."""
    tree = trees.chain(3)
    drafts = all_drafts(P, Q, 3, tree, WITH)
    np.testing.assert_allclose(
        emitted(WALKS[name], drafts, tree)[1], emitted(WALKS[equivalent], drafts, tree)[1], rtol=1e-12
    )


# --- expected tokens ---

EXAMPLES = json.loads((Path(__file__).parent / "examples.json").read_text())


def example(kind: str):
    record = EXAMPLES[kind]
    read = lambda table: lambda prefix: np.array(table[",".join(map(str, prefix))])
    return read(record["p"]), read(record["q"]), record["vocab"]


@pytest.mark.parametrize(("name", "expected"), [("block", 2.596), ("multiround", 2.563)])
def test_expected_tokens_of_the_chain(name, expected):
    """2.563 is token-level rejection, to which multi-round rejection reduces on a chain."""
    tree = trees.chain(3)
    found, tokens = emitted(WALKS[name], all_drafts(*example("chain"), tree, WITH), tree)
    assert np.abs(found - target_joint(example("chain")[0], tree)).max() < 1e-12
    assert tokens == pytest.approx(expected, abs=5e-4)


OF_TREES = [
    ("multiround-without", WITHOUT, 1.749), ("kseq", WITH, 1.653), ("traversal", WITH, 1.6525),
    ("deterministic", POINTS, 1.246), ("multiround", WITH, 1.624), ("multiround", POINTS, 1.246),
    ("traversal-without", WITHOUT, 1.796), ("traversal", POINTS, 1.246),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "expected"), battery.others_slow(OF_TREES, OF_TREES[:4]))
def test_expected_tokens_of_the_tree(name, kind, expected):
    p, q, vocab = example("tree")
    tree = trees.regular((2, 2))
    drafts = all_drafts(p, q, vocab, tree, kind)
    found, tokens = (
        emitted_by_following(drafts, tree) if name == "deterministic" else emitted(WALKS[name], drafts, tree)
    )
    assert np.abs(found - target_joint(p, tree)).max() < 1e-12
    assert tokens == pytest.approx(expected, abs=5e-4)


def test_block_accepts_at_least_as_much_as_token_level_and_non_iterative_less():
    for seed in range(5):
        p, q = distributions.random_model(seed, 3), distributions.random_model(seed + 50, 3)
        drafts = all_drafts(p, q, 3, trees.chain(3), WITH)
        weak, token, whole = (
            emitted(WALKS[name], drafts, trees.chain(3))[1] for name in ("non-iterative", "multiround", "block")
        )
        assert weak < token - 0.05
        assert whole >= token - 1e-12


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
def test_accepted_depth_of_a_block_does_not_depend_on_gamma(gamma):
    """P(at least d accepted) = E_q[a_d] for every gamma >= d: counts of one draft length give those of all shorter."""
    for p, q in ((P, Q), (distributions.random_model(7, 3), distributions.random_model(57, 3))):
        weight, mass = np.ones(1), np.ones(1)
        expected = 1.0
        for p_at, q_at in zip(tables(p, 3, gamma), tables(q, 3, gamma), strict=True):
            weight = np.minimum(weight[:, None] * p_at / q_at, 1).reshape(-1)
            mass = (mass[:, None] * q_at).reshape(-1)
            expected += float((mass * weight).sum())
        tree = trees.chain(gamma)
        found = emitted(WALKS["block"], all_drafts(p, q, 3, tree, WITH), tree)[1]
        assert found == pytest.approx(expected, abs=1e-12)


# --- controls: a broken part must fail the enumeration by a wide margin ---


def keep_q(at, token):
    """Siblings without replacement tested with a q that is not renormalized."""
    after = multiround.reject_with(at, token)
    return after._replace(q=jnp.where(walk.is_token(token, at.q), 0.0, at.q))


def keep_path_q(parent, token):
    after = traversal.delete_with(parent, token)
    return after._replace(q=jnp.where(walk.is_token(token, parent.q), 0.0, parent.q))


BROKEN = {
    "un-normalized q": ("multiround-without", WITHOUT, multiround, "reject_without", keep_q),
    "q as if with replacement": ("multiround-without", WITHOUT, multiround, "reject_without", multiround.reject_with),
    "traversal, un-normalized q": ("traversal-without", WITHOUT, traversal, "delete_without", keep_path_q),
    "traversal, q stays": ("traversal-without", WITHOUT, traversal, "delete_without", traversal.delete_with),
    "p is not reduced": ("multiround", WITH, multiround, "residual", lambda p, q: p),
    "traversal, p is not reduced": ("traversal", WITH, traversal, "residual", lambda p, q: p),
    "kseq, rho too small": ("kseq", WITH, kseq, "discount", lambda p, q, children: jnp.ones_like(p[:, 0])),
    "kseq, p is not reduced": ("kseq", WITH, kseq, "left", lambda at: at.p),
    "scale of another distribution": ("non-iterative", WITH, non_iterative, "largest_scale",
                                    lambda p, q: jnp.ones_like(p[:, 0])),
}  # fmt: skip


ONE_OF_EACH = ("un-normalized q", "traversal, q stays", "kseq, rho too small", "scale of another distribution")


@pytest.mark.parametrize("fault", battery.others_slow(BROKEN, ONE_OF_EACH))
def test_control_broken_tree_walks_are_detected(fault, monkeypatch):
    name, kind, module, part, broken = BROKEN[fault]
    monkeypatch.setattr(module, part, broken)
    fresh = lambda *args: WALKS[name](*args)  # a new function, so that the cached program is not used
    assert distance(fresh, P, Q, 3, trees.regular((2, 2)), kind) > 1e-3


def test_control_a_point_mass_after_the_samples_that_stays_in_p_is_detected(monkeypatch):
    whole = multiround.reject_without

    def broken(at, child):
        rest = token.residual(at.p, at.q)
        return whole(at, child)._replace(p=walk.normalized(rest, at.p))

    monkeypatch.setattr(multiround, "reject_without", broken)
    fresh = lambda *args: multiround.walk_without(*args)
    assert distance(fresh, P, GREEDY_Q, 3, trees.regular((2, 2)), WITHOUT) > 1e-3
    assert distance(fresh, P, Q, 3, trees.regular((2, 2)), WITHOUT) < 1e-12  # where every child is a sample


BROKEN_BLOCK = [
    ("excess", lambda a, p, q: jnp.sum(jnp.maximum(p - q, 0.0), axis=-1)),
    ("chance", lambda a, s, ends: (a, jnp.ones_like(a))),
    ("weights", lambda p, q: jnp.minimum(p / q, 1.0)),
]


@pytest.mark.parametrize(("part", "broken"), battery.others_slow(BROKEN_BLOCK, BROKEN_BLOCK[:1]))
def test_control_broken_block_verification_is_detected(part, broken, monkeypatch):
    monkeypatch.setattr(block, part, broken)
    assert distance(lambda *args: block.walk(*args), P, Q, 3, trees.chain(3), WITH) > 1e-3


@pytest.mark.parametrize("name", battery.others_slow(["block", "multiround", "kseq"], ["multiround"]))
def test_control_a_chain_without_residual_is_detected(name, monkeypatch):
    monkeypatch.setattr(token, "residual", lambda p, q: p)
    fresh = lambda *args: WALKS[name](*args)
    assert distance(fresh, P, Q, 3, trees.chain(3), WITH) > 1e-3


@pytest.mark.parametrize(("name", "kind"), [
    ("multiround", WITHOUT), ("traversal", WITHOUT), ("kseq", WITHOUT), ("non-iterative", WITHOUT),
])  # fmt: skip
def test_control_siblings_of_the_wrong_kind_are_detected(name, kind):
    """The reason why these combinations raise ValueError."""
    assert error(name, P, Q, 3, trees.regular((2, 2)), kind) > 1e-3


def test_control_accepting_nodes_that_were_not_proposed_is_detected():
    """Padding accepted as if it were drafted: a bug seen in public tree code, with token 0 as padding."""
    p, q = distributions.random_model(1, 3), distributions.one_hot_model(6, 3)
    drafts = all_drafts(p, q, 3, trees.chain(2), WITH)
    padded = drafts._replace(tokens=np.where(np.arange(3)[None] == 2, 0, drafts.tokens))
    padded = padded._replace(code=np.column_stack([padded.code[:, :2], padded.code[:, 1] * 3]), q=[
        np.full_like(table, 1 / 3) if depth == 1 else table for depth, table in enumerate(drafts.q)])  # fmt: skip
    found, _ = emitted(block.walk, padded, trees.chain(2))
    assert np.abs(found - target_joint(p, trees.chain(2))).max() > 1e-3
    masked = padded._replace(valid=np.broadcast_to(np.arange(3)[None] < 2, drafts.valid.shape))
    found, _ = emitted(block.walk, masked, trees.chain(2))
    assert np.abs(found - target_joint(p, trees.chain(2))).max() < 1e-12


def test_events_of_a_deep_tree_do_not_recurse():
    """1,000 levels: more than Python's recursion limit allows."""
    size = 1000
    order = traversal.events(Tree((*range(-1, size - 1), size - 2)))
    leaves = [(size - 1, False), (size, False)]
    inner = [(node, True) for node in range(1, size - 1)]
    assert order == [*inner, *leaves, *((node, False) for node in range(size - 2, 0, -1))]
