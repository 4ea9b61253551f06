"""Self-speculation on long rows: bytes read per committed token and tokens per second, beside plain decoding."""

from collections.abc import Iterator
from typing import Any

from specjax import api, drafters, files, measuring
from specjax.bench.record import Row
from specjax.drafters import LoadedDrafter, reading
from specjax.drafters.reading import BytesRead
from specjax.drafters.self_speculation import check_layers
from specjax.loading import load
from specjax.model import Model

SELECTIONS: dict[str, Any] = {
    "sinks": drafters.Sinks(), "snapkv": drafters.SnapKV(), "retrieval": drafters.Retrieval(),
}  # fmt: skip
STRATEGIES = ("plain", *SELECTIONS, "layer-skip", "quantized")


def measure(
    target: str,
    dtype: str,
    text: str,
    *,
    strategy: str,
    prompt: int,
    rows: int,
    gamma: int,
    budget: int,
    temperature: float,
    new: int,
) -> Iterator[Row]:
    """The row of one of `STRATEGIES` on rows of a text; no row if the model does not support the strategy.

    `mb_per_token`: megabytes read per committed token of a row, computed and not measured: the draft steps of a round
    and the target pass over all its slots (`drafters.reading`), divided by the measured tokens per target pass.
    `bytes_of_plain`: over those of plain decoding, one pass per token. Seconds are those of decoding, without the
    prompt; all are of one run, not interleaved.

    Args:
      target: name of a decoder-only model.
      text: a file; its tokens are cut into the prompts.
      prompt: tokens per prompt.
      rows: B.
      budget: slots of `small_kv`.
      new: tokens per row.

    Raises:
      ValueError: an encoder-decoder, a text that is too short, or rows longer than the positions of the model.
    """
    model = load(target, dtype=dtype)
    if strategy == "layer-skip" and model.config.layers < 2:
        return  # there is no layer to skip
    given = cut(model, files.read_text(text), prompt, rows)
    slots = prompt + new + gamma + 1
    whole = reading.of_target(model, batch=rows, slots=slots)
    drafter, step = _build(model, strategy, rows, slots, gamma, budget)
    before = measuring.ticks()
    out = api.generate(model, given, drafter=drafter, max_new_tokens=new, temperature=temperature, ignore_eos=True)
    load_of_others = measuring.load_between(before, measuring.ticks())
    drafted = 0.0 if step is None else gamma * step.total
    read = (drafted + whole.total) / out.stats.tokens_per_call
    yield {
        "bench": "long-context", "target": target, "dtype": dtype, "strategy": strategy, "rows": rows, "prompt": prompt,
        "gamma": 0 if step is None else gamma, "budget": budget if strategy in SELECTIONS else None, "new": new,
        "temperature": temperature, "accepted_per_tested": out.stats.accepted_per_tested,
        "tokens_per_call": out.stats.tokens_per_call,
        "draft_step_mb": None if step is None else step.total / 1e6, "target_pass_mb": whole.total / 1e6,
        "mb_per_token": read / 1e6, "bytes_of_plain": read / whole.total,
        "prefill_seconds": out.stats.seconds["prefill"], "decode_seconds": out.stats.seconds["decode"],
        "tokens_per_second": out.stats.tokens_per_second, "load": load_of_others,
    }  # fmt: skip


def cut(model: Model, text: str, prompt: int, rows: int) -> list[list[int]]:
    """`rows` prompts of `prompt` tokens each, evenly spread over the text.

    Raises:
      ValueError: see `measure`.
    """
    if model.encoder_decoder or model.text is None:
        raise ValueError(f"long-context requires a decoder-only model with a tokenizer, got {model.name}")
    tokens = model.text.encode(text)
    if len(tokens) < prompt * rows:
        raise ValueError(f"prompts: {rows} of {prompt} tokens require a text of {prompt * rows}, got {len(tokens)}")
    apart = len(tokens) // rows
    return [tokens[row * apart : row * apart + prompt] for row in range(rows)]


def _build(
    model: Model, strategy: str, rows: int, slots: int, gamma: int, budget: int
) -> tuple[LoadedDrafter, BytesRead | None]:
    """The drafter, and the bytes that one of its steps reads."""
    if strategy == "plain":
        return drafters.plain(), None
    if strategy in SELECTIONS:
        chosen = {"gamma": gamma, "budget": budget, "selection": SELECTIONS[strategy]}
        return drafters.small_kv(model, **chosen), reading.of_small_kv(model, batch=rows, slots=slots, **chosen)
    if strategy == "layer-skip":
        layers = check_layers(None, model.config.layers)
        made = drafters.layer_skip(model, gamma=gamma, layers=layers)
        return made, reading.of_layer_skip(model, batch=rows, slots=slots, layers=layers)
    made = drafters.quantized(model, gamma=gamma)
    return made, reading.of_quantized(model, made.params, batch=rows, slots=slots)
