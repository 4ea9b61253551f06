"""The grid of ways: combinations, counts, ratios."""

import pytest

import specjax as sj
from specjax.bench import grid
from specjax.bench.grid import Cell
from tests import battery


def test_every_combination_once():
    found = grid.cells(["model", "plain"], [3, 5], ["token", "block"], [0.0, 1.0])
    drafted = [Cell("model", g, v, t) for t in (0.0, 1.0) for g in (3, 5) for v in ("token", "block")]
    assert [cell for cell in found if cell.drafter == "model"] == drafted
    assert [cell for cell in found if cell.drafter == "plain"] == [Cell("plain", None, "token", t) for t in (0.0, 1.0)]


def test_ratios_are_of_what_is_alike():
    rate = {"drafted": 30.0, "plain": 10.0, "transformers assisted": 15.0, "transformers plain": 5.0}
    said = {"drafted": [[1, 2], [3]], "plain": [[1, 2], [3]], "transformers assisted": [[1, 2], [4]],
            "transformers plain": [[1, 2], [3]]}  # fmt: skip
    row = grid.peer_columns(rate, said, greedy=True)
    assert row == {
        "transformers_assisted_tokens_per_second": 15.0, "ratio_to_assisted": 2.0,
        "equal_to_transformers_assisted": 0.5,
        "transformers_plain_tokens_per_second": 5.0, "ratio_to_plain": 2.0, "equal_to_transformers_plain": 1.0,
    }  # fmt: skip
    assert "equal_to_transformers_plain" not in grid.peer_columns(rate, said, greedy=False)


class Fake:
    """A peer whose ways of decoding are told by name."""

    draft = object()

    def plain(self, **options):
        return lambda prompt: [0]

    def assisted(self, **options):
        return lambda prompt: [1]

    def lookup(self, **options):
        return lambda prompt: [2]


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        (Cell("model", 3, "token", 0.0), ["transformers assisted", "transformers plain"]),
        (Cell("ngram", 3, "token", 0.0), ["transformers lookup", "transformers plain"]),
        (Cell("plain", None, "token", 0.0), ["transformers plain"]),
    ],
)
def test_each_way_meets_its_like_in_transformers(cell, names):
    work = grid.Work(battery.target("opt"), [[1]], {"max_new_tokens": 4}, 1, 1, 1)
    assert [name for name, _ in grid.theirs(work, cell)] == []
    assert [name for name, _ in grid.theirs(work._replace(peer=Fake()), cell)] == names


def test_the_counts_are_those_of_generate():
    target, prompts = battery.target("opt"), [[5, 6, 7], [8, 9], [3]]
    guide = sj.drafters.model(battery.draft("opt"), gamma=3)
    settings = {"max_new_tokens": 8, "ignore_eos": True, "seed": 2, "temperature": 1.0, "drafter": guide}
    work = grid.Work(target, prompts, {}, 2, 1, 1)
    row = grid.acceptance(work, settings)
    parts = [sj.generate(target, [p], rows=[n], **settings).stats for n, p in enumerate(prompts)]
    total = lambda name: sum(getattr(stats, name) for stats in parts)
    assert row["tokens"] == 24 and row["tokens_per_call"] == 24 / total("rounds")
    assert row["accepted_per_tested"] == total("accepted") / total("tested")
    assert row["accepted_per_drafted"] == total("accepted") / total("drafted")
    expected = sum(stats.overlap * stats.tested for stats in parts) / total("tested")
    assert row["overlap"] == pytest.approx(expected, rel=1e-5)
