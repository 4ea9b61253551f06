"""GGUF files of the Llama architecture and of Qwen2, through the optional gguf package: dequantized slice by slice.

llama.cpp turns neighboring pairs of a head's entries where Hugging Face turns entry j with j + K/2, so its files of
the Llama architecture store the rows of q and k interleaved. Row r of ours is row `half_split_rows(...)[r]` of the
file.
"""

import re
import reprlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specjax import checks
from specjax.convert.sources import Index, StoredTensor, TensorSource

INTERLEAVED = ("llama",)  # architectures whose q and k rows are permuted
ARCHITECTURES = ("llama", "qwen2")
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ROPE_FACTORS = "rope_freqs.weight"  # Llama 3.1's frequency divisors; they belong to the config, not to the weights


class GGUF(NamedTuple):
    """An opened GGUF file: its metadata, and its tensors as the gguf package maps them."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Any]

    @property
    def architecture(self) -> str:
        return self.metadata["general.architecture"]

    def hyper(self, key: str, default: Any = None) -> Any:
        """The architecture's own `key`; without a default, its absence is an error."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise ValueError(f"{self.path} has no metadata {self.architecture}.{key}")
        return value

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """The architecture's own whole number; one for each layer where they are all the same."""
        value = self.hyper(key, default)
        if isinstance(value, list) and value and all(entry == value[0] for entry in value):
            value = value[0]
        if isinstance(value, list):
            raise self.wrong(f"{self.architecture}.{key}", "one number, the same for every layer", value)
        return self._number(f"{self.architecture}.{key}", value, whole=True, least=least)

    def real(self, key: str, default: float | None = None) -> float:
        """The architecture's own number."""
        return float(self._number(f"{self.architecture}.{key}", self.hyper(key, default), whole=False))

    def token(self, role: str, count: int) -> int | None:
        """The token of a role ("bos"), below `count`; None where the file names none."""
        name = f"tokenizer.ggml.{role}_token_id"
        if name not in self.metadata:
            return None
        value = self._number(name, self.metadata[name], whole=True, least=0)
        if value >= count:
            raise self.wrong(name, f"one of {count} tokens", value)
        return value

    def wrong(self, name: str, wanted: str, value: Any) -> ValueError:
        """The error for an entry that is not what it must be."""
        return ValueError(f"{self.path} has metadata {name} {reprlib.repr(value)}: expected {wanted}")

    def _number(self, name: str, value: Any, *, whole: bool, least: int | None = None) -> Any:
        if not (checks.is_integer(value) if whole else checks.is_number(value)):
            raise self.wrong(name, "a whole number" if whole else "a number", value)
        if least is not None and value < least:
            raise self.wrong(name, f"at least {least}", value)
        return value


def open_gguf(path: Path) -> GGUF:
    """Reads the header of a GGUF file.

    Raises:
      ValueError: the gguf package is not installed, the file is corrupted or truncated, one part of a split file, or of
        an architecture that specjax does not run.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ValueError(f"{path} is a GGUF file: reading it needs gguf (pip install 'specjax[gguf]')") from error
    try:
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # the reader checks nothing: a broken file fails wherever its bytes lead it
        raise ValueError(f"{path} is truncated, corrupted or no GGUF file: {error}") from error
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ValueError(f"{path} has architecture {architecture!r}: specjax reads {', '.join(ARCHITECTURES)}")
    if metadata.get("split.count", 0) > 1:
        raise ValueError(
            f"{path} is one of {metadata['split.count']} parts: merge them first (llama-gguf-split --merge)"
        )
    return GGUF(path, metadata, {tensor.name: tensor for tensor in reader.tensors})


def half_split_rows(rows: int, heads: int) -> np.ndarray:
    """[rows]: where the rows of a half-split rotary projection lie in its interleaved copy."""
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def gguf_source(gguf: GGUF) -> TensorSource:
    """The tensors of an opened GGUF file, by Hugging Face's names, float32 where they were quantized."""
    heads = gguf.whole("attention.head_count")
    turned = {"attn_q": heads, "attn_k": gguf.whole("attention.head_count_kv", heads)}
    tensors = {}
    for name, tensor in gguf.tensors.items():
        if name == ROPE_FACTORS:
            continue
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        part = match[2] if match else ""
        order = None
        if gguf.architecture in INTERLEAVED and part in turned:
            rows = int(tensor.shape[-1])
            if rows % (2 * turned[part]):
                raise ValueError(
                    f"{gguf.path}: the {rows} rows of {name} do not make {turned[part]} heads of even width"
                )
            order = half_split_rows(rows, turned[part])
        known = f"model.layers.{match[1]}.{BLOCK[part]}.{match[3]}" if match and part in BLOCK else TOP.get(name, name)
        tensors[known] = _stored(tensor, order, gguf.path.name)
    return TensorSource(tensors, str(gguf.path))


def _stored(tensor: Any, order: np.ndarray | None, file: str) -> StoredTensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    shape = tuple(int(n) for n in reversed(tensor.shape))  # the file counts from the fastest axis
    kind = tensor.tensor_type
    plain = kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
    block, packed = GGML_QUANT_SIZES[kind]  # weights of a block along the last axis, and its bytes

    def load(index: Index) -> np.ndarray:
        at = index if order is None else (order[index[0]], *index[1:])
        if plain:
            return tensor.data[at]
        start, stop, _ = index[-1].indices(shape[-1])
        first, past = start // block, -(-stop // block)
        blocks = tensor.data[(*at[:-1], slice(first * packed, past * packed))]
        return dequantize(blocks, kind)[..., start - first * block : stop - first * block]

    return StoredTensor(shape, tensor.data.dtype if plain else np.dtype(np.float32), load, file)
