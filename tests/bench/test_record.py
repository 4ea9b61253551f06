"""Rows: cases are measured once, stopped runs resume, unavailable models are reported once, tables."""

import pytest

from specjax import loading
from specjax.bench import record
from specjax.bench.record import Case, Missing, Record, Shelf, run

ABOUT = {"jax": "1"}


def test_a_case_is_measured_once_and_an_interrupted_one_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    kept = Record(file, ABOUT)
    assert list(kept.add({"bench": "a", "rows": (1, 8)}, iter([{"x": 1.5}, {"x": 2.5}]))) == [{"x": 1.5}, {"x": 2.5}]

    def broken():
        yield {"x": 3.5}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(kept.add({"bench": "b"}, broken()))
    again = Record(file, ABOUT)
    assert again.rows({"bench": "a", "rows": [1, 8]}) == [{"x": 1.5}, {"x": 2.5}]
    assert again.rows({"bench": "b"}) == []
    assert Record(file, {"jax": "2"}).rows({"bench": "a", "rows": (1, 8)}) == []  # other versions: measure again


def test_a_file_of_something_else_is_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "x"}\n')
    with pytest.raises(ValueError, match="line 1"):
        Record(file, ABOUT)


def test_tables_have_a_column_for_every_key(tmp_path):
    record.write_markdown(tmp_path / "t.md", [{"a": 1.23456, "b": [1, 2.0]}, {"a": "x", "c": {"load": 0.5}}])
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert lines == ["| a | b | c |", "|---|---|---|", "| 1.23 | 1/2 |  |", "| x |  | load:0.5 |"]


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


def test_a_model_that_is_not_available_is_tried_and_reported_once(tmp_path, monkeypatch):
    tried = []

    def load(name, **options):
        tried.append(name)
        raise FileNotFoundError(f"no {name}\nanywhere")

    monkeypatch.setattr(loading, "load", load)
    left_out: list[str] = []
    needs = lambda shelf: [{"x": shelf.model("far/away").vocab_size}]
    cases = [case("a", needs), case("b", needs), case("c", lambda shelf: [{"x": 3}])]
    assert measured(cases, tmp_path / "rows.jsonl", left_out) == [[], [], [{"x": 3}]]
    assert tried == ["far/away"] and len(left_out) == 1 and "far/away" in left_out[0]
    assert Record(tmp_path / "rows.jsonl", {"jax": "1"}).rows({"case": "a"}) == []  # tried again next time


def test_a_model_that_does_not_fit_is_not_loaded(monkeypatch):
    def load(name, **options):
        raise AssertionError("it was loaded")

    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(record, "free_memory", lambda: 16e9)
    shelf = Shelf("float32", quiet, sizes={"big": 13e9})
    with pytest.raises(Missing, match=r"big.*52 GB"):
        shelf.model("big")


def test_kept_values_are_made_once():
    shelf = Shelf("float32", quiet)
    made = []
    assert [shelf.keep("a", lambda: made.append(1) or 5) for _ in range(3)] == [5, 5, 5] and made == [1]
    shelf.clear()
    assert shelf.keep("a", lambda: 6) == 6


def test_memory_is_a_number_of_bytes():
    found = record.free_memory()
    assert found is None or 1e6 < found < 1e15
