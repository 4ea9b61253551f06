"""`specjax tree show`: drawing and mask by hand, JSON, figures, invalid options."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from specjax import trees


def show(program, *args):
    return program("tree", "show", *args)


def test_drawing_and_mask_by_hand(specjax_program):
    ran = show(specjax_program, "parents", "0", "0", "1", "1")
    lines = [line.rstrip() for line in ran.out.splitlines()]
    assert ran.code == 0 and ran.err == ""
    assert lines[1:4] == ["0──1──3", "│  └──4", "└──2"]
    rows = [line.split() for line in lines if line.strip()[:1].isdigit() and ("■" in line)]
    assert rows[0] == ["0", "0", "■", "·", "·", "·", "·"]  # the root has no parent
    assert rows[1] == ["1", "0", "1", "■", "■", "·", "·", "·"]
    assert rows[4] == ["4", "1", "2", "■", "■", "·", "·", "■"]
    assert lines[-1] == "nodes 5, the root included; levels below it 2; leaves 3"


@pytest.mark.parametrize(
    ("args", "tree"),
    [
        (["chain", "3"], trees.chain(3)),
        (["chain", "0"], trees.chain(0)),
        (["regular", "2", "1"], trees.regular((2, 1))),
        (["paths", "0,2", "1"], trees.from_paths([(0, 2), (1,)])),
        (["parents", "0", "0", "1"], trees.Tree((-1, 0, 0, 1))),
        (["medusa", "--accept", "0.6,0.2", "0.5,0.1", "--size", "4"], trees.best_tree([[0.6, 0.2], [0.5, 0.1]], 4)),
        (["medusa", "--accept", "0.6,0.2", "--size", "3"], trees.regular((2,))),
        (["sequoia", "--accept", "0.6,0.2", "--size", "9"], trees.sequoia([0.6, 0.2], 9)),
        (["sequoia", "--accept", "0.6,0.2", "--size", "5", "--depth", "2"], trees.sequoia([0.6, 0.2], 5, depth=2)),
    ],
)
def test_json(args, tree, specjax_program):
    ran = show(specjax_program, *args, "--json")
    found = json.loads(ran.out)
    assert (ran.code, ran.err, found["kind"], found["size"]) == (0, "", args[0], tree.size)
    assert tuple(found["parents"]) == tree.parents and found["depth"] == tree.depth.tolist()
    np.testing.assert_array_equal(found["mask"], tree.mask)
    assert trees.from_paths(found["ranks"][1:]).size == tree.size
    if "--accept" in args:
        assert found["expected_length"] == pytest.approx(sum(found["accepted_with_probability"]))


def test_expected_length(specjax_program, tmp_path):
    table = tmp_path / "accuracies.json"
    table.write_text("[[0.6, 0.2], [0.5, 0.1]]")
    assert "expected length 1.800" in show(specjax_program, "regular", "2", "--accept", "0.6,0.2").out
    assert "expected length 1.900" in show(specjax_program, "chain", "2", "--accept", str(table)).out
    one = show(specjax_program, "chain", "2", "--accept", "0.6,0.2", "0.5,0.1")
    assert one.out == show(specjax_program, "chain", "2", "--accept", str(table)).out


def test_size_from_a_cost_curve(specjax_program):
    args = ["sequoia", "--accept", "0.6,0.2,0.05", "--cost", "1:10", "8:10.5", "64:31", "--draft-cost", "0.8"]
    chosen = trees.fastest([0.6, 0.2, 0.05], [1, 8, 64], [10, 10.5, 31], draft_seconds=0.8)
    found = json.loads(show(specjax_program, *args, "--json").out)
    assert tuple(found["parents"]) == chosen.tree.parents and found["speedup"] == pytest.approx(chosen.speedup)
    assert f"speed-up over plain decoding {chosen.speedup:.3f}" in show(specjax_program, *args).out
    hopeless = show(specjax_program, "sequoia", "--accept", "0.1", "--cost", "1:1", "2:2")
    assert hopeless.code == 0 and "no tree is faster" in hopeless.out


@pytest.mark.parametrize("accept", [pytest.param([], marks=pytest.mark.slow), ["--accept", "0.6,0.2"]])
def test_figures(accept, specjax_program, tmp_path):
    svg, again, png = tmp_path / "a.svg", tmp_path / "b.svg", tmp_path / "a.png"
    for path in (svg, again, png):
        assert show(specjax_program, "regular", "2", "2", *accept, "--output", str(path)).code == 0
    assert svg.read_bytes() == again.read_bytes()
    words = [e.text for e in ElementTree.parse(svg).iter() if e.tag.endswith("text")]
    assert {"mask", "depth", "node", *map(str, range(7))} <= set(words)
    assert ("probability of being accepted" in words) == bool(accept)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "a.svg", "b.svg"]


def test_missing_matplotlib_is_one_line(specjax_program, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = show(specjax_program, "chain", "2", "--output", str(tmp_path / "a.svg"))
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1) and "pip install 'specjax[plot]'" in ran.err
    assert not list(tmp_path.iterdir())


def test_a_tree_wider_than_the_terminal(monkeypatch, capsys):
    from rich.console import Console

    from specjax.cli import tree_drawing

    console = Console(width=60, force_terminal=True, color_system=None, legacy_windows=False)
    tree_drawing.show(console, trees.chain(40), values=None, lines=[])
    out = capsys.readouterr().out
    assert "the drawing needs 162 columns" in out and "the mask needs 81 columns" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_terminal_without_a_width(specjax_program, monkeypatch):
    for name, value in {"COLUMNS": "0", "FORCE_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    ran = show(specjax_program, "chain", "3")
    assert ran.code == 0 and "0──1──2──3" in ran.out and "nodes 4" in ran.out


def test_a_pipe_receives_everything_without_jax():
    code = (
        "import sys; from specjax.cli import main; main(['tree', 'show', 'chain', '60']); print('jax' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    lines = ran.stdout.splitlines()
    assert lines[-1] == "False" and lines[1].count("──") == 60 and any(line.count("■") == 61 for line in lines)


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["sequia", "--size", "3"], "'sequoia'"),
        (["chain"], "chain"),
        (["chain", "-3"], "gamma"),
        (["regular", "1000", "1000"], "1024"),
        (["regular", "9" * 20], "1024"),
        (["parents", ",".join(["0"] * 1024)], "1024"),
        (["sequoia", "--accept", "0.6,0.2", "--size", "99999"], "size"),
        (["sequoia", "--accept", "0.6,0.2", "--cost", "1:10", "99999999:11"], "1024"),
        (["chain", "x"], "'x'"),
        (["regular"], "regular"),
        (["paths"], "paths"),
        (["paths", "0", "0"], "paths"),
        (["parents", "0", "3", "2"], "cycle"),
        (["parents", "2", "0"], "node 1"),
        (["chain", "3", "--size", "4"], "--size"),
        (["chain", "3", "--accept", "0.5", "0.5"], "acceptance"),
        (["sequoia", "--size", "3"], "--accept"),
        (["sequoia", "3", "--accept", "0.5"], "sequoia"),
        (["sequoia", "--accept", "0.5"], "--size"),
        (["sequoia", "--accept", "0.5", "--size", "2", "--cost", "1:1"], "--size"),
        (["sequoia", "--accept", "0.5", "--size", "2", "--draft-cost", "1"], "--draft-cost"),
        (["sequoia", "--accept", "0.5", "--cost", "8"], "--cost"),
        (["sequoia", "--accept", "0.5,x", "--size", "2"], "--accept"),
        (["sequoia", "--accept", "1.5", "--size", "2"], "acceptance"),
        (["medusa", "--accept", "0.5,0.2", "0.1", "--size", "3"], "acceptance"),
        (["regular", "2", "--accept", "0.9,0.9"], "siblings"),
        (["medusa", "--accept", "0.5,0.2", "0.5,0.75", "--size", "3"], "siblings"),
        (["medusa", "--accept", "0.5,0.2", "--size", "3", "--depth", "1"], "--depth"),
        (["chain", "2", "--output", "tree.gif"], "--output"),
        (["chain", "2", "--output", "nowhere/tree.svg"], "--output"),
        (["medusa", "--accept", "missing.json", "--size", "3"], "missing.json"),
    ],
)
def test_invalid_options_are_one_line(args, name, specjax_program):
    ran = show(specjax_program, *args)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1) and name in ran.err


@pytest.mark.parametrize(("content", "name"), [
    ("{", "JSON"), ("[" * 200_000, "JSON"), ('{"a": 1}', "dict"), ("[1, [2]]", "numbers"),
    ("[1" + "0" * 400 + "]", "numbers"), ('[["0.5"]]', "numbers"), ("[true]", "numbers"), ("[null]", "numbers"),
    ("[[0.5, 0.6]]", "siblings"),
])  # fmt: skip
def test_invalid_acceptance_files(content, name, specjax_program, tmp_path):
    table = tmp_path / "table.json"
    table.write_text(content)
    ran = show(specjax_program, "sequoia", "--accept", str(table), "--size", "2")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1) and name in ran.err
