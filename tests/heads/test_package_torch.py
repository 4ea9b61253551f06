"""EAGLE-3, P-EAGLE and DFlash against the package `speculators`: heads that it made, and heads that are written for it.

Runs where `speculators` is installed, which the test extra leaves out.
"""

import functools

import numpy as np
import pytest

import specjax as sj
from specjax.drafters.head import draft_logits
from specjax.heads import load_head

pytestmark = [pytest.mark.torch, pytest.mark.slow]
VOCAB, WIDTH, LAYERS, MASK, FEW = 61, 32, 6, 60, 20
WINDOWS = {"sliding_window": 5, "use_sliding_window": True}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], **WINDOWS}
HEADS = {
    "eagle3": ("eagle3", "llama", VOCAB, {"num_hidden_layers": 1}, {}),
    "eagle3 vocabulary": ("eagle3", "llama", FEW, {"num_hidden_layers": 1}, {"norm_before_residual": True}),
    "eagle3 norms": ("eagle3", "llama", FEW, {"num_hidden_layers": 1}, {"norm_before_fc": True, "norm_output": True}),
    "eagle3 fc norms": ("eagle3", "llama", VOCAB, {"num_hidden_layers": 1, "head_dim": 16}, {"fc_norm": True}),
    "peagle": ("peagle", "llama", FEW, {}, {"norm_before_residual": True}),
    "peagle qwen3": ("peagle", "qwen3", VOCAB, {"num_hidden_layers": 3}, {"norm_before_fc": True, "norm_output": True}),
    "peagle norms": ("peagle", "qwen3", FEW, {"head_dim": 128}, {"fc_norm": True}),
    "peagle window": ("peagle", "llama", FEW, {"layer_types": ["sliding_attention"] * 2, **WINDOWS}, {}),
    "dflash": ("dflash", "qwen3", VOCAB, {}, {"block_size": 4}),
    "dflash vocabulary": ("dflash", "qwen3", FEW, {"head_dim": 128}, {"block_size": 5, "sample_from_anchor": True}),
    "dflash window": ("dflash", "qwen3", VOCAB, MIXED, {"block_size": 4}),
    "dflash open window": ("dflash", "qwen3", VOCAB, MIXED, {"block_size": 4, "sliding_window_non_causal": True}),
    "dflash llama": ("dflash", "llama", FEW, {"attention_bias": True}, {"block_size": 6}),
}


def package(path: str):
    """A module of the package."""
    return pytest.importorskip(f"speculators{path}")


def fill(model) -> None:
    import torch

    with torch.no_grad():
        for _, value in model.named_parameters():
            value.normal_(0, 0.25) if value.ndim > 1 else value.uniform_(0.5, 1.5)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    """(folder, the model in torch, the model of specjax)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=128, head_dim=8, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    fill(model)
    folder = tmp_path_factory.mktemp("verifier")
    model.save_pretrained(folder)
    return folder, model, sj.load(str(folder))


def classes(kind: str):
    """The classes of the configuration and of the model."""
    module, prefix = package(f".models.{kind}.core"), {"eagle3": "Eagle3", "peagle": "PEagle", "dflash": "DFlash"}[kind]
    return getattr(module, f"{prefix}SpeculatorConfig"), getattr(module, f"{prefix}DraftModel")


def make(name: str, folder, verifier) -> None:
    """A random head that the package makes and writes."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    kind, layers, size, changed, options = HEADS[name]
    shape = {
        "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 128, "head_dim": 8,
    } | changed  # fmt: skip
    inner = {"llama": LlamaConfig, "qwen3": Qwen3Config}[layers](**shape)
    inner._attn_implementation = "eager"
    taps = "aux_hidden_state_layer_ids" if kind == "dflash" else "eagle_aux_hidden_state_layer_ids"
    mask = {} if kind == "eagle3" else {"mask_token_id": MASK}
    config, model = classes(kind)
    greedy = package(".proposals.greedy").GreedyTokenProposalConfig(speculative_tokens=3)
    envelope = package(".config").SpeculatorsConfig(
        algorithm=kind, proposal_methods=[greedy], default_proposal_method="greedy",
        verifier=package(".config").VerifierConfig(name_or_path=str(verifier[0]), architectures=["LlamaForCausalLM"]),
    )  # fmt: skip
    made = model(
        config(
            transformer_layer_config=inner, draft_vocab_size=size, speculators_config=envelope,
            **{taps: [1, 3, 6]}, **mask, **options,
        )
    )  # fmt: skip
    fill(made)
    if size < VOCAB:
        few = torch.sort(torch.randperm(VOCAB)[:size]).values
        members = torch.zeros(VOCAB, dtype=torch.bool)
        members[few] = True
        made.load_vocab_mappings(members, few - torch.arange(size))
    made.save_pretrained(folder)


def streams(model, text: list[int], taps: list[int]):
    """[1, n, taps D]: the residual streams, that of the last layer before the final norm."""
    import torch

    last = []
    hook = model.model.layers[-1].register_forward_hook(lambda module, given, out: last.append(out))
    with torch.no_grad():
        found = model.model(torch.tensor([text]), output_hidden_states=True).hidden_states
    hook.remove()
    out = last[0][0] if isinstance(last[0], tuple) else last[0]
    return torch.cat([out if tap == LAYERS else found[tap] for tap in taps], -1)


def theirs(folder, verifier, text: list[int], drafted: list[int], monkeypatch) -> np.ndarray:
    """Logits [count, V] of the package's own forward pass, whose training positions are those of drafting."""
    import torch

    dflash, peagle = package(".models.dflash.core"), package(".models.peagle.core")
    kind = package("").SpeculatorModelConfig.from_pretrained(folder).speculators_model_type
    config, model = classes(kind)
    config = config.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = model.from_pretrained(folder, config=config).eval()
    for module in (peagle, dflash):
        monkeypatch.setattr(module, "compute_metrics", lambda *args, **options: (torch.zeros(()), {}))
    n, found, count = len(text), [], len(drafted)
    model.lm_head.register_forward_hook(lambda module, given, out: found.append(out[0]))
    known, ones, zeros = streams(verifier[1], text, model.target_layer_ids)[:, : n - 1], torch.ones, torch.zeros
    more = config.block_size + 1 if kind == "dflash" else count
    known = torch.cat([known, torch.full((1, more, known.shape[-1]), 7.0)], 1)  # of positions that are not read
    size = known.shape[1]
    documents, last = zeros(1, size, dtype=torch.long), zeros(1, size, WIDTH)
    if kind == "eagle3":  # training time test: step t reads the token t places on
        with torch.no_grad():
            model(known, torch.tensor([text[1:] + drafted]), documents, ttt_steps=count)
        return whole(model, torch.stack([step[n - 2] for step in found]))
    if kind == "peagle":
        anchors = torch.tensor([*range(n - 1), *[n - 2] * (count - 1)])
        depth = torch.tensor([*[0] * (n - 1), *range(1, count)])
        monkeypatch.setattr(peagle, "generate_cod_sample_indices", lambda **options: (anchors, depth))
        tokens = torch.tensor([text[1:] + [0] * more])
        first = n - 2
    else:
        monkeypatch.setattr(dflash, "select_anchors", lambda *args: (torch.tensor([n - 1]), torch.tensor([True])))
        tokens = torch.tensor([text + [0] * (more - 1)])
        first = 0 if config.sample_from_anchor else 1
    with torch.no_grad():
        model(
            known, tokens, document_ids=documents, loss_mask=ones(1, size), verifier_last_hidden_states=last,
            max_anchors=1 if kind == "dflash" else None,
        )  # fmt: skip
    return whole(model, found[0][first : first + count])


def whole(model, logits) -> np.ndarray:
    """Logits [count, V] in the vocabulary of the target."""
    import torch

    if not model.use_draft_vocab:
        return logits.numpy()
    wide = torch.full((len(logits), VOCAB), -torch.inf)
    wide[:, torch.arange(model.draft_vocab_size) + model.d2t] = logits
    return wide.numpy()


@functools.cache
def texts() -> list[list[int]]:
    numbers = np.random.default_rng(0)
    return [numbers.integers(0, VOCAB, size).tolist() for size in (2, 3, 9, 17)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HEADS)
def test_logits_are_those_of_the_package_in_both_directions(name, verifier, tmp_path, monkeypatch):
    import torch

    torch.manual_seed(1)
    made, written = tmp_path / "made", tmp_path / "written"
    make(name, made, verifier)
    head = load_head(made, verifier[2])
    head.save_pretrained(written)
    count = head.config.most if head.kind.name == "dflash" else 5
    for text in texts():
        drafted, ours = draft_logits(verifier[2], text, sj.drafters.head(head, gamma=count), steps=count)
        for folder in (made, written):
            np.testing.assert_allclose(
                ours, theirs(folder, verifier, text, drafted.tolist(), monkeypatch), atol=1e-4, rtol=1e-4
            )
