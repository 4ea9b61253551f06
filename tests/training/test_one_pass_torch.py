"""Losses of P-EAGLE and DFlash heads against those of the package `speculators`.

Runs where `speculators` is installed, which the test extra leaves out.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.heads import load_head
from specjax.training import dflash, losses, peagle
from specjax.training.eagle import RECIPES, Batch
from tests.heads.test_package_torch import LAYERS, VOCAB, classes, make, package, streams, verifier

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TEXT, FIRST = 21, 6  # tokens, and where the answer begins
LOSSES = {
    "kl": "kl_div_loss", "reverse-kl": "reverse_kl_div_loss", "jsd": "js_div_loss", "tv": "tv_loss",
    "log-alpha": "neg_log_acceptance_loss", "lk": "lk_hybrid_loss",
}  # fmt: skip
assert verifier  # a fixture


def loaded(folder, kind: str):
    """The package's own head, with the target's output matrix."""
    config, model = classes(kind)
    config = config.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    found = model.from_pretrained(folder, config=config).eval()
    found.load_verifier_weights()
    return found


@pytest.mark.parametrize("name", ["peagle", "peagle qwen3", "peagle norms"])
def test_peagle_loss(name, verifier, tmp_path, monkeypatch):
    import torch

    torch.manual_seed(1)
    make(name, tmp_path, verifier)
    head, model = load_head(tmp_path, verifier[2]), loaded(tmp_path, "peagle")
    text = np.random.default_rng(0).integers(0, VOCAB, TEXT)
    answer = np.arange(TEXT) >= FIRST
    batch = Batch(text[None].astype(np.int32), answer[None])
    how = dataclasses.replace(RECIPES["peagle"], steps=5)
    compute = lambda key: peagle.run(head, how, head.params, head.target.params, batch, key)
    steps, some = compute(None), compute(jax.random.key(0))
    data = package(".models.peagle.data").generate_cod_sample_indices
    drawn = []  # anchors and depths that the package sampled
    monkeypatch.setattr(
        package(".models.peagle.core"), "generate_cod_sample_indices",
        lambda **options: drawn.append(data(**options)) or drawn[-1],
    )  # fmt: skip
    every = streams(verifier[1], text.tolist(), model.target_layer_ids)
    last, mask = streams(verifier[1], text.tolist(), [LAYERS]), torch.tensor(answer[None, 1:], dtype=torch.float)
    for divergence, theirs in LOSSES.items():
        with torch.no_grad():
            _, value, _ = model(
                every[:, :-1], torch.tensor(text[None, 1:]), document_ids=torch.zeros(1, TEXT - 1, dtype=torch.long),
                loss_mask=mask, verifier_last_hidden_states=last[:, 1:], num_depths=5,
                loss_config={theirs: (getattr(package(".losses.eager"), theirs), 1.0)},
            )  # fmt: skip
        anchors, depths = (one.numpy() for one in drawn[-1])
        ours = [losses.DIVERGENCES[divergence](step.log_p, step.log_q)[0] for step in steps]
        # The package's mask is that of the token before the drafted one.
        rows = [(a, d) for a, d in zip(anchors, depths, strict=True) if answer[a + d + 1]]
        counts = [int(step.mask.sum()) for step in some[1:]]
        assert np.bincount(depths, minlength=5)[1:].tolist() == counts
        wanted = np.mean([float(ours[d][a]) for a, d in rows])
        np.testing.assert_allclose(wanted, float(value), rtol=2e-4)


@pytest.mark.parametrize("name", ["dflash", "dflash vocabulary", "dflash window", "dflash open window", "dflash llama"])
def test_dflash_loss(name, verifier, tmp_path):
    """For an answer that is the whole text, where the package's anchors and ours are the same: it takes a loss mask by
    the slot, also where slots draft the token after their own."""
    import torch

    torch.manual_seed(1)
    make(name, tmp_path, verifier)
    head, model = load_head(tmp_path, verifier[2]), loaded(tmp_path, "dflash")
    block, most = head.config.block, head.config.most
    text = np.random.default_rng(0).integers(0, VOCAB, TEXT)
    count = TEXT - block  # the package leaves out the blocks that end past the text
    every, last = (streams(verifier[1], text.tolist(), taps) for taps in (model.target_layer_ids, [LAYERS]))
    at = jnp.arange(count, dtype=jnp.int32)[None]
    batch = Batch(text[None].astype(np.int32), np.ones((1, TEXT), bool))
    steps, labels = dflash.run(head, head.params, head.target.params, batch, at, jnp.ones(at.shape, bool))
    for divergence, theirs in LOSSES.items():
        with torch.no_grad():
            _, value, _ = model(
                every, torch.tensor(text[None]), document_ids=torch.zeros(1, TEXT, dtype=torch.long),
                loss_mask=torch.ones(1, TEXT), verifier_last_hidden_states=last, max_anchors=count, gamma=3.0,
                loss_config={theirs: (getattr(package(".losses.eager"), theirs), 1.0)},
            )  # fmt: skip
        ours = np.stack([losses.DIVERGENCES[divergence](step.log_p, step.log_q)[0] for step in steps], -1)
        wanted = (ours * np.exp(-np.arange(most) / 3.0)).mean()
        np.testing.assert_allclose(wanted, float(value), rtol=2e-4)
    labels = np.stack([np.asarray(step.log_p).argmax(-1) for step in steps], -1)  # the package's hard labels
    values = np.stack(
        [-np.asarray(step.log_q)[0, np.arange(count), labels[0, :, k]] for k, step in enumerate(steps)], -1
    )
    mask = jnp.ones((1, count, most), bool)
    wanted = (values * dflash.d_pace(jnp.asarray(values)[None], mask)[0]).mean()
    with torch.no_grad():
        _, value, _ = model(
            every, torch.tensor(text[None]), document_ids=torch.zeros(1, TEXT, dtype=torch.long),
            loss_mask=torch.ones(1, TEXT), verifier_last_hidden_states=last, max_anchors=count,
            loss_config={"ce": (package(".losses.eager").ce_loss, 1.0)}, per_position_loss_weight="dpace",
        )  # fmt: skip
    np.testing.assert_allclose(wanted, float(value), rtol=2e-4)
