"""The coupled verifier: exact, and its text does not depend on what drafts."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax as sj
from specjax import trees, verify
from specjax.categorical import argmax, noise, perturbed, uniforms
from specjax.decoding import committed_block
from specjax.types import Draft, PositionKeys
from specjax.verify.deterministic import walk_to
from specjax.verify.token import accepts, residual
from tests import battery, distributions
from tests.distributions import P

VOCAB = 3
SAMPLES = 40_000
TARGET, DRAFT = (np.array(mass) for mass in ([0.5, 0.3, 0.15, 0.05, 0.0], [0.1, 0.1, 0.15, 0.25, 0.4]))


@pytest.mark.parametrize("tree", [trees.chain(2), pytest.param(trees.regular((2, 2)), marks=pytest.mark.slow)])
def test_every_draft_gives_the_targets_joint_distribution(tree):
    """Enumeration through the shipped walk: of each draft, every outcome of the noise, weighted by its probability."""
    rng = np.random.default_rng(0)
    width, want = tree.width, distributions.joint(P, tree.width)
    outcomes = np.array(list(itertools.product(range(VOCAB), repeat=width)), np.int32)
    for tokens in rng.integers(0, VOCAB, (12, tree.size)):
        path = lambda node, tokens=tokens: tuple(int(tokens[n]) for n in tree.paths[node, 1 : tree.depth[node] + 1])
        log_p = np.log([P(path(node)) for node in range(tree.size)])
        rows = len(outcomes)
        draft = Draft(
            jnp.broadcast_to(jnp.asarray(tokens, jnp.int32), (rows, tree.size)),
            jnp.ones((rows, tree.size), bool), None,
        )  # fmt: skip
        chosen = jnp.asarray(outcomes)
        verdict = walk_to(
            lambda depth, log_p, chosen=chosen: chosen[:, depth], tree, draft,
            jnp.broadcast_to(jnp.asarray(log_p, jnp.float32), (rows, *log_p.shape)),
        )  # fmt: skip
        block, length = committed_block(tree, draft, verdict), np.asarray(verdict.accepted) + 1
        found: dict[tuple[int, ...], float] = {}
        for row, count in zip(np.asarray(block).tolist(), length, strict=True):
            found[tuple(row[:count])] = 1.0
        exact = [(float(np.prod([P(out[:i])[t] for i, t in enumerate(out)])), out) for out in found]
        assert all(
            np.array_equal(row[:n], out[:n]) for row, n, out in zip(np.asarray(block), length, outcomes, strict=True)
        )
        got = distributions.completed(exact, P, VOCAB, width)
        assert np.abs(got - want).max() < 1e-12


def draws(seed: int) -> tuple[PositionKeys, jax.Array, jax.Array]:
    keys = PositionKeys(jax.random.split(jax.random.key(seed), SAMPLES), jnp.full((SAMPLES,), 7, jnp.int32))
    rows = lambda mass: jnp.log(jnp.broadcast_to(jnp.asarray(mass, jnp.float32), (SAMPLES, len(mass))))
    return keys, rows(TARGET), rows(DRAFT)


def test_both_follow_their_distributions_and_agree_as_often_as_promised():
    keys, log_p, log_q = draws(1)
    target = np.asarray(argmax(perturbed(keys, 0, log_p)))
    draft = np.asarray(noise(keys, 4).draw(0, log_q))
    for tokens, mass in ((target, TARGET), (draft, DRAFT)):
        assert distributions.chi_square(np.bincount(tokens, minlength=5), mass) > distributions.ALPHA
    both = np.maximum(TARGET[None] / np.maximum(TARGET[:, None], 1e-300), DRAFT[None] / DRAFT[:, None]).sum(1)
    chance = (1 / both)[TARGET > 0].sum()  # of argmax log p + g == argmax log q + g
    agreed = np.mean(target == draft)
    assert abs(agreed - chance) < 4 * np.sqrt(chance * (1 - chance) / SAMPLES)
    tv = np.abs(TARGET - DRAFT).sum() / 2
    assert chance >= (1 - tv) / (1 + tv)
    assert not np.array_equal(target, np.asarray(argmax(perturbed(keys, 1, log_p))))  # other positions, other noise


def shared_noise_with_rejection(key, tree, draft, log_p):
    """A fault of public implementations: the draft's noise, but accepted if u q < p, and the residual drawn with it."""
    u = uniforms(jax.vmap(jax.random.fold_in)(key.key, key.position + 99), (1,))[:, 0]
    token = draft.tokens[:, 1]
    at = lambda log_probs: jnp.exp(jnp.take_along_axis(log_probs[:, 0], token[:, None], axis=1)[:, 0])
    passed = accepts(u, at(log_p), at(draft.log_q))
    rest = jnp.log(residual(jnp.exp(log_p[:, 0]), jnp.exp(draft.log_q[:, 0])))
    return jnp.where(passed, token, argmax(perturbed(key, 0, rest)))


@pytest.mark.slow
def test_control_the_same_noise_under_the_rejection_rule_is_biased():
    keys, log_p, log_q = draws(2)
    token = noise(keys, 1).draw(0, log_q)
    two = lambda x: jnp.stack([x, x], 1)
    draft = Draft(two(token), jnp.ones((SAMPLES, 2), bool), two(log_q))
    biased = np.asarray(shared_noise_with_rejection(keys, trees.chain(1), draft, two(log_p)))
    assert distributions.chi_square(np.bincount(biased, minlength=5), TARGET) < distributions.ALPHA
    verdict = verify.coupled(keys, trees.chain(1), draft, two(log_p))
    right = np.asarray(committed_block(trees.chain(1), draft, verdict))[:, 0]
    assert distributions.chi_square(np.bincount(right, minlength=5), TARGET) > distributions.ALPHA


# --- whole runs ------------------------------------------------------------------------------------------------------


def made(kind: str, family: str = "opt"):
    draft = battery.draft(family)
    special = {
        "tree": lambda: sj.drafters.tree(draft, trees.regular((2, 2))),
        "dynamic": lambda: sj.drafters.dynamic_tree(draft, size=6, depth=3, width=2),
        "cascade": lambda: sj.drafters.cascade(draft, battery.drafter_for("model-2", family), gamma=4),
        "small-kv": lambda: sj.drafters.small_kv(battery.target(family), gamma=3, budget=16),
    }
    return special[kind]() if kind in special else battery.drafter_for(kind, family)


def text_of(kind: str, family: str = "opt", temperature: float = 0.8, **options) -> tuple[list, np.ndarray]:
    state = battery.run(family, made(kind, family), temperature, verify=verify.coupled, **options)
    totals = jax.device_get(state.totals)
    return battery.texts(state), totals


slow = lambda *kinds: [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


@pytest.mark.parametrize(
    "kind", ["ngram-3", *slow("goodput-4", "model-4", "tree", "model-1", "model-8", "dynamic", "cascade", "small-kv")]
)
def test_the_text_does_not_depend_on_the_drafter(kind):
    plain, _ = text_of("plain")
    text, totals = text_of(kind)
    assert text == plain
    assert totals.accepted.sum() > 0
    if kind == "goodput-4":
        assert len(set((totals.drafted / totals.rounds).tolist())) > 1  # the length varied


@pytest.mark.slow
def test_the_text_does_not_depend_on_the_batch():
    whole, _ = text_of("plain")
    order = [5, 2, 7]
    some, _ = text_of(
        "plain", tokens=battery.prompts()[order], lengths=battery.LENGTHS[order], rows=order
    )  # fmt: skip
    assert some == [whole[row] for row in order]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_the_text_of_other_families_does_not_depend_on_the_drafter(family):
    assert text_of("model-3", family)[0] == text_of("plain", family)[0]


@pytest.mark.slow
def test_greedy_is_plain():
    assert text_of("model-4", temperature=0.0)[0] == battery.plain("opt")
