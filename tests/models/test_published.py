"""The entries of a config.json are checked before any weight is read."""

import json

import pytest

from specjax.models import opt, t5
from specjax.models.families import FAMILIES

LLAMA = {
    "model_type": "llama", "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24,
}  # fmt: skip
WHOLE = {
    "opt": (opt.to_published(opt.OPTConfig()), ("vocab_size", "hidden_size", "num_attention_heads", "ffn_dim")),
    "t5": (t5.to_published(t5.T5Config()), ("vocab_size", "d_kv", "num_layers", "relative_attention_num_buckets")),
    "llama": (LLAMA, ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")),
}


@pytest.mark.parametrize("value", ["97", 97.0, True, [97], 0, -2])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (_, names) in WHOLE.items() for name in names])
def test_counts_must_be_whole(kind, name, value):
    with pytest.raises(ValueError, match=rf"^{name} in the configuration of an? .* model must be"):
        FAMILIES[kind].from_published(WHOLE[kind][0] | {name: value})


def rope(kind, **entries):
    return {"rope_parameters": {"rope_type": kind, **entries}}


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("opt", {"activation_function": "foo"}, "activation 'foo' is not one of relu"),
        ("opt", {"activation_function": None}, None),
        ("opt", {"num_attention_heads": 5}, "5 heads do not divide a width of 768"),
        ("opt", {"do_layer_norm_before": "false"}, "do_layer_norm_before .* must be true or false, got 'false'"),
        ("opt", {"max_position_embeddings": None}, None),
        ("t5", {"feed_forward_proj": "gated-foo"}, "activation 'foo' is not one of"),
        ("t5", {"feed_forward_proj": "double-gelu"}, "feed_forward_proj double-gelu is not implemented"),
        ("t5", {"layer_norm_epsilon": "1e-6"}, "layer_norm_epsilon .* must be a finite number above 0, got '1e-6'"),
        ("t5", {"layer_norm_epsilon": float("nan")}, "must be a finite number above 0"),
        ("t5", {"relative_attention_max_distance": 16}, "a largest distance above half their number"),
        ("t5", {"relative_attention_num_buckets": 3}, "at least 4 buckets"),
        ("t5", {"decoder_start_token_id": 40000}, "start token 40000 is outside the vocabulary"),
        ("t5", {"decoder_start_token_id": None, "pad_token_id": None}, None),
        ("llama", {"rope_parameters": "linear"}, "must be a JSON object, got 'linear'"),
        ("llama", rope(["x"]), r"rope_type .* must be a text, got \['x'\]"),
        ("llama", rope("linear", factor="2"), "factor in rope_parameters of .* must be a finite number above 0"),
        ("llama", rope("linear", factor=0), "must be a finite number above 0, got 0"),
        ("llama", rope("linear", factor=None), "lacks factor"),
        ("llama", rope("default", rope_theta=0), "rope_theta .* must be a finite number above 0"),
        ("llama", rope("default", rope_theta="abc"), "rope_theta"),
        ("llama", rope("llama3", factor=8, low_freq_factor=4, high_freq_factor=4), "must be below high_freq_factor"),
        ("llama", {"rms_norm_eps": None}, None),
        ("llama", {"rms_norm_eps": -1}, "rms_norm_eps"),
        ("llama", {"tie_word_embeddings": 1}, "true or false"),
        ("llama", {"model_type": "qwen2", "max_window_layers": "2"}, "max_window_layers"),
        ("llama", {"model_type": "qwen2", "layer_types": 3}, "layer_types"),
    ],
)
def test_wrong_entries_are_named_and_null_ones_are_as_if_absent(kind, changes, reason):
    read = FAMILIES[kind].from_published
    entries = WHOLE[kind][0]
    if reason is None:
        assert read(entries | changes) == read({name: entries[name] for name in entries if name not in changes})
    else:
        with pytest.raises(ValueError, match=reason):
            read(entries | changes)


def test_a_folder_whose_configuration_is_wrong_is_named(tmp_path):
    import numpy as np
    from safetensors.numpy import save_file

    import specjax as sj

    save_file({"x": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    for changes, reason in (
        ({"vocab_size": "61"}, "vocab_size in the configuration of a llama model must be an integer, got '61'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "its weights are quantized by gptq"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
        with pytest.raises(ValueError) as error:
            sj.load(tmp_path)
        assert str(error.value).startswith(f"{tmp_path}: {reason}") and "\n" not in str(error.value)
