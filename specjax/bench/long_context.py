"""Self-speculation on long rows: bytes read per committed token and tokens per second, beside plain decoding."""

from collections.abc import Iterator
from typing import Any

from specjax import api, drafters, estimates, files, measuring
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
    prompt: int,
    rows: int,
    gamma: int,
    budget: int,
    temperature: float,
    new: int,
    repeats: int,
) -> Iterator[Row]:
    """One row for each of `STRATEGIES` that the model supports, on rows of a text, interleaved.

    `mb_per_token`: megabytes read per committed token of a row, computed and not measured: the draft steps of a round
    and the target pass over all its slots (`drafters.reading`), divided by the measured tokens per target pass.
    `bytes_of_plain`: over those of plain decoding, one pass per token. Seconds are those of decoding, without the
    prompt; `time_of_plain` is the median of the ratios within a turn. `repetition`: share of the text that repeats what
    came before, which is easy to draft.

    Args:
      target: name of a decoder-only model.
      text: a file; its tokens are cut into the prompts.
      prompt: tokens per prompt.
      rows: B.
      budget: slots of `small_kv`.
      new: tokens per row.
      repeats: turns.

    Raises:
      ValueError: an encoder-decoder, a text that is too short, or rows longer than the positions of the model.
    """
    model = load(target, dtype=dtype)
    given = cut(model, files.read_text(text), prompt, rows)
    slots = prompt + new + gamma + 1
    whole = reading.of_target(model, batch=rows, slots=slots)
    supported = [name for name in STRATEGIES if name != "layer-skip" or model.config.layers > 1]
    built = {name: _build(model, name, rows, slots, gamma, budget) for name in supported}
    settings: dict[str, Any] = {"max_new_tokens": new, "temperature": temperature, "ignore_eos": True}
    programs = {
        name: lambda drafter=drafter: api.generate(model, given, drafter=drafter, **settings)
        for name, (drafter, _) in built.items()
    }
    runs = measuring.interleave(programs, repeats)
    seconds = {name: one.each(lambda out: out.stats.seconds["decode"]) for name, one in runs.items()}
    for name, (_, step) in built.items():
        out = runs[name].values[-1]
        stats = out.stats
        read = ((0.0 if step is None else gamma * step.total) + whole.total) / stats.tokens_per_call
        yield {
            "bench": "long-context", "target": target, "dtype": dtype, "strategy": name, "rows": rows, "prompt": prompt,
            "gamma": 0 if step is None else gamma, "budget": budget if name in SELECTIONS else None, "new": new,
            "temperature": temperature, "accepted_per_tested": stats.accepted_per_tested,
            "tokens_per_call": stats.tokens_per_call, **estimates.repetition(out.tokens).columns("repetition"),
            "draft_step_mb": None if step is None else step.total / 1e6, "target_pass_mb": whole.total / 1e6,
            "mb_per_token": read / 1e6, "bytes_of_plain": read / whole.total,
            "decode_seconds": list(measuring.spread(seconds[name])),
            "time_of_plain": measuring.ratio(seconds[name], seconds["plain"]), "load": runs[name].load,
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
