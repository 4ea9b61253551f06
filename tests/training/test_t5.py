"""`specjax train t5`: buckets and splits of pairs, a resumed run, an exported model and its draft."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import specjax as sj
from specjax.training import data
from specjax.training.data import Pairs
from specjax.training.pairs import PairRun
from specjax.training.recipe import Distillation, Recipe

WORDS = ("one", "two", "six", "ten")


def test_buckets_contain_every_pair_once_at_its_narrowest_width():
    lengths = np.array([[1, 4], [2, 2], [6, 1], [5, 5], [9, 1]])
    sides = [np.array([[1] * n + [0] * (9 - n) for n in lengths[:, side]], np.uint16) for side in (0, 1)]
    parts = data.buckets(Pairs(*sides), (4, 5, 7))
    assert [part.source.shape for part in parts] == [(2, 4), (1, 5), (1, 7)]  # the pair of length 9 is dropped
    assert (parts[0].source != 0).sum(1).tolist() == [1, 2] and (parts[0].target != 0).sum(1).tolist() == [4, 2]


def test_batches_sample_buckets_in_proportion_to_their_pairs():
    short, long = (Pairs(*[np.full((n, width), width, np.uint16)] * 2) for n, width in ((600, 4), (200, 8)))
    seen = [data.pair_batch((short, long), seed=0, step=step, tokens=32).source.shape for step in range(400)]
    assert set(seen) == {(8, 4), (4, 8)}
    assert abs(seen.count((8, 4)) / 400 - 0.6) < 0.1  # 75 batches against 50; four standard deviations


def test_held_out_targets_are_not_trained_on():
    pairs = [(f"source {i}", f"target {i // 2}") for i in range(400)]
    train, held_out = data.split_pairs(pairs, 0.3)
    assert held_out and not {t for _, t in train} & {t for _, t in held_out}
    assert not {s for s, _ in train} & {s for s, _ in held_out}


def test_half_of_the_sources_get_the_prefix():
    pairs = [(f"source {i}", "target") for i in range(2000)]
    found = data.prefixed(pairs, "translate: ")
    marked = [source.startswith("translate: ") for source, _ in found]
    assert abs(np.mean(marked) - 0.5) < 0.06  # five standard deviations
    assert [(source.removeprefix("translate: "), target) for source, target in found] == pairs


def test_dropped_tokens_are_inputs_alone():
    rows = np.tile(np.array([5, 6, 7, 1] + [0] * 4, np.uint16), (1000, 1))
    batch = data.shifted(Pairs(rows, rows), np.arange(1000))
    found = data.dropped(batch, 0.25, 2, seed=0, step=3)
    for new, old in ((found.source, batch.source), (found.inputs, batch.inputs)):
        changed = new != old
        assert set(new[changed]) == {2} and not changed[old == 0].any()
        assert abs(changed[old != 0].mean() - 0.25) < 0.04  # five standard deviations
    np.testing.assert_array_equal(found.labels, batch.labels)
    again = data.dropped(batch, 0.25, 2, seed=0, step=3)
    np.testing.assert_array_equal(again.source, found.source)
    assert (data.dropped(batch, 0.25, 2, seed=0, step=4).source != found.source).any()


@pytest.fixture
def corpus(tmp_path):
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, size=rng.integers(1, 4))) for _ in range(200)]
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{i} {line}\t{line.upper()} {i}\n" for i, line in enumerate(lines)))
    return file


def small(corpus, folder, **given):
    options = {
        "run": folder, "data": (corpus,), "vocab_size": 300, "width": 16, "encoder_layers": 1, "decoder_layers": 1,
        "heads": 1, "head_width": 8, "tokens": 64, "widths": (12, 32), "held_out": 0.2,
    }  # fmt: skip
    how = Distillation(**{key: given.pop(key) for key in list(given) if hasattr(Distillation, key)})
    recipe = {"steps": 4, "every": 2} | {key: given.pop(key) for key in list(given) if hasattr(Recipe, key)}
    return PairRun(**(options | given), recipe=Recipe(**recipe), distillation=how)


@pytest.mark.slow
def test_the_command_trains_resumes_and_exports_a_model_and_its_draft(corpus, tmp_path):
    options = small(corpus, tmp_path / "run")
    folder = options.train()
    assert folder is not None and (tmp_path / "run" / "held_out.tsv").read_text().count("\t") > 5
    target = sj.load(folder)
    out = sj.generate(target, ["one two"], max_new_tokens=4, temperature=0.0)
    assert target.encoder_decoder and out.texts is not None
    longer = small(corpus, tmp_path / "run", steps=6).train()
    assert longer == folder
    drafted = small(
        corpus, tmp_path / "draft", tokenizer=tmp_path / "run" / "tokenizer", teacher=str(folder), muon=True
    )
    drafted = dataclasses.replace(drafted, own_outputs=70)
    draft = drafted.train()
    own = np.load(tmp_path / "draft" / "own_train.npz", allow_pickle=False)
    source = [token for token in own["source"][5].tolist() if token]
    expected = sj.generate(target, [source], max_new_tokens=32, temperature=0.0).tokens[0]
    assert len(own["source"]) == 70 and own["target"][5, : len(expected)].tolist() == expected
    assert not own["target"][5, len(expected) :].any()
    drafter = sj.drafters.model(sj.load(draft), gamma=2)
    fast = sj.generate(sj.load(folder), ["one two", "six"], drafter=drafter, max_new_tokens=6, temperature=0.0)
    slow = sj.generate(sj.load(folder), ["one two", "six"], max_new_tokens=6, temperature=0.0)
    assert fast.tokens == slow.tokens


@pytest.mark.parametrize(
    "change, argument",
    [
        ({"data": (Path("absent.tsv"),)}, "absent.tsv"),
        ({"widths": (24, 12)}, "widths"),
        ({"distill": 2.0}, "distill"),
        ({"own_outputs": 5}, "own_outputs"),
        ({"held_out": 0.0}, "held_out"),
        ({"heads": 0}, "heads"),
        ({"tokens": -4}, "tokens"),
        ({"every": 0}, "every"),
        ({"rate": 0.0}, "rate"),
        ({"seed": -1}, "seed"),
    ],
)
def test_invalid_options_raise(corpus, tmp_path, change, argument):
    with pytest.raises((ValueError, FileNotFoundError), match=argument):
        small(corpus, tmp_path / "run", **change).train()
    assert not (tmp_path / "run").exists()
