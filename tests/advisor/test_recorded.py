"""Advice on rounds of a real pair of models, resampled by prompt: `record_rounds.py`."""

import json
from pathlib import Path

import numpy as np
import pytest

import specjax as sj
from specjax.advisor import measure, rank, texts
from specjax.advisor.measure import BatchRun
from tests import battery
from tests.advisor.test_advice import FLAT, Machine

RECORD = json.loads(Path(__file__).with_name("rounds.json").read_text())
C, NEW = 0.05, 48


def reached(rounds: str, gamma: int) -> tuple[int, ...]:
    """Rounds that accepted at least 0, 1, ... of gamma tokens."""
    return tuple(sum(int(accepted) >= depth for accepted in rounds) for depth in range(gamma + 1))


@pytest.mark.parametrize("gamma", battery.others_slow(["2", "5", "8"], ["5"]))
@pytest.mark.parametrize("temperature", ["0", "1"])
def test_intervals_cover_the_mean_of_all_prompts(temperature, gamma):
    """Surveys of 16 of the recorded prompts; the interval of independent rounds, the negative control, covers less."""
    rounds = RECORD[temperature][gamma]
    counts = [reached(one, int(gamma)) for one in rounds]
    truth = rank.counted_tokens(counts).value
    rng, covered, naive, runs = np.random.default_rng(0), 0, 0, 500
    for _ in range(runs):
        chosen = rng.integers(0, len(rounds), 16)
        found = rank.expected([counts[number] for number in chosen], int(gamma))
        covered += abs(found.value - truth) <= found.margin
        tokens = np.array([int(accepted) + 1 for number in chosen for accepted in rounds[number]])
        naive += abs(tokens.mean() - truth) <= 1.96 * tokens.std() / len(tokens) ** 0.5
    assert covered / runs >= 0.95 - 4 * (0.95 * 0.05 / runs) ** 0.5
    assert temperature == "1" or naive < covered - 20


class Recorded(Machine):
    """A machine on which chains of the draft model commit what was recorded for each prompt."""

    def __init__(self, temperature: str):
        super().__init__(curve=FLAT, c=C)
        self.record = RECORD[temperature]

    def decode(self, work, strategy, number):
        batch = work.batches[number]
        prompts = [prompt[0] for prompt in batch.prompts]
        if strategy.name == "model":  # of a length that was not recorded, the longer rounds are cut
            gamma = strategy["gamma"]
            longer = min((known for known in map(int, self.record) if known >= gamma), default=8)
            counts = [reached(self.record[str(longer)][prompt], gamma) for prompt in prompts]
            seconds = 1 + gamma * C
        else:
            counts, seconds = [(NEW,)] * len(prompts), self.curve[strategy.get("gamma", 0)]
        passes = max(row[0] for row in counts)
        texts = [range(sum(row)) for row in counts]
        return BatchRun(0.0, passes * seconds, passes, tuple(counts[: batch.real]), texts)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["0", "1"])
def test_predictions_hold_on_prompts_that_were_not_surveyed(temperature, models, monkeypatch):
    """Of 40 draws of 16 prompts, half of which are surveyed, nearly all predictions agree with the other half within
    their errors; errors of independent rounds would not."""
    prompts, rng, inside, gaps = len(RECORD[temperature]["8"]), np.random.default_rng(1), 0, []
    machine = Recorded(temperature)
    monkeypatch.setattr(measure, "decode", machine.decode)
    monkeypatch.setattr(texts, "scored", lambda *_, **__: (machine.rows, ()))
    for _ in range(40):
        chosen = rng.choice(prompts, 16, replace=False)
        advice = sj.advise(
            *models, [[int(number)] for number in chosen], max_new_tokens=NEW, kinds=("model",), verify=1, turns=1
        )
        trial = next(one for one in advice.trials if one.strategy["gamma"] <= 8)
        gap = trial.speedup - trial.candidate.speedup
        inside += abs(gap) <= np.hypot(trial.error, trial.candidate.error)
        gaps.append(gap)
    assert inside >= 34 and abs(np.mean(gaps)) < 3 * np.std(gaps) / 40**0.5
