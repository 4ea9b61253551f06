"""Everyday sentences by the bundled T5, alone and in batches of 4, each draft model next to plain decoding.

python configs/results/translate.py
"""

import json
from functools import partial
from typing import Any

import numpy as np

import specjax as sj
from specjax.measuring import interleave

SENTENCES = (
    "My sister is reading a long book about the history of the city.",
    "We want to go to the station early because the train leaves at eight.",
    "The children played in the garden until it began to rain.",
    "He told me that he had lost his keys on the way home.",
    "Could you please open the window and close the door behind you?",
    "I have never seen such a beautiful house in this part of the town.",
    "The doctor said that she should stay in bed for another week.",
    "They bought a new car last summer, but they hardly ever use it.",
    "If you have time tomorrow, we could have lunch together in the park.",
    "The teacher asked the students to write a letter to an old friend.",
    "Nobody knew why the man had sold his shop and left the country.",
    "It was so cold last night that the water in the lake froze.",
)
DRAFTS, GAMMA, TURNS = ("t5-draft", "t5-middle"), 3, 7


def translate(target: sj.Model, drafter: Any, groups: list[list[str]]) -> list[sj.Generation]:
    return [sj.generate(target, group, drafter=drafter, temperature=0.0) for group in groups]


def main() -> None:
    target = sj.load("bundled/t5-target")
    prompts = [f"translate English to German: {one}" for one in SENTENCES]
    drafters = {"plain": None}
    drafters |= {name: sj.drafters.model(sj.load(f"bundled/{name}"), gamma=GAMMA) for name in DRAFTS}
    for batch in (1, 4):
        groups = [prompts[at : at + batch] for at in range(0, len(prompts), batch)]
        programs = {name: partial(translate, target, one, groups) for name, one in drafters.items()}
        runs = interleave(programs, TURNS)
        texts = {name: [text for out in run.values[-1] for text in out.texts] for name, run in runs.items()}
        for name in DRAFTS:
            ratio = np.divide(runs["plain"].seconds, runs[name].seconds)
            print(json.dumps({
                "draft": name, "batch": batch, "equal": texts[name] == texts["plain"],
                "x plain": float(np.median(ratio)), "over turns": [float(ratio.min()), float(ratio.max())],
                "tokens per pass": float(np.mean([out.stats.tokens_per_call for out in runs[name].values[-1]])),
            }))  # fmt: skip
    print(json.dumps({"texts": texts["plain"]}, ensure_ascii=False))


if __name__ == "__main__":
    main()
