"""The warp stack against the logits processors of transformers, in the order of its `generate`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.sampling import sampling_params, warp

pytestmark = pytest.mark.torch

V = 200
CHOICES = (
    {},
    {"temperature": 0.6},
    {"temperature": 1.9},
    {"top_k": 7},
    {"top_k": V + 50},
    {"top_p": 0.9},
    {"top_p": 0.01},
    {"min_p": 0.05},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"logit_bias": {3: 4.0, 5: -2.5, 9: -np.inf}},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    {
        "temperature": 1.3,
        "top_k": 90,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "logit_bias": {0: 3.0, 1: -3.0},
    },
)


def processors(choice: dict):
    """The processors that transformers' `generate` applies."""
    from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

    settings = dict(choice)
    bias = settings.pop("logit_bias", None)
    config = GenerationConfig(
        do_sample=True,
        **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, **settings},
        sequence_bias=None if bias is None else [[[token], value] for token, value in bias.items()],
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_embd=4, n_layer=1, n_head=1, n_positions=8))
    return model._get_logits_processor(config, input_ids_seq_length=6)


def reference(choice: dict, logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    import torch

    scores = processors(choice)(torch.tensor(ids), torch.tensor(logits))
    return torch.log_softmax(scores, dim=-1).numpy()


def ours(choice: dict, logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    params = sampling_params(len(logits), logits.shape[1], **choice)
    seen = np.zeros(logits.shape, bool)
    np.put_along_axis(seen, ids, True, axis=1)
    warped = jax.jit(warp)(params, jnp.asarray(logits[:, None]), seen)
    return np.asarray(warped)[:, 0]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_distributions_are_equal(choice):
    rng = np.random.default_rng(0)
    logits = (3 * rng.normal(size=(16, V))).astype(np.float32)
    ids = rng.integers(0, V, (16, 6))
    expected, log_p = reference(choice, logits, ids), ours(choice, logits, ids)
    np.testing.assert_array_equal(np.isneginf(log_p), np.isneginf(expected))
    np.testing.assert_allclose(np.exp(log_p), np.exp(expected), rtol=5e-5, atol=1e-9)


@pytest.mark.parametrize("top_k", (1, 2, 3, 4, 5))
def test_ties_at_top_k_are_kept(top_k):
    logits = np.array([[1.0, 2.0, 2.0, 2.0, 0.0, 0.0, -1.0]], np.float32)
    logits = np.pad(logits, ((0, 0), (0, V - 7)), constant_values=-3.0)
    ids = np.zeros((1, 6), np.int64)
    np.testing.assert_array_equal(
        np.isneginf(ours({"top_k": top_k}, logits, ids)), np.isneginf(reference({"top_k": top_k}, logits, ids))
    )


@pytest.mark.parametrize("top_p", (0.25, 0.5, 0.5625, 0.75, 0.8125, 0.9))
def test_boundaries_of_top_p_and_its_ties(top_p):
    """Masses and sums are exact in float32. Without ties at the boundary the sets are equal; with ties, transformers
    keeps those that its sort puts first, and specjax keeps all."""
    mass = np.full(V, 0.0)
    mass[:5] = 0.5, 0.25, 0.0625, 0.0625, 0.125
    with np.errstate(divide="ignore"):
        logits = np.log(mass)[None].astype(np.float32)
    ids = np.zeros((1, 6), np.int64)
    theirs = ~np.isneginf(reference({"top_p": top_p}, logits, ids))[0]
    kept = ~np.isneginf(ours({"top_p": top_p}, logits, ids))[0]
    assert np.all(kept[theirs])
    extra = np.flatnonzero(kept & ~theirs)
    assert np.all(mass[extra] == mass[theirs].min())
    assert (extra.size > 0) <= (top_p > 0.875)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", (1.5, pytest.param(3.0, marks=pytest.mark.slow)))
def test_t5s_repetition_penalty_counts_the_start_token_and_not_the_prompt(penalty):
    """`generate` penalizes the decoder's input, which begins with its start token and excludes the encoder's tokens.
    Fails if the prompt is counted or the start token is not."""
    import torch

    from specjax import api, drafters
    from specjax.model import Model
    from specjax.models import t5
    from tests.models import test_t5_parity as parity

    config = parity.CONFIGS["relu-untied"]
    theirs = parity.theirs(config)
    theirs.generation_config.eos_token_id = None
    with torch.no_grad():
        theirs.lm_head.weight *= 4.0  # separates logits, so that a penalty does not create near ties
    model = Model("t5", t5.FAMILY, config, parity.FMT, parity.from_torch(theirs, config))
    prompts = np.random.default_rng(0).integers(1, config.vocab_size, (12, 20))
    expected = theirs.generate(
        torch.tensor(prompts), attention_mask=torch.ones(prompts.shape, dtype=torch.long), do_sample=False,
        use_cache=False, max_new_tokens=12, repetition_penalty=penalty, pad_token_id=0,
        decoder_start_token_id=config.start_token,
    )[:, 1:].tolist()  # fmt: skip
    plan = {"max_new_tokens": 12, "temperature": 0.0, "repetition_penalty": penalty, "ignore_eos": True}
    for drafter in (None, drafters.model(model, gamma=3)):
        assert api.generate(model, prompts.tolist(), drafter=drafter, **plan).tokens == expected
