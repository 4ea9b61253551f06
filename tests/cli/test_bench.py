"""`specjax bench`: the drafter of a pair by name, and what is refused before any model is read."""

import pytest

from specjax.cli import bench
from specjax.naming import drafting


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drafter": "modle"}, "did you mean 'model'"),
        ({"drafter": "tree:shape=3by2"}, "shape must be children by level"),
        ({"drafter": "cascade"}, "has one draft model"),
        ({"drafter": "table:absent"}, "there is no file at absent"),
        ({"name": "plain", "drafter": "tree"}, "--drafter has no meaning for bench plain"),
        ({"drafter": "ngram:gamma=4", "gamma": (3,)}, "say gamma once"),
        ({"name": "committed", "drafter": "tree", "gamma": (3,)}, "gamma has no meaning for the drafter 'tree'"),
    ],
)
def test_bad_drafters_are_refused(changes, said, prompts):
    with pytest.raises(ValueError, match=said):
        bench.check(bench.Bench(**({"name": "pair", "prompts": prompts} | changes)))


BAD = {
    "json": (["plain", "--json", "."], "--json . is a folder: pass a file"),
    "markdown": (["plain", "--markdown", "absent/a.md"], "--markdown absent/a.md: cannot write to the folder absent"),
    "pair's json": (["pair", "--prompts", "p.txt", "--json", "absent/a.jsonl"], "cannot write to the folder absent"),
    "empty rows": (["plain", "--rows"], "--rows requires at least one value"),
    "empty dtype": (["plain", "--dtype"], "--dtype requires at least one value"),
    "empty temperature": (["overhead", "--temperature"], "--temperature requires at least one value"),
    "rows twice": (["plain", "--rows", "1", "8", "1"], "--rows contains 1 twice"),
    "gamma twice": (["speculative", "--gamma", "3", "3"], "--gamma contains 3 twice"),
    "temperature twice": (["overhead", "--temperature", "0", "0.0"], "--temperature contains 0.0 twice"),
    "many drafts": (["verifiers", "--gamma", "1024"], "--gamma must be at most 1023, got 1024"),
    "other rows": (["plain", "--json", "p.txt"], "p.txt, line 1 is no row of a benchmark"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("prompts", "nothing_is_measured")
def test_bad_options_get_one_line(case, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args, said = BAD[case]
    refused("bench", *args, said=said)


def test_a_key_names_the_drafter(prompts):
    options = bench.Bench("pair", prompts=prompts, dtype=("float32",), drafter="tree:3x2")
    bench.check(options)
    ((key, run),) = bench.cases(options)
    assert key["drafter"] == run.keywords["drafter"] == "tree:shape=3x2"


@pytest.mark.parametrize(
    ("drafter", "asked", "runs"),
    [
        ("ngram:gamma=4", (), [4]),
        ("ngram:gamma=4", (4,), [4]),
        ("ngram", (2, 3), [2, 3]),
        ("ngram", (), [5]),
        ("model:policy=(heuristic)", (), []),
        ("tree", (), []),
    ],
)
def test_a_drafter_is_measured_at_the_gamma_that_it_names(drafter, asked, runs, prompts):
    for name in ("pair", "committed"):
        options = bench.Bench(
            name, prompts=prompts, dtype=("float32",), drafter=drafter, gamma=asked, temperature=(1.0,)
        )
        bench.check(options)
        every = [key for key, _ in bench.cases(options)]
        if name == "pair":
            assert [key["gamma"] for key in every] == [tuple(runs)]
        else:
            found = [drafting.parse(key["drafter"]).settings.get("gamma") for key in every]
            assert found == (runs or [None])
