"""Plain and speculative decoding of OPT shapes with random weights, against transformers on the same weights."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from specjax import api, drafters
from specjax.bench import machine, peer
from specjax.model import Model
from specjax.models import opt
from specjax.models.format import default_format

Row = dict[str, Any]
PROMPT, NEW = 64, 128
PAUSE = 0.3  # seconds before each run: idle threads of the program before it spin for up to 0.2 s, and take a core


@dataclasses.dataclass(frozen=True)
class Timed:
    """Seconds of interleaved runs of one program."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def interleave(programs: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, Timed], dict[str, float]]:
    """Times the programs in turns after one warm-up each; also the share of processor that others used beside each."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    load: dict[str, list[float]] = {name: [] for name in programs}
    for program in programs.values():
        program()
    for _ in range(repeats):
        for name, program in programs.items():
            time.sleep(PAUSE)
            before = machine.ticks()
            program()
            after = machine.ticks()
            times[name].append(after.wall - before.wall)
            load[name].append(machine.others(before, after))
    return {n: Timed(tuple(t)) for n, t in times.items()}, {n: statistics.median(v) for n, v in load.items()}


def random_model(size: str, dtype: str, *, layers: int | None = None, seed: int = 0) -> Model:
    """An OPT shape with freshly drawn weights."""
    config = opt.sizes()[size]
    if layers is not None:
        config = dataclasses.replace(config, layers=layers)
    fmt = default_format(dtype)
    params = jax.jit(lambda key: opt.init(key, config, fmt))(jax.random.key(seed))
    return Model(f"opt-{size}", opt, config, fmt, params)


def prompts(rows: int, vocab: int, length: int = PROMPT) -> list[list[int]]:
    return np.random.default_rng(0).integers(4, vocab, (rows, length)).tolist()


def plain(sizes: tuple[str, ...], dtypes: tuple[str, ...], rows: tuple[int, ...], repeats: int) -> Iterator[Row]:
    """Plain greedy decoding, 64 + 128 tokens. `bandwidth_share`: bytes of weights a step over the bandwidth, both the
    medians of the same turns. `steps_of_one_row`: a step's time over that of the first batch size."""
    for size in sizes:
        for dtype in dtypes:
            model = random_model(size, dtype)
            twin = peer.twin(model) if peer.available() else None
            weights = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
            first = 0.0
            for batch in rows:
                given = prompts(batch, model.vocab_size)
                steps: list[float] = []
                speeds: list[float] = []

                def ours(model=model, given=given, steps=steps):
                    out = api.generate(model, given, max_new_tokens=NEW, temperature=0.0)
                    steps.append(out.stats.seconds["decode"] / NEW)
                    return np.array(out.tokens)

                programs: dict[str, Callable[[], Any]] = {"specjax": ours}
                row: Row = {"bench": "plain", "size": size, "dtype": dtype, "rows": batch}
                if twin is not None:
                    programs["transformers"] = lambda twin=twin, given=given: peer.generate(twin, given, NEW)
                    same = ours() == programs["transformers"]()
                    row["equal_tokens"] = float(same.mean())
                programs["memory"] = lambda speeds=speeds: speeds.append(machine.bandwidth())
                times, load = interleave(programs, repeats)
                del times["memory"], load["memory"]
                step, speed = statistics.median(steps[-repeats:]), statistics.median(speeds[-repeats:])
                row |= summary(times, load, batch * NEW)
                row |= {"step_ms": 1e3 * step, "bandwidth_gb": speed / 1e9, "bandwidth_share": weights / step / speed}
                first = first or step
                row["steps_of_one_row"] = step / first
                yield row


def agreeing(size: str, dtype: str, draft_layers: int = 2) -> tuple[Model, Model]:
    """A target and a draft that agree most of the time: the draft is the target's first layers, and the target's other
    layers add almost nothing (their output projections are scaled down)."""
    target = random_model(size, dtype)
    layers = dict(target.params["layers"])
    scaled = lambda kernel: jax.tree.map(lambda part: (part * 0.02).astype(part.dtype), kernel)
    quiet = lambda linear: {**linear, "kernel": scaled(linear["kernel"])}
    for index in range(draft_layers, target.config.layers):
        layer = layers[str(index)]
        attn, mlp = (
            {**layer["attn"], "o": quiet(layer["attn"]["o"])},
            {**layer["mlp"], "down": quiet(layer["mlp"]["down"])},
        )
        layers[str(index)] = {**layer, "attn": attn, "mlp": mlp}
    target = dataclasses.replace(target, params={**target.params, "layers": layers})
    config = dataclasses.replace(target.config, layers=draft_layers)
    kept = {str(i): layers[str(i)] for i in range(draft_layers)}
    draft = Model(f"opt-{size} first {draft_layers}", opt, config, target.fmt, {**target.params, "layers": kept})
    return target, draft


def speculative(size: str, dtypes: tuple[str, ...], gammas: tuple[int, ...], repeats: int) -> Iterator[Row]:
    """Speculative decoding against assisted generation at equal acceptance, one row."""
    for dtype in dtypes:
        target, draft = agreeing(size, dtype)
        for gamma in gammas:
            yield _speculative(target, draft, size, gamma, repeats)


def _speculative(target: Model, draft: Model, size: str, gamma: int, repeats: int) -> Row:
    dtype = target.fmt.dtype
    given = prompts(1, target.vocab_size)
    guide = drafters.model(draft, gamma=gamma)
    seen: dict[str, list[Any]] = {"specjax": [], "calls": []}

    def ours():
        out = api.generate(target, given, drafter=guide, max_new_tokens=NEW, temperature=0.0)
        seen["specjax"].append(out.stats)
        return np.array(out.tokens)

    programs: dict[str, Callable[[], Any]] = {
        "specjax": ours,
        "specjax plain": lambda: api.generate(target, given, max_new_tokens=NEW, temperature=0.0),
    }
    if peer.available():
        big, small = peer.twin(target), peer.twin(draft)
        calls = peer.count_calls(big)

        def theirs():
            calls.clear()
            out = peer.generate(big, given, NEW, draft=small, gamma=gamma)
            seen["calls"].append(len(calls))
            return out

        programs["transformers"] = theirs
    times, load = interleave(programs, repeats)
    stats = seen["specjax"][-1]
    row: Row = {"bench": "speculative", "size": size, "dtype": dtype, "gamma": gamma}
    row |= summary(times, load, NEW)
    row |= {
        "accepted_per_tested": stats.accepted_per_tested,
        "tokens_per_call": stats.tokens_per_call,
        "round_ms": 1e3 * times["specjax"].median / stats.rounds,
        "speedup_over_plain": times["specjax plain"].median / times["specjax"].median,
    }
    if seen["calls"]:
        theirs_ms = 1e3 * times["transformers"].median / seen["calls"][-1]
        row |= {"peer_tokens_per_call": NEW / seen["calls"][-1], "peer_round_ms": theirs_ms}
        row["ratio_per_round"] = theirs_ms / row["round_ms"]
    return row


def summary(times: dict[str, Timed], load: dict[str, float], tokens: int) -> Row:
    """Tokens a second with their spread, the ratio to the peer, and what others used of the machine beside each."""
    row: Row = {}
    for name, timed in times.items():
        key = name.replace(" ", "_")
        row[f"{key}_tokens_per_second"] = tokens / timed.median
        row[f"{key}_seconds"] = [min(timed.seconds), timed.median, max(timed.seconds)]
        row[f"{key}_load"] = load[name]
    if "transformers" in times:
        row["ratio"] = times["transformers"].median / times["specjax"].median
    return row
