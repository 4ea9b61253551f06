"""transformers in torch on the very same weights and prompts: plain and assisted generation, rounds counted by hooks.

torch is imported inside the functions: without it the benches run, and their peer columns are empty.
"""

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from specjax import convert
from specjax.model import Model
from specjax.models import opt


def available() -> bool:
    """Whether torch and transformers are installed."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def twin(model: Model) -> Any:
    """The model as transformers' own, with these weights, in this dtype; not made under inference mode, which makes
    assisted generation several times slower."""
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        convert.save_pretrained(Path(folder), model.params, opt.to_published(model.config), fmt=model.fmt)
        twin = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, model.fmt.dtype))
    return twin.eval()


def generate(
    target: Any, prompts: list[list[int]], new: int, *, draft: Any = None, gamma: int = 5, temperature: float = 0.0
) -> np.ndarray:
    """Continuation [B, new], past any end token, greedy at temperature 0; with a draft, assisted generation of gamma
    tokens a round."""
    import torch

    options: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    if draft is not None:
        draft.generation_config.num_assistant_tokens = gamma
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        options["assistant_model"] = draft
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        out = target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, pad_token_id=1,
            **options,
        )  # fmt: skip
    return out[:, ids.shape[1] :].numpy()


def count_calls(model: Any) -> list[int]:
    """A list that grows by one at every forward pass of the model."""
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    return calls
