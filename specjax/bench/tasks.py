"""Prompts by task: how an item becomes a prompt for each kind of model, sample items, and files and data sets of items.

Items of other people's files are read in their own formats: MT-bench, Spec-Bench, HumanEval, GSM8K, pairs, prompts.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from specjax import files
from specjax.checks import check_name

T = TypeVar("T")
AUTO = "auto"  # format or style chosen by the file or the model
PLAIN, PREFIX, OWN = "plain", "prefix", "own"  # styles


class Item(NamedTuple):
    """One entry of a task.

    Attributes:
      text: a question, a sentence to translate, the head of a function.
      id: as in the file; empty if the file names none.
      category: as in the file; empty if the file names none.
      reference: a known answer, or None.
    """

    text: str
    id: str = ""
    category: str = ""
    reference: str | None = None


# --- tasks -----------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """A task.

    Attributes:
      about: one line for people.
      plain: prompt of a model that continues a text; {text} is that of the item.
      prefix: prompt of T5, which was trained with prefixes.
      asked: user message for a chat model, which a style puts between the special tokens of the model.
      samples: items that come with the package, so that a task runs without a file.
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
        "a summary",
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
        "a Python function to complete",
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
        "a story to continue",
        "{text}",
        "{text}",
        "Continue this story:\n\n{text}",
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
    "as-is": Task("prompts of a file, unchanged", "{text}", "{text}", "{text}", ()),
}

CHATS = {  # templates around a user message; the tokenizer turns the marks into its special tokens
    "chatml": "<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n",
    "llama-2": "[INST] {message} [/INST]",
    "llama-3": (
        "<|start_header_id|>user<|end_header_id|>\n\n{message}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "vicuna": "USER: {message} ASSISTANT:",
    "zephyr": "<|user|>\n{message}</s>\n<|assistant|>\n",
}
STYLES = (AUTO, PLAIN, PREFIX, OWN, *CHATS)


def builder(task: Task, style: str, *, encoder_decoder: bool, own: Callable[[str], str]) -> Callable[[Item], str]:
    """Item -> prompt.

    Args:
      style: one of `STYLES`; "auto" is "prefix" for an encoder-decoder and "plain" for others.
      own: user message -> prompt by the chat template of the model, for the style "own".

    Raises:
      ValueError: an unknown style.
    """
    check_name(style, STYLES, "style of prompts")
    if style == AUTO:
        style = PREFIX if encoder_decoder else PLAIN
    if style in (PLAIN, PREFIX):
        form = task.plain if style == PLAIN else task.prefix
        return lambda item: fill(form, text=item.text)
    around = own if style == OWN else lambda message: fill(CHATS[style], message=message)
    return lambda item: around(fill(task.asked, text=item.text))


def prompts_for(model: Any, task: str, items: Sequence[Item], style: str = AUTO) -> list[str]:
    """Prompts of a task for a model; the bundled T5 pair was trained without a prefix and receives none.

    Raises:
      ValueError: an unknown style, or "own" for a model without a chat template.
    """
    if style in (AUTO, PREFIX) and "bundled/t5-" in model.name:
        return [item.text for item in items]
    own: Callable[[str], str] = str
    if style == OWN:
        from specjax import convert

        checkpoint = convert.locate(model.name)
        checkpoint.source.close()
        own = own_template(checkpoint.tokenizer(), model.text.encode)
    return [*map(builder(TASKS[task], style, encoder_decoder=model.encoder_decoder, own=own), items)]


def fill(form: str, **given: str) -> str:
    """The form with each {name} replaced; other braces, as in code, are kept."""
    for name, value in given.items():
        form = form.replace("{" + name + "}", value)
    return form


def own_template(tokenizer: Any, encode: Callable[[str], list[int]]) -> Callable[[str], str]:
    """User message -> prompt by the chat template of a transformers tokenizer.

    Args:
      encode: the tokenizer of the model; a start token that it adds itself is not repeated.

    Raises:
      ValueError: the tokenizer has no chat template.
    """
    if tokenizer is None or not tokenizer.chat_template:
        raise ValueError(f"style own: the model has no chat template; choose one of {', '.join(CHATS)}")
    start = tokenizer.bos_token or ""

    def around(message: str) -> str:
        messages = [{"role": "user", "content": message}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = encode(text)
        return text.removeprefix(start) if start and len(ids) > 1 and ids[0] == ids[1] else text

    return around


def pick(items: Sequence[Item], count: int, categories: Sequence[str] = ()) -> list[Item]:
    """`count` of the items, spread evenly over all of them (files are often sorted by category).

    Args:
      categories: categories to take; empty: all.

    Raises:
      ValueError: a category that no item has.
    """
    known = list(dict.fromkeys(item.category for item in items if item.category))
    for category in categories:
        if category not in known:
            raise ValueError(f"no item is of category {category!r} (known: {', '.join(known) or 'none'})")
    return spread([item for item in items if not categories or item.category in categories], count)


def spread(items: Sequence[T], count: int) -> list[T]:
    """`count` items, evenly spread over all; all if there are fewer."""
    count = min(count, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def digest(items: Sequence[Item]) -> str:
    """A short hash of the texts."""
    return hashlib.sha256(json.dumps([item.text for item in items]).encode()).hexdigest()[:12]


# --- files of items ------------------------------------------------------------------------------------------------


class FileFormat(NamedTuple):
    """A kind of file.

    Attributes:
      title: for people.
      line: what a line must be, for error messages.
      task: task in `TASKS` that such files are for.
      text, id, category, reference: keys of a JSON object for the fields of an `Item`. "x[0]" is the first text of a
        list: later turns depend on the answer. "x?" may be missing. Files without a key for the text are not JSON.
    """

    title: str
    line: str
    task: str
    text: str = ""
    id: str = ""
    category: str = ""
    reference: str = ""


class Misfit(Exception):
    """What is wrong with a line, without its place."""


def read(file: Path | str, format: str = AUTO) -> tuple[str, list[Item]]:
    """The name of the format and the items of a file, packed if its name ends in .gz or .xz.

    Args:
      format: a name of `FORMATS`, or "auto": by the ending of the file and its first line.

    Raises:
      ValueError: a file that cannot be read, an unknown format, no item, or a line of another format.
    """
    path = Path(file)
    lines = files.filled(files.lines(path, "prompts"))
    if not lines:
        raise ValueError(f"{path} contains no prompt")
    name = detect(path, *lines[0]) if format == AUTO else format
    check_name(name, [AUTO, *FORMATS], "format of prompts")
    kind = FORMATS[name]
    return name, [_item(kind, path, number, line) for number, line in lines]


def detect(path: Path, number: int, line: str) -> str:
    """The format of a file by its ending and its first line.

    Raises:
      ValueError: the format is not known.
    """
    ending = path.with_suffix("").suffix if path.suffix in files.PACKED else path.suffix
    if ending in (".txt", ".tsv"):
        return ending[1:]
    if ending not in (".jsonl", ".json"):
        raise ValueError(
            f"{path}: unknown ending: rename it to .txt, .tsv or .jsonl, or give --format ({', '.join(FORMATS)})"
        )
    keys = _object(line, f"{path} line {number}").keys()
    for name, marks in MARKS.items():
        if marks <= keys:
            return name
    raise ValueError(
        f"{path} line {number} has an unknown format, with the keys {', '.join(map(repr, keys)) or 'none'}: "
        "expected one of " + "; ".join(f"{kind.title}, {kind.line}" for kind in FORMATS.values() if kind.text)
    )


def _item(kind: FileFormat, path: Path, number: int, line: str) -> Item:
    where = f"{path} line {number}"
    try:
        if kind.text:
            entry = _object(line, where)
            text, name, category, reference = (_value(entry, key) for key in kind[3:])
            item = Item(text or "", name or str(number), category or "", reference)
        else:
            text, *more = line.split("\t") if kind is FORMATS["tsv"] else (line,)
            if kind is FORMATS["tsv"] and len(more) != 1:
                raise Misfit(f"it has {len(more)} tabs")
            item = Item(text, str(number), reference=more[0] if more else None)
        if not item.text.strip():
            raise Misfit("its text is empty")
    except Misfit as misfit:
        raise ValueError(f"{where} is not a {kind.title}: {misfit}; expected {kind.line}") from None
    return item


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} is a JSON {type(value).__name__}: expected one object per line")
    return value


def _value(entry: Mapping[str, Any], key: str) -> str | None:
    """The text at a key of `FileFormat`; None for no key, and for optional keys without a text."""
    name, first = key.removesuffix("?").removesuffix("[0]"), "[0]" in key
    value = entry.get(name)
    if first:
        value = value[0] if isinstance(value, list) and value else None
    if isinstance(value, str) or (name.endswith("id") and value is not None):
        return str(value)
    if not key or key.endswith("?"):
        return None
    raise Misfit(
        f'"{name}" must be {"a list of texts" if first else "text"}' if name in entry else f'"{name}" is missing'
    )


TURNS = '{"question_id": ..., "category": text, "turns": [text, ...]}'
QUESTION = ("turns[0]", "question_id", "category", "reference[0]?")
FORMATS: dict[str, FileFormat] = {
    "mt-bench": FileFormat("MT-bench question", TURNS, "chat", *QUESTION),
    "spec-bench": FileFormat("Spec-Bench question", TURNS, "chat", *QUESTION),
    "humaneval": FileFormat(
        "HumanEval problem", '{"task_id": text, "prompt": text, "canonical_solution": text}', "code",
        text="prompt", id="task_id", reference="canonical_solution",
    ),
    "gsm8k": FileFormat(
        "GSM8K question", '{"question": text, "answer": text}', "maths", text="question", reference="answer"
    ),
    "jsonl": FileFormat("prompt", '{"prompt": text}', "as-is", text="prompt", id="id?", reference="reference?"),
    "tsv": FileFormat("pair", "a sentence, a tab, its translation", "translation"),
    "txt": FileFormat("prompt", "a prompt", "as-is"),
}  # fmt: skip
MARKS = {  # keys that identify a format, the first that fits; Spec-Bench has the format of MT-bench
    "mt-bench": {"question_id", "turns"},
    "humaneval": {"task_id", "prompt"},
    "gsm8k": {"question", "answer"},
    "jsonl": {"prompt"},
}


def dataset(
    name: str, *, field: str, config: str | None = None, split: str = "test", reference: str | None = None
) -> list[Item]:
    """Items of a data set of the Hugging Face hub, by the package `datasets`, which may use the network.

    Args:
      field: column of the prompts.
      reference: column of the answers, or None.

    Raises:
      ValueError: the package is not installed, or an unknown column.
    """
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(f"--dataset {name} requires the package datasets: pip install datasets") from None
    rows = datasets.load_dataset(name, config, split=split)
    items = []
    for number, row in enumerate(rows):
        for key in filter(None, (field, reference)):
            if not isinstance(row.get(key), str):
                raise ValueError(
                    f"data set {name}, row {number}: column {key!r} is not text (columns: {', '.join(row)})"
                )
        items.append(Item(row[field], str(number), reference=row[reference] if reference else None))
    if not items:
        raise ValueError(f"data set {name} has no row in {split!r}")
    return items
