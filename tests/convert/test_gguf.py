"""GGUF files of Llama and Qwen2: the same tensors, rows of q and k in our order, configuration and tokenizer."""

import types

import gguf
import numpy as np
import pytest

import specjax as sj
from specjax.convert import gguf_source, load_params, locate
from specjax.convert.gguf_config import gguf_config, gguf_tokenizer, llama3_divisors, merges_from_scores
from specjax.convert.gguf_source import GGUF, half_split_rows, open_gguf
from specjax.models.format import Format
from specjax.text import from_transformers
from tests.convert.test_assemble import abstract, assert_same, params_by_hand
from tests.convert.writers import GGUF_NAMES, config_of, interleave, names_of, tensors_of, write_gguf

SLICES = (slice(3, 7), slice(2, 5))


@pytest.mark.parametrize("name", GGUF_NAMES)
def test_gguf_holds_the_same_tensors(name, tmp_path):
    write_gguf(tmp_path / "model.gguf", name)
    source, expected = locate(tmp_path / "model.gguf").source, tensors_of(name)
    assert set(source.names()) == set(expected)
    for tensor, value in expected.items():
        assert source.shape(tensor) == value.shape
        np.testing.assert_array_equal(source.read(tensor), value, err_msg=tensor)
        part = SLICES[: value.ndim]
        np.testing.assert_array_equal(source.read(tensor, part), value[part], err_msg=tensor)


def test_qwen2_files_are_not_interleaved_and_llama_files_are(tmp_path):
    """The negative control: the permutation matters, and is applied to one architecture alone."""
    rows = np.arange(32.0).reshape(16, 2)
    assert not np.array_equal(interleave(rows, 2), rows)
    np.testing.assert_array_equal(interleave(rows, 2)[half_split_rows(16, 2)], rows)
    write_gguf(tmp_path / "model.gguf", "llama-grouped-untied")
    raw = open_gguf(tmp_path / "model.gguf").tensors["blk.0.attn_q.weight"].data
    assert not np.array_equal(raw, tensors_of("llama-grouped-untied")["model.layers.0.self_attn.q_proj.weight"])


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1])
def test_quantized_tensors_are_near_and_slices_agree(kind, tmp_path):
    name = "llama-grouped-untied"
    write_gguf(tmp_path / "model.gguf", name, kind)
    source = locate(tmp_path / "model.gguf").source
    steps = 255 if kind == gguf.GGMLQuantizationType.Q8_0 else 15
    for tensor, value in tensors_of(name).items():
        got = source.read(tensor)
        assert got.dtype == np.float32
        assert np.abs(got - value).max() <= 1.1 * (value.max() - value.min()) / steps, tensor
        part = SLICES[: value.ndim]
        np.testing.assert_array_equal(source.read(tensor, part), got[part], err_msg=tensor)


@pytest.mark.parametrize("name", GGUF_NAMES)
def test_configuration_from_the_metadata(name, tmp_path):
    write_gguf(tmp_path / "model.gguf", name)
    got, expected = locate(tmp_path / "model.gguf").config, config_of(name)
    same = ["model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
    same += ["num_attention_heads", "num_key_value_heads", "max_position_embeddings", "hidden_act"]
    same += ["tie_word_embeddings"]
    assert {key: got[key] for key in same} == {key: expected[key] for key in same}
    assert got["head_dim"] == (expected.get("head_dim") or 8)
    assert got["rope_theta"] == expected["rope_parameters"]["rope_theta"]
    assert got["rms_norm_eps"] == pytest.approx(expected["rms_norm_eps"])
    assert got["attention_bias"] == (name == "qwen2-biased-tied")
    assert (got["bos_token_id"], got["eos_token_id"], got["pad_token_id"]) == (1, 2, None)


@pytest.mark.parametrize("name", GGUF_NAMES)
def test_parameters_from_gguf(name, tmp_path):
    fmt = Format(stacked=True)
    write_gguf(tmp_path / "model.gguf", name)
    found = locate(tmp_path)  # a folder with one GGUF file in it
    expected = params_by_hand(name, fmt)
    assert_same(load_params(found.source, names_of(found.config), abstract(expected), fmt=fmt), expected)


def small(file, *, architecture: str = "llama", rope: np.ndarray | None = None, **more) -> None:
    """A file of metadata and next to no tensors."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(40)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    for key, value in more.items():
        getattr(writer, key)(value)
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    if rope is not None:
        writer.add_tensor("rope_freqs.weight", rope.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_llama3_scaling_from_the_frequencies(tmp_path):
    """The divisors as transformers computes them from the configuration, entry by entry."""
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    rope = []
    for j in range(0, 128, 2):
        wavelength = 2 * np.pi * 500000.0 ** (j / 128)
        smooth = (8192 / wavelength - 1.0) / 3.0
        fast, slow = wavelength < 8192 / 4.0, wavelength > 8192 / 1.0
        rope.append(1.0 if fast else 32.0 if slow else 1.0 / ((1.0 - smooth) / 32.0 + smooth))
    np.testing.assert_allclose(llama3_divisors(128, 500000.0, scaling), rope, rtol=1e-6)
    small(tmp_path / "a.gguf", rope=np.asarray(rope))
    found = locate(tmp_path / "a.gguf")
    assert found.config["rope_scaling"] == scaling
    assert found.source.names() == ("model.embed_tokens.weight",)
    small(tmp_path / "b.gguf", rope=np.linspace(1.0, 8.0, 64))
    with pytest.raises(ValueError, match=r"rope_freqs\.weight"):
        locate(tmp_path / "b.gguf")


def test_files_that_cannot_be_run_are_refused(tmp_path):
    small(tmp_path / "a.gguf", architecture="mamba")
    with pytest.raises(ValueError, match="mamba"):
        locate(tmp_path / "a.gguf")
    small(tmp_path / "b.gguf", add_rope_scaling_type=gguf.RopeScalingType.YARN)
    with pytest.raises(ValueError, match="yarn"):
        locate(tmp_path / "b.gguf")
    with pytest.raises(FileNotFoundError, match="2 GGUF files"):
        locate(tmp_path)


def edited(file, **entries) -> GGUF:
    """An opened file with other metadata; a name without a dot is the tokenizer's."""
    small(file, add_tokenizer_model="gpt2", add_token_list=["a", "b", "ab"], add_token_merges=["a b"])
    found = open_gguf(file)
    changes = {f"tokenizer.ggml.{name}": value for name, value in entries.items()}
    return found._replace(metadata={**found.metadata, **changes})


@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv", "block_count", "context_length"])
@pytest.mark.parametrize("value, reason", [(0, "expected at least 1"), ("x", "an integer"), ([1, 2], "one number"),
                                         ([], "one number"), (1.5, "an integer")])  # fmt: skip
def test_wrong_counts_are_named(key, value, reason, tmp_path):
    found = edited(tmp_path / "a.gguf")
    found.metadata[f"llama.{key}"] = value
    with pytest.raises(ValueError, match=rf"a\.gguf has metadata llama\.{key} .*{reason}"):
        gguf_config(found)


def test_counts_of_every_layer_that_are_the_same_are_one(tmp_path):
    found = edited(tmp_path / "a.gguf")
    found.metadata.update({"llama.attention.head_count": [2, 2], "llama.attention.head_count_kv": [1, 1]})
    config = gguf_config(found)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (2, 1)
    found.metadata["llama.attention.layer_norm_rms_epsilon"] = "x"
    with pytest.raises(ValueError, match=r"a\.gguf.*llama\.attention\.layer_norm_rms_epsilon"):
        gguf_config(found)


@pytest.mark.parametrize(
    "entries, reason",
    [
        ({"bos_token_id": 99}, "bos_token_id 99: expected one of 3 tokens"),
        ({"eos_token_id": "x"}, "eos_token_id 'x': expected an integer"),
        ({"merges": ["ab"]}, "merges 'ab': expected two tokens with a space between"),
        ({"merges": ["x b"]}, "merge 'x b', but 'x' is not one"),
        ({"merges": ["b a"]}, "merge 'b a', but 'ba' is not one"),
        ({"tokens": "abc"}, "tokens 'abc': expected a list of texts"),
        ({"token_type": "x"}, "token_type 'x': expected a list of whole numbers"),
        ({"model": "llama", "scores": [0.0]}, "1 tokenizer.ggml.scores for 3 tokens"),
        ({"model": "llama", "scores": [0.0] * 3, "unknown_token_id": 77}, "unknown_token_id 77"),
    ],
)
def test_wrong_tokenizers_are_named(entries, reason, tmp_path):
    with pytest.raises(ValueError) as error:
        gguf_tokenizer(edited(tmp_path / "a.gguf", **entries))
    assert str(error.value).startswith(f"{tmp_path / 'a.gguf'} has ") and reason in str(error.value)


def test_heads_that_the_tensors_do_not_hold_are_named(tmp_path):
    write_gguf(tmp_path / "a.gguf", "llama-grouped-untied")
    found = open_gguf(tmp_path / "a.gguf")
    found.metadata["llama.attention.head_count_kv"] = 3
    with pytest.raises(ValueError, match=r"a\.gguf.*blk\.0\.attn_k\.weight"):
        gguf_source.gguf_source(found)


@pytest.mark.parametrize("keep", [0.0005, 0.02, 0.5, 0.99])
def test_a_truncated_gguf_is_named(keep, tmp_path):
    file = tmp_path / "model.gguf"
    write_gguf(file, "llama-grouped-untied")
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ValueError) as error:
        locate(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_byte_level_tokenizer(tmp_path):
    write_gguf(tmp_path / "model.gguf", "llama-grouped-untied")
    tokenizer = locate(tmp_path / "model.gguf").tokenizer()
    ids = tokenizer("the 12")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["the", "\u0120", "1", "2"]
    assert tokenizer.decode(ids) == "the 12"
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert tokenizer("</s>the<|turn|>")["input_ids"] == [2, ids[0], 3]
    assert tokenizer.decode([1, *ids, 2], skip_special_tokens=True) == "the 12"
    assert len(tokenizer) == config_of("llama-grouped-untied")["vocab_size"]


def test_tokens_that_decoding_leaves_out_have_no_bytes(tmp_path):
    """<|turn|> is a control token without a role: decoding leaves it out, so stop strings must not see it either."""
    write_gguf(tmp_path / "model.gguf", "llama-grouped-untied")
    text = from_transformers(locate(tmp_path / "model.gguf").tokenizer())
    assert text.decode([3]) == "" and text.pieces()[3] == b"" and text.special()[3] == "<|turn|>"


def test_a_gguf_file_is_saved_as_a_folder(tmp_path):
    write_gguf(tmp_path / "model.gguf", "llama-grouped-untied")
    model = sj.load(tmp_path / "model.gguf")
    model.save_pretrained(tmp_path / "folder")
    again = sj.load(tmp_path / "folder")
    assert again.config == model.config and again.eos == model.eos and again.text and model.text
    np.testing.assert_array_equal(again.score([[4, 5, 6]]), model.score([[4, 5, 6]]))
    assert again.text.pieces() == model.text.pieces()
    assert again.text.encode("the 12</s>") == model.text.encode("the 12</s>")


def test_the_sentencepiece_tokenizer(tmp_path):
    space = "\u2581"
    pieces = [f"{space}t", "he", f"{space}the", "e", "h", "t", space]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]
    small(
        tmp_path / "a.gguf",
        add_tokenizer_model="llama",
        add_token_list=tokens,
        add_token_scores=scores,
        add_token_types=kinds,
        add_bos_token_id=1,
        add_eos_token_id=2,
    )
    tokenizer = gguf_tokenizer(open_gguf(tmp_path / "a.gguf"))
    ids = tokenizer("the het é")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", f"{space}the", space, "he", "t", space, "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the het é"


def test_merges_come_in_the_order_of_the_scores():
    tokens, scores = ["a", "b", "c", "ab", "abc", "bc"], [0.0, 0.0, 0.0, -2.0, -3.0, -1.0]
    assert merges_from_scores(tokens, scores) == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]


def test_an_unknown_pre_tokenizer_is_named(tmp_path):
    small(tmp_path / "a.gguf", add_tokenizer_model="gpt2", add_tokenizer_pre="kimi", add_token_list=["a"])
    with pytest.raises(ValueError, match="pre-tokenizer 'kimi'"):
        locate(tmp_path / "a.gguf").tokenizer()


@pytest.mark.parametrize("start, stop, blocks", [(0, 96, 3), (32, 64, 1), (5, 7, 1), (30, 40, 2), (64, 96, 1)])
def test_only_the_requested_blocks_are_unpacked(start, stop, blocks, monkeypatch):
    """A kernel in parts, or a shard of its columns, would else unpack the whole tensor once for each."""
    kind, unpacked = gguf.GGMLQuantizationType.Q8_0, []
    values = np.random.default_rng(0).normal(size=(4, 96)).astype(np.float32)
    whole = gguf.dequantize(data := gguf.quants.quantize(values, kind), kind)
    tensor = types.SimpleNamespace(shape=(96, 4), tensor_type=kind, data=data)
    real = gguf.dequantize
    monkeypatch.setattr(gguf, "dequantize", lambda rows, kind: unpacked.append(rows.shape) or real(rows, kind))
    order = np.array([2, 0, 3, 1])
    for turned, want in ((None, whole), (order, whole[order])):
        got = gguf_source._stored(tensor, turned, "file").load((slice(1, 3), slice(start, stop)))
        np.testing.assert_array_equal(got, want[1:3, start:stop])
    assert unpacked == [(2, 34 * blocks)] * 2  # 32 weights of a byte each and their scale
