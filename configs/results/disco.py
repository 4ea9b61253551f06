"""What DISCO gains over the best fixed draft length: python configs/results/disco.py prompts.txt

The classifier learns from recorded rounds of the bundled pair on four fifths of the prompts. The others are decoded
with it and with fixed lengths; a run costs its target passes, and c for each draft token. The gain is relative to the
fixed length with the most tokens per cost on the same prompts, with its standard error over prompts. `repetition` is
the share of the text that repeats what came before.
"""

import json
import sys
from pathlib import Path

import specjax as sj
from specjax import estimates
from specjax.training import disco

GAMMA_MAX, FIXED, COSTS, FIFTH = 12, range(1, 9), (0.1, 0.05), 5


def main(file: Path) -> None:
    target, draft = sj.load("bundled/opt-target"), sj.load("bundled/opt-draft")
    prompts = file.read_text().splitlines()
    known, others = [prompt for row, prompt in enumerate(prompts) if row % FIFTH], prompts[::FIFTH]
    texts = {}
    for temperature in (0.0, 1.0):
        how = {"temperature": temperature, "max_new_tokens": 128}
        traces = disco.record(target, draft, known, gamma_max=GAMMA_MAX, **how)
        params = disco.fit(traces)

        def decoded(temperature=temperature, how=how, **options):
            drafter = sj.drafters.model(draft, **options)
            out = sj.generate(target, others, drafter=drafter, **how)
            texts[temperature] = out.tokens
            return [out.stats.by_row[name] for name in ("tokens", "rounds", "drafted")]

        fixed = {gamma: decoded(gamma=gamma) for gamma in FIXED}
        for cost in COSTS:
            speed = lambda tokens, rounds, drafted, cost=cost: tokens / (rounds + cost * drafted)
            gain = lambda *sums, speed=speed: speed(*sums[:3]) / speed(*sums[3:])
            tuned = disco.tune(params, traces, c=cost)
            found = decoded(policy=sj.policies.disco(tuned.params, gamma_max=GAMMA_MAX))
            best = max(fixed, key=lambda gamma: estimates.of_totals(speed, *fixed[gamma]).value)
            print(json.dumps({
                "temperature": temperature, "c": cost, "prompts": len(others), "gamma": best,
                "best fixed": estimates.of_totals(speed, *fixed[best]).value,
                "disco": estimates.of_totals(speed, *found).value,
                **estimates.of_totals(gain, *found, *fixed[best]).columns("gain"),
                **estimates.repetition(texts[temperature]).columns("repetition"),
            }))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
