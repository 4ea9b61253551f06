"""Files of prompts in every format, and what is said of those that are of none."""

import gzip
import json
import lzma
import sys
import types

import pytest

from specjax.bench import formats
from specjax.bench.formats import Item

TURNS = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": ["Done.", "x"]}
SPEC = {"question_id": 900, "category": "rag", "turns": ["Find it."]}
HUMANEVAL = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "  pass\n"}
GSM8K = {"question": "1 + 1?", "answer": "It is <<1+1=2>>2.\n#### 2"}


def write(path, *entries) -> str:
    lines = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in entries)
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix)
    if pack is not None:
        path.write_bytes(pack(lines.encode()))
    else:
        path.write_text(lines, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("name", "entries", "kind", "items"),
    [
        ("question.jsonl", [TURNS, SPEC], "mt-bench",
         [Item("Write.", "81", "writing", "Done."), Item("Find it.", "900", "rag")]),
        ("HumanEval.jsonl.gz", [HUMANEVAL], "humaneval", [Item("def f():\n", "HumanEval/0", "", "  pass\n")]),
        ("test.jsonl", [GSM8K], "gsm8k", [Item("1 + 1?", "1", "", GSM8K["answer"])]),
        ("mine.jsonl", [{"prompt": "So"}, {"prompt": "Go", "id": "b", "reference": "on"}], "jsonl",
         [Item("So", "1"), Item("Go", "b", "", "on")]),
        ("pairs.tsv", ["Good morning.\tGuten Morgen."], "tsv", [Item("Good morning.", "1", "", "Guten Morgen.")]),
        ("p.txt", ["\ufeffEinst", "", "lebte ein König"], "txt", [Item("Einst", "1"), Item("lebte ein König", "3")]),
        ("p.txt.gz", ["Once"], "txt", [Item("Once", "1")]),
        ("p.txt.xz", ["Once"], "txt", [Item("Once", "1")]),
    ],
)  # fmt: skip
def test_every_format_is_known_by_its_file(name, entries, kind, items, tmp_path):
    assert formats.read(write(tmp_path / name, *entries)) == (kind, items)
    assert formats.read(tmp_path / name, kind) == (kind, items)


def test_spec_bench_is_read_by_its_name(tmp_path):
    file = write(tmp_path / "question.jsonl", SPEC)
    assert formats.read(file, "spec-bench") == ("spec-bench", [Item("Find it.", "900", "rag")])


@pytest.mark.parametrize(
    ("name", "entries", "kind", "said"),
    [
        ("q.jsonl", [TURNS, {**TURNS, "turns": "Write."}], "auto",
         'q.jsonl line 2 is no MT-bench question: expected {"question_id": ..., "category": text, '
         '"turns": [text, ...]}, and "turns" is no list of texts'),
        ("q.jsonl", [{"question_id": 1, "turns": ["a"]}], "auto", '"category" is missing'),
        ("q.jsonl", [GSM8K, {"question": "x"}], "auto",
         'q.jsonl line 2 is no GSM8K question: expected {"question": text, "answer": text}, and "answer" is missing'),
        ("q.jsonl", [GSM8K], "humaneval", 'q.jsonl line 1 is no HumanEval problem: expected {"task_id": text'),
        ("q.jsonl", [{"prompt": 3}], "auto", '"prompt" is no text but of type int'),
        ("q.jsonl", [{"text": "a"}], "auto", "line 1 is of no known format, with the keys 'text': expected one of"),
        ("q.jsonl", [GSM8K, "{"], "auto", "q.jsonl line 2 is not JSON"),
        ("q.jsonl", ["[1]"], "auto", "q.jsonl line 1 is no JSON object but a list"),
        ("q.jsonl", [{"prompt": " "}], "auto", "q.jsonl line 1 is no prompt: its text is empty"),
        ("q.tsv", ["a\tb", "a b"], "auto", "line 2 is no pair: expected a sentence, a tab, its translation"),
        ("q.txt", [""], "auto", "q.txt holds no prompt"),
        ("q.parquet", ["x"], "auto", "its ending does not say what it holds"),
        ("q.txt", ["x"], "xml", "unknown format of prompts 'xml' (known: auto, mt-bench"),
    ],
)  # fmt: skip
def test_a_file_of_another_format_is_told_by_its_line(name, entries, kind, said, tmp_path):
    with pytest.raises(ValueError) as error:
        formats.read(write(tmp_path / name, *entries), kind)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_bytes_that_are_no_text_or_no_gzip(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"a\.txt line 2 is not UTF-8"):
        formats.read(tmp_path / "a.txt")
    (tmp_path / "a.jsonl.gz").write_bytes(b"{}")
    with pytest.raises(ValueError, match="is no whole gzip file"):
        formats.read(tmp_path / "a.jsonl.gz")
    whole = gzip.compress(json.dumps(GSM8K).encode())
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is no whole gzip file"):
        formats.read(tmp_path / "a.jsonl.gz")
    with pytest.raises(ValueError, match=r"cannot read the prompts of .*absent\.txt: No such file"):
        formats.read(tmp_path / "absent.txt")


def test_data_sets_of_the_hub_only_with_their_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="needs the package datasets"):
        formats.dataset("openai/gsm8k", field="question")
    asked = []

    def load_dataset(name, config, *, split):
        asked.append((name, config, split))
        return [] if split == "none" else [{"question": "a", "answer": "b", "n": 1}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    found = formats.dataset("openai/gsm8k", field="question", config="main", reference="answer")
    assert found == [Item("a", "0", "", "b")] and asked == [("openai/gsm8k", "main", "test")]
    for field, said in (("n", "column 'n' holds no text"), ("text", r"columns: question, answer, n")):
        with pytest.raises(ValueError, match=said):
            formats.dataset("openai/gsm8k", field=field)
    with pytest.raises(ValueError, match="no row in 'none'"):
        formats.dataset("openai/gsm8k", field="question", split="none")
