"""Documents, the held-out split, packing, and batches as functions of the step."""

import numpy as np
import pytest

from specjax.training import data


def encode(texts: list[str]) -> list[list[int]]:
    return [[ord(c) for c in text] for text in texts]


def test_documents_of_a_text_file_are_cut_at_separator_lines(tmp_path):
    file = tmp_path / "books.txt"
    file.write_text(f"one\ntwo\n{data.SEPARATOR}\nthree\n", encoding="utf-8")
    assert list(data.documents(file)) == ["one\ntwo\n", "three\n"]


def test_a_bad_jsonl_line_is_named(tmp_path):
    file = tmp_path / "books.jsonl"
    file.write_text('{"text": "one"}\n{"title": "two"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"books\.jsonl, line 2"):
        list(data.documents(file))


def test_split_depends_on_the_text_alone():
    texts = [f"document {i}" for i in range(2000)]
    forward, backward = data.split(texts, 0.1), data.split(texts[::-1], 0.1)
    assert set(forward.held_out) == set(backward.held_out)
    assert sorted(forward.train + forward.held_out) == sorted(texts)
    assert abs(len(forward.held_out) - 200) < 5 * (2000 * 0.1 * 0.9) ** 0.5  # five sigma of a fair hash


def test_packing_loses_no_token_whatever_the_block(tmp_path):
    texts = ["ab\ncd\nef\n", "gh"]
    for block in (1, 4, 1000):
        data.pack(texts, encode, tmp_path / "packed.bin", end=2, block=block)
        expected = [*map(ord, texts[0]), 2, *map(ord, texts[1]), 2]
        assert data.tokens(tmp_path / "packed.bin").tolist() == expected


def test_batches_are_functions_of_seed_and_step():
    packed = np.arange(500, dtype=np.uint16)
    draw = lambda seed, step: data.batch(packed, seed=seed, step=step, rows=4, length=8)
    np.testing.assert_array_equal(draw(1, 2), draw(1, 2))
    assert not np.array_equal(draw(1, 2), draw(1, 3))
    assert not np.array_equal(draw(1, 2), draw(2, 2))
    np.testing.assert_array_equal(np.diff(draw(1, 2), axis=1), 1)  # windows of consecutive tokens


def test_decoder_inputs_are_labels_shifted_behind_padding():
    pairs = data.encode_pairs([("ab", "c"), ("toolong", "d")], encode, width=3)
    assert len(pairs.source) == 1  # the pair that does not fit is left out
    out = data.shifted(pairs, np.array([0]))
    assert out.length.tolist() == [2]
    assert out.labels.tolist() == [[ord("c"), 0, 0]]
    assert out.inputs.tolist() == [[0, ord("c"), 0]]
