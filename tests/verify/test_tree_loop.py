"""Tree verifiers through the whole decoding loop: a tiny OPT, and a draft model that proposes a tree."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, trees, verify
from specjax.base import Drafter
from specjax.categorical import categorical
from specjax.trees import NO_CHILD
from specjax.types import Draft, Siblings
from specjax.verify import token
from tests import battery, distributions
from tests.battery import run, texts
from tests.test_decoding import exact_joint, sampled_counts
from tests.verify.rounds import fork

TREE = trees.regular((2, 2))
VERIFIERS = ("multiround", "multiround-without", "kseq", "traversal", "non-iterative")
SAMPLED = ("multiround", "traversal")


class TreeState(NamedTuple):
    """The draft model's cache of the committed tokens before `pending`, and the tokens of the round's tree."""

    cache: object
    tokens: jax.Array


@functools.cache
def tree_drafter(lm, tree: trees.Tree) -> Drafter:
    """Independent siblings at every node, level by level; the last level is fed too, so that it can be kept."""
    levels = [np.flatnonzero(tree.depth == d) for d in range(tree.width)]

    def init(params, prompt, length, cache_len, prefilled):
        del prefilled
        read = lm.prefill(params, prompt, length, cache_len)
        return TreeState(read.cache, jnp.zeros((prompt.shape[0], tree.size), jnp.int32))

    def propose(params, key, state, pending, warp):
        tokens = jnp.tile(pending[:, None], (1, tree.size))
        log_q = jnp.zeros((*tokens.shape, lm.vocab_size), jnp.float32)
        cache = state.cache
        for nodes in levels:
            first, end = int(nodes[0]), int(nodes[-1]) + 1
            out, cache = lm.extend(
                params, tokens[:, first:end], cache, tree.mask[first:end, :end], tree.depth[first:end], offset=first
            )
            warped = warp(out.logits, tokens[:, tree.paths[first:end]])
            log_q = log_q.at[:, first:end].set(warped)
            for node in nodes:
                for child in tree.children[node]:
                    if child != NO_CHILD:
                        key, now = fork(key, 2)
                        tokens = tokens.at[:, child].set(categorical(now, log_q[:, node]))
        return Draft(tokens, jnp.ones_like(tokens, bool), log_q), TreeState(cache, tokens)

    def commit(params, state, commit):
        del params
        kids = jnp.asarray(tree.children)
        node, path = jnp.zeros_like(commit.length), [jnp.zeros_like(commit.length)]
        for w in range(tree.width - 1):  # equal siblings have equal K/V: take the oldest
            below = jnp.maximum(kids[node], 0)
            same = (jnp.take_along_axis(state.tokens, below, 1) == commit.tokens[:, w, None]) & (kids[node] != NO_CHILD)
            child = jnp.take_along_axis(below, jnp.argmax(same, axis=1, keepdims=True), 1)[:, 0]
            node = jnp.where(same.any(1), child, node)
            path.append(node)
        return TreeState(lm.keep(state.cache, jnp.stack(path, 1), commit.length), state.tokens)

    return Drafter(tree, init, propose, commit, lm.vocab_size, Siblings.WITH_REPLACEMENT)


def sampled_tree(tree=TREE) -> drafters.LoadedDrafter:
    model = battery.draft("opt")
    return drafters.LoadedDrafter("tree", tree_drafter(model.lm, tree), model.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", battery.others_slow(VERIFIERS, ["multiround"]))
def test_greedy_equals_plain_on_a_ragged_batch(name):
    found, drafter = verify.TABLE[name], sampled_tree()
    found.check(drafter.drafter.tree, drafter.drafter.siblings)
    state = run("opt", drafter, verify=found.fn)
    assert texts(state) == battery.plain("opt")
    totals = jax.device_get(state.totals)
    assert (totals.accepted > totals.rounds // 2).any()  # some drafts are accepted, and counted
    assert np.all(totals.accepted <= totals.tested)
    assert np.all(totals.overlap <= totals.tested + 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_rows_follow_the_joint_distribution(name):
    counts = sampled_counts(sampled_tree(), verify=verify.TABLE[name].fn)
    for temperature, histogram in counts.items():
        assert distributions.chi_square(histogram, exact_joint(temperature)) > distributions.ALPHA
    assert distributions.chi_square(counts[0.7], exact_joint(0.85)) < distributions.ALPHA  # the control


def accepts_all_with_mass(key, tree, draft, log_p):
    """A broken verifier: every token with mass under p passes."""
    return verify.TABLE["multiround"].fn(key, tree, draft._replace(log_q=jnp.minimum(draft.log_q, log_p)), log_p)


@pytest.mark.slow
def test_control_a_broken_verifier_fails_the_distribution_test():
    counts = sampled_counts(sampled_tree(), verify=accepts_all_with_mass)
    assert min(distributions.chi_square(h, exact_joint(t)) for t, h in counts.items()) < distributions.ALPHA


def test_tested_and_overlap_on_a_tree_by_hand():
    rows, rng = 40, np.random.default_rng(0)
    mass = np.exp(rng.normal(size=(2, rows, TREE.size, 5)))
    log_p, log_q = map(jnp.asarray, np.log(mass / mass.sum(-1, keepdims=True)).astype(np.float32))
    valid = rng.random((rows, TREE.size)) < 0.7
    valid[:, 0] = True
    tokens = rng.integers(0, 5, (rows, TREE.size)).astype(np.int32)
    draft = Draft(jnp.asarray(tokens), jnp.asarray(valid), log_q)
    verdict = jax.jit(verify.TABLE["multiround"].fn, static_argnames="tree")(
        jax.random.split(jax.random.key(1), rows), TREE, draft, log_p
    )
    tested = jax.jit(token.tested, static_argnames="tree")(TREE, draft, verdict)
    overlap = jax.jit(token.overlap, static_argnames="tree")(TREE, draft, log_p, verdict)
    shared, verdict = np.minimum(np.exp(log_p), np.exp(log_q)).sum(-1), jax.device_get(verdict)
    for row in range(rows):
        path = [int(verdict.path[row, d]) for d in range(int(verdict.accepted[row]) + 1)]
        with_children = [n for n in path if any(valid[row, c] for c in TREE.children[n] if c != NO_CHILD)]
        assert int(tested[row]) == len(with_children)
        np.testing.assert_allclose(overlap[row], shared[row, with_children].sum(), rtol=1e-5)
