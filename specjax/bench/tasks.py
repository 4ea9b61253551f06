"""Prompts by task: how an item becomes a prompt for each kind of model, sample items, and files and data sets of items.

Items of other people's files are read in their own formats: MT-bench, Spec-Bench, HumanEval, GSM8K, pairs, prompts.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from specjax import files
from specjax.checks import check_name

T = TypeVar("T")
BUNDLED = "bundled/"  # in the names of the models of the package
AUTO = "auto"  # format or style chosen by the file or the model
AS_IS, PLAIN, PREFIX, OWN = "as-is", "plain", "prefix", "own"  # styles; as-is is also the task of prompts of a file


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
      plain: prompt of a model that continues a text; {text} is that of the item.
      prefix: prompt of T5, which was trained with prefixes.
      message: user message for a chat model, which a style puts between the special tokens of the model.
      samples: items that come with the package, so that a task runs without a file.
    """

    plain: str
    prefix: str
    message: str
    samples: tuple[Item, ...]


def _samples(task: str) -> tuple[Item, ...]:
    entries = map(json.loads, Path(__file__).with_name("samples.jsonl").read_text(encoding="utf-8").splitlines())
    own = [entry for entry in entries if entry["task"] == task]
    return tuple(Item(e["prompt"], f"sample {n}", reference=e.get("reference")) for n, e in enumerate(own, start=1))


TASKS: dict[str, Task] = {
    name: Task(*forms, _samples(name))
    for name, forms in {
        "translation": (
            "English: {text}\nGerman:", "translate English to German: {text}", "Translate into German: {text}",
        ),
        "summarization": (
            "{text}\n\nIn short:", "summarize: {text}", "Summarize this text in two sentences:\n\n{text}",
        ),
        "chat": ("Question: {text}\nAnswer:", "{text}", "{text}"),
        "code": ("{text}", "{text}", "Complete this Python function:\n\n```python\n{text}\n```"),
        "maths": (
            "Question: {text}\nAnswer:", "{text}", "{text}\n\nReason step by step, and end with the number.",
        ),
        "story": ("{text}", "{text}", "Continue this story:\n\n{text}"),
        AS_IS: ("{text}", "{text}", "{text}"),
    }.items()
}  # fmt: skip

CHATS = {  # templates around a user message; the tokenizer turns the marks into its special tokens
    "chatml": "<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n",
    "llama-2": "[INST] {message} [/INST]",
    "llama-3": (
        "<|start_header_id|>user<|end_header_id|>\n\n{message}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "vicuna": "USER: {message} ASSISTANT:",
    "zephyr": "<|user|>\n{message}</s>\n<|assistant|>\n",
}
STYLES = (AUTO, AS_IS, PLAIN, PREFIX, OWN, *CHATS)


def builder(task: Task, style: str, chat: Callable[[str], str] = str) -> Callable[[Item], str]:
    """Item -> prompt.

    Args:
      style: one of `STYLES` but "auto".
      chat: user message -> prompt by the chat template of the model, for the style "own".

    Raises:
      ValueError: an unknown style.
    """
    check_name(style, STYLES, "style of prompts")
    if style in (AS_IS, PLAIN, PREFIX):
        form = {AS_IS: "{text}", PLAIN: task.plain, PREFIX: task.prefix}[style]
        return lambda item: fill(form, text=item.text)
    around = chat if style == OWN else lambda message: fill(CHATS[style], message=message)
    return lambda item: around(fill(task.message, text=item.text))


def style_of(model: Any, task: str, style: str = AUTO) -> str:
    """The style, with "auto" resolved: the model's chat template if any, "prefix" for an encoder-decoder, or "plain".

    Prompts of a file are used as they are.
    """
    if style != AUTO:
        return style
    if task == AS_IS:
        return AS_IS
    if model.text is not None and model.text.chat is not None:
        return OWN
    return PREFIX if model.encoder_decoder else PLAIN


def unfamiliar(model: Any, task: str, style: str) -> str:
    """Why the model may not have been trained for prompts of this form; empty if it was, or if that is not known."""
    if style in CHATS or style == OWN or task == AS_IS:
        return ""
    if BUNDLED in model.name:
        trained = "translation" if model.encoder_decoder else "story"
        return f"it was trained for the task {trained} alone" if task != trained else ""
    if model.text is not None and model.text.chat is not None:
        return f"a chat model that the style {style} does not address by its template"
    if style == PREFIX:
        known = "flan" in model.name.lower() or task in ("translation", "summarization")
        return "" if known else "T5 has no prefix for this task"
    return "it has no chat template, and continues the prompts as text" if task != "story" else ""


def prompts_for(model: Any, task: str, items: Sequence[Item], style: str = AUTO) -> list[str]:
    """Prompts of a task for a model.

    Raises:
      ValueError: an unknown style, or "own" for a model without a chat template.

    Warns:
      UserWarning: the model may not have been trained for this form of the task.
    """
    style = style_of(model, task, style)
    if reason := unfamiliar(model, task, style):
        warnings.warn(f"prompts of the task {task} for {model.name}: {reason}; acceptance may differ", stacklevel=2)
    if style == OWN and (model.text is None or model.text.chat is None):
        raise ValueError(f"style own: {model.name} has no chat template; choose one of {', '.join(CHATS)}")
    return [*map(builder(TASKS[task], style, model.chat), items)]


def fill(form: str, **given: str) -> str:
    """The form with each {name} replaced; other braces, as in code, are kept."""
    for name, value in given.items():
        form = form.replace("{" + name + "}", value)
    return form


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


class PromptFormat(NamedTuple):
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


def _item(kind: PromptFormat, path: Path, number: int, line: str) -> Item:
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
    """The text at a key of `PromptFormat`; None for no key, and for optional keys without a text."""
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
FORMATS: dict[str, PromptFormat] = {
    "mt-bench": PromptFormat("MT-bench question", TURNS, "chat", *QUESTION),
    "spec-bench": PromptFormat("Spec-Bench question", TURNS, "chat", *QUESTION),
    "humaneval": PromptFormat(
        "HumanEval problem", '{"task_id": text, "prompt": text, "canonical_solution": text}', "code",
        text="prompt", id="task_id", reference="canonical_solution",
    ),
    "gsm8k": PromptFormat(
        "GSM8K question", '{"question": text, "answer": text}', "maths", text="question", reference="answer"
    ),
    "jsonl": PromptFormat("prompt", '{"prompt": text}', "as-is", text="prompt", id="id?", reference="reference?"),
    "tsv": PromptFormat("pair", "a sentence, a tab, its translation", "translation"),
    "txt": PromptFormat("prompt", "a prompt", "as-is"),
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
