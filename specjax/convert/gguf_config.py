"""Configuration and tokenizer from the metadata of a GGUF file, without other files or network."""

from typing import Any

import numpy as np

from specjax.convert.gguf_source import GGUF, ROPE_FACTORS

CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def gguf_config(gguf: GGUF) -> dict[str, Any]:
    """The contents of the corresponding config.json of Hugging Face."""
    heads = gguf.whole("attention.head_count")
    width = gguf.whole("embedding_length")
    vocabulary = int(gguf.tensors["token_embd.weight"].shape[-1])
    tokens = {role: gguf.token(role, vocabulary) for role in ("bos", "eos", "padding")}
    config = {
        "model_type": gguf.architecture,
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[gguf.architecture]],
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": gguf.whole("feed_forward_length"),
        "num_hidden_layers": gguf.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.whole("attention.head_count_kv", heads),
        "head_dim": gguf.whole("attention.key_length", width // heads),
        "max_position_embeddings": gguf.whole("context_length"),
        "rms_norm_eps": gguf.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": gguf.real("rope.freq_base", 10000.0),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": tokens["bos"],
        "eos_token_id": tokens["eos"],
        "pad_token_id": tokens["padding"],
    }
    scaling = _rope_scaling(gguf)
    return config if scaling is None else {**config, "rope_scaling": scaling}


def _rope_scaling(gguf: GGUF) -> dict[str, Any] | None:
    """Rotary scaling: linear from the metadata, or Llama 3.1's, stored as one divisor per frequency."""
    kind = gguf.metadata.get(f"{gguf.architecture}.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise ValueError(f"{gguf.path} has rope scaling {kind!r}: specjax reads linear and llama3 from GGUF")
    if kind == "linear":
        return {"rope_type": "linear", "factor": gguf.real("rope.scaling.factor")}
    if ROPE_FACTORS not in gguf.tensors:
        return None
    stored = np.asarray(gguf.tensors[ROPE_FACTORS].data, np.float32)
    scaling = {  # the values of all published Llama 3.1-3.3; the largest divisor is the factor
        "rope_type": "llama3",
        "factor": float(stored.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta = gguf.real("rope.freq_base", 10000.0)
    if not np.allclose(stored, llama3_divisors(2 * stored.size, theta, scaling), rtol=1e-3):
        raise ValueError(f"{gguf.path}: {ROPE_FACTORS} differ from Llama 3's: this rope scaling is not supported")
    return scaling


def llama3_divisors(width: int, theta: float, scaling: dict[str, Any]) -> np.ndarray:
    """[width / 2]: the divisor of each rotary frequency in Llama 3.1 (1 for fast ones, `factor` for slow ones)."""
    wavelength = 2 * np.pi * theta ** (np.arange(0, width, 2) / width)
    turns = scaling["original_max_position_embeddings"] / wavelength
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    fast = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / (fast + (1.0 - fast) / scaling["factor"])


def gguf_tokenizer(gguf: GGUF) -> Any:
    """The tokenizer of the file as a transformers tokenizer (byte-level or SentencePiece BPE), or None.

    Raises:
      ValueError: an unsupported tokenizer model or pre-tokenizer.
    """
    from transformers import PreTrainedTokenizerFast

    meta = {name.removeprefix("tokenizer.ggml."): value for name, value in gguf.metadata.items()}
    if "tokens" not in meta and "model" not in meta:
        return None  # token ids work, as for a folder without a tokenizer
    _check_lists(gguf, meta)
    tokens: list[str] = meta["tokens"]
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: gguf.token(role, len(tokens)) for name, role in roles.items()}
    named = {name: tokens[index] for name, index in ids.items() if index is not None}
    backend = _backend(gguf, meta, tokens)
    template = {"chat_template": meta["tokenizer.chat_template"]} if "tokenizer.chat_template" in meta else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=gguf.whole("context_length"),
        clean_up_tokenization_spaces=False,
        **named,
        **template,
    )


def _check_lists(gguf: GGUF, meta: dict[str, Any]) -> None:
    """Raises ValueError if an entry of the tokenizer is not a list of the right type."""
    for name, holds, kind in (
        ("tokens", "texts", str),
        ("merges", "texts", str),
        ("scores", "numbers", int | float),
        ("token_type", "whole numbers", int),
    ):
        if name in meta and not (isinstance(meta[name], list) and all(isinstance(one, kind) for one in meta[name])):
            raise gguf.wrong(f"tokenizer.ggml.{name}", f"a list of {holds}", meta[name])
    if not meta["tokens"]:
        raise gguf.wrong("tokenizer.ggml.tokens", "at least one token", meta["tokens"])
    if meta["model"] == "llama" and len(meta["scores"]) != len(meta["tokens"]):
        count = len(meta["tokens"])
        raise ValueError(f"{gguf.path} has {len(meta['scores'])} tokenizer.ggml.scores for {count} tokens")


def _merges(gguf: GGUF, merges: list[str], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs of a merge list, validated because the tokenizers package panics at an invalid one."""
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not space:
            raise gguf.wrong("tokenizer.ggml.merges", "two tokens with a space between", merge)
        for token in (left, right, left + right):
            if token not in vocabulary:
                raise ValueError(f"{gguf.path} has merge {merge!r}, but {token!r} is not one of its tokens")
        pairs.append((left, right))
    return pairs


def _backend(gguf: GGUF, meta: dict[str, Any], tokens: list[str]) -> Any:
    from tokenizers import AddedToken, processors

    pre = meta.get("pre", "default")
    if meta["model"] == "gpt2":
        backend = _byte_level(gguf, meta, tokens, pre)
    elif meta["model"] == "llama":
        backend = _sentencepiece(meta, tokens)
    else:
        raise ValueError(f"{gguf.path} has tokenizer model {meta['model']!r}: pass the tokenizer's folder instead")
    for token, kind in zip(tokens, meta.get("token_type", []), strict=False):
        if kind == CONTROL:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False)])
    # llama.cpp's defaults if absent
    if meta.get("add_bos_token", meta["model"] == "llama" or pre == "llama-bpe") and "bos_token_id" in meta:
        bos = tokens[meta["bos_token_id"]]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, meta["bos_token_id"])]
        )
    return backend


def _byte_level(gguf: GGUF, meta: dict[str, Any], tokens: list[str], pre: str) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    def split(pattern: str) -> Any:
        pieces = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    known = {
        "default": plain,
        "gpt-2": plain,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain]),
        "llama-bpe": split(LLAMA3_SPLIT),
        "qwen2": split(QWEN2_SPLIT),
    }
    if pre not in known:
        raise ValueError(
            f"{gguf.path} has pre-tokenizer {pre!r}, not one of {', '.join(known)}: pass a tokenizer folder"
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = _merges(gguf, meta["merges"], vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe"))
    backend.pre_tokenizer = known[pre]
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(meta: dict[str, Any], tokens: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = tokens[meta.get("unknown_token_id", 0)]
    merges = merges_from_scores(tokens, meta["scores"])
    backend = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    space = "\u2581"
    prefix = meta.get("add_space_prefix", True)
    steps = [normalizers.Prepend(space)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", space)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def merges_from_scores(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """The merge list implied by a SentencePiece BPE vocabulary, best scores first."""
    ids = {token: index for index, token in enumerate(tokens)}
    found = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                found.append((-score, ids[token], ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]
