"""Plain and speculative decoding of OPT shapes with random weights, beside transformers on the same weights."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import jax
import numpy as np

from specjax import api, drafters, measuring
from specjax.bench import peer
from specjax.bench.record import Row
from specjax.model import Model
from specjax.models import opt
from specjax.models.format import default_format
from specjax.models.shapes import published_shapes, random_params

PROMPT, NEW = 64, 128


def bandwidth(megabytes: int = 512, repeats: int = 3) -> float:
    """Bytes per second at which all processors together read a large array, best of several runs.

    One numpy reduction per processor, each over its own part; numpy releases the interpreter lock meanwhile.
    """
    count = os.cpu_count() or 1
    parts = np.array_split(np.ones((megabytes * 131_072,), np.float64), count)
    best = float("inf")
    with futures.ThreadPoolExecutor(count) as pool:
        for _ in range(repeats):
            started = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - started)
    return sum(part.nbytes for part in parts) / best


def random_model(name: str, dtype: str) -> Model:
    """A published shape with random weights."""
    (family, config), fmt = published_shapes()[name], default_format(dtype)
    return Model(name, family, config, fmt, random_params(family, config, fmt))


def agreeing(size: str, dtype: str, draft_layers: int = 2) -> tuple[Model, Model]:
    """A target and a draft that agree on most tokens.

    The draft is the target's first layers; the output projections of the target's other layers are scaled down.
    """
    target = random_model(f"opt-{size}", dtype)
    layers = dict(target.params["layers"])
    scaled = lambda kernel: jax.tree.map(lambda part: (part * 0.02).astype(part.dtype), kernel)
    quiet = lambda linear: {**linear, "kernel": scaled(linear["kernel"])}
    for index in range(draft_layers, target.config.layers):
        layer = layers[str(index)]
        attn = {**layer["attn"], "o": quiet(layer["attn"]["o"])}
        layers[str(index)] = {**layer, "attn": attn, "mlp": {**layer["mlp"], "down": quiet(layer["mlp"]["down"])}}
    target = dataclasses.replace(target, params={**target.params, "layers": layers})
    config = dataclasses.replace(target.config, layers=draft_layers)
    kept = {str(i): layers[str(i)] for i in range(draft_layers)}
    draft = Model(f"opt-{size} first {draft_layers}", opt.FAMILY, config, target.fmt, {**target.params, "layers": kept})
    return target, draft


def random_prompts(rows: int, vocab: int, length: int = PROMPT) -> list[list[int]]:
    """The same prompts in every run; no special tokens."""
    return np.random.default_rng(0).integers(4, vocab, (rows, length)).tolist()


def plain(size: str, dtype: str, rows: Sequence[int], repeats: int) -> Iterator[Row]:
    """Plain greedy decoding, 64 + 128 tokens, one row of the table for each batch size.

    `bandwidth_share`: bytes of weights per step over the memory bandwidth, both medians of the same turns.
    `steps_of_one_row`: the time of a step over that of the first batch size.
    """
    model = random_model(f"opt-{size}", dtype)
    others = peer.make_peers(model)
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    first = 0.0
    for batch in rows:
        given = random_prompts(batch, model.vocab_size)
        programs: dict[str, Callable[[], Any]] = {
            "specjax": lambda given=given: api.generate(model, given, max_new_tokens=NEW, temperature=0.0)
        }
        for name, other in others.items():
            decode = other.plain(new=NEW)
            programs[name] = lambda decode=decode, given=given: decode(given)
        runs = measuring.interleave(programs | {"memory": bandwidth}, repeats, pause=measuring.PAUSE)
        speed = measuring.spread(runs.pop("memory").values).median
        step = measuring.spread(runs["specjax"].each(lambda out: out.stats.seconds["decode"] / NEW)).median
        first = first or step
        row: Row = {"bench": "plain", "size": size, "dtype": dtype, "rows": batch}
        if others:
            same = np.equal(runs["specjax"].warm_up.tokens, runs[peer.NAME].warm_up)
            row["equal_tokens"] = float(same.mean())
        row |= summary(runs, batch * NEW)
        row |= {"step_ms": 1e3 * step, "bandwidth_gb": speed / 1e9, "bandwidth_share": weights / step / speed}
        yield row | {"steps_of_one_row": step / first}


def speculative(size: str, dtype: str, gammas: Sequence[int], repeats: int) -> Iterator[Row]:
    """Speculative decoding beside assisted generation at equal acceptance, one row, for each gamma."""
    target, draft = agreeing(size, dtype)
    given = random_prompts(1, target.vocab_size)
    others = peer.make_peers(target, draft)
    settings: dict[str, Any] = {"max_new_tokens": NEW, "temperature": 0.0}
    for gamma in gammas:
        drafter = drafters.model(draft, gamma=gamma)
        programs: dict[str, Callable[[], Any]] = {
            "specjax": lambda drafter=drafter: api.generate(target, given, drafter=drafter, **settings),
            "specjax plain": lambda: api.generate(target, given, **settings),
        }
        for name, other in others.items():
            programs[name] = other.counted(other.assisted(gamma=gamma, new=NEW), given)
        runs = measuring.interleave(programs, repeats, pause=measuring.PAUSE)
        stats = runs["specjax"].values[-1].stats
        row: Row = {"bench": "speculative", "size": size, "dtype": dtype, "gamma": gamma} | summary(runs, NEW)
        row |= {
            "accepted_per_tested": stats.accepted_per_tested, "tokens_per_call": stats.tokens_per_call,
            "round_ms": 1e3 * runs["specjax"].median / stats.rounds,
            "speedup_over_plain": runs["specjax plain"].median / runs["specjax"].median,
        }  # fmt: skip
        theirs = {name: 1e3 * runs[name].median / runs[name].values[-1] for name in others}
        if best := peer.fastest(theirs):
            row |= {"peer_tokens_per_call": NEW / runs[best].values[-1], "peer_round_ms": theirs[best]}
            row["ratio_per_round"] = theirs[best] / row["round_ms"]
        yield row


def summary(runs: dict[str, measuring.Runs], tokens: int) -> Row:
    """Tokens per second with their spread, the load of other programs, and the ratios to transformers.

    `ratio` is to the faster of the peer's settings, `ratio_to_default` to torch's default.
    """
    row: Row = {}
    for name, one in runs.items():
        key = name.replace(" ", "_")
        row[f"{key}_tokens_per_second"] = tokens / one.median
        row[f"{key}_seconds"] = list(measuring.spread(one.seconds))
        row[f"{key}_load"] = one.load
    seconds = {name: one.median for name, one in runs.items()}
    if best := peer.fastest(seconds):
        row["ratio"] = seconds[best] / seconds["specjax"]
        row["ratio_to_default"] = seconds[peer.NAME] / seconds["specjax"]
    return row
