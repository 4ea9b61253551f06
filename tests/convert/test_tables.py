"""Names in both directions, and every variant of them that published files have."""

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from specjax.convert import load_params, open_source
from specjax.models import t5
from specjax.models.format import Format
from tests.convert.test_assemble import abstract, assert_same, params_by_hand
from tests.convert.writers import NAMES, config_of, names_of, tensors_of

FMT = Format()
T5, T5_GATED = (t5.names({"feed_forward_proj": kind}) for kind in ("relu", "gated-gelu"))


@pytest.mark.parametrize("name", NAMES)
def test_names_and_paths_are_one_to_one(name):
    table, names = names_of(config_of(name)), tensors_of(name)
    paths = {tensor: min(table.candidates(tensor))[1] for tensor in names}
    assert len(set(paths.values())) == len(names)
    assert {tensor: table.name(path) for tensor, path in paths.items()} == {tensor: tensor for tensor in names}


def load_with(name: str, tensors: dict[str, np.ndarray], folder) -> None:
    """Loads the changed tensors as the golden model and asserts that nothing changed."""
    save_file(tensors, folder / "model.safetensors")
    expected = params_by_hand(name, FMT)
    assert_same(load_params(open_source(folder), names_of(config_of(name)), abstract(expected), fmt=FMT), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opt-pre-norm", "opt-post-norm-projected"])
@pytest.mark.parametrize("prefix", ["model.decoder.", "decoder.", ""])
def test_opt_prefixes(name, prefix, tmp_path):
    tensors = {prefix + key.removeprefix("model.decoder."): value for key, value in tensors_of(name).items()}
    load_with(name, tensors, tmp_path)


def test_llama_without_its_prefix(tmp_path):
    tensors = {key.removeprefix("model."): value for key, value in tensors_of("qwen2-biased-tied").items()}
    load_with("qwen2-biased-tied", tensors, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("opt-pre-norm", "model.decoder.embed_tokens.weight"),
        ("qwen2-biased-tied", "model.embed_tokens.weight"),
        ("t5-relu-tied", "shared.weight"),
    ],
)
def test_a_tied_head_may_be_in_the_file_or_alone_in_it(name, table, tmp_path):
    tensors = tensors_of(name)
    load_with(name, tensors | {"lm_head.weight": tensors[table]}, tmp_path)
    load_with(
        name,
        {key: value for key, value in tensors.items() if key != table} | {"lm_head.weight": tensors[table]},
        tmp_path,
    )


def test_an_untied_head_is_no_substitute_for_the_embedding(tmp_path):
    name = "llama-grouped-untied"
    tensors = tensors_of(name)
    del tensors["model.embed_tokens.weight"]
    with pytest.raises(ValueError, match=r"missing: model\.embed_tokens\.weight"):
        load_with(name, tensors, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"])
def test_t5_tables_under_other_names(kept, tmp_path):
    tensors = tensors_of("t5-gated-untied")
    load_with("t5-gated-untied", tensors | {kept: tensors["shared.weight"]}, tmp_path)
    tensors[kept] = tensors.pop("shared.weight")
    load_with("t5-gated-untied", tensors, tmp_path)


@pytest.mark.parametrize(
    ("name", "relic"),
    [
        ("opt-pre-norm", "decoder.version"),
        ("llama-grouped-untied", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("t5-relu-tied", "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
    ],
)
def test_relics_of_old_files_are_ignored(name, relic, tmp_path):
    load_with(name, tensors_of(name) | {relic: np.zeros(3, np.float32)}, tmp_path)


def test_the_gate_of_t5_is_wi_0():
    assert T5_GATED.name("encoder.layers.7.mlp.gate.kernel") == "encoder.block.7.layer.1.DenseReluDense.wi_0.weight"
    assert T5_GATED.name("decoder.layers.7.mlp.up.kernel") == "decoder.block.7.layer.2.DenseReluDense.wi_1.weight"
    assert T5.name("decoder.layers.7.mlp.up.kernel") == "decoder.block.7.layer.2.DenseReluDense.wi.weight"


def test_paths_and_models_without_a_name_are_errors():
    with pytest.raises(ValueError, match=r"encoder\.layers\.0\.mlp\.gate\.kernel"):
        T5.name("encoder.layers.0.mlp.gate.kernel")
    with pytest.raises(ValueError, match="bert"):
        names_of({"model_type": "bert"})


def test_tables_are_static():
    assert hash(T5) != hash(T5_GATED)
    assert jax.tree.leaves(T5) == [T5]  # an opaque leaf, never traced by accident
