"""Continuous batching next to batches, on the bundled pair: python configs/results/serving.py prompts.txt

300 beginnings of the prompts, of different lengths, with 4 to 256 new tokens each (uniform in their logarithm), by
`generate` in batches and by `serve_batch` in as many slots. Both run twice, and the second time counts.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import specjax as sj

REQUESTS, SLOTS, GAMMA = 300, 8, 3
LONGEST = 256  # tokens


def requests(target: sj.Model, file: Path) -> tuple[list[list[int]], list[int]]:
    """Prompts and their new tokens."""
    rng = np.random.default_rng(0)
    text = target.text.encode(" ".join(file.read_text().split("\n")))
    prompts, budgets = [], []
    for _ in range(REQUESTS):
        length, budget = np.exp(rng.uniform(np.log(5), np.log(LONGEST))), np.exp(rng.uniform(np.log(4), np.log(257)))
        start = rng.integers(len(text) - LONGEST)
        prompts.append(text[start : start + int(length)])
        budgets.append(int(budget))
    return prompts, budgets


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    call()
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


def main(file: Path) -> None:
    target = sj.load("bundled/opt-target")
    prompts, budgets = requests(target, file)
    how = {
        "drafter": sj.drafters.model(sj.load("bundled/opt-draft"), gamma=GAMMA), "temperature": 0.8,
        "ignore_eos": True, "cache_len": 512,
    }  # fmt: skip

    def batches() -> list[sj.Generation]:
        groups = [range(at, min(at + SLOTS, REQUESTS)) for at in range(0, REQUESTS, SLOTS)]
        return [
            sj.generate(
                target, [prompts[row] for row in group], max_new_tokens=[budgets[row] for row in group],
                rows=list(group), **how,
            )
            for group in groups
        ]  # fmt: skip

    def slots() -> sj.Generation:
        return sj.serve_batch(target, prompts, slots=SLOTS, max_new_tokens=budgets, **how).result()

    (parts, in_batches), (served, in_slots) = timed(batches), timed(slots)
    tokens = [row for part in parts for row in part.tokens]
    print(json.dumps({
        "requests": REQUESTS, "slots": SLOTS, "tokens": sum(map(len, tokens)),
        "equal texts": sum(one == other for one, other in zip(tokens, served.tokens, strict=True)),
        "seconds in batches": in_batches, "seconds in slots": in_slots, "ratio": in_batches / in_slots,
    }))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
