"""Makes the golden checkpoints: tiny random models as transformers saves them, with the logits that torch gives them.

    python tests/golden/make.py

needs torch and transformers. Each folder holds config.json, model.safetensors and logits.npz:
  tokens, mask  [3, 9]    the prompt (T5: the encoder's input), left-aligned; mask 0 is padding
  decoder       [3, 5]    T5 alone: the decoder's input
  logits        float32   [3, 9, V], T5 [3, 5, V]; rows of padding mean nothing
Every parameter is drawn, norms and biases too: a default initialization would hide a norm or a bias that is ignored.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, OPTConfig, Qwen2Config, T5Config

FOLDER = Path(__file__).resolve().parent
VOCABULARY = 96
LENGTHS = (9, 6, 2)
DECODER_LENGTH = 5

OPT = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 24}
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 6,  # 3 heads of 6: the attention is wider than the model, as in t5-3b
    "num_heads": 3,
    "d_ff": 24,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
CONFIGS: dict[str, Any] = {
    "opt-pre-norm": OPTConfig(**OPT, word_embed_proj_dim=16, max_position_embeddings=40),
    "opt-post-norm-projected": OPTConfig(
        **OPT, word_embed_proj_dim=8, max_position_embeddings=40, do_layer_norm_before=False
    ),
    "t5-relu-tied": T5Config(**T5, feed_forward_proj="relu"),
    "t5-gated-untied": T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "llama-grouped-untied": LlamaConfig(**LLAMA, rope_theta=10000.0, tie_word_embeddings=False),
    "llama-scaled-rope-tied": LlamaConfig(
        **LLAMA,
        head_dim=12,  # not width / heads
        tie_word_embeddings=True,
        rope_theta=10000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "qwen2-biased-tied": Qwen2Config(**LLAMA, rope_theta=1000000.0, tie_word_embeddings=True),
}


def build(config: Any, seed: int) -> Any:
    """A model of this configuration with every parameter drawn at a scale that keeps the logits of order one."""
    classes = {
        "opt": transformers.OPTForCausalLM,
        "t5": transformers.T5ForConditionalGeneration,
        "llama": transformers.LlamaForCausalLM,
        "qwen2": transformers.Qwen2ForCausalLM,
    }
    model = classes[config.model_type](config).eval()
    if config.model_type == "t5" and not config.scale_decoder_outputs:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # transformers 5 ties every T5
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                value.copy_(1.0 + 0.2 * noise)
            elif value.ndim == 1:
                value.copy_(0.2 * noise)
            elif "embed" in name or "shared" in name or "relative" in name:
                value.copy_(0.7 * noise)
            else:
                value.copy_(noise * 1.2 / value.shape[1] ** 0.5)
    return model


def examples(config: Any, seed: int) -> dict[str, np.ndarray]:
    """Ragged left-aligned tokens, padded as the model's tokenizer would (with 1 where it has no padding token)."""
    generator = np.random.default_rng(seed)
    mask = (np.arange(max(LENGTHS)) < np.asarray(LENGTHS)[:, None]).astype(np.int32)
    tokens = generator.integers(4, config.vocab_size, mask.shape).astype(np.int32)
    padding = 1 if config.pad_token_id is None else config.pad_token_id
    arrays = {"tokens": np.where(mask == 1, tokens, padding).astype(np.int32), "mask": mask}
    if config.model_type == "t5":
        decoder = generator.integers(4, config.vocab_size, (len(LENGTHS), DECODER_LENGTH)).astype(np.int32)
        decoder[:, 0] = config.decoder_start_token_id
        arrays["decoder"] = decoder
    return arrays


def logits(model: Any, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Logits of transformers, float32."""
    inputs = {"input_ids": arrays["tokens"], "attention_mask": arrays["mask"]}
    if "decoder" in arrays:
        inputs["decoder_input_ids"] = arrays["decoder"]
    with torch.no_grad():
        out = model(**{name: torch.from_numpy(value).long() for name, value in inputs.items()}, use_cache=False)
    return out.logits.float().numpy()


def main() -> None:
    for seed, (name, config) in enumerate(CONFIGS.items()):
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        model = build(config, seed)
        model.save_pretrained(folder)
        arrays = examples(config, seed)
        arrays["logits"] = logits(model, arrays)
        again = type(model).from_pretrained(folder).eval()  # the files alone must give these logits
        np.testing.assert_array_equal(logits(again, arrays), arrays["logits"])
        np.savez_compressed(folder / "logits.npz", **arrays)
        (folder / "generation_config.json").unlink(missing_ok=True)
        scale = float(np.abs(arrays["logits"]).max())
        print(json.dumps({"name": name, "largest logit": round(scale, 2)}))


if __name__ == "__main__":
    main()
