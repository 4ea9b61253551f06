"""Speed of the draft model and the heads of the bundled OPT target, relative to each other.

    python configs/results/compare.py prompts.txt
    python configs/results/compare.py prompts.txt eagle=runs/equal-eagle/head mlp=runs/equal-mlp/head  # other heads

Plain decoding and all drafters are interleaved on each prompt: single requests of 64 tokens, prompt included. A result
is a ratio of seconds per token; its error is a standard error over prompts, paired by prompt.
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np

import specjax as sj
from specjax import estimates
from specjax.measuring import interleave
from specjax.reproduce.heads import bundled, named_folder

PROMPTS, GAMMA, TURNS, TOKENS = 48, 3, 5, 64


def main() -> None:
    target = sj.load("bundled/opt-target")
    heads = map(named_folder, sys.argv[2:] or bundled("bundled/opt-target"))
    drafters = {"plain": None, "opt-draft": sj.drafters.model(sj.load("bundled/opt-draft"), gamma=GAMMA)} | {
        name: sj.drafters.head(sj.load_head(folder, target), gamma=GAMMA) for name, folder in heads
    }
    prompts = Path(sys.argv[1]).read_text().splitlines()[:PROMPTS]
    for temperature in (0.0, 1.0):
        seconds: dict[str, list[float]] = {name: [] for name in drafters}
        for row, prompt in enumerate(prompts):
            programs = {
                name: partial(
                    sj.generate, target, prompt, drafter=one, max_new_tokens=TOKENS, temperature=temperature, rows=[row]
                )
                for name, one in drafters.items()
            }
            for name, runs in interleave(programs, TURNS).items():
                seconds[name].append(float(np.median(runs.seconds)) / len(runs.values[-1].tokens[0]))
        over = {
            f"x {base}": {
                name: estimates.ratio(seconds[base], seconds[name]).shown("{:.3f}".format)
                for name in drafters if name not in ("plain", base)
            }
            for base in ("plain", "opt-draft")
        }  # fmt: skip
        print(json.dumps({"temperature": temperature} | over, ensure_ascii=False))


if __name__ == "__main__":
    main()
