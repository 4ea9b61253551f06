"""What a long run does to the machine."""

from pathlib import Path

import jax
import jax.numpy as jnp

from specjax.bench import machine
from specjax.bench.record import Record


def maps() -> int:
    with open("/proc/self/maps", "rb") as lines:
        return sum(1 for _ in lines)


def test_programs_are_forgotten_where_they_hold_too_many_memory_maps(monkeypatch):
    if not Path("/proc/self/maps").exists():
        assert not machine.forget_programs()
        return
    programs = [jax.jit(lambda x, n=number: jnp.sort(x * n).sum()) for number in range(8)]
    for program in programs:
        program(jnp.ones(3)).block_until_ready()
    held = maps()
    assert not machine.forget_programs() and programs[0]._cache_size() == 1  # far from the limit nothing is lost
    monkeypatch.setattr(machine, "MAPS", 0.0)
    assert machine.forget_programs()
    assert programs[0]._cache_size() == 0 and maps() < held


def test_there_is_room_before_a_case_is_measured(monkeypatch, tmp_path):
    """In every command alike: what is measured is measured through a record."""
    done = []
    monkeypatch.setattr(machine, "forget_programs", lambda: done.append("room"))

    def measure():
        done.append("row")
        yield {"x": 1}

    for file in (None, tmp_path / "rows.jsonl"):
        assert list(Record(file, {}).add({"case": 1}, measure())) == [{"x": 1}]
    assert done == ["room", "row"] * 2
