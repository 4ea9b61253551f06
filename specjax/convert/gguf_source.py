"""GGUF files of Llama and Qwen2, read by the optional gguf package and dequantized slice by slice.

llama.cpp rotates neighboring entries of a head where Hugging Face rotates entries j and j + K/2, so its Llama files
store the rows of q and k interleaved: row r of the parameter is row `half_split_rows(...)[r]` of the file.
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
ROPE_FACTORS = "rope_freqs.weight"  # Llama 3.1's frequency divisors, part of the configuration


class GGUF(NamedTuple):
    """An opened GGUF file: its metadata and its tensors, mapped by the gguf package."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Any]

    @property
    def architecture(self) -> str:
        return self.metadata["general.architecture"]

    def hyper(self, key: str, default: Any = None) -> Any:
        """The metadata entry `key` of the architecture; required unless there is a default."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise ValueError(f"{self.path} has no metadata {self.architecture}.{key}")
        return value

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer entry of the architecture; a list with one value per layer is accepted if all are equal."""
        value = self.hyper(key, default)
        if isinstance(value, list) and value and all(entry == value[0] for entry in value):
            value = value[0]
        if isinstance(value, list):
            raise self.wrong(f"{self.architecture}.{key}", "one number, the same for every layer", value)
        return self._number(f"{self.architecture}.{key}", value, whole=True, least=least)

    def real(self, key: str, default: float | None = None) -> float:
        """A number entry of the architecture."""
        return float(self._number(f"{self.architecture}.{key}", self.hyper(key, default), whole=False))

    def token(self, role: str, count: int) -> int | None:
        """The token id of a role ("bos"), below `count`, or None."""
        name = f"tokenizer.ggml.{role}_token_id"
        if name not in self.metadata:
            return None
        value = self._number(name, self.metadata[name], whole=True, least=0)
        if value >= count:
            raise self.wrong(name, f"one of {count} tokens", value)
        return value

    def wrong(self, name: str, wanted: str, value: Any) -> ValueError:
        """The error for an invalid entry."""
        return ValueError(f"{self.path} has metadata {name} {reprlib.repr(value)}: expected {wanted}")

    def _number(self, name: str, value: Any, *, whole: bool, least: int | None = None) -> Any:
        if not (checks.is_integer(value) if whole else checks.is_number(value)):
            raise self.wrong(name, "an integer" if whole else "a number", value)
        if least is not None and value < least:
            raise self.wrong(name, f"at least {least}", value)
        return value


def open_gguf(path: Path) -> GGUF:
    """Reads the header of a GGUF file.

    Raises:
      ValueError: the gguf package is not installed; the file is corrupted, truncated or one part of a split file; or
        its architecture is not supported.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ValueError(f"{path} is a GGUF file: reading it needs gguf (pip install 'specjax[gguf]')") from error
    try:
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # the reader validates nothing: a broken file can raise anything
        raise ValueError(f"{path} is truncated, corrupted or not a GGUF file: {error}") from error
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ValueError(f"{path} has architecture {architecture!r}: specjax reads {', '.join(ARCHITECTURES)}")
    if metadata.get("split.count", 0) > 1:
        raise ValueError(
            f"{path} is one of {metadata['split.count']} parts: merge them first (llama-gguf-split --merge)"
        )
    return GGUF(path, metadata, {tensor.name: tensor for tensor in reader.tensors})


def half_split_rows(rows: int, heads: int) -> np.ndarray:
    """[rows]: the index of each row of a half-split rotary projection in its interleaved copy."""
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def gguf_source(gguf: GGUF) -> TensorSource:
    """The tensors of an opened GGUF file by Hugging Face name; quantized ones as float32."""
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

    shape = tuple(int(n) for n in reversed(tensor.shape))  # the file lists the fastest axis first
    kind = tensor.tensor_type
    plain = kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
    block, packed = GGML_QUANT_SIZES[kind]  # weights and bytes per block along the last axis

    def load(index: Index) -> np.ndarray:
        at = index if order is None else (order[index[0]], *index[1:])
        if plain:
            return tensor.data[at]
        start, stop, _ = index[-1].indices(shape[-1])
        first, past = start // block, -(-stop // block)
        blocks = tensor.data[(*at[:-1], slice(first * packed, past * packed))]
        return dequantize(blocks, kind)[..., start - first * block : stop - first * block]

    return StoredTensor(shape, tensor.data.dtype if plain else np.dtype(np.float32), load, file)
