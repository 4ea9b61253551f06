"""`specjax bench`: its cases, rows that are not measured again, and options refused before any model is read."""

import json

import pytest

from specjax.bench import vocabulary
from specjax.cli import bench
from specjax.strategy import Strategy


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("Once\n")
    return file


@pytest.fixture
def nothing_is_measured(monkeypatch):
    def measured(options):
        raise AssertionError(f"{options} was measured")

    monkeypatch.setattr(bench, "cases", measured)


BAD = {
    "json": (["plain", "--json", "."], "--json"),
    "markdown": (["plain", "--markdown", "absent/a.md"], "--markdown"),
    "json of another folder": (["committed", "--prompts", "p.txt", "--json", "absent/a.jsonl"], "--json"),
    "no rows": (["plain", "--rows"], "--rows"),
    "no dtype": (["plain", "--dtype"], "--dtype"),
    "dtype": (["plain", "--dtype", "int4"], "dtype"),
    "size": (["plain", "--size", "7b"], "size"),
    "repeats": (["plain", "--repeats", "0"], "--repeats"),
    "no temperature": (["overhead", "--temperature"], "--temperature"),
    "rows twice": (["plain", "--rows", "1", "8", "1"], "--rows"),
    "gamma": (["speculative", "--gamma", "0"], "--gamma"),
    "gamma twice": (["speculative", "--gamma", "3", "3"], "--gamma"),
    "temperature twice": (["overhead", "--temperature", "0", "0.0"], "--temperature"),
    "gamma too large": (["verifiers", "--gamma", "1024"], "--gamma"),
    "temperature too large": (["overhead", "--temperature", "1e300"], "--temperature"),
    "json of something else": (["plain", "--json", "p.txt"], "p.txt"),
    "prompts": (["committed"], "--prompts"),
    "no prompts": (["committed", "--prompts", "absent.txt"], "absent.txt"),
    "drafter": (["committed", "--prompts", "p.txt", "--drafter", "modle"], "model"),
    "drafter's shape": (["committed", "--prompts", "p.txt", "--drafter", "tree:shape=3by2"], "shape"),
    "drafter's drafts": (["committed", "--prompts", "p.txt", "--drafter", "cascade"], "--drafter"),
    "drafter's file": (["committed", "--prompts", "p.txt", "--drafter", "table:absent"], "absent"),
    "cache": (["context", "--prompt-tokens", "64", "200", "--cache-len", "1024", "220"], "--cache-len"),
    "cache twice": (["context", "--cache-len", "128", "128"], "--cache-len"),
    "drafter of plain": (["plain", "--drafter", "tree"], "--drafter"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("prompts", "nothing_is_measured")
def test_bad_options_get_one_line(case, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args, name = BAD[case]
    refused("bench", *args, name=name)


@pytest.mark.parametrize(
    ("drafter", "gammas", "runs"),
    [
        ("ngram:gamma=4", (), [4]),
        ("ngram", (2, 3), [2, 3]),
        ("ngram", (), [5]),
        ("model:policy=(heuristic)", (), [None]),
        ("tree", (), [None]),
    ],
)
def test_gamma_applies_to_drafters_that_do_not_set_it(drafter, gammas, runs, prompts):
    options = bench.Bench(
        "committed", prompts=prompts, dtype=("float32",), drafter=drafter, gamma=gammas, temperature=(1.0,)
    )
    bench.check(options)
    assert [Strategy.parse(key["drafter"]).get("gamma") for key, _ in bench.cases(options)] == runs


@pytest.mark.parametrize("name", bench.Name.__args__)
def test_every_benchmark_has_cases_with_keys_of_their_own(name, prompts):
    every = [str(key) for key, _ in bench.cases(bench.Bench(name, prompts=prompts))]
    assert every and len(set(every)) == len(every)


def test_rows_are_not_measured_again(specjax_program, tmp_path, monkeypatch):
    calls = []

    def rows(vocab_size, batch):
        calls.append(batch)
        yield {"bench": "vocabulary", "rows": batch, "ratio": 1.2345}

    monkeypatch.setattr(vocabulary, "rows", rows)
    args = ["bench", "vocabulary", "--json", str(tmp_path / "a.jsonl"), "--markdown", str(tmp_path / "a.md")]
    ran = specjax_program(*args)
    assert ran.code == 0 and calls == [1, 8] and "ratio=1.23" in ran.out
    assert [json.loads(line)["row"]["rows"] for line in (tmp_path / "a.jsonl").read_text().splitlines()] == [1, 8]
    assert specjax_program(*args).code == 0 and calls == [1, 8]
    assert "| vocabulary | 8 | 1.23 |" in (tmp_path / "a.md").read_text()


@pytest.mark.slow
def test_committed_measures_models_by_name(specjax_program, models, prompts):
    ran = specjax_program(
        "bench", "committed", "--target", models["target"], "--draft", models["draft"], "--prompts", str(prompts),
        "--dtype", "float32", "--temperature", "1", "--rounds", "8", "--max-new-tokens", "8", "--gamma", "2",
    )  # fmt: skip
    assert ran.code == 0 and "verifier=token" in ran.out and "verifier=block" in ran.out
