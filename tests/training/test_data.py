"""Data for training: documents, splits by hash, packed tokens, batches as functions of the step."""

import gzip
import json
import lzma

import numpy as np
import pytest

from specjax.training import data


def test_documents_of_every_format(tmp_path):
    text = "one\ntwo\n<|endofbook|>\nthree\n"
    (tmp_path / "a.txt").write_text(text)
    with gzip.open(tmp_path / "b.txt.gz", "wt") as stream:
        stream.write(text)
    with lzma.open(tmp_path / "c.txt.xz", "wt") as stream:
        stream.write(text)
    for name in ("a.txt", "b.txt.gz", "c.txt.xz"):
        assert list(data.documents(tmp_path / name)) == ["one\ntwo\n", "three\n"]
    (tmp_path / "d.jsonl").write_text('{"text": "x"}\n{"text": "y"}\n')
    assert list(data.documents(tmp_path / "d.jsonl")) == ["x", "y"]
    (tmp_path / "e.jsonl").write_text('{"kind": "specjax answers"}\n{"prompt": "x", "answer": " y", "row": 0}\n')
    assert list(data.documents(tmp_path / "e.jsonl")) == ["x y"]


def test_invalid_lines_raise_with_file_and_line(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"text": "x"}\n{"other": "y"}\n')
    with pytest.raises(ValueError, match=r"d\.jsonl, line 2"):
        list(data.documents(tmp_path / "d.jsonl"))
    (tmp_path / "d.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(ValueError, match=r"d\.jsonl, line 1"):
        list(data.documents(tmp_path / "d.jsonl"))
    (tmp_path / "d.jsonl").write_text('{"text": 5}\n')
    with pytest.raises(ValueError, match=r"d\.jsonl, line 1"):
        list(data.documents(tmp_path / "d.jsonl"))
    (tmp_path / "e.tsv").write_text("a\tb\nalone\n")
    with pytest.raises(ValueError, match=r"e\.tsv, line 2"):
        list(data.pairs(tmp_path / "e.tsv"))


def test_splits_depend_only_on_the_text():
    texts = [f"document {i}" for i in range(2000)]
    one, other = data.split(texts, 0.1), data.split(texts[::-1], 0.1)
    assert set(one.held_out) == set(other.held_out)
    assert 150 < len(one.held_out) < 250  # 200 expected, a deviation of 13: nearly 4 sigma
    assert not set(one.held_out) & set(one.train)


@pytest.mark.parametrize("vocab_size, bytes_each", [(2**16, 2), (2**16 + 1, 4)])
def test_pack_keeps_every_token_in_order(tmp_path, vocab_size, bytes_each):
    texts, file, last = ["ab\ncd\n" * 5, "ef"], tmp_path / "x.bin", vocab_size - 1
    encode = lambda pieces: [[ord(c) for c in piece] for piece in pieces]
    data.pack(texts, encode, file, vocab_size=vocab_size, before=[3, 4], end=last, block=4)
    expected = [token for text in texts for token in (3, 4, *map(ord, text), last)]
    assert data.tokens(file, vocab_size).tolist() == expected
    assert file.stat().st_size == bytes_each * len(expected)
    assert [one.name for one in tmp_path.iterdir()] == ["x.bin"]


def test_batches_are_functions_of_seed_and_step():
    packed = np.arange(1000, dtype=np.uint16)
    one = data.batch(packed, seed=3, step=5, rows=4, length=16)
    assert one.shape == (4, 17) and one.dtype == np.int32
    assert (np.diff(one, axis=1) == 1).all()  # windows of consecutive tokens
    assert np.array_equal(one, data.batch(packed, seed=3, step=5, rows=4, length=16))
    assert not np.array_equal(one, data.batch(packed, seed=3, step=6, rows=4, length=16))


def test_pairs_are_padded_and_shifted():
    encode = lambda texts: [[*map(ord, text), 1] for text in texts]
    held = data.encode_pairs([("ab", "c"), ("toolong", "d"), ("e", "fg")], encode, width=4)
    assert held.source.tolist() == [[97, 98, 1, 0], [101, 1, 0, 0]]
    batch = data.shifted(held, np.array([1]))
    assert batch.length.tolist() == [2]
    assert batch.labels.tolist() == [[102, 103, 1, 0]]
    assert batch.inputs.tolist() == [[0, 102, 103, 1]]


def test_json_lines_may_be_compressed(tmp_path):
    with gzip.open(tmp_path / "s.jsonl.gz", "wt") as stream:
        stream.write(json.dumps({"text": "héllo"}) + "\n")
    assert list(data.documents(tmp_path / "s.jsonl.gz")) == ["héllo"]
