"""Medusa heads and MLP speculators draft what an independent computation drafts, and decoding stays exact."""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, trees
from specjax.drafters import LoadedDrafter
from specjax.drafters.head import draft_logits
from specjax.drafters.staged_writer import RECENT
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.heads.medusa import MedusaConfig
from specjax.heads.mlp import MLPConfig
from specjax.stopping import Stop
from specjax.types import Commit, Siblings
from tests import battery, distributions
from tests.drafters import drafting
from tests.drafters.heads import all_texts, fitted, read_again
from tests.drafters.test_head import dot

VOCAB, WIDTH, GAMMA = battery.VOCAB, 16, 3
TOKENS = np.array([7, 0, 12, 1, 5, 2, 10, 4, 8], np.int32)  # in any order, as vLLM's token map
CONFIGS = {
    "medusa": MedusaConfig(VOCAB, WIDTH, 4, blocks=2, matrices=4, draft_vocab=VOCAB),
    "medusa few": MedusaConfig(VOCAB, WIDTH, 3, matrices=1, draft_vocab=len(TOKENS), bias=False),
    "medusa v2": MedusaConfig(VOCAB, WIDTH, 3),
    "mlp": MLPConfig(VOCAB, WIDTH, 12, 4),
    "mlp tied": MLPConfig(VOCAB, WIDTH, WIDTH, 3, tied=True, scale_input=True),
}
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"gamma": GAMMA},
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
CASES = [
    (kind, shape, family)
    for kind, shape, family in itertools.product(CONFIGS, SHAPES, battery.FAMILIES)
    if kind.startswith("mlp") or shape != "dynamic"
]

GREEDY = [
    ("medusa", "chain", "llama"), ("mlp", "chain", "t5"), ("mlp tied", "tree", "opt"),
]  # fmt: skip


@functools.cache
def head(kind: str, family: str) -> Head:
    """A random head whose every parameter matters, for the target of the battery; "medusa" is often right."""
    config, of, numbers = CONFIGS[kind], KINDS[kind.split()[0]], np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: of.init(jax.random.key(0), config, battery.FMT))

    def draw(leaf):
        drawn = numbers.normal(0, 0.3, leaf.shape) if leaf.ndim > 1 else numbers.uniform(0.5, 1.5, leaf.shape)
        return jnp.asarray(drawn, leaf.dtype)

    params = jax.tree.map(draw, shapes)
    if kind == "medusa":
        params["blocks"] = jax.tree.map(lambda leaf: leaf * 0.1, params["blocks"])
        for index, kernel in enumerate(fitted(family, 4, ())):
            shape = params["heads"][str(index)]["kernel"].shape
            params["heads"][str(index)]["kernel"] = kernel.T if shape == (VOCAB, WIDTH) else kernel
    tokens = TOKENS if kind == "medusa few" else None
    return Head(f"a {kind} head", of, config, battery.FMT, params, battery.target(family), tokens)


def made(kind: str, shape: str, family: str) -> LoadedDrafter:
    return drafters.head(head(kind, family), **SHAPES[shape])


@pytest.mark.parametrize(("kind", "shape", "family"), battery.others_slow(CASES, GREEDY))
def test_greedy_equals_plain(kind, shape, family):
    totals = drafting.greedy_equals_plain(family, made(kind, shape, family), VERIFIERS[shape])
    assert totals.accepted.sum() > 0


@pytest.mark.slow
def test_greedy_samples_without_replacement_are_the_most_probable_tokens():
    found = [
        drafting.greedy_equals_plain("opt", made("medusa few", shape, "opt"), VERIFIERS[shape])
        for shape in ("sampled tree", "tree")
    ]
    assert found[0].accepted.tolist() == found[1].accepted.tolist() and found[0].accepted.sum() > 0


# --- an independent computation, in float64 --------------------------------------------------------------------------


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def medusa(of: Head, feature: np.ndarray, text: list[int]) -> np.ndarray:
    """Logits after a text of `pending` and drafted tokens, over the draft vocabulary."""
    index, params, x = len(text) - 1, of.params, feature[None]
    for block in range(of.config.blocks):
        x = x + silu(dot(x, params["blocks"][str(index)][str(block)]))
    if of.config.matrices:
        return dot(x, params["heads"][str(min(index, of.config.matrices - 1))])[0]
    target = of.target.params
    table = np.asarray(target["embed"]["tokens"]["table"], np.float64)
    return dot(x, target["head"])[0] if "head" in target else x[0] @ table.T


def mlp(of: Head, feature: np.ndarray, text: list[int]) -> np.ndarray:
    config, params = of.config, of.params
    unit = lambda x: x / np.sqrt((x**2).mean() + 1e-6)
    state = unit(feature) / math.sqrt(2) if config.scale_input else feature
    kept = 0.5 ** (0.5 / config.stages)
    added = math.sqrt((1 - kept**2) * config.inner / 2)
    logits = np.zeros(0)
    for stage, token in enumerate(text):
        own, projection = ("0", str(min(stage, 1))) if config.tied else (str(stage), str(stage))
        z = np.asarray(params["emb"][own]["table"], np.float64)[token]
        state = dot(state[None], params["proj"][projection])[0] + added / kept * z
        state = np.asarray(params["ln"][own]["scale"]) * unit(state) + np.asarray(params["ln"][own]["bias"])
        state = 0.5 * state * (1 + np.array([math.erf(x / math.sqrt(2)) for x in state]))
        logits = dot(state[None], params["head"][own])[0]
    return logits


def expected(of: Head, feature: np.ndarray, text: list[int]) -> np.ndarray:
    """Logits over the target's vocabulary."""
    found = {"medusa": medusa, "mlp": mlp}[of.kind.name](of, np.asarray(feature, np.float64), text)
    if of.draft_tokens is None:
        return found
    wide = np.full((VOCAB,), -np.inf)
    wide[of.draft_tokens] = found
    return wide


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max()
    return logits - np.log(np.exp(logits).sum())


# --- drafts ----------------------------------------------------------------------------------------------------------

ROUNDS = [  # tokens that each row commits, and how many of all are then rolled back, the first of them put back
    ([1, 2, 3, 4, 0, 3, 2, 4], [0, 0, 0, 0, 0, 0, 0, 0]),
    ([4, 1, 0, 2, 3, 1, 2, 3], [0, 1, 0, 2, 1, 0, 2, 3]),
    ([2, 3, 1, 1, 1, 0, 4, 1], [3, 0, 2, 2, 0, 2, 1, 4]),
]


def stages(loaded: LoadedDrafter):
    """The jitted functions of a drafter, with distributions that are not warped."""
    part, params, model = loaded.drafter, loaded.params, loaded.head.target
    plain = lambda logits, ancestors=None: jax.nn.log_softmax(logits)

    def init(prompt, length):
        return part.init(params, prompt, length, 40, model.lm.prefill(model.params, prompt, length, 40))

    def propose(key, state, pending):
        return part.propose(params, key, state, pending, plain)

    def commit(state, tokens, length, features):
        return part.commit(params, state, Commit(tokens, length, features, jnp.zeros_like(tokens)))

    assert part.rewind is not None
    return tuple(map(jax.jit, (init, propose, commit, functools.partial(part.rewind, params))))


@pytest.mark.parametrize(("kind", "shape", "family"), battery.others_slow(
    [(k, s, f) for k, s, f in CASES if s in ("chain", "tree")],
    [("medusa", "chain", "llama"), ("medusa few", "tree", "t5"), ("medusa v2", "chain", "t5"), ("mlp", "chain", "t5"),
     ("mlp tied", "tree", "opt")],
))  # fmt: skip
def test_drafts_are_those_of_the_true_features(kind, shape, family):
    """Logits within 1e-4: after ragged prompts, ragged rounds, rounds that leave rows alone, and rollbacks."""
    of, rows, numbers = head(kind, family), battery.ROWS, np.random.default_rng(3)
    loaded = made(kind, shape, family)
    tree = loaded.drafter.tree
    new = numbers.integers(0, VOCAB, (rows, 16)).tolist()
    features, texts = read_again(of.target, new, ()), all_texts(of.target, new)
    init, propose, commit, rewind = stages(loaded)

    def check(state, length):
        pending = np.array([text[n - 1] for text, n in zip(texts, length, strict=True)], np.int32)
        draft, state = propose(jax.random.split(jax.random.key(1), rows), state, pending)
        tokens, valid = np.asarray(draft.tokens), np.asarray(draft.valid)
        for row, (n, known) in enumerate(zip(length, features, strict=True)):
            assert valid[row].tolist() == [True] + [n > 1] * (tree.size - 1)
            for node in range(tree.size if n > 1 else 0):
                kids = [child for child in tree.children[node] if child > 0]
                if not kids:
                    continue
                path = tree.paths[node, : tree.depth[node] + 1]
                found = expected(of, known[n - 2], tokens[row, path].tolist())
                if draft.log_q is None:
                    assert tokens[row, kids].tolist() == np.argsort(-found, kind="stable")[: len(kids)].tolist()
                else:
                    np.testing.assert_allclose(draft.log_q[row, node], log_softmax(found), atol=1e-4)
        return state

    prompt, length = battery.prompts(), battery.LENGTHS.copy()
    state = init(prompt, length)
    length = np.ones_like(length) if of.target.encoder_decoder else length
    state = check(state, length)
    for count, back in ROUNDS:
        given = np.zeros((rows, 4, WIDTH), np.float32)
        tokens = np.zeros((rows, 4), np.int32)
        for row, (n, more) in enumerate(zip(length, count, strict=True)):
            given[row, :more] = features[row][n - 1 : n - 1 + more]
            tokens[row, :more] = texts[row][n : n + more]
        state, length = commit(state, tokens, np.array(count, np.int32), given), length + count
        again = [text[n - max(m, 1)] for text, n, m in zip(texts, length, back, strict=True)]
        state = rewind(state, np.array(back, np.int32), np.array(again, np.int32))
        length = length - np.maximum(np.array(back) - 1, 0)
        state = check(state, length)


@pytest.mark.parametrize(("kind", "family"), battery.others_slow(
    itertools.product(CONFIGS, battery.FAMILIES), [("medusa few", "llama"), ("mlp", "t5")],
))  # fmt: skip
def test_draft_logits(kind, family):
    of, steps = head(kind, family), 3
    prompt = battery.prompts()[3, :16].tolist()
    tokens, logits = draft_logits(of.target, prompt, drafters.head(of), steps=steps)
    new = battery.plain(family)
    known = read_again(of.target, new, ())[3]
    text, last = all_texts(of.target, new)[3], 1 if family == "t5" else 15
    feature = known[0 if family == "t5" else 14]
    for step in range(steps):
        found = expected(of, feature, [text[last], *tokens[:step]])
        np.testing.assert_allclose(logits[step], found, atol=1e-4)
        assert tokens[step] == found.argmax()


def test_the_most_that_a_head_drafts():
    of = head("medusa v2", "llama")
    assert drafters.head(of).drafter.tree.size == 1 + 3
    with pytest.raises(ValueError, match="gamma"):
        drafters.head(of, gamma=4)
    with pytest.raises(ValueError, match="depth of the tree"):
        drafters.head(of, tree=trees.chain(4))
    with pytest.raises(ValueError, match="steps"):
        draft_logits(of.target, [1, 2], drafters.head(of), steps=4)
    with pytest.raises(ValueError, match="dynamic"):
        drafters.head(of, dynamic=8)
    assert drafters.head(head("mlp tied", "llama"), dynamic=8).drafter.tree.width == 1 + 3


# --- exactness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "shape", "family"), battery.others_slow(CASES, []))
def test_sampled_rows_follow_the_joint_distribution(kind, shape, family):
    found = drafting.follows_the_joint_distribution(family, made(kind, shape, family), VERIFIERS[shape])
    assert min(found.values()) > distributions.ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["medusa", "mlp"])
def test_control_a_distribution_that_is_not_the_heads_own(kind):
    """The next head's, or that of another token."""
    loaded = made(kind, "chain", "llama")
    propose = loaded.drafter.propose

    def wrong(params, key, state, pending, warp):
        draft, state = propose(params, key, state, pending, warp)
        log_q = jnp.roll(draft.log_q, -1, axis=1 if kind == "medusa" else 2)
        return draft._replace(log_q=log_q), state

    broken = loaded._replace(drafter=loaded.drafter._replace(propose=wrong))
    found = drafting.follows_the_joint_distribution("llama", broken, "token")
    assert min(found.values()) < distributions.ALPHA


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "shape", "family"), CASES)
def test_rows_are_independent(kind, shape, family):
    drafting.rows_are_independent(family, made(kind, shape, family), VERIFIERS[shape])


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["chain", "tree", "sampled tree"])
def test_nothing_is_drafted_where_the_warp_removes_the_draft_vocabulary(shape):
    """The rows go on plainly, and no NaN stops them."""
    banned = {int(token): -math.inf for token in TOKENS}
    loaded = made("medusa few", shape, "llama")
    state = battery.run("llama", loaded, 1.0, verify=drafting.verifier(loaded, VERIFIERS[shape]), logit_bias=banned)
    assert state.stop.tolist() == [Stop.MAX_TOKENS] * battery.ROWS
    assert not {token for row in battery.texts(state) for token in row} & banned.keys()
    assert state.totals.drafted.sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "shape", "family"), CASES)
def test_a_full_cache_stops_at_the_same_token(kind, shape, family):
    drafting.a_full_cache_stops_at_the_same_token(family, made(kind, shape, family), VERIFIERS[shape])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["opt", "t5"])
@pytest.mark.parametrize("kind", ["medusa", "mlp"])
def test_a_head_of_the_middle_model_in_a_cascade(kind, family):
    """It is rolled back by one token and by whole rounds."""
    middle = battery.draft(family)
    inner = drafters.head(dataclasses.replace(head(kind, family), target=middle), gamma=2)
    loaded = drafters.cascade(middle, inner, gamma=4)
    drafting.greedy_equals_plain(family, loaded, "token")
    found = drafting.follows_the_joint_distribution(family, loaded, "token")
    assert min(found.values()) > distributions.ALPHA


@pytest.mark.slow
def test_more_than_is_kept_is_rolled_back():
    """Nothing is drafted until a round has committed features again."""
    rows, back = 4, np.array([1, 2, RECENT, RECENT + 1], np.int32)
    init, propose, commit, rewind = stages(drafters.head(head("mlp", "opt"), gamma=GAMMA))
    one = np.ones((rows,), np.int32)
    tokens, given = np.zeros((rows, 4), np.int32), np.ones((rows, 4, WIDTH), np.float32)
    drafts = lambda state: np.asarray(
        propose(jax.random.split(jax.random.key(1), rows), state, one)[0].valid[:, 1:].all(1)
    ).tolist()  # fmt: skip
    state = init(np.ones((rows, 2), np.int32), 2 * one)
    for _ in range(RECENT // 4 + 1):
        state = commit(state, tokens, 4 * one, given)
    state = rewind(state, back, one)
    assert drafts(state) == [True, True, True, False]
    assert drafts(commit(state, tokens, one, given)) == [True] * rows
