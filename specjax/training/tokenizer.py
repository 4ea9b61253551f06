"""Training of byte-level BPE tokenizers, saved as folders that transformers loads."""

import json
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from specjax import files

OPT_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0..3, as in OPT
T5_SPECIALS = ("<pad>", "</s>", "<unk>")  # ids 0..2, as in T5


def train_bpe(texts: Iterable[str], size: int, *, specials: tuple[str, ...], template: str) -> tokenizers.Tokenizer:
    """Trains a byte-level BPE tokenizer of `size` tokens.

    Args:
      texts: training data.
      size: vocabulary size.
      specials: special tokens, with ids from 0 in this order.
      template: wraps every text: "</s> $A" (OPT begins with its end token) or "$A </s>" (T5 ends with it).
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    end = "</s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    return tokenizer


def save_tokenizer(tokenizer: tokenizers.Tokenizer, folder: Path, *, specials: tuple[str, ...]) -> None:
    """Writes tokenizer.json and tokenizer_config.json, each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
    if "<s>" in specials:
        config["bos_token"] = "</s>"
    files.write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=False))
    files.write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
