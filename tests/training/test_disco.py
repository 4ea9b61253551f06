"""Training of DISCO: learns a synthetic draft's confidence, stops where drafting no longer pays, saves and loads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import specjax as sj
from specjax import drafters, policies
from specjax.policies.drafting import features, score
from specjax.training import disco
from tests import battery

GAMMA, ROUNDS = 6, 3000


def synthetic(seed: int = 0) -> tuple[disco.Traces, np.ndarray]:
    """Rounds whose tokens are accepted with probability 0.15 + 0.8 * (largest draft probability)."""
    rng = np.random.default_rng(seed)
    read = np.zeros((ROUNDS, GAMMA, disco.FEATURES), np.float32)
    top = rng.random((ROUNDS, GAMMA)) ** 0.5
    read[..., 0], read[..., -2] = top, 1 - top
    read[..., -1] = np.arange(1, GAMMA + 1) / 10
    chance = 0.15 + 0.8 * top
    accepted = np.cumprod(rng.random(chance.shape) < chance, axis=1).sum(1).astype(np.int32)
    return disco.Traces(read, accepted), chance


@pytest.fixture(scope="module")
def trained():
    return disco.fit(synthetic()[0], steps=300)


@pytest.mark.slow
def test_fit_learns_the_acceptance_probability(trained):
    traces, chance = synthetic(1)
    predicted = np.asarray(jax.nn.sigmoid(score(trained, jnp.asarray(traces.features))))
    assert np.abs(predicted - chance).mean() < 0.04
    untrained = np.full_like(predicted, np.asarray(chance).mean())
    assert np.abs(untrained - chance).mean() > 0.12  # the best constant prediction


def test_disco_beats_the_best_fixed_length_but_not_the_oracle(trained):
    traces, _ = synthetic(2)
    tuned = disco.tune(trained, traces, c=0.25)
    assert 1.02 * tuned.best_fixed < tuned.disco < tuned.oracle
    price = np.arange(GAMMA + 1) * 0.25 + 1
    by_hand = [(np.minimum(g, traces.accepted) + 1).mean() / price[g] for g in range(1, GAMMA + 1)]
    assert tuned.gamma == 1 + int(np.argmax(by_hand))
    assert tuned.best_fixed == pytest.approx(max(by_hand))
    assert 0 < float(tuned.params.stop) < 1


def test_expensive_drafts_are_shorter(trained):
    """`stop` increases with c."""
    traces, _ = synthetic(2)
    stops = [float(disco.tune(trained, traces, c=c).params.stop) for c in (0.0, 0.1, 0.4)]
    assert stops[0] < stops[1] < stops[2]


def test_save_and_load_restore_the_classifier(trained, tmp_path):
    disco.save(trained, tmp_path / "pair.safetensors")
    again = disco.load(tmp_path / "pair.safetensors")
    for one, other in zip(trained, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [file.name for file in tmp_path.iterdir()] == ["pair.safetensors"]


def test_invalid_arguments_raise(trained, tmp_path):
    traces, _ = synthetic()
    with pytest.raises(ValueError, match="traces"):
        disco.fit(disco.Traces(traces.features[:0], traces.accepted[:0]))
    with pytest.raises(ValueError, match="entries"):
        disco.tune(trained, traces, c=0.1, verify_cost=[1.0, 1.0])
    with pytest.raises(ValueError, match=r"none\.safetensors"):
        disco.load(tmp_path / "none.safetensors")
    save_file({"other": np.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="hidden_bias"):
        disco.load(tmp_path / "other.safetensors")


@pytest.mark.slow
def test_features_depend_only_on_the_distribution():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(3, 40)), jnp.float32)
    read = np.asarray(features(logits, 4))
    probs = np.exp(np.asarray(logits, np.float64))
    probs /= probs.sum(1, keepdims=True)
    np.testing.assert_allclose(read[:, :10], -np.sort(-probs)[:, :10], rtol=1e-5)
    np.testing.assert_allclose(read[:, 10], -(probs * np.log(probs)).sum(1) / np.log(40), rtol=1e-5)
    np.testing.assert_allclose(read[:, 11], 0.4)
    one_hot = jnp.where(jnp.arange(40)[None] == 3, 0.0, -jnp.inf)
    assert np.isfinite(features(one_hot, 1)).all() and features(one_hot, 1)[0, 10] == 0


@pytest.mark.slow
def test_recorded_rounds_equal_those_of_a_fixed_length():
    """The same rounds with the same acceptances as a plain chain; features are probabilities and positions."""
    target, draft = battery.target("opt"), battery.draft("opt")
    given = [row[:n].tolist() for row, n in zip(battery.prompts(), battery.LENGTHS, strict=True)]
    options = {"temperature": 0.0, "max_new_tokens": 20, "ignore_eos": True}
    traces = disco.record(target, draft, given, gamma_max=4, **options)
    fixed = sj.generate(target, given, drafter=drafters.model(draft, gamma=4), **options).stats
    assert len(traces.accepted) == fixed.rounds
    assert traces.accepted.sum() == fixed.accepted
    assert (traces.features[..., 0] >= traces.features[..., 1]).all() and (traces.features[..., 0] > 0).all()
    np.testing.assert_allclose(traces.features[..., -1], np.broadcast_to([0.1, 0.2, 0.3, 0.4], (fixed.rounds, 4)))


@pytest.mark.slow
def test_on_the_bundled_pair_disco_is_not_behind_the_best_fixed_length():
    """Counted, not timed: tokens over (rounds + c * draft tokens), c = 0.1, on prompts not used for training.

    The prompts are beginnings of texts that the target writes by itself, after the token between two documents.
    """
    target, draft = sj.load("bundled/opt-target", dtype="float32"), sj.load("bundled/opt-draft", dtype="float32")
    cost, longest = 0.1, 12
    options = {"temperature": 1.0, "max_new_tokens": 64, "ignore_eos": True}
    start = [list(target.eos)] * 64
    opened = sj.generate(target, start, temperature=0.8, max_new_tokens=32, logit_bias={target.eos[0]: -100.0}).tokens
    given = [list(target.eos) + text for text in opened]
    traces = disco.record(target, draft, given[:32], gamma_max=longest, **options)
    tuned = disco.tune(disco.fit(traces), traces, c=cost)

    def speed(rule) -> float:
        stats = sj.generate(target, given[32:], drafter=drafters.model(draft, policy=rule), **options).stats
        return stats.tokens / (stats.rounds + cost * stats.drafted)

    fixed = max(speed(policies.fixed(gamma)) for gamma in range(tuned.gamma - 1, tuned.gamma + 3))
    learned = speed(policies.disco(tuned.params, gamma_max=longest))
    assert learned > 0.98 * fixed
    hasty = tuned.params._replace(stop=jnp.float32(0.97))  # control: the margin tells a bad threshold from a good one
    assert speed(policies.disco(hasty, gamma_max=longest)) < 0.98 * fixed
