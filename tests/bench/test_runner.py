"""Cases are measured once; models that cannot be had are said once; Ctrl-C keeps what is whole."""

import pytest

import specjax
from specjax.bench import machine
from specjax.bench.record import Record
from specjax.bench.runner import Case, Missing, Shelf, run


def quiet(text: str) -> None:
    del text


def case(name, measure):
    return Case({"case": name}, name, measure)


def measured(cases, file, left_out=None, shelf=None):
    shelf = shelf or Shelf("float32", quiet)
    return [
        rows for _, rows in run(cases, Record(file, {"jax": "1"}), shelf, quiet, [] if left_out is None else left_out)
    ]


def test_a_row_is_measured_once_in_a_run_and_in_the_next(tmp_path):
    calls = []

    def one(shelf):
        calls.append(1)
        return [{"x": 1}]

    twice = [case("a", one), case("a", one)]
    assert measured(twice, tmp_path / "rows.jsonl") == [[{"x": 1}]] * 2 and len(calls) == 1
    assert measured(twice, tmp_path / "rows.jsonl") == [[{"x": 1}]] * 2 and len(calls) == 1
    assert measured(twice, None) == [[{"x": 1}]] * 2 and len(calls) == 2


def test_an_interrupt_keeps_the_cases_before(tmp_path):
    def stopped(shelf):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured([case("a", lambda shelf: [{"x": 1}]), case("b", stopped)], tmp_path / "rows.jsonl")
    assert Record(tmp_path / "rows.jsonl", {"jax": "1"}).rows({"case": "a"}) == [{"x": 1}]
    assert Record(tmp_path / "rows.jsonl", {"jax": "1"}).rows({"case": "b"}) == []


def test_a_model_that_cannot_be_had_is_tried_and_said_once(tmp_path, monkeypatch):
    tried = []

    def load(name, **options):
        tried.append(name)
        raise FileNotFoundError(f"no {name}\nanywhere")

    monkeypatch.setattr(specjax, "load", load)
    left_out: list[str] = []
    needs = lambda shelf: [{"x": shelf.model("far/away").vocab_size}]
    cases = [case("a", needs), case("b", needs), case("c", lambda shelf: [{"x": 3}])]
    assert measured(cases, tmp_path / "rows.jsonl", left_out) == [[], [], [{"x": 3}]]
    assert tried == ["far/away"] and left_out == ["far/away cannot be had here: no far/away anywhere"]
    assert Record(tmp_path / "rows.jsonl", {"jax": "1"}).rows({"case": "a"}) == []  # tried again next time


def test_a_model_without_room_is_not_fetched(monkeypatch):
    def load(name, **options):
        raise AssertionError("it was fetched")

    monkeypatch.setattr(specjax, "load", load)
    monkeypatch.setattr(machine, "memory", lambda: 16e9)
    shelf = Shelf("float32", quiet, sizes={"big": 13e9})
    with pytest.raises(Missing, match=r"big cannot be had here: its weights take 52 GB in float32, and 16 GB are free"):
        shelf.model("big")


def test_what_is_kept_is_made_once():
    shelf = Shelf("float32", quiet)
    made = []
    assert [shelf.keep("a", lambda: made.append(1) or 5) for _ in range(3)] == [5, 5, 5] and made == [1]
    shelf.clear()
    assert shelf.keep("a", lambda: 6) == 6


def test_memory_is_a_number_of_bytes():
    found = machine.memory()
    assert found is None or 1e6 < found < 1e15
