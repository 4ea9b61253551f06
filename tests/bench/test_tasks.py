"""Prompts of tasks: templates, items of files in every format, selection."""

import gzip
import json
import lzma
import sys
import types
import warnings

import pytest

import specjax as sj
from specjax.bench import tasks
from specjax.bench.tasks import FORMATS, Item

ITEM = Item("def f(x):\n    return {x}")


def model(name: str = "x", *, encoder_decoder: bool = False, chat=None):
    """What `prompts_for` reads of a model."""
    return types.SimpleNamespace(
        name=name, encoder_decoder=encoder_decoder, text=types.SimpleNamespace(chat=chat), chat=chat or str
    )


def prompt(task: str, style: str = tasks.AUTO, **of) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return tasks.prompts_for(model(**of), task, [ITEM], style)[0]


@pytest.mark.parametrize(
    ("task", "style", "of", "reason"),
    [
        ("chat", "auto", {}, "no chat template"),
        ("chat", "plain", {"chat": str}, "style plain"),
        ("chat", "auto", {"name": "bundled/opt-target"}, "story alone"),
        ("maths", "auto", {"encoder_decoder": True}, "no prefix"),
    ],
    ids=str,
)
def test_a_form_that_the_model_was_not_trained_for_is_reported(task, style, of, reason):
    with pytest.warns(UserWarning, match=f"{task}.*{reason}"):
        tasks.prompts_for(model(**of), task, [ITEM], style)


@pytest.mark.parametrize(
    ("task", "style", "of"),
    [
        ("chat", "auto", {"chat": str}), ("chat", "chatml", {}), ("story", "auto", {}),
        ("story", "auto", {"name": "bundled/opt-target"}),
        ("maths", "auto", {"name": "flan-t5", "encoder_decoder": True}),
        ("as-is", "auto", {"name": "bundled/opt-target"}),
    ],
    ids=str,
)  # fmt: skip
def test_familiar_forms_are_not_reported(task, style, of):
    assert tasks.prompts_for(model(**of), task, [ITEM], style)


def test_every_task_builds_a_prompt_in_every_style():
    for name, task in tasks.TASKS.items():
        for style in tasks.STYLES:
            assert prompt(name, style, chat=lambda message: f"<{message}>").count(ITEM.text) == 1
        assert task.samples or name == "as-is"
        assert len({item.text for item in task.samples}) == len(task.samples)
    assert {kind.task for kind in FORMATS.values()} <= set(tasks.TASKS)


def test_t5_has_prefixes_and_other_models_continue():
    assert prompt("translation", encoder_decoder=True) == f"translate English to German: {ITEM.text}"
    assert prompt("translation", name="bundled/t5-target", encoder_decoder=True).startswith("translate English")
    assert prompt("summarization", encoder_decoder=True) == f"summarize: {ITEM.text}"
    assert prompt("translation") == f"English: {ITEM.text}\nGerman:"
    assert prompt("code") == ITEM.text  # its braces are kept


@pytest.mark.parametrize("style", ["as-is", "auto"])
def test_bundled_t5_translates_what_every_command_asks(style):
    """A sentence alone (generate, trace), or the prompt of the task (advise, bench, reproduce, sweep, answers)."""
    sentences = {
        "The weather is nice today.": {"heute", "wetter"},
        "She reads a book every week.": {"liest", "buch", "woche"},
        "The children are playing in the garden.": {"kinder", "spielen", "garten"},
    }
    target, drafter = sj.load("bundled/t5-target"), sj.drafters.model(sj.load("bundled/t5-draft"), gamma=3)
    prompts = tasks.prompts_for(target, "translation", [*map(Item, sentences)], style)
    out = sj.generate(target, prompts, drafter=drafter, temperature=0, max_new_tokens=32)
    for text, words in zip(out.texts, sentences.values(), strict=True):
        assert words <= set(text.lower().strip(".!?").split())


def test_chat_models_are_addressed_by_their_template():
    wanted = f"Translate into German: {ITEM.text}"
    around = lambda message: f"<{message}>"
    assert prompt("translation", "chatml") == f"<|im_start|>user\n{wanted}<|im_end|>\n<|im_start|>assistant\n"
    assert prompt("translation", "own", chat=around) == prompt("translation", chat=around) == f"<{wanted}>"
    assert prompt("translation", "plain", chat=around) == prompt("translation")
    assert prompt("as-is", chat=around) == ITEM.text
    assert prompt("as-is", "own", chat=around) == f"<{ITEM.text}>"
    with pytest.raises(ValueError, match="alpaca"):
        prompt("story", "alpaca")
    with pytest.raises(ValueError, match="style"):
        prompt("story", "own")


def test_items_are_spread_over_the_whole_file():
    items = [Item(str(n), category="even" if n % 2 == 0 else "odd") for n in range(10)]
    assert [item.text for item in tasks.pick(items, 4)] == ["0", "2", "5", "7"]
    assert [item.text for item in tasks.pick(items, 99)] == [str(n) for n in range(10)]
    assert [item.text for item in tasks.pick(items, 2, ["odd"])] == ["1", "5"]
    with pytest.raises(ValueError, match=r"ood.*even, odd"):
        tasks.pick(items, 2, ["ood"])
    with pytest.raises(ValueError, match="odd"):
        tasks.pick([Item("a")], 1, ["odd"])


def test_a_digest_depends_on_the_texts_alone():
    one = tasks.digest([Item("a", "1"), Item("b", "2")])
    assert one == tasks.digest([Item("a"), Item("b")]) != tasks.digest([Item("ab")])
    assert len({tasks.digest([Item("a"), Item("b")]), tasks.digest([Item("b"), Item("a")])}) == 2


# --- files -----------------------------------------------------------------------------------------------------------

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
def test_the_format_is_detected(name, entries, kind, items, tmp_path):
    assert tasks.read(write(tmp_path / name, *entries)) == (kind, items)
    assert tasks.read(tmp_path / name, kind) == (kind, items)


def test_spec_bench_is_read_by_its_name(tmp_path):
    file = write(tmp_path / "question.jsonl", SPEC)
    assert tasks.read(file, "spec-bench") == ("spec-bench", [Item("Find it.", "900", "rag")])


@pytest.mark.parametrize(
    ("name", "entries", "kind", "where"),
    [
        ("q.jsonl", [TURNS, {**TURNS, "turns": "Write."}], "auto", "line 2.*turns"),
        ("q.jsonl", [{"question_id": 1, "turns": ["a"]}], "auto", "line 1.*category"),
        ("q.jsonl", [GSM8K, {"question": "x"}], "auto", "line 2.*answer"),
        ("q.jsonl", [GSM8K], "humaneval", "line 1.*task_id"),
        ("q.jsonl", [{"prompt": 3}], "auto", "line 1.*prompt"),
        ("q.jsonl", [{"text": "a"}], "auto", "line 1.*text"),
        ("q.jsonl", [GSM8K, "{"], "auto", "line 2.*JSON"),
        ("q.jsonl", ["[1]"], "auto", "line 1.*list"),
        ("q.jsonl", [{"prompt": " "}], "auto", "line 1.*empty"),
        ("q.tsv", ["a\tb", "a b"], "auto", "line 2.*pair"),
        ("q.txt", [""], "auto", "prompt"),
        ("q.parquet", ["x"], "auto", "--format"),
        ("q.txt", ["x"], "xml", "format.*xml"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_and_the_line(name, entries, kind, where, tmp_path):
    with pytest.raises(ValueError, match=where) as error:
        tasks.read(write(tmp_path / name, *entries), kind)
    assert "\n" not in str(error.value)


def test_bytes_that_are_not_text_or_not_gzip(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(ValueError, match="line 2"):
        tasks.read(tmp_path / "a.txt")
    (tmp_path / "a.jsonl.gz").write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz"):
        tasks.read(tmp_path / "a.jsonl.gz")
    whole = gzip.compress(json.dumps(GSM8K).encode())
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz"):
        tasks.read(tmp_path / "a.jsonl.gz")
    with pytest.raises(ValueError, match="absent"):
        tasks.read(tmp_path / "absent.txt")


def test_data_sets_require_their_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="datasets"):
        tasks.dataset("openai/gsm8k", field="question")
    requested = []

    def load_dataset(name, config, *, split):
        requested.append((name, config, split))
        return [] if split == "none" else [{"question": "a", "answer": "b", "n": 1}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    found = tasks.dataset("openai/gsm8k", field="question", config="main", reference="answer")
    assert found == [Item("a", "0", "", "b")] and requested == [("openai/gsm8k", "main", "test")]
    for field, reason in (("n", "'n'"), ("text", "question, answer, n")):
        with pytest.raises(ValueError, match=reason):
            tasks.dataset("openai/gsm8k", field=field)
    with pytest.raises(ValueError, match="none"):
        tasks.dataset("openai/gsm8k", field="question", split="none")
