"""Prompts of tasks, and which items are taken."""

import types

import pytest

from specjax.bench import tasks
from specjax.bench.formats import FORMATS, Item

ITEM = Item("def f(x):\n    return {x}")


def prompt(task: str, style: str, *, encoder_decoder: bool = False, own=str) -> str:
    return tasks.builder(tasks.TASKS[task], style, encoder_decoder=encoder_decoder, own=own)(ITEM)


def test_every_task_builds_a_prompt_in_every_style():
    for name, task in tasks.TASKS.items():
        for style in tasks.STYLES:
            assert prompt(name, style).count(ITEM.text) == 1
        assert task.samples or name == "as-is"
        assert len({item.text for item in task.samples}) == len(task.samples)
    assert {kind.task for kind in FORMATS.values()} <= set(tasks.TASKS)


def test_t5_gets_its_prefixes_and_others_go_on():
    assert prompt("translation", "auto", encoder_decoder=True) == f"translate English to German: {ITEM.text}"
    assert prompt("summarization", "auto", encoder_decoder=True) == f"summarize: {ITEM.text}"
    assert prompt("translation", "auto") == f"English: {ITEM.text}\nGerman:"
    assert prompt("code", "auto") == ITEM.text  # its braces stand


def test_chat_models_are_asked_between_their_marks():
    asked = f"Translate into German: {ITEM.text}"
    assert prompt("translation", "chatml") == f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
    assert prompt("translation", "own", own=lambda said: f"<{said}>") == f"<{asked}>"
    with pytest.raises(ValueError, match="unknown style of prompts 'alpaca'"):
        prompt("story", "alpaca")


def test_a_models_own_template_writes_the_start_token_once():
    class Tokenizer:
        chat_template, bos_token = "x", "<s>"

        def apply_chat_template(self, told, *, tokenize, add_generation_prompt):
            assert not tokenize and add_generation_prompt
            return f"<s>[{told[0]['role']}] {told[0]['content']}"

    ids = lambda text: [1] * (1 + text.startswith("<s>")) + [5]  # an encoder that begins every text with <s>
    assert tasks.own_template(Tokenizer(), ids)("Hi") == "[user] Hi"
    assert tasks.own_template(Tokenizer(), lambda text: [1, 5])("Hi") == "<s>[user] Hi"
    for none in (None, types.SimpleNamespace(chat_template=None)):
        with pytest.raises(ValueError, match="no chat template of its own"):
            tasks.own_template(none, ids)


def test_items_are_spread_over_the_whole_file():
    items = [Item(str(n), category="even" if n % 2 == 0 else "odd") for n in range(10)]
    assert [item.text for item in tasks.pick(items, 4)] == ["0", "2", "5", "7"]
    assert [item.text for item in tasks.pick(items, 99)] == [str(n) for n in range(10)]
    assert [item.text for item in tasks.pick(items, 2, ["odd"])] == ["1", "5"]
    with pytest.raises(ValueError, match=r"no item is of category 'ood'.*even, odd"):
        tasks.pick(items, 2, ["ood"])
    with pytest.raises(ValueError, match="there are: none"):
        tasks.pick([Item("a")], 1, ["odd"])


def test_a_digest_is_of_the_words_alone():
    one = tasks.digest([Item("a", "1"), Item("b", "2")])
    assert one == tasks.digest([Item("a"), Item("b")]) != tasks.digest([Item("ab")])
    assert len({tasks.digest([Item("a"), Item("b")]), tasks.digest([Item("b"), Item("a")])}) == 2
