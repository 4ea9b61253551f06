"""Benchmarks: rows are kept and taken up again, tables, bad options, and small runs of the measurements themselves."""

import json

import pytest

from specjax.bench import record
from specjax.cli import bench, main

ABOUT = {"jax": "1"}


def test_a_case_is_measured_once_and_an_interrupted_one_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    kept = record.Record(file, ABOUT)
    assert list(kept.add({"bench": "a", "rows": (1, 8)}, iter([{"x": 1.5}, {"x": 2.5}]))) == [{"x": 1.5}, {"x": 2.5}]

    def broken():
        yield {"x": 3.5}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(kept.add({"bench": "b"}, broken()))
    again = record.Record(file, ABOUT)
    assert again.rows({"bench": "a", "rows": [1, 8]}) == [{"x": 1.5}, {"x": 2.5}]
    assert again.rows({"bench": "b"}) == []
    assert record.Record(file, {"jax": "2"}).rows({"bench": "a", "rows": (1, 8)}) == []  # other versions: measure again


def test_a_file_of_something_else_is_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "x"}\n')
    with pytest.raises(ValueError, match="line 1 is no row of a benchmark"):
        record.Record(file, ABOUT)


def test_tables_have_a_column_for_every_key(tmp_path):
    record.write_markdown(tmp_path / "t.md", [{"a": 1.23456, "b": [1, 2.0]}, {"a": "x", "c": {"load": 0.5}}])
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert lines == ["| a | b | c |", "|---|---|---|", "| 1.23 | 1/2 |  |", "| x |  | load:0.5 |"]


@pytest.mark.parametrize(
    "args, message",
    [
        (["pair"], "needs --prompts"),
        (["pair", "--prompts", "absent.txt"], "absent.txt: no such prompts file"),
        (["plain", "--size", "7b"], "no OPT shape is named '7b'"),
        (["plain", "--dtype", "int4"], "unknown dtype 'int4'"),
        (["speculative", "--gamma", "0"], "--gamma must be at least 1, got 0"),
        (["plain", "--repeats", "0"], "--repeats must be at least 1, got 0"),
    ],
)
def test_bad_options_get_one_line(args, message, capsys):
    assert main(["bench", *args]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.slow
def test_a_pair_is_measured_on_a_file_of_prompts_and_taken_up_again(tmp_path, capsys):
    prompts, file = tmp_path / "prompts.txt", tmp_path / "rows.jsonl"
    prompts.write_text("".join(f"Once upon a time there were {n} cats\n" for n in range(9)))
    args = ["bench", "pair", "--prompts", str(prompts), "--gamma", "2", "--temperature", "0", "--dtype", "float32"]
    args += ["--target", "bundled/opt-draft", "--draft", "bundled/opt-tiny", "--repeats", "1", "--max-new-tokens", "8"]
    args += ["--json", str(file), "--markdown", str(tmp_path / "t.md")]
    assert main(args) == 0
    rows = [json.loads(line)["row"] for line in file.read_text().splitlines()]
    assert len(rows) == 1 and rows[0]["prompts"] == 9
    assert 0 < rows[0]["accepted_per_tested"] <= 1 and 1 <= rows[0]["tokens_per_call"] <= 3
    assert main(args) == 0 and file.read_text().count("\n") == 1
    assert "accepted_per_tested" in (tmp_path / "t.md").read_text()


def test_the_free_drafter_costs_one_verification_and_changes_nothing():
    import specjax as sj
    from specjax.bench import rounds
    from specjax.drafters import LoadedDrafter

    model = sj.load("bundled/opt-tiny")
    plain = sj.generate(model, ["Once upon a time"], max_new_tokens=6, temperature=0.0)
    free = sj.generate(
        model, ["Once upon a time"], drafter=LoadedDrafter("free", rounds.free(3)), max_new_tokens=6, temperature=0.0
    )
    assert free.tokens == plain.tokens and free.stats.tested == free.stats.rounds
    assert next(iter(bench.cases(bench.Bench("overhead"))))[0]["gamma"] == (3, 5, 7)
