"""Records `rounds.json`: accepted draft tokens of every round of the bundled OPT pair on the prompts of
the package, by temperature, draft length and prompt.

    python -m tests.advisor.record_rounds > tests/advisor/rounds.json
"""

import itertools
import json

import jax
import numpy as np

import specjax as sj
from specjax import decoding
from specjax.bench import tasks
from specjax.request import prepare

GAMMAS, NEW = (1, 2, 3, 5, 8), 48


def main() -> None:
    target, draft = sj.load("bundled/opt-target"), sj.load("bundled/opt-draft")
    prompts = [prompt for name, task in tasks.TASKS.items() for prompt in tasks.prompts_for(target, name, task.samples)]
    found: dict[str, dict[str, list[str]]] = {}
    for temperature, gamma in itertools.product((0.0, 1.0), GAMMAS):
        settings = {"max_new_tokens": NEW, "temperature": temperature, "ignore_eos": True, "seed": 0}
        job = prepare(
            target, prompts, drafter=sj.drafters.model(draft, gamma=gamma), verifier="token", **settings
        ).begin()
        rounds: list[str] = [""] * len(prompts)
        for _, info in decoding.stream(job.params, job.state, **job.static):
            active, accepted = jax.device_get((info.active, info.accepted))
            for row in np.flatnonzero(active[: len(prompts)]):
                rounds[row] += str(accepted[row])
        found.setdefault(f"{temperature:g}", {})[str(gamma)] = rounds
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
