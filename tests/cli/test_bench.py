"""`specjax bench pair`: the drafter by name, and what is refused before any model is read."""

import pytest

from specjax.cli import bench


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("Once\n")
    return file


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drafter": "modle"}, "did you mean 'model'"),
        ({"drafter": "tree:shape=3by2"}, "shape must be children by level"),
        ({"drafter": "cascade"}, "has one draft model"),
        ({"drafter": "table:absent"}, "there is no file at absent"),
        ({"name": "plain", "drafter": "tree"}, "--drafter has no meaning for bench plain"),
    ],
)
def test_bad_drafters_are_refused(changes, said, prompts):
    with pytest.raises(ValueError, match=said):
        bench.check(bench.Bench(**({"name": "pair", "prompts": prompts} | changes)))


def test_a_key_names_the_drafter(prompts):
    options = bench.Bench("pair", prompts=prompts, dtype=("float32",), drafter="tree:3x2")
    bench.check(options)
    ((key, run),) = bench.cases(options)
    assert key["drafter"] == run.keywords["drafter"] == "tree:shape=3x2"
