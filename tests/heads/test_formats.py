"""Files of EAGLE, P-EAGLE and DFlash heads: what is written is what the published formats have, and is read back."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import drafters, sharding
from specjax.convert import save_pretrained
from specjax.drafters.head import draft_logits
from specjax.heads import load_head
from specjax.heads.dflash import DFlashConfig
from specjax.heads.dflash_formats import default_left
from specjax.heads.eagle import EagleConfig
from specjax.heads.head import Head
from specjax.heads.kinds import KINDS
from specjax.heads.peagle import PEagleConfig
from specjax.model import Model
from specjax.models import llama
from specjax.models.format import Format, default_format
from specjax.models.llama import LlamaConfig
from specjax.models.rope import LinearScaling, Llama3Scaling
from tests.models.small import laid_out, noisy

FMT = default_format("float32", platform="cpu")
VOCAB, WIDTH, LAYERS = 31, 16, 6
LAYER = LlamaConfig(
    VOCAB, WIDTH, layers=2, heads=4, kv_heads=2, head_width=8, mlp_width=24, eps=1e-6, rope_theta=1e5,
)  # fmt: skip
NORMED = dataclasses.replace(LAYER, qk_norm=True)
TOKENS = np.array([0, 3, 4, 9, 12, 25, 30], np.int32)
ONE = dataclasses.replace(LAYER, layers=1)
LLAMA3 = dataclasses.replace(LAYER, rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 16))
BIASES = {"qkv_bias": True, "rope_scaling": LinearScaling(2.0)}
CONFIGS = {
    "eagle": EagleConfig(ONE, WIDTH),
    "eagle biases": EagleConfig(dataclasses.replace(ONE, **BIASES), WIDTH),
    "eagle bias": EagleConfig(ONE, WIDTH, own_embedding=True, fc_bias=True),
    "eagle norms": EagleConfig(ONE, WIDTH, embedding_norm=True, input_norm=True, out_norm=True),
    "eagle3": EagleConfig(ONE, 48, (1, 3, 5), len(TOKENS), own_embedding=True),
    "eagle3 flags": EagleConfig(
        ONE, 48, (0, 3, 6), VOCAB, window=7, own_embedding=True, norm_before_residual=True, norm_before_fc=True,
        norm_output=True,
    ),
    "eagle3 taps": EagleConfig(ONE, 32, (2, 5), VOCAB, own_embedding=True, fc_norm=True),
    "peagle": PEagleConfig(LLAMA3, 48, (1, 3, 5), len(TOKENS), own_embedding=True, mask_token=2, tokens=6),
    "peagle flags": PEagleConfig(
        NORMED, 48, (1, 3, 5), VOCAB, window=7, own_embedding=True, norm_before_residual=True, norm_before_fc=True,
        norm_output=True, mask_token=30,
    ),
    "dflash": DFlashConfig(NORMED, (1, 3), 5, 4, (None, None)),
    "dflash last": DFlashConfig(NORMED, (1, LAYERS), 5, 4, (None, None)),
    "dflash flags": DFlashConfig(NORMED, (2, 6), 5, 5, (9, None), True, True, len(TOKENS)),
}  # fmt: skip
PER_LAYER = (
    *(f"self_attn.{name}_proj" for name in "qkvo"), *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    "input_layernorm", "post_attention_layernorm",
)  # fmt: skip
EAGLE_KEYS = {"fc", *(f"layers.0.{name}" for name in PER_LAYER[:-2]), "layers.0.post_attention_layernorm"}
EAGLE3_KEYS = {
    "embed_tokens", "fc", "norm", "lm_head",
    *(f"layers.0.{name}" for name in ("hidden_norm", *PER_LAYER)),
}  # fmt: skip
NORM_KEYS = {f"layers.{i}.self_attn.{name}_norm.weight" for i in range(2) for name in "qk"}
DFLASH_KEYS = {
    "fc.weight", "hidden_norm.weight", "norm.weight", *NORM_KEYS,
    *(f"layers.{i}.{name}.weight" for i in range(2) for name in PER_LAYER),
}  # fmt: skip
PEAGLE_KEYS = {
    "embed_tokens.weight", "fc.weight", "norm.weight", "lm_head.weight", "mask_hidden", "layers.0.hidden_norm.weight",
    *(f"layers.{i}.{name}.weight" for i in range(2) for name in PER_LAYER),
}  # fmt: skip
NORMS = {"embedding_layernorm", "pre_lm_head_layernorm", "layers.0.input_layernorm"}  # of EAGLE-1, where it has norms


def weights(names: set[str]) -> set[str]:
    return {f"{name}.weight" for name in names}


def fused(names: set[str]) -> set[str]:
    """The names of EAGLE-1 in `speculators`."""
    return {name.replace("layers.0.", "transformer.").replace("fc", "fusion_fc") for name in names}


def middle(names: set[str]) -> set[str]:
    """The names of EAGLE-3's authors."""
    return {name.replace("layers.0.", "midlayer.") for name in names}


@functools.cache
def target() -> Model:
    config = LlamaConfig(
        VOCAB, WIDTH, layers=LAYERS, heads=2, kv_heads=2, head_width=8, mlp_width=24, max_positions=64,
    )  # fmt: skip
    params = laid_out(noisy(llama.FAMILY.init(jax.random.key(0), config, Format()), 1, lambda leaf: 0.3), FMT)
    return Model("a/target", llama.FAMILY, config, FMT, params, published={"architectures": ["LlamaForCausalLM"]})


@functools.cache
def head(kind: str) -> Head:
    of, config, numbers = KINDS[kind.split()[0]], CONFIGS[kind], np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: of.init(jax.random.key(0), config, FMT))
    params = jax.tree.map(lambda leaf: jnp.asarray(numbers.normal(0, 0.3, leaf.shape), leaf.dtype), shapes)
    return Head(kind, of, config, FMT, params, target(), TOKENS if config.draft_vocab == len(TOKENS) else None)


def stored(folder) -> tuple[dict, dict[str, tuple[int, ...]]]:
    """config.json, and the shapes of the tensors."""
    from specjax import convert

    source = convert.open_source(folder, convert.HEAD_FORMATS)
    shapes = {name: source.shape(name) for name in source.names()}
    source.close()
    return json.loads((folder / "config.json").read_text()), shapes


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("eagle", None), ("eagle", "original"), ("eagle biases", None), ("eagle biases", "original"),
        ("eagle bias", None), ("eagle bias", "original"), ("eagle norms", None),
        ("eagle3", None), ("eagle3", "original"), ("eagle3 flags", None), ("eagle3 taps", None),
        ("peagle", None), ("peagle flags", None), ("dflash", "original"), ("dflash", None), ("dflash flags", None),
    ],
)  # fmt: skip
def test_what_is_written_is_read_back(kind, form, tmp_path):
    whole = head(kind)
    whole.save_pretrained(tmp_path, format=form)
    again = load_head(tmp_path, target())
    assert (again.kind, again.config, again.format) == (whole.kind, whole.config, form or "speculators")
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), again.params, whole.params))
    tokens = None if again.draft_tokens is None else again.draft_tokens.tolist()
    assert tokens == (None if whole.draft_tokens is None else whole.draft_tokens.tolist())
    again.save_pretrained(tmp_path / "again")  # in the format that it was read from
    assert stored(tmp_path / "again") == stored(tmp_path)


@pytest.mark.parametrize(
    ("kind", "form", "keys"),
    [
        ("eagle", "original", weights(EAGLE_KEYS)),
        ("eagle bias", "original", weights(EAGLE_KEYS | {"embed_tokens"}) | {"fc.bias"}),
        ("eagle", "speculators", weights(fused(EAGLE_KEYS))),
        ("eagle bias", "speculators", weights(fused(EAGLE_KEYS | {"embed_tokens"})) | {"fusion_fc.bias"}),
        ("eagle norms", "speculators", weights(fused(EAGLE_KEYS | NORMS))),
        ("eagle3", "original", weights(middle(EAGLE3_KEYS)) | {"d2t", "t2d"}),
        ("eagle3", "speculators", weights(EAGLE3_KEYS) | {"d2t", "t2d"}),
        ("eagle3 flags", "speculators", weights(EAGLE3_KEYS | {"input_norm"})),
        ("eagle3 taps", "speculators", weights(EAGLE3_KEYS | {"fc_norm.0", "fc_norm.1"})),
        ("peagle", "speculators", PEAGLE_KEYS | {"d2t", "t2d"}),
        ("peagle flags", "speculators", PEAGLE_KEYS | NORM_KEYS | {"input_norm.weight"}),
        ("dflash", "original", DFLASH_KEYS),
        ("dflash", "speculators", DFLASH_KEYS),
        ("dflash flags", "speculators", DFLASH_KEYS | {"lm_head.weight", "d2t", "t2d"}),
    ],
)  # fmt: skip
def test_tensors_are_those_of_the_format(kind, form, keys, tmp_path):
    head(kind).save_pretrained(tmp_path, format=form)
    config, shapes = stored(tmp_path)
    assert shapes.keys() == keys
    if kind == "peagle":
        assert shapes["mask_hidden"] == (1, 1, 48) and shapes["layers.0.self_attn.q_proj.weight"] == (32, 32)
        assert shapes["lm_head.weight"] == (len(TOKENS), WIDTH) and shapes["t2d"] == (VOCAB,)
        assert config["transformer_layer_config"]["rope_parameters"] == {
            "rope_type": "llama3", "rope_theta": 1e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }  # fmt: skip


# --- complete configurations, of full-size heads ---------------------------------------------------------------------

BIG = LlamaConfig(128256, 4096, 4, 32, 8, 128, 14336, 131072, rope_theta=500000.0)
QWEN = LlamaConfig(151936, 4096, 5, 32, 8, 128, 12288, 40960, rope_theta=1e6, eps=1e-6, qk_norm=True)


def published(kind: str, config, name: str, architecture: str, layers: int, form: str) -> dict:
    shape = dataclasses.replace(config.layer, layers=layers)
    whole = Model(name, llama.FAMILY, shape, FMT, {}, published={"architectures": [architecture]})
    few = np.arange(config.draft_vocab, dtype=np.int32)
    forms = {one.name: one for one in KINDS[kind].formats}
    return forms[form].publish(Head("x", KINDS[kind], config, FMT, {}, whole, few))


def envelope(algorithm: str, tokens: int, name: str, architecture: str) -> dict:
    return {
        "algorithm": algorithm, "default_proposal_method": "greedy",
        "proposal_methods": [
            {"proposal_type": "greedy", "speculative_tokens": tokens, "accept_tolerance": 0.0, "verifier_accept_k": 1}
        ],
        "verifier": {"name_or_path": name, "architectures": [architecture]},
    }  # fmt: skip


LLAMA_LAYERS = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-05, "vocab_size": 128256,
    "max_position_embeddings": 131072, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
LLAMA_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
BIG_ONE = dataclasses.replace(BIG, layers=1)


def test_the_configuration_of_an_eagle_head():
    """Releases of `speculators` that know EAGLE-1 read `rope_theta`, and current ones of transformers
    `rope_parameters`."""
    name, architecture = "meta-llama/Llama-3.1-8B-Instruct", "LlamaForCausalLM"
    config = EagleConfig(BIG_ONE, 4096, fc_bias=True)
    assert published("eagle", config, name, architecture, 32, "speculators") == {
        "architectures": ["EagleSpeculator"], "speculators_model_type": "eagle", "speculators_version": "0.3.0",
        "transformer_layer_architecture": "LlamaDecoderLayer", "layernorms": False, "fusion_bias": True,
        "tie_word_embeddings": False, "speculators_config": envelope("eagle", 5, name, architecture),
        "transformer_layer_config": LLAMA_LAYERS | LLAMA_ROPE | {"num_hidden_layers": 1, "rope_theta": 500000.0},
    }  # fmt: skip


def test_the_original_configuration_of_an_eagle_head():
    """Its authors' code reads `qkv_bias`, and of the rotary scaling `type` and `factor` alone."""
    name, architecture = "Qwen/Qwen2-7B-Instruct", "Qwen2ForCausalLM"
    config = EagleConfig(dataclasses.replace(BIG_ONE, **BIASES), 4096)
    assert published("eagle", config, name, architecture, 28, "original") == LLAMA_LAYERS | {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "bias": False, "qkv_bias": True,
        "attention_bias": True, "rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 2.0},
        "tie_word_embeddings": False, "initializer_range": 0.02, "use_cache": True,
    }  # fmt: skip


def test_the_configuration_of_an_eagle3_head():
    name, architecture = "meta-llama/Llama-3.1-8B-Instruct", "LlamaForCausalLM"
    config = EagleConfig(BIG_ONE, 3 * 4096, (2, 16, 29), 32000, own_embedding=True, norm_before_residual=True)
    assert published("eagle3", config, name, architecture, 32, "speculators") == {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": "0.9.0",
        "draft_vocab_size": 32000, "norm_before_residual": True, "norm_before_fc": False, "fc_norm": False,
        "norm_output": False, "eagle_aux_hidden_state_layer_ids": [2, 16, 29], "target_hidden_size": None,
        "embed_requires_grad": False, "tie_word_embeddings": False,
        "speculators_config": envelope("eagle3", 3, name, architecture),
        "transformer_layer_config": LLAMA_LAYERS | LLAMA_ROPE | {"num_hidden_layers": 1},
    }  # fmt: skip


def test_the_configuration_of_a_peagle_head():
    name, architecture = "meta-llama/Llama-3.1-8B-Instruct", "LlamaForCausalLM"
    config = PEagleConfig(
        BIG, 3 * 4096, (2, 16, 29), 32000, own_embedding=True, norm_before_residual=True, mask_token=128002,
    )  # fmt: skip
    assert published("peagle", config, name, architecture, 32, "speculators") == {
        "architectures": ["PEagleDraftModel"], "speculators_model_type": "peagle", "speculators_version": "0.9.0",
        "draft_vocab_size": 32000, "norm_before_residual": True, "norm_before_fc": False, "fc_norm": False,
        "norm_output": False, "eagle_aux_hidden_state_layer_ids": [2, 16, 29], "target_hidden_size": None,
        "embed_requires_grad": True, "mask_token_id": 128002, "tie_word_embeddings": False,
        "speculators_config": envelope("peagle", 8, name, architecture),
        "transformer_layer_config": LLAMA_LAYERS | LLAMA_ROPE | {"num_hidden_layers": 4},
    }  # fmt: skip


QWEN_LAYERS = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 5,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-06,
    "vocab_size": 151936, "max_position_embeddings": 40960, "attention_bias": False, "use_sliding_window": False,
    "sliding_window": None, "layer_types": ["full_attention"] * 5,
}  # fmt: skip


def test_the_configuration_of_a_dflash_head():
    name, architecture = "Qwen/Qwen3-8B", "Qwen3ForCausalLM"
    config = DFlashConfig(QWEN, (2, 10, 18, 26, 34), 151669, 8, (None,) * 5, draft_vocab=32000)
    assert published("dflash", config, name, architecture, 36, "speculators") == {
        "architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash", "speculators_version": "0.9.0",
        "draft_vocab_size": 32000, "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34], "block_size": 8,
        "mask_token_id": 151669, "sample_from_anchor": False, "sliding_window_non_causal": True,
        "target_hidden_size": None, "tie_word_embeddings": False,
        "speculators_config": envelope("dflash", 7, name, architecture),
        "transformer_layer_config": QWEN_LAYERS | {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000}},
    }  # fmt: skip


def test_the_original_configuration_of_a_dflash_head():
    config = DFlashConfig(QWEN, (2, 10, 18, 26, 34), 151669, 16, (None,) * 5)
    assert published("dflash", config, "Qwen/Qwen3-8B", "Qwen3ForCausalLM", 36, "original") == QWEN_LAYERS | {
        "architectures": ["DFlashDraftModel"], "num_target_layers": 36, "block_size": 16, "rope_theta": 1000000,
        "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
        "attention_dropout": 0.0, "initializer_range": 0.02, "max_window_layers": 5, "tie_word_embeddings": False,
        "use_cache": True,
    }  # fmt: skip
    assert default_left(36, 5) == (1, 9, 17, 25, 33) and default_left(36, 1) == (18,)


# --- reading ---------------------------------------------------------------------------------------------------------


def rewritten(kind: str, form: str | None, folder, change) -> None:
    """A head's folder with its configuration changed in place."""
    head(kind).save_pretrained(folder, format=form)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))


def without_defaults(config: dict) -> None:
    """As older releases of transformers write: what equals the class default of Qwen3 is left out."""
    layer = config["transformer_layer_config"]
    for name in ("model_type", "hidden_act", "rms_norm_eps", "attention_bias", "use_sliding_window", "layer_types"):
        del layer[name]
    del config["sample_from_anchor"], config["sliding_window_non_causal"], config["tie_word_embeddings"]


def inside(config: dict) -> None:
    """As newer files of the authors: the block size beside the mask token, the default taps not named."""
    config["dflash_config"] = {"mask_token_id": 5, "block_size": config.pop("block_size"), "target_layer_ids": [0, 2]}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    config["auto_map"] = {"AutoModel": "dflash.DFlashDraftModel"}


@pytest.mark.parametrize(("form", "change"), [("speculators", without_defaults), ("original", inside)])
def test_other_configurations_of_the_same_head(form, change, tmp_path):
    rewritten("dflash", form, tmp_path, change)
    assert load_head(tmp_path, target()).config == CONFIGS["dflash"]


@pytest.mark.parametrize(
    ("kind", "form", "change", "name"),
    [
        ("peagle", None, {"mask_token_id": None}, "mask_token_id"),
        ("peagle", None, {"mask_token_id": VOCAB}, "mask_token_id"),
        ("peagle", None, {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}, "streams"),
        ("peagle", None, {"draft_vocab_size": 9}, "9"),
        ("peagle", None, {"norm_before_fc": True}, "input_norm"),
        ("dflash", None, {"mask_token_id": None}, "mask_token_id"),
        ("dflash", None, {"draft_vocab_size": 9}, "9"),
        ("dflash", None, {"aux_hidden_state_layer_ids": [1, 3, 5]}, "fc.weight"),
        ("dflash", "original", {"num_target_layers": 4}, "layers"),
        ("dflash", "original", {"dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, LAYERS - 1]}}, "norm"),
        ("dflash", "original", {"vocab_size": 40}, "vocabulary"),
        ("dflash", "original", {"hidden_size": 32}, "hidden size"),
        ("dflash", "original",
         {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4, "use_sliding_window": True}, "sliding window"),
        ("dflash", "original", {"layer_types": ["linear_attention"] * 2}, "layer_types"),
        ("dflash", "original", {"num_hidden_layers": 3, "layer_types": None}, "missing"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused(kind, form, change, name, tmp_path):
    rewritten(kind, form, tmp_path, lambda config: config.update(change))
    with pytest.raises(ValueError, match=name):
        load_head(tmp_path, target())


@pytest.mark.parametrize("kind", ["dflash flags", "dflash last"])
def test_a_format_that_cannot_express_the_head_is_refused(kind, tmp_path):
    with pytest.raises(ValueError, match="speculators"):
        head(kind).save_pretrained(tmp_path, format="original")


@pytest.mark.slow
def test_copies_of_the_targets_weights_are_ignored(tmp_path):
    """Older releases of `speculators` wrote them."""
    whole = head("dflash")
    whole.save_pretrained(tmp_path, format="speculators")
    copies = {name: np.ones((VOCAB, WIDTH), np.float32) for name in ("embed_tokens.weight", "lm_head.weight")}
    form = whole.kind.formats[0]
    save_pretrained(tmp_path, whole.params, form.publish(whole), fmt=FMT, table=whole.kind.names, more=copies)
    again = load_head(tmp_path, target())
    text = [1, 5, 7, 2]
    same = [draft_logits(target(), text, drafters.head(one), steps=3)[1] for one in (whole, again)]
    np.testing.assert_array_equal(same[0], same[1])


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_parameter_has_a_sharding_rule(kind):
    whole, mesh = head(kind), sharding.make_mesh(4, 2)
    placed = sharding.shardings(whole.params, mesh, whole.kind.rules, FMT, kv_heads=1)
    assert len(jax.tree.leaves(placed)) == len(jax.tree.leaves(whole.params))
