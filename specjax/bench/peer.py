"""transformers on the same weights and prompts: plain decoding, assisted generation and prompt lookup.

It runs with torch's default settings, and with linear layers whose weights oneDNN has packed, which torch does not do
by itself and which is faster on most processors. Ratios are to the faster of the two.

torch is imported inside the functions: without it the benchmarks run, and their peer columns are empty.
"""

import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from specjax.model import Model

NAME = "transformers"
NO_TOKEN = 2**31 - 1  # an end token that no vocabulary has: generation continues to the last token requested
Decode = Callable[[Sequence[Sequence[int]]], list[list[int]]]  # prompts of one length -> new tokens


def available() -> bool:
    """Whether torch and transformers are installed."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def require() -> None:
    """Raises ValueError if torch or transformers is not installed."""
    if not available():
        raise ValueError("--peer transformers requires torch: pip install 'specjax[torch]'")


def twin(model: Model, *, packed: bool = False) -> Any:
    """The same weights in transformers' own class, in the same dtype.

    Args:
      packed: linear layers with weights in oneDNN's layout.

    Not created under `torch.inference_mode`, which slows assisted generation down several times.
    """
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count() or 1)
    auto = transformers.AutoModelForSeq2SeqLM if model.encoder_decoder else transformers.AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        made = auto.from_pretrained(folder, dtype=getattr(torch, model.fmt.dtype), local_files_only=True)
    if model.encoder_decoder:  # transformers 5.23 sizes the decoder's cache by num_layers, the encoder's
        made.config.num_layers = made.config.num_decoder_layers
    made.eval()
    if packed:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its classes are TorchScript, which torch 2.14 deprecates
            from torch.utils import mkldnn

            mkldnn.to_mkldnn(made, made.dtype)
    return made


class Peer(NamedTuple):
    """A target, and a draft model or None, in transformers.

    Attributes:
      eos: tokens that end a text; empty: generate all tokens requested.
      encoder_decoder: `generate` returns the start token before the new ones, instead of the prompt.
    """

    target: Any
    draft: Any
    eos: tuple[int, ...]
    encoder_decoder: bool

    def plain(self, *, new: int, temperature: float = 0.0) -> Decode:
        return self._decode(new, temperature, {})

    def lookup(self, *, gamma: int, new: int, temperature: float = 0.0) -> Decode:
        """Prompt lookup of gamma tokens, matching up to three."""
        return self._decode(new, temperature, {"prompt_lookup_num_tokens": gamma, "max_matching_ngram_size": 3})

    def assisted(self, *, gamma: int, new: int, temperature: float = 0.0) -> Decode:
        """Assisted generation with a constant gamma tokens per round."""
        settings = self.draft.generation_config
        run = self._decode(new, temperature, {"assistant_model": self.draft})

        def decode(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
            settings.num_assistant_tokens = gamma
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0
            return run(prompts)

        return decode

    def read(self, prompts: Sequence[Sequence[int]]) -> None:
        """A forward pass over prompts, with a cache and the logits of the last position; of an encoder-decoder, the
        encoder and the first step of the decoder."""
        import torch

        ids = torch.tensor([list(prompt) for prompt in prompts])
        with torch.inference_mode():
            if self.encoder_decoder:
                start = torch.full((len(ids), 1), self.target.config.decoder_start_token_id)
                self.target(input_ids=ids, decoder_input_ids=start, use_cache=True)
            else:
                self.target(input_ids=ids, use_cache=True, logits_to_keep=1)

    def counted(self, decode: Decode, prompts: Sequence[Sequence[int]]) -> Callable[[], int]:
        """A program that decodes and returns the number of forward passes of the target."""

        def run() -> int:
            passes: list[int] = []
            hook = self.target.register_forward_hook(lambda *_: passes.append(1))
            decode(prompts)
            hook.remove()
            return len(passes)

        return run

    def _decode(self, new: int, temperature: float, options: dict[str, Any]) -> Decode:
        import torch

        sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        options = options | (sampled if temperature > 0 else {"do_sample": False})
        options["eos_token_id"] = list(self.eos) or [NO_TOKEN]  # min_new_tokens would forbid the end token instead

        def decode(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
            ids = torch.tensor([list(prompt) for prompt in prompts])
            with torch.inference_mode():
                out = self.target.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, pad_token_id=0, **options
                )
            return out[:, 1 if self.encoder_decoder else ids.shape[1] :].tolist()

        return decode


def make_peer(target: Model, draft: Model | None = None, *, ignore_eos: bool = True, packed: bool = False) -> Peer:
    """The target and the draft model in transformers; `packed` as in `twin`."""
    eos = () if ignore_eos else target.eos
    drafted = None if draft is None else twin(draft, packed=packed)
    return Peer(twin(target, packed=packed), drafted, eos, target.encoder_decoder)


def make_peers(target: Model, draft: Model | None = None, *, ignore_eos: bool = True) -> dict[str, Peer]:
    """The peer with torch's default settings and with packed weights, by name; none without torch."""
    made = {NAME: False, f"{NAME} packed": True} if available() else {}
    return {name: make_peer(target, draft, ignore_eos=ignore_eos, packed=packed) for name, packed in made.items()}


def fastest(seconds: Mapping[str, float]) -> str | None:
    """The name of the faster peer; None without one."""
    return min((name for name in seconds if name.startswith(NAME)), key=lambda name: seconds[name], default=None)
