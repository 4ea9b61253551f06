"""`specjax reproduce` from end to end: theory, tables on toy checkpoints, invalid options."""

import json

import pytest

from specjax import loading
from specjax.bench import rounds
from specjax.cli import reproduce
from specjax.reproduce import pairs

NAMES = (
    "c-matrix", "pairs", "hierarchy", "table-1", "table-2", "table-3", "figure-3", "figure-4", "figure-5", "heads",
)  # fmt: skip


@pytest.fixture
def toys(models, monkeypatch):
    """Toy checkpoints in the places of the bundled models."""
    target, draft = models["target"], models["draft"]
    drafts = {
        pairs.SMALL: pairs.own_model(draft), pairs.BASE: pairs.own_model(draft),
        pairs.LARGE: pairs.INT8,
    }  # fmt: skip
    targets = {
        pairs.ENDE: pairs.Target(target, "translation", drafts | pairs.TABLES),
        pairs.CNNDM: pairs.Target(target, "summarization", drafts | pairs.TABLES),
        pairs.GPT: pairs.Target(target, "story", {"GPT-like (6M)": pairs.own_model(draft)} | pairs.TABLES),
    }
    opt = {"opt-13b": target, "opt-1.3b": draft, "opt-125m": draft}
    monkeypatch.setattr(pairs, "BUNDLED", pairs.StandIns(opt, targets, ("toys",), {}))


def rows(path) -> list[dict]:
    return [json.loads(line)["row"] for line in path.read_text().splitlines()]


def test_list(specjax_program):
    ran = specjax_program("reproduce", "--list")
    assert ran.code == 0 and tuple(line.split()[0] for line in ran.out.splitlines()) == NAMES
    assert all("[" in line for line in ran.out.splitlines())


def test_theory_outputs(specjax_program, tmp_path):
    file, text = tmp_path / "rows.jsonl", tmp_path / "all.md"
    for name, verdict in (("table-1", "2 reproduced"), ("figure-3", None), ("figure-4", "1 reproduced")):
        ran = specjax_program(
            "reproduce", name, "--json", str(file), "--markdown", str(text), "--figures", str(tmp_path / "figures")
        )
        assert ran.code == 0 and "arXiv 2211.17192" in ran.out
        assert f"in all: {verdict}" in ran.out if verdict else "in all" not in ran.out
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"figure_{number}.{kind}" for number in (3, 4) for kind in ("svg", "png")
    }
    assert "c = 0.05" in (tmp_path / "figures" / "figure_3.svg").read_text()
    assert "![Figure 4: speed and operations](figures/figure_4.svg)" in text.read_text()
    first = [row for row in rows(file) if row.get("alpha") == 0.6]
    assert round(first[0]["speed"], 2) == 1.96 and round(first[0]["operations"], 2) == 1.53


def test_costs_are_measured_once(specjax_program, toys, tmp_path, monkeypatch):
    args = ["reproduce", "c-matrix", "--quick", "--json", str(tmp_path / "rows.jsonl")]
    ran = specjax_program(*args)
    (row,) = rows(tmp_path / "rows.jsonl")
    assert ran.code == 0 and set(row["runs"]) == {"opt-13b", "opt-1.3b", "opt-125m"}
    assert all(run["seconds"][0][0] > 0 for run in row["runs"].values()) and "note: toys" in ran.out

    def measured(*args, **options):
        raise AssertionError("measured again")

    monkeypatch.setattr(rounds, "round_runs", measured)
    again = specjax_program(*args)
    assert again.code == 0 and again.out == ran.out


def test_command_line_overrides_preset(specjax_program, toys, tmp_path):
    preset = tmp_path / "preset.py"
    preset.write_text(
        "from specjax.reproduce.setup import Preset\n"
        "REPRODUCE = Preset(name='c-matrix', count=1, timed=1, repeats=1, max_new_tokens=4, seed=3)\n"
    )
    file = tmp_path / "rows.jsonl"
    assert specjax_program("reproduce", str(preset), "--seed", "5", "--json", str(file)).code == 0
    case = json.loads(file.read_text())["case"]
    assert (case["count"], case["max_new_tokens"], case["seed"], case["experiment"]) == (1, 4, 5, "c-matrix")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:prompts of the task")
def test_figure_5(specjax_program, toys, tmp_path):
    ran = specjax_program(
        "reproduce", "figure-5", "--quick", "--json", str(tmp_path / "r.jsonl"), "--figures", str(tmp_path / "f")
    )
    found = rows(tmp_path / "r.jsonl")
    assert ran.code == 0 and [row["gamma"] for row in found] == [7, 3, 0]
    assert all(sum(c[0] == "DRAFT" for c in row["calls"]) == row["gamma"] * row["target_calls"] for row in found)
    assert "M_p is called less with a longer draft" in ran.out
    assert "standard" in (tmp_path / "f" / "figure_5.svg").read_text()


def test_missing_weights_are_left_out(specjax_program, monkeypatch):
    def load(name, **options):
        raise FileNotFoundError(f"{name}: the hub is out of reach")

    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(pairs, "ORIGINAL", pairs.ORIGINAL._replace(sizes={}))
    ran = specjax_program("reproduce", "c-matrix", "--models", "original")
    assert ran.code == 2 and "facebook/opt-13b: the hub is out of reach" in ran.out
    assert "not measured" in ran.out and "nothing was measured" in ran.err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:prompts of the task")  # the toys have learned none
@pytest.mark.parametrize("name", ["pairs", "hierarchy", "table-2", "table-3"])
def test_tables_on_toys(name, specjax_program, toys, tmp_path):
    ran = specjax_program("reproduce", name, "--quick", "--json", str(tmp_path / "rows.jsonl"))
    found = rows(tmp_path / "rows.jsonl")
    assert ran.code == 0 and len(found) == {"pairs": 3, "hierarchy": 3, "table-2": 12, "table-3": 26}[name]
    assert all(0 <= row["accepted_per_tested"] <= 1 and row["tested"] > 0 for row in found)
    if name == "hierarchy":
        last = found[-1]
        assert sum(last["inner"]["counts"]["rounds"]) >= 1 and 0 <= last["inner"]["accepted_per_tested"] <= 1
        assert last["gamma"] == last["predicted"]["gammas"][0] >= 7 and last["predicted"]["gammas"][1] >= 1
    if name == "table-3":  # a draft token is tested after each token of the target, none is accepted
        assert all(row["counts"]["tested"] == row["counts"]["rounds"] for row in found)
        assert all(row["accepted_per_tested"] == 0 and 0 <= row["overlap"] <= 1 for row in found)


@pytest.mark.slow
def test_all_on_the_bundled_models(specjax_program, tmp_path):
    ran = specjax_program(
        "reproduce", "all", "--quick", "--markdown", str(tmp_path / "all.md"), "--figures", str(tmp_path / "figures")
    )
    assert ran.code == 0 and len((tmp_path / "all.md").read_text().split("\n## ")) == 1 + len(NAMES)
    assert len(list((tmp_path / "figures").iterdir())) == 8 and "left out" not in ran.out


BAD = {
    "no name": ([], "name"),
    "name": (["table1"], "'table-1'"),
    "models": (["table-2", "--models", "orignal"], "'original'"),
    "shapes": (["table-2", "--shapes", "reel"], "'real'"),
    "real shapes of theory": (["table-1", "--shapes", "real"], "table-2"),
    "target": (["table-2", "--shapes", "real", "--targets", "opt-12b"], "opt-13b"),
    "target too large": (["c-matrix", "--shapes", "real", "--targets", "opt-13b"], "opt-13b"),
    "dtype": (["table-2", "--dtype", "float8"], "'float8'"),
    "count": (["table-2", "--count", "0"], "count"),
    "seed": (["table-2", "--seed", "-1"], "seed"),
    "prompts without a task": (["table-2", "--prompts", "a.txt"], "--prompts"),
    "prompts of no task": (["table-2", "--prompts", "translate=a.txt"], "translate"),
    "prompts twice": (["pairs", "--prompts", "story=a.txt", "story=b.txt"], "story"),
    "no prompts": (["pairs", "--prompts", "absent.txt"], "absent.txt"),
    "format": (["figure-3", "--format", "svg", "svg"], "--format"),
    "figures": (
        ["figure-3", "--figures", "absent/figures"],
        "--figures",
    ),
    "json": (
        ["figure-3", "--json", "absent/rows.jsonl"],
        "absent/rows.jsonl",
    ),
    "preset": (["absent.py"], "absent.py"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("no_model_is_loaded")
def test_invalid_options_are_one_line(case, refused):
    args, name = BAD[case]
    refused("reproduce", *args, name=name)


def test_prompts_from_a_file(tmp_path):
    from specjax.reproduce.setup import other_texts, read_prompts

    file = tmp_path / "pairs.tsv"
    file.write_text("Good morning.\tGuten Morgen.\nGood night.\tGute Nacht.\n")
    items = read_prompts([f"translation={file}"], ["translation", "summarization"], 2)
    assert [item.text for item in items["translation"]] == ["Good morning.", "Good night."]
    assert len(items["summarization"]) == 2
    assert read_prompts([str(file)], ["translation"], 1)["translation"][0].text == "Good morning."
    texts = other_texts("translation")
    assert len(texts) > 40 and "The weather is nice today." not in texts
    assert set(reproduce.experiments()) == set(NAMES)
