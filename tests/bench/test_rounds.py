"""What `bench verify` makes of the times of its turns."""

import pytest

from specjax.bench import rounds

MS = {1: [9.0, 1.0, 10.0, 2.0], 8: [9.0, 2.0, 10.0, 8.0]}  # the first is the warm-up


class Timed:
    """Rounds of given times."""

    def __init__(self, model, guide):
        self.given = iter(MS.get(1 if guide is None else guide.drafter.tree.size, MS[1]))
        self.ms: list[float] = []
        self.median = 0.0

    def __call__(self):
        self.ms.append(next(self.given))


def test_a_verification_is_compared_with_the_step_of_its_own_turn(monkeypatch):
    """The ratios are 2, 1 and 4; that of the medians would be 4."""
    monkeypatch.setattr(rounds, "random_model", lambda size, dtype: None)
    monkeypatch.setattr(rounds, "Rounds", Timed)
    monkeypatch.setattr("specjax.bench.decode.PAUSE", 0.0)
    found = {row["tokens"]: row["relative"] for row in rounds.verify_cost("125m", ("float32",), 3)}
    assert found[1] == found[2] == 1.0 and found[8] == pytest.approx(2.0)
