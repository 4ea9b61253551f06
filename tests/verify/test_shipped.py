"""Lossless verifiers as shipped, jitted in float32: chi-square tests of the joint distribution of three tokens.

Controls show the power of each test: faults seen in public implementations, injected one by one, must fail it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import trees, verify
from specjax.categorical import argmax, categorical
from specjax.sampling import sampling_params, warp
from specjax.types import Siblings
from specjax.verify import DraftKind, multiround, walk
from specjax.verify.token import at_node
from tests import distributions
from tests.verify.rounds import continued, fork, large_probs, one_round

WITH, WITHOUT, POINTS = Siblings.WITH_REPLACEMENT, Siblings.WITHOUT_REPLACEMENT, Siblings.POINTS
VOCAB, ROOT, SAMPLES = 11, 0, 20_000
TEMPERATURES = (0.0, 0.6, 1.0, 1.4)
LOGITS = 1.2 * np.random.default_rng(0).normal(size=(2, VOCAB, VOCAB)).astype(np.float32)  # target, draft: [previous]
LOGITS[:, :, 3] -= 4.0  # rare
CHAIN, TREE = trees.chain(2), trees.regular((2, 2))
LOSSLESS = [name for name, found in verify.TABLE.items() if found.lossless]
CASES = [  # chains with tree verifiers are covered by the enumeration
    (name, tree, kind)
    for name in LOSSLESS
    for tree in [CHAIN if verify.TABLE[name].drafts is DraftKind.CHAIN else TREE]
    for kind in Siblings
    if verify.TABLE[name].supports(tree, kind) and not (tree is CHAIN and kind is WITHOUT)
]
LABELS = [f"{name}, {'chain' if tree is CHAIN else 'tree'}, {kind.name}" for name, tree, kind in CASES]


def exact(temperature: float, model: int = 0) -> distributions.Model:
    """The distributions of the warped table."""
    table = LOGITS[model].astype(np.float64)
    mass = np.eye(VOCAB)[table.argmax(-1)] if temperature == 0 else np.exp(table / temperature)
    mass = mass / mass.sum(-1, keepdims=True)
    return lambda prefix: mass[prefix[-1] if prefix else ROOT]


def three_tokens(verifier, tree, kind, *, rounds: int = 1, reuse: bool = False, raw: bool = False) -> np.ndarray:
    """The first three tokens, [temperatures, SAMPLES, 3]: of `rounds` rounds, then of the target.

    Args:
      reuse: every round consumes the same key.
      raw: the verifier also receives the unwarped log-probabilities.
    """
    batch = SAMPLES * len(TEMPERATURES)
    params = sampling_params(batch, VOCAB, temperature=list(TEMPERATURES) * SAMPLES)

    def run(params, table, root, key):
        log_probs = lambda model: lambda previous: warp(params, table[model][previous[:, None]])[:, 0]
        unwarped = lambda tokens: jax.nn.log_softmax(table[0][tokens])
        fn = (lambda *args: verifier(*args, unwarped(args[2].tokens))) if raw else verifier
        rounding, continuing = fork(key, 2)
        blocks, lengths, last = [], [], root
        for _ in range(rounds):
            following, now = fork(rounding, 2)
            rounding = rounding if reuse else following
            block, length = one_round(fn, now, tree, kind, last, log_probs(0), log_probs(1))
            last = jnp.take_along_axis(block, length[:, None] - 1, axis=1)[:, 0]
            blocks.append(block)
            lengths.append(length)
        block, length = blocks[0], lengths[0]
        for more, extra in zip(blocks[1:], lengths[1:], strict=True):
            at = jnp.arange(3, dtype=jnp.int32)[None] - length[:, None]
            later = jnp.take_along_axis(more, jnp.clip(at, 0, more.shape[1] - 1), axis=1)
            block = jnp.where(at < 0, jnp.pad(block, ((0, 0), (0, 3)))[:, :3], later)
            length = length + extra
        return continued(continuing, block, length, 3, log_probs(0))

    root = jnp.full(batch, ROOT, jnp.int32)
    tokens = np.asarray(jax.jit(run)(params, jnp.asarray(LOGITS), root, jax.random.split(jax.random.key(21), batch)))
    return tokens.reshape(SAMPLES, len(TEMPERATURES), 3).transpose(1, 0, 2)


slow = functools.partial(pytest.param, marks=pytest.mark.slow)
QUICK = ("block, chain, WITH",)


def p_values(tokens: np.ndarray) -> list[float]:
    return [
        distributions.chi_square(
            distributions.histogram(rows, VOCAB), distributions.joint(exact(temperature), rows.shape[1])
        )
        for rows, temperature in zip(tokens, TEMPERATURES, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "tree", "kind"),
    [
        pytest.param(*case, id=label, marks=() if label.startswith(QUICK) else pytest.mark.slow)
        for case, label in zip(CASES, LABELS, strict=True)
    ],
)
def test_joint_distribution_at_mixed_temperatures(name, tree, kind):
    """At temperature 0 the second sibling without replacement has no mass: those rows stay greedy."""
    assert min(p_values(three_tokens(verify.TABLE[name].fn, tree, kind))) > distributions.ALPHA


# --- controls: faults of public implementations; the sample must be large enough to detect each ---


def bonus_from_raw_logits(key, tree, draft, log_p, raw):
    """After full acceptance, the temperature is ignored."""
    again, key = fork(key, 2)
    verdict = multiround.multiround(key, tree, draft, log_p)
    last = jnp.take_along_axis(verdict.path, verdict.accepted[:, None], axis=1)[:, 0]
    whole = verdict.accepted == tree.width - 1
    return verdict._replace(token=jnp.where(whole, categorical(again, at_node(raw, last)), verdict.token))


def argmax_of_the_root(key, tree, draft, log_p, raw):
    """The appended token is the argmax at every temperature."""
    del raw
    verdict = verify.TABLE["deterministic"].fn(key, tree, draft, log_p)
    last = jnp.take_along_axis(verdict.path, verdict.accepted[:, None], axis=1)[:, 0]
    return verdict._replace(token=argmax(at_node(log_p, last)))


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "kind"), [(bonus_from_raw_logits, WITH), (argmax_of_the_root, POINTS)])
def test_control_a_wrong_last_token_is_detected(fault, kind):
    warm = [p for p, t in zip(p_values(three_tokens(fault, CHAIN, kind, raw=True)), TEMPERATURES, strict=True)
            if t not in (0.0, 1.0)]  # fmt: skip
    assert max(warm) < distributions.ALPHA


def one_key_for_both(key):
    return key, key


def unnormalized(at, token):
    after = multiround.reject_with(at, token)
    return after._replace(q=jnp.where(walk.is_token(token, at.q), 0.0, at.q))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "module", "part", "broken"), [
    ("block", WITH, walk, "split_roles", one_key_for_both),
    slow("multiround", WITH, walk, "split_roles", one_key_for_both),
    slow("multiround", WITH, multiround, "residual", lambda p, q: p),
    slow("multiround-without", WITHOUT, multiround, "reject_without", unnormalized),
], ids=["block, one key", "multiround, one key", "residual", "un-normalized q"])  # fmt: skip
def test_control_broken_parts_are_detected(name, kind, module, part, broken, monkeypatch):
    monkeypatch.setattr(module, part, broken)
    tree = CHAIN if verify.TABLE[name].drafts is DraftKind.CHAIN else TREE
    with jax.debug_key_reuse(False):  # on purpose
        assert min(p_values(three_tokens(verify.TABLE[name].fn, tree, kind))[1:]) < distributions.ALPHA


@pytest.mark.slow
def test_control_equal_uniforms_in_a_round_are_detected(monkeypatch):
    original = walk.uniforms
    again = lambda key, shape, dtype: jnp.broadcast_to(original(key, (1,), dtype), (*key.shape, *shape))
    monkeypatch.setattr(walk, "uniforms", lambda *args: original(*args) if args[1] == (2,) else again(*args))
    assert max(p_values(three_tokens(verify.TABLE["multiround"].fn, CHAIN, WITH))[1:]) < distributions.ALPHA


@pytest.mark.slow
def test_two_rounds_follow_the_joint_distribution():
    tree = trees.regular((2,))
    tokens = three_tokens(verify.TABLE["multiround-without"].fn, tree, WITHOUT, rounds=2)
    assert min(p_values(tokens)) > distributions.ALPHA


@pytest.mark.slow
def test_control_noise_reused_by_the_next_round_is_detected_in_the_joint_only():
    """Each first token follows the right distribution: only the joint of two rounds differs."""
    tree = trees.regular((2,))
    with jax.debug_key_reuse(False):  # on purpose
        tokens = three_tokens(verify.TABLE["multiround-without"].fn, tree, WITHOUT, rounds=2, reuse=True)
    assert min(p_values(tokens[:, :, :1])) > distributions.ALPHA
    assert max(p_values(tokens)[1:]) < distributions.ALPHA


# --- a real vocabulary: 50,272 tokens, the joint of two tokens in bins ---

LARGE, CONTEXTS, BINS, LARGE_SAMPLES, CHUNK = 50_272, 3, 6, 6144, 64


def two_large_tokens(verifier, tree, kind, table: np.ndarray) -> np.ndarray:
    """[LARGE_SAMPLES, 2] tokens; a token's context is its id modulo CONTEXTS."""

    def chunk(key, large):
        log_probs = lambda model: lambda previous: large[model][previous % CONTEXTS]
        rounding, continuing = fork(key, 2)
        block, length = one_round(
            verifier, rounding, tree, kind, jnp.zeros(CHUNK, jnp.int32), log_probs(0), log_probs(1)
        )
        return continued(continuing, block, length, 2, log_probs(0))

    with np.errstate(divide="ignore"):
        large = jnp.asarray(np.log(table), jnp.float32)
    run, keys = jax.jit(chunk), jax.random.split(jax.random.key(31), (LARGE_SAMPLES // CHUNK, CHUNK))
    return np.concatenate([np.asarray(run(keys[i], large)) for i in range(len(keys))])


def binned(first: np.ndarray, then: np.ndarray, bins: np.ndarray) -> np.ndarray:
    """The joint distribution of two tokens' bins, for first [V] and then [CONTEXTS, V]."""
    context = np.arange(LARGE) % CONTEXTS
    start = np.stack([np.bincount(bins, first * (context == c), BINS) for c in range(CONTEXTS)])
    return np.einsum("cb,cd->bd", start, np.stack([np.bincount(bins, probs, BINS) for probs in then]))


def large_p_value(name, tree, kind) -> float:
    table = large_probs(LARGE, CONTEXTS)
    p, (first_p, first_q) = table[0], table[:, 0]
    ranked = np.argsort(
        first_p / (first_p + first_q + 1e-30)
    )  # bins where p and q differ most detect a broken verifier
    bins = np.empty(LARGE, np.int64)
    bins[ranked] = np.minimum((np.cumsum(first_p[ranked]) * BINS).astype(int), BINS - 1)
    tokens = two_large_tokens(verify.TABLE[name].fn, tree, kind, table)
    assert np.all(first_p[tokens[:, 0]] > 0)
    assert np.all(p[tokens[:, 0] % CONTEXTS, tokens[:, 1]] > 0)
    return distributions.chi_square(distributions.histogram(bins[tokens], BINS), binned(first_p, p, bins))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tree", "kind"), CASES, ids=LABELS)
def test_joint_distribution_at_a_real_vocabulary(name, tree, kind):
    small = trees.chain(1) if tree is CHAIN else trees.regular((2,))
    assert large_p_value(name, small, kind) > distributions.ALPHA


@pytest.mark.slow
def test_control_a_wrong_residual_is_detected_at_a_real_vocabulary(monkeypatch):
    monkeypatch.setattr(multiround, "residual", lambda p, q: p)
    assert large_p_value("multiround", trees.regular((2,)), WITH) < distributions.ALPHA
