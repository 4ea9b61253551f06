"""Tasks by name: how an item becomes a prompt, for a model that goes on, one that is asked, and one with prefixes."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specjax.bench.formats import Item
from specjax.checks import check_name

PLAIN, PREFIX, OWN, AUTO = "plain", "prefix", "own", "auto"


class Task(NamedTuple):
    """A task.

    Attributes:
      about: one line for people.
      plain: the prompt of a model that goes on from a text; {text} is the item's.
      prefix: that of T5, which was trained with prefixes.
      asked: what a user says to a chat model; a style puts it between the model's own marks.
      samples: items that come with the package, so that a task runs without any file.
    """

    about: str
    plain: str
    prefix: str
    asked: str
    samples: tuple[Item, ...]


def _samples(*texts: str) -> tuple[Item, ...]:
    return tuple(Item(text, f"sample {number}") for number, text in enumerate(texts, start=1))


def _pairs(*pairs: tuple[str, str]) -> tuple[Item, ...]:
    return tuple(Item(one, f"sample {n}", reference=other) for n, (one, other) in enumerate(pairs, start=1))


TASKS: dict[str, Task] = {
    "translation": Task(
        "English to German",
        "English: {text}\nGerman:",
        "translate English to German: {text}",
        "Translate into German: {text}",
        _pairs(
            ("The weather is nice today.", "Das Wetter ist heute schön."),
            ("Where is the nearest station?", "Wo ist der nächste Bahnhof?"),
            ("I would like a cup of coffee.", "Ich hätte gern eine Tasse Kaffee."),
            ("She reads a book every week.", "Sie liest jede Woche ein Buch."),
            ("We will meet again tomorrow morning.", "Wir treffen uns morgen früh wieder."),
            ("The children are playing in the garden.", "Die Kinder spielen im Garten."),
            ("Please close the window before you leave.", "Bitte schließ das Fenster, bevor du gehst."),
            ("My brother works in a small town.", "Mein Bruder arbeitet in einer kleinen Stadt."),
        ),
    ),
    "summarization": Task(
        "a text in short",
        "{text}\n\nIn short:",
        "summarize: {text}",
        "Summarize this text in two sentences:\n\n{text}",
        _samples(
            "The town's old bridge was closed on Monday after an inspection found cracks in two of its pillars. "
            "Drivers must take the road through the valley, which adds twenty minutes to the way to work. The "
            "mayor said that repairs will begin within a month and should be finished before winter.",
            "A school in the north has let its pupils run the canteen for a year. They plan the meals, order the "
            "food and keep the books. Less food is thrown away than before, and more pupils eat at school. Two "
            "other schools want to try the same next year.",
            "Researchers watched how crows opened a box that had two locks. Most birds learned the first lock by "
            "trying. The second was opened only by those that had seen another bird do it. The crows that had "
            "learned from others also remembered the way for longer.",
            "The library will stay open until ten in the evening from next week. Many students had asked for "
            "this, since they have no quiet room at home. The city pays for two more members of staff, and will "
            "look at the numbers of visitors again in spring.",
        ),
    ),
    "chat": Task(
        "a question, an answer",
        "Question: {text}\nAnswer:",
        "{text}",
        "{text}",
        _samples(
            "What should I pack for a weekend in the mountains?",
            "How do plants know when it is spring?",
            "Can you explain what a budget is to a child of ten?",
            "Which exercises can I do at home without any equipment?",
            "Why does bread rise in the oven?",
            "How do I politely turn down an invitation?",
            "What is the difference between a lake and a pond?",
            "Give me three ideas for a rainy afternoon.",
        ),
    ),
    "code": Task(
        "a Python function to go on with",
        "{text}",
        "{text}",
        "Complete this Python function:\n\n```python\n{text}\n```",
        _samples(
            'def fibonacci(n):\n    """The n-th Fibonacci number; fibonacci(0) is 0."""\n',
            'def count_words(text):\n    """How often each word occurs in the text, as a dict."""\n',
            'def is_palindrome(word):\n    """Whether the word reads the same from both ends."""\n',
            'def flatten(lists):\n    """One list of all the elements of a list of lists."""\n',
            'def greatest_common_divisor(a, b):\n    """The largest number that divides both."""\n',
            'def read_numbers(path):\n    """The numbers of a text file, one a line, blank lines left out."""\n',
        ),
    ),
    "maths": Task(
        "a word problem",
        "Question: {text}\nAnswer:",
        "{text}",
        "{text}\n\nReason step by step, and end with the number.",
        _samples(
            "A box holds 12 eggs. A baker uses 3 boxes and 4 more eggs. How many eggs does she use?",
            "A train goes 80 kilometers an hour. How far does it come in two and a half hours?",
            "Tom has 45 marbles and gives a third of them to his sister. How many are left to him?",
            "A shirt costs 24 euros after a fourth was taken off its price. What did it cost before?",
            "There are 7 rows of 9 chairs, and 5 chairs are broken. How many people can sit down?",
            "Anna reads 15 pages a day. Her book has 240 pages. How many days does she need?",
        ),
    ),
    "story": Task(
        "a story to go on with",
        "{text}",
        "{text}",
        "Go on with this story:\n\n{text}",
        _samples(
            "Once upon a time there was a little girl who lived in a house by the sea.",
            "The old king had three sons, and he could not decide who should follow him.",
            "One day a fox came to the well and found that it was dry.",
            "Lily and her brother went into the garden to look for the lost ball.",
            "It was a cold night, and the traveler knocked at the door of the inn.",
            "There was a boy who could talk to birds, but nobody believed him.",
            "The dog ran down the hill as fast as he could.",
            "Long ago, when the mountains were young, a giant slept beneath the lake.",
        ),
    ),
    "as-is": Task("prompts as they stand in a file", "{text}", "{text}", "{text}", ()),
}

CHATS = {  # what stands around a user's words; the tokenizer turns the marks into its special tokens
    "chatml": "<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n",
    "llama-2": "[INST] {said} [/INST]",
    "llama-3": (
        "<|start_header_id|>user<|end_header_id|>\n\n{said}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "vicuna": "USER: {said} ASSISTANT:",
    "zephyr": "<|user|>\n{said}</s>\n<|assistant|>\n",
}
STYLES = (AUTO, PLAIN, PREFIX, OWN, *CHATS)


def builder(task: Task, style: str, *, encoder_decoder: bool, own: Callable[[str], str]) -> Callable[[Item], str]:
    """Item -> prompt.

    Args:
      style: one of `STYLES`; "auto" is "prefix" for an encoder-decoder and "plain" for others.
      own: what the model's own chat template makes of a user's words, for the style "own".

    Raises:
      ValueError: no such style.
    """
    check_name(style, STYLES, "style of prompts")
    if style == AUTO:
        style = PREFIX if encoder_decoder else PLAIN
    if style in (PLAIN, PREFIX):
        form = task.plain if style == PLAIN else task.prefix
        return lambda item: fill(form, text=item.text)
    around = own if style == OWN else lambda said: fill(CHATS[style], said=said)
    return lambda item: around(fill(task.asked, text=item.text))


def fill(form: str, **given: str) -> str:
    """The form with each {name} in it replaced; other braces, as code has them, stand."""
    for name, value in given.items():
        form = form.replace("{" + name + "}", value)
    return form


def own_template(tokenizer: Any, encode: Callable[[str], list[int]]) -> Callable[[str], str]:
    """What a transformers tokenizer's chat template makes of a user's words.

    Args:
      encode: the model's encoder; a start token that it adds itself is not written twice.

    Raises:
      ValueError: the tokenizer has no chat template.
    """
    if tokenizer is None or not tokenizer.chat_template:
        raise ValueError(f"the model has no chat template of its own: name a style ({', '.join(CHATS)})")
    start = tokenizer.bos_token or ""

    def around(said: str) -> str:
        told = [{"role": "user", "content": said}]
        text = tokenizer.apply_chat_template(told, tokenize=False, add_generation_prompt=True)
        ids = encode(text)
        return text.removeprefix(start) if start and len(ids) > 1 and ids[0] == ids[1] else text

    return around


def pick(items: Sequence[Item], count: int, categories: Sequence[str] = ()) -> list[Item]:
    """`count` of the items, spread evenly over all of them (files are often sorted by category).

    Args:
      categories: those that count; all, where none is named.

    Raises:
      ValueError: a category that there is not.
    """
    known = list(dict.fromkeys(item.category for item in items if item.category))
    for category in categories:
        if category not in known:
            raise ValueError(f"no item is of category {category!r} (there are: {', '.join(known) or 'none'})")
    kept = [item for item in items if not categories or item.category in categories]
    count = min(count, len(kept))
    return [kept[number * len(kept) // count] for number in range(count)]


def digest(items: Sequence[Item]) -> str:
    """A short name of what the items say: the same for the same texts, whatever file they come from."""
    return hashlib.sha256(json.dumps([item.text for item in items]).encode()).hexdigest()[:12]


def prompts_for(model: Any, task: str, items: Sequence[Item]) -> list[str]:
    """Prompts of a task for a model in the style "auto"; the bundled T5 pair was trained without a prefix."""
    if model.encoder_decoder and model.name.startswith("bundled/"):
        return [item.text for item in items]
    return [*map(builder(TASKS[task], AUTO, encoder_decoder=model.encoder_decoder, own=str), items)]
