"""transformers on the very same weights, one request at a time: plain, assisted generation, and prompt lookup.

torch is imported inside the functions.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specjax import convert
from specjax.bench.peer import available
from specjax.model import Model

NEVER = 2**31 - 1  # no vocabulary has this token
Decode = Callable[[Sequence[int]], list[int]]  # prompt tokens -> new tokens


def require() -> None:
    """Raises ValueError where torch or transformers is not installed."""
    if not available():
        raise ValueError("--peer transformers needs torch (pip install 'specjax[torch]')")


def twin(model: Model) -> Any:
    """The model as transformers' own, with these weights, in this dtype; of any family and any kind of file."""
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count() or 1)
    checkpoint = convert.locate(model.name)
    checkpoint.source.close()
    kind = transformers.AutoModelForSeq2SeqLM if model.encoder_decoder else transformers.AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        convert.save_pretrained(Path(folder), model.params, checkpoint.config, fmt=model.fmt)
        made = kind.from_pretrained(folder, dtype=getattr(torch, model.fmt.dtype), local_files_only=True)
    if model.encoder_decoder:  # transformers 5.23 gives the decoder's cache as many layers as this says: the encoder's
        made.config.num_layers = made.config.num_decoder_layers
    return made.eval()


class Peer(NamedTuple):
    """A target and, where there is one, its draft model in transformers.

    Attributes:
      eos: tokens that end a text; none: go on to the last token asked for.
      encoder_decoder: `generate` then returns the start token and the new ones, else the prompt and the new ones.
    """

    target: Any
    draft: Any
    eos: tuple[int, ...]
    encoder_decoder: bool

    def plain(self, *, new: int, temperature: float) -> Decode:
        return self._decode(new, temperature, {})

    def lookup(self, *, gamma: int, new: int, temperature: float) -> Decode:
        """Prompt lookup of gamma tokens, matching up to three."""
        return self._decode(new, temperature, {"prompt_lookup_num_tokens": gamma, "max_matching_ngram_size": 3})

    def assisted(self, *, gamma: int, new: int, temperature: float) -> Decode:
        """Assisted generation of gamma tokens a round, always."""
        settings = self.draft.generation_config

        def decode(prompt: Sequence[int]) -> list[int]:
            settings.num_assistant_tokens = gamma
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0
            return run(prompt)

        run = self._decode(new, temperature, {"assistant_model": self.draft})
        return decode

    def _decode(self, new: int, temperature: float, options: dict[str, Any]) -> Decode:
        import torch

        drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        options = options | (drawn if temperature > 0 else {"do_sample": False})
        options["eos_token_id"] = list(self.eos) or [NEVER]  # a smallest length would forbid the end token instead

        def decode(prompt: Sequence[int]) -> list[int]:
            ids = torch.tensor([list(prompt)])
            with torch.inference_mode():
                out = self.target.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, pad_token_id=0, **options
                )
            return out[0, 1 if self.encoder_decoder else ids.shape[1] :].tolist()

        return decode


def peer(target: Model, draft: Model | None, *, ignore_eos: bool) -> Peer:
    """Twins of both."""
    eos = () if ignore_eos else target.eos
    return Peer(twin(target), None if draft is None else twin(draft), eos, target.encoder_decoder)
