"""Tables for `drafters.table`, counted from samples of the target."""

from collections.abc import Sequence
from typing import Any

from specjax import api, checks
from specjax.drafters import fitting
from specjax.drafters.fitting import Table


def fit_samples(
    model: Any,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    batch: int = 8,
    seed: int = 0,
    order: int = 2,
    successors: int = fitting.SUCCESSORS,
    buckets: int = fitting.BUCKETS,
    smoothing: float = fitting.SMOOTHING,
) -> Table:
    """Fits a table to the target's own continuations of some prompts, the distribution that a drafter has to match.

    Counts only generated tokens; the first one is counted after the end of its prompt.

    Args:
      model: the target, from `specjax.load`.
      prompts: strings or lists of token ids.
      max_new_tokens: tokens per sample.
      temperature: of the samples; use that of the later decoding.
      batch: prompts per batch.
      seed: of the samples.
      order: see `drafters.fitting.fit`.
      successors: see `drafters.fitting.fit`.
      buckets: see `drafters.fitting.fit`.
      smoothing: see `drafters.fitting.fit`.

    Returns:
      The table, with numpy arrays.

    Raises:
      ValueError: invalid prompts, or a number out of range.
    """
    checks.integer("batch", batch, least=1)
    checks.integer("order", order, least=1)
    given = checks.prompt_rows(prompts)
    sequences = []
    for start in range(0, len(given), batch):
        part = given[start : start + batch]
        full: Any = part + [part[0]] * (min(batch, len(given)) - len(part))  # one batch size compiles
        out = api.generate(
            model, full, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed,
            rows=range(start, start + len(full)),
        )  # fmt: skip
        for prompt, new in zip(part, out.tokens, strict=False):
            ids = model.text.encode(prompt) if isinstance(prompt, str) else prompt
            known = [model.config.start_token] if model.encoder_decoder else ids
            sequences.append([*known[1 - order :], *new] if order > 1 else new)
    return fitting.fit(
        sequences, vocab_size=model.vocab_size, order=order, successors=successors, buckets=buckets,
        smoothing=smoothing,
    )  # fmt: skip
