"""Token-level verification is lossless: exact enumeration, edge cases, and sampling of the shipped code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import trees
from specjax.categorical import categorical
from specjax.sampling import sampling_params, warp
from specjax.types import Draft
from specjax.verify import token, token_level
from tests import distributions
from tests.distributions import GREEDY_P, GREEDY_Q, PAIRS, SPARSE_P, P, Q
from tests.verify.chains import chain_batch, compiled, enable_x64, token_outcomes

verify = jax.jit(token_level, static_argnames="tree")
LARGEST_U = np.float32(1) - np.finfo(np.float32).epsneg  # 1 - ulp


def emitted(p, q, gamma, vocab=3, **more) -> np.ndarray:
    """The exact joint distribution of gamma + 1 tokens: a round, continued by the target."""
    with enable_x64(True):
        outcomes = list(token_outcomes(*chain_batch(p, q, vocab, gamma, **more)))
    return distributions.completed(outcomes, p, vocab, gamma + 1)


@pytest.mark.parametrize("gamma", range(5))
@pytest.mark.parametrize("pair", PAIRS)
def test_joint_distribution_equals_the_targets(pair, gamma):
    p, q = PAIRS[pair]
    np.testing.assert_allclose(emitted(p, q, gamma), distributions.joint(p, gamma + 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("gamma", (1, 3))
@pytest.mark.parametrize("p", (P, SPARSE_P, GREEDY_P))
def test_point_masses_are_exact(p, gamma):
    found = emitted(p, GREEDY_Q, gamma, points=True)
    np.testing.assert_allclose(found, distributions.joint(p, gamma + 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("points", (False, True))
def test_a_draft_truncated_by_its_prefix_is_exact(points):
    proposes = lambda prefix: (len(prefix) + 2 * sum(prefix)) % 3 != 1  # does not depend on the token itself
    found = emitted(P, GREEDY_Q if points else Q, 3, points=points, proposes=proposes)
    np.testing.assert_allclose(found, distributions.joint(P, 4), rtol=0, atol=1e-12)


def test_expected_tokens_are_one_plus_the_overlaps():
    """With gamma 2: 1 + sum min(p, q), and the same after each accepted first token."""
    with enable_x64(True):
        outcomes = list(token_outcomes(*chain_batch(P, Q, 3, 2)))
    first = np.minimum(P(()), Q(()))
    second = sum(first[x] * np.minimum(P((x,)), Q((x,))).sum() for x in range(3))
    np.testing.assert_allclose(sum(m * len(t) for m, t in outcomes), 1 + first.sum() + second, rtol=1e-12)


# --- controls: a broken part must fail the enumeration by a wide margin ---


def plain_residual(p, q):
    del q
    return p


def unconditional_residual(p, q):
    return jnp.maximum(p - q, jnp.zeros_like(p)) + jnp.full_like(p, 1e-3)


@pytest.mark.parametrize("broken", (plain_residual, unconditional_residual))
def test_control_a_wrong_residual_is_detected(broken, monkeypatch):
    monkeypatch.setattr(token, "residual", broken)
    assert np.abs(emitted(P, Q, 2) - distributions.joint(P, 3)).max() > 1e-4


def test_control_an_unnormalized_log_q_is_detected():
    with enable_x64(True):
        mass, draft, log_p = chain_batch(P, Q, 3, 2)
        half = draft._replace(log_q=draft.log_q + np.log(0.5))
        found = distributions.completed(token_outcomes(mass, half, log_p), P, 3, 3)
    assert np.abs(found - distributions.joint(P, 3)).max() > 1e-3


def test_control_truncation_by_the_token_itself_is_detected():
    with enable_x64(True):
        mass, draft, log_p = chain_batch(P, Q, 3, 1)
        cut = draft._replace(valid=draft.valid.at[:, 1].set(draft.tokens[:, 1] != 0))
        found = distributions.completed(token_outcomes(mass, cut, log_p), P, 3, 2)
    assert np.abs(found - distributions.joint(P, 2)).max() > 1e-3


# --- edge cases, with hand-made uniforms ---


def edge_case(p, q, drafted, u, correct=(0.5, 0.5), valid=True):
    """One row, gamma 1."""
    with np.errstate(divide="ignore"):
        log = lambda probs: None if probs is None else jnp.asarray(np.log([[probs, probs]]).astype(np.float32))
        draft = Draft(jnp.array([[0, drafted]]), jnp.array([[True, valid]]), log(q))
        uniforms = np.full((1, 1), u, np.float32), np.array([correct], np.float32)
        return compiled(token.accepts, token.residual)[0](*uniforms, trees.chain(1), draft, log(p))


def zero_mass_passes() -> bool:
    return bool(edge_case([0.0, 0.5, 0.5], [1.0, 0.0, 0.0], 0, 0.0).accepted[0] > 0) or bool(
        edge_case([0.0, 0.5, 0.5], None, 0, 0.0).accepted[0] > 0
    )


def test_a_token_of_zero_mass_is_never_emitted():
    assert not zero_mass_passes()
    for first in (0.0, 0.5, LARGEST_U):
        for second in (0.0, 0.5, LARGEST_U):
            replaced = edge_case([0.0, 0.7, 0.3, 0.0], [0.3, 0.0, 0.0, 0.7], 3, 0.0, (first, second))
            assert int(replaced.token[0]) in (1, 2)


def test_control_non_strict_acceptance_is_detected(monkeypatch):
    monkeypatch.setattr(token, "accepts", lambda u, p, q: u * q <= p)
    assert zero_mass_passes()


def test_equal_distributions_are_never_rejected():
    probs = jax.random.uniform(jax.random.key(0), (100_000,), minval=1e-30)
    assert bool(jnp.all(token.accepts(jnp.full_like(probs, LARGEST_U), probs, probs)))


def test_a_residual_without_mass_falls_back_to_p():
    p = jnp.array([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]])
    q = jnp.array([[0.25, 0.75, 0.0], [0.25, 0.75, 0.0]])
    np.testing.assert_array_equal(token.residual(p, q), [[0.25, 0.75, 0.0], [0.25, 0.0, 0.0]])
    assert int(edge_case([1.0, 0.0], [1.0, 0.0], 1, LARGEST_U).token[0]) == 0


def test_an_invalid_node_is_not_tested_and_the_token_is_sampled_from_p():
    p, q = [0.3, 0.7], [0.9, 0.1]
    verdict = edge_case(p, q, 0, 0.0, (0.1, 0.1), valid=False)  # the residual has no mass on 0, p has
    assert int(verdict.accepted[0]) == 0
    assert int(verdict.token[0]) == 0
    assert int(edge_case(p, q, 0, LARGEST_U, (0.1, 0.1)).token[0]) == 1


def test_an_empty_chain_is_plain_decoding():
    log_p = np.log(np.random.default_rng(0).dirichlet(np.ones(300), (5, 1))).astype(np.float32)
    draft = Draft(jnp.asarray(np.zeros((5, 1), np.int32)), jnp.asarray(np.ones((5, 1), bool)), None)
    verdict = verify(jax.random.split(jax.random.key(1), 5), trees.chain(0), draft, log_p)
    sample = jax.jit(lambda keys, log_p: categorical(jax.vmap(lambda k: jax.random.split(k, 2)[1])(keys), log_p))
    np.testing.assert_array_equal(verdict.token, sample(jax.random.split(jax.random.key(1), 5), log_p[:, 0]))
    np.testing.assert_array_equal(verdict.path, np.zeros((5, 1)))
    np.testing.assert_array_equal(verdict.accepted, np.zeros(5))


def test_a_branching_tree_raises():
    draft = Draft(jnp.zeros((1, 3), jnp.int32), jnp.ones((1, 3), bool), None)
    with pytest.raises(ValueError, match="chain"):
        token_level(jax.random.split(jax.random.key(0), 1), trees.regular((2,)), draft, jnp.zeros((1, 3, 4)))


def random_round(batch: int, gamma: int, vocab: int = 7):
    """Drafts of random length and log_p."""
    rng = np.random.default_rng(11)
    mass = np.exp(rng.normal(size=(2, batch, gamma + 1, vocab)))
    log_p, log_q = np.log(mass / mass.sum(-1, keepdims=True)).astype(np.float32)
    tokens = rng.integers(0, vocab, (batch, gamma + 1)).astype(np.int32)
    length = rng.integers(0, gamma + 1, (batch, 1))
    valid = np.arange(gamma + 1)[None] <= length
    return Draft(jnp.asarray(tokens), jnp.asarray(valid), jnp.asarray(log_q)), jnp.asarray(log_p)


@pytest.mark.slow
def test_rows_are_independent_of_their_position():
    draft, log_p = random_round(6, 3)
    tree = trees.chain(3)
    keys = lambda: jax.random.split(jax.random.key(5), 6)
    verdict = verify(keys(), tree, draft, log_p)
    order = np.array([4, 0, 5])
    pick = lambda x: x[order]
    moved = verify(pick(keys()), tree, jax.tree.map(pick, draft), log_p[order])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[order], b), verdict, moved)
    assert len(set(np.asarray(verdict.accepted).tolist())) > 1


def test_path_tested_and_overlap_by_hand():
    gamma = 4
    draft, log_p = random_round(50, gamma)
    tree = trees.chain(gamma)
    verdict = verify(jax.random.split(jax.random.key(6), 50), tree, draft, log_p)
    p = np.asarray(log_p)
    sharp = jnp.asarray(np.where(p == p.max(-1, keepdims=True), np.float32(0), -np.inf).astype(np.float32))

    @jax.jit
    def measured(draft, log_p, sharp, verdict):
        usual, known = (token.overlap(tree, draft, sharp, verdict, one_hot=one_hot) for one_hot in (False, True))
        unknown = token.overlap(tree, draft._replace(log_q=None), log_p, verdict)
        return token.tested(tree, draft, verdict), token.overlap(tree, draft, log_p, verdict), usual, known, unknown

    tested, overlap, usual, known, unknown = jax.device_get(measured(draft, log_p, sharp, verdict))
    p, q, verdict = np.exp(log_p), np.exp(np.asarray(draft.log_q)), jax.device_get(verdict)
    kinds = set()
    for row in range(50):
        accepted = int(verdict.accepted[row])
        np.testing.assert_array_equal(verdict.path[row], np.minimum(np.arange(gamma + 1), accepted))
        length = int(draft.valid[row].sum()) - 1
        reached = min(accepted + 1, length)
        kinds.add((accepted < length, accepted == gamma))
        assert int(tested[row]) == reached
        np.testing.assert_allclose(overlap[row], np.minimum(p, q)[row, :reached].sum(), rtol=1e-5)
    assert len(kinds) > 1
    assert float(known.max()) > 0
    np.testing.assert_allclose(known, usual, rtol=1e-6)
    np.testing.assert_array_equal(unknown, np.zeros(50))


# --- as shipped: sampled by `categorical`, warped by `warp`, jitted, float32 ---

VOCAB, GAMMA, ROOT = 11, 2, 0
TEMPERATURES = (0.0, 0.6, 1.0, 1.4)
LOGITS = 1.2 * np.random.default_rng(0).normal(size=(2, VOCAB, VOCAB)).astype(np.float32)  # target, draft: [previous]
LOGITS[:, :, 3] -= 4.0  # rare


def softmax(table: np.ndarray, temperature: float) -> np.ndarray:
    if temperature == 0:
        return np.eye(VOCAB)[table.argmax(-1)]
    mass = np.exp(table.astype(np.float64) / temperature)
    return mass / mass.sum(-1, keepdims=True)


def exact(temperature: float, model: int = 0) -> distributions.Model:
    table = softmax(LOGITS[model], temperature)
    return lambda prefix: table[prefix[-1] if prefix else ROOT]


def fork(key, count: int) -> list:
    """`count` keys from each row's key."""
    forks = jax.vmap(lambda k: jax.random.split(k, count))(key)
    return [forks[:, i] for i in range(count)]


def three_tokens(samples: int, *, shift_log_q: float = 0.0, reuse_draft_key: bool = False) -> np.ndarray:
    """The first three tokens, [temperatures, samples, 3]: of one round, then of the target."""
    batch = samples * len(TEMPERATURES)
    params = sampling_params(batch, VOCAB, temperature=list(TEMPERATURES) * samples)

    def run(params, table, root, key):  # all arrays are arguments: XLA would spend minutes folding constants
        drafting, verifying, continuing = fork(key, 3)
        log_probs = lambda model, previous: warp(params, table[model][previous[:, None]])[:, 0]
        tokens, log_q = [root], []
        for _ in range(GAMMA):
            drafting, now = fork(drafting, 2)
            log_q.append(log_probs(1, tokens[-1]))
            tokens.append(categorical(now, log_q[-1]))
        log_q.append(log_probs(1, tokens[-1]))
        drafted = jnp.stack(tokens, 1)
        draft = Draft(drafted, jnp.ones_like(drafted, dtype=bool), jnp.stack(log_q, 1) + shift_log_q)
        log_p = jnp.stack([log_probs(0, token) for token in tokens], 1)
        verdict = token_level(verifying, trees.chain(GAMMA), draft, log_p)
        out = [jnp.where(verdict.accepted > 0, drafted[:, 1], verdict.token)]
        for w in range(1, GAMMA + 1):
            continuing, now = fork(continuing, 2)
            fresh = categorical(verifying if reuse_draft_key else now, log_probs(0, out[-1]))
            kept = drafted[:, min(w + 1, GAMMA)]
            out.append(jnp.where(verdict.accepted > w, kept, jnp.where(verdict.accepted == w, verdict.token, fresh)))
        return jnp.stack(out, 1)

    root = jnp.full(batch, ROOT, jnp.int32)
    tokens = np.asarray(jax.jit(run)(params, jnp.asarray(LOGITS), root, jax.random.split(jax.random.key(20), batch)))
    return tokens.reshape(samples, len(TEMPERATURES), 3).transpose(1, 0, 2)


def p_values(tokens: np.ndarray) -> list[float]:
    return [
        distributions.chi_square(distributions.histogram(rows, VOCAB), distributions.joint(exact(temperature), 3))
        for rows, temperature in zip(tokens, TEMPERATURES, strict=True)
    ]


SAMPLES = 50_000


@pytest.mark.slow
def test_shipped_code_follows_the_joint_distribution_at_mixed_temperatures():
    assert min(p_values(three_tokens(SAMPLES))) > distributions.ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("temperature", TEMPERATURES[1:])
def test_the_sample_is_large_enough_to_detect_a_wrong_residual(temperature, monkeypatch):
    """The test distinguishes the broken verifier from the target with probability over 0.999."""
    monkeypatch.setattr(token, "residual", plain_residual)
    p, q = exact(temperature), exact(temperature, 1)
    broken = emitted(p, q, GAMMA, vocab=VOCAB)
    assert distributions.power(distributions.joint(p, 3), broken, SAMPLES) > 0.999


def one_key(key):
    return key, key


CONTROLS = ("residual", "unnormalized", "one key for two roles", "verifier's key used again")


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS)
def test_control_broken_verifiers_fail_the_same_test(control, monkeypatch):
    more = {}
    if control == "residual":
        monkeypatch.setattr(token, "residual", plain_residual)
    elif control == "one key for two roles":
        monkeypatch.setattr(token, "split_roles", one_key)
    elif control == "unnormalized":
        more = {"shift_log_q": float(np.log(0.7))}
    else:
        more = {"reuse_draft_key": True}
    with jax.debug_key_reuse(False):  # on purpose
        assert max(p_values(three_tokens(SAMPLES, **more))[1:]) < distributions.ALPHA


# --- a real vocabulary: 50,272 tokens, joint distribution of the first two in bins ---

LARGE, CONTEXTS, BINS, LARGE_SAMPLES, CHUNK = 50_272, 3, 6, 6144, 64


def large_probs() -> np.ndarray:
    """[target and draft, context, V]; a token's context is its id modulo CONTEXTS."""
    rng = np.random.default_rng(1)
    logits = 2.0 * rng.normal(size=(2, CONTEXTS, LARGE)) - 1.1 * np.log1p(rng.permuted(np.arange(LARGE)))
    mass = np.exp(logits)
    mass[:, :, 7::50] = 0.0
    return mass / mass.sum(-1, keepdims=True)


def binned(first: np.ndarray, then: np.ndarray, bins: np.ndarray) -> np.ndarray:
    """The joint distribution of two tokens' bins, for first [V] and then [CONTEXTS, V]."""
    context = np.arange(LARGE) % CONTEXTS
    start = np.stack([np.bincount(bins, first * (context == c), BINS) for c in range(CONTEXTS)])
    return np.einsum("cb,cd->bd", start, np.stack([np.bincount(bins, probs, BINS) for probs in then]))


def two_large_tokens(table: np.ndarray) -> np.ndarray:
    """[LARGE_SAMPLES, 2]: one round of gamma 1 and, after a rejection, the target."""

    def chunk(key, log_probs):
        drafting, verifying, continuing = fork(key, 3)
        root = jnp.zeros(CHUNK, jnp.int32)
        tokens = jnp.stack([root, categorical(drafting, log_probs[1][root])], 1)
        draft = Draft(tokens, jnp.ones_like(tokens, dtype=bool), log_probs[1][tokens % CONTEXTS])
        verdict = token_level(verifying, trees.chain(1), draft, log_probs[0][tokens % CONTEXTS])
        rejected = verdict.accepted == 0
        first = jnp.where(rejected, verdict.token, tokens[:, 1])
        fresh = categorical(continuing, log_probs[0][first % CONTEXTS])
        return jnp.stack([first, jnp.where(rejected, fresh, verdict.token)], 1)

    with np.errstate(divide="ignore"):
        log_probs = jnp.asarray(np.log(table), jnp.float32)
    run, keys = jax.jit(chunk), jax.random.split(jax.random.key(30), (LARGE_SAMPLES // CHUNK, CHUNK))
    return np.concatenate([np.asarray(run(keys[i], log_probs)) for i in range(len(keys))])


@pytest.mark.slow
def test_shipped_code_follows_the_joint_distribution_at_a_real_vocabulary(monkeypatch):
    table = large_probs()
    p, (first_p, first_q) = table[0], table[:, 0]
    ranked = np.argsort(
        first_p / (first_p + first_q + 1e-30)
    )  # bins where p and q differ most detect a broken verifier
    bins = np.empty(LARGE, np.int64)
    bins[ranked] = np.minimum((np.cumsum(first_p[ranked]) * BINS).astype(int), BINS - 1)
    expected = binned(first_p, p, bins)
    shared = np.minimum(first_p, first_q)
    broken_first = shared + (1 - shared.sum()) * first_p
    assert (
        distributions.power(expected, binned(broken_first, p, bins), LARGE_SAMPLES) > 0.999
    )  # the first token is enough

    def p_value() -> float:
        tokens = two_large_tokens(table)
        assert np.all(first_p[tokens[:, 0]] > 0)
        assert np.all(p[tokens[:, 0] % CONTEXTS, tokens[:, 1]] > 0)
        return distributions.chi_square(distributions.histogram(bins[tokens], BINS), expected)

    assert p_value() > distributions.ALPHA
    monkeypatch.setattr(token, "residual", plain_residual)
    assert p_value() < distributions.ALPHA
