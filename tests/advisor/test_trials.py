"""Trials on a simulated machine with noisy times."""

import itertools

import numpy as np
import pytest

from specjax.advisor import measure, rank, trials
from specjax.advisor.measure import BatchRun, Survey
from specjax.advisor.parts import Part, make_batches
from specjax.advisor.rank import PLAIN, Candidate
from specjax.model import Model
from specjax.models import opt
from specjax.strategy import Strategy
from tests.cli import toys

TURNS = 3
BATCHES = make_batches({Part.TRIALS: [[1], [2]]}, 1)


def chain(gamma: int) -> Strategy:
    return rank.chain("ngram", gamma)


class Noisy:
    """A machine with these speed-ups by gamma and log-normal noise."""

    def __init__(self, monkeypatch, speeds: dict[int, float], *, noise: float, seed: int = 0):
        self.speeds, self.noise, self.rng, self.ran = speeds, noise, np.random.default_rng(seed), []
        monkeypatch.setattr(measure, "decode", self.decode)

    def decode(self, work, strategy, number):
        self.ran.append((strategy, number))
        speed = 1.0 if strategy == PLAIN else self.speeds[strategy["gamma"]]
        return BatchRun(
            0.0, 100 / speed * float(np.exp(self.noise * self.rng.normal())), 100, ((100, 50),), [[1] * 100]
        )

    def turns(self, gamma: int) -> int:
        """Timed runs of the first batch."""
        return sum(ran == (chain(gamma), 0) for ran in self.ran) - 1

    def try_out(self, used=None, stop=lambda: False):
        config = opt.OPTConfig(vocab_size=9, width=4, embed_width=4, layers=1, heads=1, mlp_width=4, max_positions=8)
        survey = Survey(Model("none", opt.FAMILY, config, toys.FMT, {}), (), BATCHES, {}, turns=TURNS, stop=stop)
        every = [Candidate(chain(gamma), 1.5, 1.0, 1.0, 1.0, 0.1) for gamma in self.speeds]
        return trials.separate(survey, Part.TRIALS, trials.try_beside_plain(survey, Part.TRIALS, every), used)


def test_distinct_speeds_need_no_further_turns(monkeypatch):
    machine = Noisy(monkeypatch, {1: 1.2, 2: 2.0, 3: 1.6}, noise=0.01)
    found = machine.try_out()
    assert [one.strategy["gamma"] for one in found] == [2, 3, 1]
    assert [machine.turns(gamma) for gamma in (1, 2, 3)] == [TURNS] * 3
    for one, speed in zip(found, (2.0, 1.6, 1.2), strict=True):
        assert one.speedup == pytest.approx(speed, rel=0.02) and one.least <= one.speedup <= one.most


@pytest.mark.slow
def test_close_speeds_get_further_turns(monkeypatch):
    longer = 0
    for seed in range(10):
        machine = Noisy(monkeypatch, {1: 0.5, 2: 1.5, 3: 1.44, 4: 1.42}, noise=0.1, seed=seed)
        found = machine.try_out()
        assert machine.turns(1) == TURNS  # none for slow ones
        assert max(map(machine.turns, (2, 3, 4))) <= measure.MORE * TURNS
        assert {one.strategy["gamma"]: len(one.turns) for one in found} == {g: machine.turns(g) for g in (1, 2, 3, 4)}
        assert len(found[0].turns) == measure.MORE * TURNS or len(trials.close(found)) == 1
        longer += max(map(machine.turns, (2, 3, 4))) > TURNS
    assert longer >= 8  # three turns may agree by chance


@pytest.mark.slow
def test_further_turns_find_the_fastest_more_often(monkeypatch):
    """The control is the result without further turns."""
    right = {}
    for more, seed in itertools.product((1, 5), range(60)):
        monkeypatch.setattr(measure, "MORE", more)
        found = Noisy(monkeypatch, {1: 1.4, 2: 1.5, 3: 1.42}, noise=0.08, seed=seed).try_out()
        right[more] = right.get(more, 0) + (found[0].strategy == chain(2))
    assert right[5] > right[1] and right[5] > 42


def test_the_strategy_in_use_gets_the_same_turns(monkeypatch):
    machine = Noisy(monkeypatch, {1: 0.5, 2: 1.5, 3: 1.5}, noise=0.1, seed=1)
    machine.try_out(used=chain(1))
    assert machine.turns(1) == max(machine.turns(2), machine.turns(3)) > TURNS


def test_interrupt_keeps_complete_turns(monkeypatch):
    machine = Noisy(monkeypatch, {1: 1.5, 2: 1.5}, noise=0.1)
    warm, turn = 3, 3 * 2
    found = machine.try_out(stop=lambda: len(machine.ran) >= warm + TURNS * turn + 4)
    assert [len(one.turns) for one in found] == [TURNS, TURNS]


def test_batches_are_interleaved(monkeypatch):
    machine = Noisy(monkeypatch, {1: 0.5, 2: 1.5}, noise=0.0)
    machine.try_out()
    every = [PLAIN, chain(1), chain(2)]
    assert machine.ran[3:9] == [(strategy, number) for number in (0, 1) for strategy in every]
