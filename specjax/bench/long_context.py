"""Self-speculation on long rows: what a committed token reads, and how fast it comes, against plain decoding."""

from collections.abc import Iterator
from typing import Any

import jax

from specjax import api, drafters, files
from specjax.bench import machine
from specjax.bench.decode import Row
from specjax.drafters import LoadedDrafter, reading
from specjax.drafters.reading import Reading
from specjax.drafters.self_speculation import check_layers
from specjax.loading import load
from specjax.model import Model

SELECTIONS: dict[str, Any] = {
    "sinks": drafters.Sinks(), "snapkv": drafters.SnapKV(), "retrieval": drafters.Retrieval(),
}  # fmt: skip
WAYS = ("plain", *SELECTIONS, "layer-skip", "quantized")


def measure(
    target: str,
    dtype: str,
    text: str,
    *,
    way: str,
    prompt: int,
    rows: int,
    gamma: int,
    budget: int,
    temperature: float,
    new: int,
) -> Iterator[Row]:
    """The row of one of `WAYS` on rows of a text, the same for all ways; none where the model has no such way.

    `mb_per_token`: megabytes that one committed token of one row reads: the draft steps of a round and the target's
    pass over all its slots, by the arithmetic of `drafters.reading`, divided by the tokens that a round was measured
    to commit. `bytes_of_plain`: over those of plain decoding, one pass a token. Seconds are those of decoding, without
    the prompt.

    Args:
      target: a decoder-only model's name. text: a file; its tokens are cut into the prompts.
      prompt: tokens of a prompt. rows: B. budget: slots of `small_kv`. new: tokens of a row.

    Raises:
      ValueError: an encoder-decoder, a text that is too short, or rows longer than the model's positions.
    """
    model = load(target, dtype=dtype)
    if way == "layer-skip" and model.config.layers < 2:
        return  # it has no layer to leave out
    given = cut(model, files.read_text(text), prompt, rows)
    slots = prompt + new + gamma + 1
    whole = reading.of_target(model, batch=rows, slots=slots)
    guide, step = _way(model, way, rows, slots, gamma, budget)
    before = machine.ticks()
    out = api.generate(model, given, drafter=guide, max_new_tokens=new, temperature=temperature, ignore_eos=True)
    load_of_others = machine.others(before, machine.ticks())
    drafted = 0.0 if step is None else gamma * step.total
    read = (drafted + whole.total) / out.stats.tokens_per_call
    yield {
        "bench": "long-context", "target": target, "dtype": dtype, "way": way, "rows": rows, "prompt": prompt,
        "gamma": 0 if step is None else gamma, "budget": budget if way in SELECTIONS else None, "new": new,
        "temperature": temperature, "accepted_per_tested": out.stats.accepted_per_tested,
        "tokens_per_call": out.stats.tokens_per_call,
        "draft_step_mb": None if step is None else step.total / 1e6, "target_pass_mb": whole.total / 1e6,
        "mb_per_token": read / 1e6, "bytes_of_plain": read / whole.total,
        "prefill_seconds": out.stats.seconds["prefill"], "decode_seconds": out.stats.seconds["decode"],
        "tokens_per_second": out.stats.tokens_per_second, "load": load_of_others,
    }  # fmt: skip
    jax.clear_caches()  # the programs of this way, and the constants that they hold


def cut(model: Model, text: str, prompt: int, rows: int) -> list[list[int]]:
    """`rows` prompts of `prompt` tokens each, evenly spread over the text.

    Raises:
      ValueError: see `measure`.
    """
    if model.encoder_decoder or model.text is None:
        raise ValueError(f"long rows are those of a decoder-only model with a tokenizer, and {model.name} is none")
    tokens = model.text.encode(text)
    if len(tokens) < prompt * rows:
        raise ValueError(f"{rows} prompts of {prompt} tokens need {prompt * rows}, and the text has {len(tokens)}")
    apart = len(tokens) // rows
    return [tokens[row * apart : row * apart + prompt] for row in range(rows)]


def _way(
    model: Model, way: str, rows: int, slots: int, gamma: int, budget: int
) -> tuple[LoadedDrafter, Reading | None]:
    """The drafter, and what one of its steps reads."""
    if way == "plain":
        return drafters.plain(), None
    if way in SELECTIONS:
        chosen = {"gamma": gamma, "budget": budget, "selection": SELECTIONS[way]}
        return drafters.small_kv(model, **chosen), reading.of_small_kv(model, batch=rows, slots=slots, **chosen)
    if way == "layer-skip":
        layers = check_layers(None, model.config.layers)
        made = drafters.layer_skip(model, gamma=gamma, layers=layers)
        return made, reading.of_layer_skip(model, batch=rows, slots=slots, layers=layers)
    made = drafters.quantized(model, gamma=gamma)
    return made, reading.of_quantized(model, made.params, batch=rows, slots=slots)
