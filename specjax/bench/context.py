"""Cost of prompts and of caches: tokens read per second, and the time of a round for each cache size, beside
transformers on the same weights."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specjax import api, measuring, request
from specjax.bench import peer
from specjax.bench.decode import random_model, random_prompts
from specjax.bench.record import Row
from specjax.calibration import round_seconds
from specjax.loading import load
from specjax.model import Model
from specjax.models.shapes import published_shapes
from specjax.strategy import Strategy

NEW = 32  # tokens of a row; the time of a round is the average over them
DRAFTERS = ("plain", "ngram:gamma=4", "lookahead", "small-kv:gamma=4,budget=64")  # one pass, chain, tree, small cache


def by_name(target: str, dtype: str) -> Model:
    """A published shape with random weights, or a model."""
    return random_model(target, dtype) if target in published_shapes() else load(target, dtype=dtype)


def prefill(target: str, dtype: str, rows: int, prompts: Sequence[int], repeats: int) -> Iterator[Row]:
    """Prompt tokens read per second, for each length; then for a batch of one prompt of each length.

    An encoder-decoder is timed until its first token, as the peer's forward pass includes it. `time_of_parts`: seconds
    of the batch over the sum of those of its prompts alone, which are those of `rows` prompts divided by `rows`.
    """
    model = by_name(target, dtype)
    others = peer.make_peers(model)
    common = {"bench": "prefill", "target": target, "dtype": dtype}
    programs: dict[Any, Callable[[], Any]] = {}
    for length in prompts:
        given = random_prompts(rows, model.vocab_size, length)
        programs["specjax", length] = lambda given=given: _read(model, given)
        for name, other in others.items():
            programs[name, length] = lambda other=other, given=given: other.read(given)
    mixed = [random_prompts(1, model.vocab_size, length)[0] for length in prompts]
    if len(prompts) > 1:
        programs["specjax", "mixed"] = lambda: _read(model, mixed)
    runs = measuring.interleave(programs, repeats, pause=measuring.PAUSE)
    ours = {length: runs["specjax", length].each(float) for name, length in programs if name == "specjax"}
    for length in prompts:
        own = measuring.spread(ours[length])
        row: Row = common | {"rows": rows, "prompt": length, "specjax_tokens_per_second": rows * length / own.median}
        row |= {"specjax_seconds": list(own), "specjax_load": runs["specjax", length].load}
        seconds = {name: runs[name, length].median for name in others}
        for name in others:
            row[f"{name.replace(' ', '_')}_tokens_per_second"] = rows * length / seconds[name]
        if best := peer.fastest(seconds):
            row["ratio"] = seconds[best] / own.median
        yield row
    if len(prompts) > 1:
        whole = measuring.spread(ours["mixed"])
        parts = [sum(turn) / rows for turn in zip(*(ours[length] for length in prompts), strict=True)]
        row = common | {"rows": len(prompts), "prompt": list(prompts)}
        row |= {"specjax_tokens_per_second": sum(prompts) / whole.median, "specjax_seconds": list(whole)}
        yield row | {
            "time_of_parts": measuring.ratio(ours["mixed"], parts),
            "specjax_load": runs["specjax", "mixed"].load,
        }


def _read(model: Model, prompts: Sequence[Sequence[int]]) -> float:
    seconds = api.generate(model, prompts, max_new_tokens=1, temperature=0.0, ignore_eos=True).stats.seconds
    return seconds["prefill"] + (seconds["decode"] if model.encoder_decoder else 0.0)


def context(
    target: str, dtype: str, rows: int, prompt: int, drafter: str, cache_len: Sequence[int], repeats: int
) -> Iterator[Row]:
    """Time of a round after a prompt, for each number of allocated slots; greedy.

    `time_of_first`: over the first number of slots, the median of the ratios within a turn. The peer's step follows
    the tokens alone: of plain decoding, (time of `NEW` tokens - time of 1) / (NEW - 1).

    Args:
      cache_len: slots, each at least `prompt + NEW`.

    Raises:
      ValueError: an encoder-decoder.
    """
    model = by_name(target, dtype)
    if model.encoder_decoder:
        raise ValueError(f"bench context requires a decoder-only model, got {target}")
    given = random_prompts(rows, model.vocab_size, prompt)
    programs: dict[Any, Callable[[], Any]] = {}
    job = request.prepare(
        model, given, drafter=Strategy.parse(drafter).build(model, []), max_new_tokens=NEW, temperature=0.0,
        ignore_eos=True,
    ).begin()  # fmt: skip
    for slots in cache_len:
        programs[slots] = functools.partial(round_seconds, job._replace(cache_len=slots))
    others = peer.make_peers(model) if drafter == "plain" else {}
    for name, other in others.items():
        for new in (1, NEW):
            decode = other.plain(new=new)
            programs[name, new] = functools.partial(decode, given)
    runs = measuring.interleave(programs, repeats, pause=measuring.PAUSE)
    steps = {
        name: measuring.spread([
            (all_of - one) / (NEW - 1)
            for all_of, one in zip(runs[name, NEW].seconds, runs[name, 1].seconds, strict=True)
        ]).median
        for name in others
    }  # fmt: skip
    first = runs[cache_len[0]].each(float)
    for slots in cache_len:
        seconds = runs[slots].each(float)
        row: Row = {"bench": "context", "target": target, "dtype": dtype, "drafter": drafter, "rows": rows}
        row |= {"context": prompt, "cache_len": slots, "round_ms": 1e3 * measuring.spread(seconds).median}
        row |= {"time_of_first": measuring.ratio(seconds, first), "load": runs[slots].load}
        if best := peer.fastest(steps):
            row |= {"peer_step_ms": 1e3 * steps[best], "ratio": steps[best] / measuring.spread(seconds).median}
        yield row
