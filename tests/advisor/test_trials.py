"""Trials on a made-up machine whose times vary: who has more turns, and what they tell."""

import itertools

import numpy as np
import pytest

from specjax.advisor import measure, running, trials, ways
from specjax.advisor.rank import Candidate
from specjax.advisor.running import Run, Work
from specjax.advisor.ways import PLAIN
from specjax.model import Model
from specjax.models import opt
from tests.cli import toys

TURNS = 3


def chain(gamma: int) -> ways.Way:
    return ways.chain("ngram", gamma)


class Noisy:
    """A machine on which these ways have these speed-ups, and every run a time of its own."""

    def __init__(self, monkeypatch, speeds: dict[int, float], *, noise: float, seed: int = 0):
        self.speeds, self.noise, self.rng, self.ran = speeds, noise, np.random.default_rng(seed), []
        monkeypatch.setattr(running, "decode", self.decode)

    def decode(self, work, way, number):
        self.ran.append((way, number))
        speed = 1.0 if way == PLAIN else self.speeds[way["gamma"]]
        return Run(0.0, 100 / speed * float(np.exp(self.noise * self.rng.normal())), 100, (100, 50), [[1] * 100])

    def turns(self, gamma: int) -> int:
        """Of the first batch, what compiled apart."""
        return sum(ran == (chain(gamma), 0) for ran in self.ran) - 1

    def try_out(self, used=None, stop=lambda: False):
        config = opt.OPTConfig(vocab_size=9, width=4, embed_width=4, layers=1, heads=1, mlp_width=4, max_positions=8)
        work = Work(Model("none", opt, config, toys.FMT, {}), (), (([1],), ([2],)), {}, turns=TURNS, stop=stop)
        notes = measure.fresh()
        every = [Candidate(chain(gamma), 1.5, 1.0, 1.0, 1.0, 0.1) for gamma in self.speeds]
        return trials.separate(work, notes, trials.try_beside_plain(work, notes, every), used)


def test_what_differs_by_more_than_its_turns_has_no_more_of_them(monkeypatch):
    machine = Noisy(monkeypatch, {1: 1.2, 2: 2.0, 3: 1.6}, noise=0.01)
    found = machine.try_out()
    assert [one.way["gamma"] for one in found] == [2, 3, 1]
    assert [machine.turns(gamma) for gamma in (1, 2, 3)] == [TURNS] * 3
    for one, speed in zip(found, (2.0, 1.6, 1.2), strict=True):
        assert one.speedup == pytest.approx(speed, rel=0.02) and one.least <= one.speedup <= one.most


def test_the_nearest_have_turns_until_they_differ(monkeypatch):
    longer = 0
    for seed in range(10):
        machine = Noisy(monkeypatch, {1: 0.5, 2: 1.5, 3: 1.44, 4: 1.42}, noise=0.1, seed=seed)
        found = machine.try_out()
        assert machine.turns(1) == TURNS  # no more of what is far behind
        assert max(map(machine.turns, (2, 3, 4))) <= running.MORE * TURNS
        assert {one.way["gamma"]: len(one.whole) for one in found} == {g: machine.turns(g) for g in (1, 2, 3, 4)}
        assert len(found[0].whole) == running.MORE * TURNS or len(trials.close(found)) == 1
        longer += max(map(machine.turns, (2, 3, 4))) > TURNS
    assert longer >= 8  # three turns that are alike by chance tell them apart


def test_more_turns_name_the_fastest_more_often(monkeypatch):
    """The control is the answer of as many turns as were asked for."""
    right = {}
    for more, seed in itertools.product((1, 5), range(60)):
        monkeypatch.setattr(running, "MORE", more)
        found = Noisy(monkeypatch, {1: 1.4, 2: 1.5, 3: 1.42}, noise=0.08, seed=seed).try_out()
        right[more] = right.get(more, 0) + (found[0].way == chain(2))
    assert right[5] > right[1] and right[5] > 42


def test_the_way_that_is_used_has_as_many_turns(monkeypatch):
    machine = Noisy(monkeypatch, {1: 0.5, 2: 1.5, 3: 1.5}, noise=0.1)
    machine.try_out(used=chain(1))
    assert machine.turns(1) == max(machine.turns(2), machine.turns(3)) > TURNS


def test_an_interrupt_keeps_the_turns_so_far(monkeypatch):
    machine = Noisy(monkeypatch, {1: 1.5, 2: 1.5}, noise=0.1)
    warm, turn = 3, 3 * 2
    found = machine.try_out(stop=lambda: len(machine.ran) >= warm + TURNS * turn + 4)
    assert [len(one.whole) for one in found] == [TURNS, TURNS]


def test_each_batch_is_run_in_all_ways_before_the_next(monkeypatch):
    machine = Noisy(monkeypatch, {1: 0.5, 2: 1.5}, noise=0.0)
    machine.try_out()
    every = [PLAIN, chain(1), chain(2)]
    assert machine.ran[3:9] == [(way, number) for number in (0, 1) for way in every]
