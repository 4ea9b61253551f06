"""Every golden checkpoint, rewritten in every format by an independent hand: flax's, torch's and gguf's own writers."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import flax.serialization
import flax.traverse_util
import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

from specjax.models.families import family_of
from specjax.models.family import NameTable

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = sorted(folder.name for folder in GOLDEN.iterdir() if (folder / "config.json").is_file())
GGUF_NAMES = [name for name in NAMES if name.startswith(("llama", "qwen2"))]


def config_of(name: str) -> dict:
    return json.loads((GOLDEN / name / "config.json").read_text())


def names_of(config: dict) -> NameTable:
    return family_of(config).names(config)


def tensors_of(name: str) -> dict[str, np.ndarray]:
    """The tensors as the safetensors package reads them."""
    return load_file(GOLDEN / name / "model.safetensors")


def flax_path(name: str, ndim: int) -> tuple[str, ...]:
    """The path under which transformers' Flax models kept a parameter."""
    *parents, last = name.split(".")
    if last == "weight" and ("embed" in parents[-1] or parents[-1] in ("shared", "relative_attention_bias")):
        last = "embedding"
    elif last == "weight" and ndim == 2:
        last = "kernel"
    elif last == "weight" and name.startswith("model.decoder.") and parents[-1].endswith("layer_norm"):
        last = "scale"  # OPT's; T5 and Llama keep "weight"
    return (*parents, last)


def flax_tree(tensors: dict[str, np.ndarray]) -> dict:
    flat = {}
    for name, value in tensors.items():
        path = flax_path(name, value.ndim)
        flat[path] = value.T.copy() if path[-1] == "kernel" else value
    return flax.traverse_util.unflatten_dict(flat)


def write_flax(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    (folder / "flax_model.msgpack").write_bytes(flax.serialization.to_bytes(flax_tree(tensors)))


def write_flax_shards(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"flax_model-{number:05d}-of-00002.msgpack"
        tree = flax_tree({name: tensors[name] for name in part})
        (folder / file).write_bytes(flax.serialization.to_bytes(tree))
        weight_map |= {"/".join(path): file for path in flax.traverse_util.flatten_dict(tree)}
    (folder / "flax_model.msgpack.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_safetensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_safetensors_shards(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::3], names[1::3], names[2::3]), start=1):
        file = f"model-{number:05d}-of-00003.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


WRITERS: dict[str, Callable[[Path, dict[str, np.ndarray]], None]] = {
    "safetensors": write_safetensors,
    "safetensors-shards": write_safetensors_shards,
    "flax": write_flax,
    "flax-shards": write_flax_shards,
}


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of q and k, entry by entry: entry j of a half is followed by its partner."""
    out = np.empty_like(rows)
    width = rows.shape[0] // heads
    for head in range(heads):
        for j in range(width // 2):
            out[head * width + 2 * j] = rows[head * width + j]
            out[head * width + 2 * j + 1] = rows[head * width + j + width // 2]
    return out


BLOCK_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
GGUF_TOKENS = ["<unk>", "<s>", "</s>", "<|turn|>"]


def write_gguf(file: Path, name: str, quantization: gguf.GGMLQuantizationType | None = None) -> None:
    """A golden Llama or Qwen2 checkpoint as llama.cpp's converter lays it out, with a byte-level tokenizer."""
    config = config_of(name)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(file, config["model_type"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
    add_tokenizer(writer, config["vocab_size"])
    for hf_name, value in tensors_of(name).items():
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", hf_name)
        part = BLOCK_NAMES[match[2]] if match else ""
        if config["model_type"] == "llama" and part in ("attn_q", "attn_k"):
            value = interleave(value, heads if part == "attn_q" else kv_heads)
        out = f"blk.{match[1]}.{part}.{match[3]}" if match else TOP_NAMES[hf_name]
        if quantization is not None and value.ndim == 2 and value.shape[1] % 32 == 0:
            writer.add_tensor(out, gguf.quantize(value, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(out, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    """Printable single letters, two merges, and four control tokens."""
    letters = [chr(code) for code in range(33, 127)][: vocabulary - len(GGUF_TOKENS) - 3]
    tokens = [*GGUF_TOKENS, "\u0120", *letters, "th", "the"]
    assert len(tokens) == vocabulary
    control, normal = 3, 1
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control] * len(GGUF_TOKENS) + [normal] * (vocabulary - len(GGUF_TOKENS)))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
