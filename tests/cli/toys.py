"""Tiny checkpoints in Hugging Face's layout, with a byte-level tokenizer, for tests of the command line."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from specjax.convert import save_pretrained
from specjax.models import opt
from specjax.models.format import Format, default_format
from tests.models.small import laid_out

FMT = default_format("float32", platform="cpu")
EOS = "</s>"
POSITIONS = 512


def tokenizer() -> tokenizers.Tokenizer:
    """A byte-level BPE: 256 bytes and the end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {EOS: 0, **{char: 1 + i for i, char in enumerate(alphabet)}}
    tok = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([EOS])
    return tok


def params(seed: int, config: opt.OPTConfig, *, noise: float = 0.0):
    """Random weights whose logits differ enough between tokens to make drafting meaningful."""
    tree = opt.FAMILY.init(jax.random.key(seed), config, Format())
    leaves, form = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    grown = [leaf * 20 if leaf.ndim == 2 else leaf for leaf in leaves]
    stirred = [x + noise * jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, grown, strict=True)]
    return laid_out(jax.tree.unflatten(form, stirred), FMT)


def write_model(
    folder: Path, *, seed: int = 0, noise: float = 0.0, vocab: int = 257, broken: bool = False, layers: int = 1
) -> Path:
    """An OPT of one layer or more. `noise` stirs the weights, as a draft's; `broken`: NaN in them."""
    config = opt.OPTConfig(
        vocab_size=vocab, width=16, embed_width=16, layers=layers, heads=2, mlp_width=32, max_positions=POSITIONS
    )
    tree = params(seed, config, noise=noise)
    if broken:
        tree["final_norm"]["scale"] = jnp.full_like(tree["final_norm"]["scale"], jnp.nan)
    record = {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": vocab, "hidden_size": 16,
        "word_embed_proj_dim": 16, "num_hidden_layers": layers, "num_attention_heads": 2, "ffn_dim": 32,
        "max_position_embeddings": POSITIONS, "do_layer_norm_before": True, "activation_function": "relu",
        "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "torch_dtype": "float32",
    }  # fmt: skip
    save_pretrained(folder, tree, record, fmt=FMT)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS})
    )
    return folder
