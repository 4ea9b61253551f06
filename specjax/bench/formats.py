"""Files of prompts: MT-bench, Spec-Bench, HumanEval, GSM8K, pairs, plain prompts. Every error names its line."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specjax import files
from specjax.checks import check_name

AUTO = "auto"


class Item(NamedTuple):
    """One entry of a task.

    Attributes:
      text: what it is about: a question, a sentence to translate, the head of a function.
      id, category: as the file names them; empty where it does not.
      reference: an answer that is known; None where there is none.
    """

    text: str
    id: str = ""
    category: str = ""
    reference: str | None = None


class Format(NamedTuple):
    """A kind of file.

    Attributes:
      title: for people. line: what one line must be, for the error that says so.
      read: a line's JSON object -> Item; raises Misfit. Of formats that are no JSON: the line itself -> Item.
      json: whether a line is a JSON object.
      task: name of the task in `tasks.TASKS` that such files are for.
    """

    title: str
    line: str
    read: Callable[[Any], Item]
    json: bool
    task: str


class Misfit(Exception):
    """What is wrong with a line; the loader adds where it is and what was expected."""


def read(file: Path | str, format: str = AUTO) -> tuple[str, list[Item]]:
    """The format's name and the items of a file, gzipped where its name ends in .gz.

    Args:
      format: a name of `FORMATS`, or "auto": by the file's ending and its first line.

    Raises:
      ValueError: a file that cannot be read, no such format, no item, or a line of another format: which file, which
        line, what was expected.
    """
    path = Path(file)
    lines = files.filled(files.lines(path, "prompts"))
    if not lines:
        raise ValueError(f"{path} holds no prompt: it is empty")
    name = detect(path, *lines[0]) if format == AUTO else format
    check_name(name, [AUTO, *FORMATS], "format of prompts")
    kind = FORMATS[name]
    return name, [_item(kind, path, number, line) for number, line in lines]


def detect(path: Path, number: int, line: str) -> str:
    """The format of a file by its ending and its first line.

    Raises:
      ValueError: it is none that is known.
    """
    ending = path.with_suffix("").suffix if path.suffix in files.PACKED else path.suffix
    if ending in (".txt", ".tsv"):
        return ending[1:]
    if ending not in (".jsonl", ".json"):
        raise ValueError(
            f"{path}: its ending does not say what it holds: name it .txt, .tsv or .jsonl, or say --format "
            f"({', '.join(FORMATS)})"
        )
    keys = _object(line, f"{path} line {number}").keys()
    for name, marks in MARKS.items():
        if marks <= keys:
            return name
    raise ValueError(
        f"{path} line {number} is of no known format, with the keys {', '.join(map(repr, keys)) or 'none'}: "
        "expected one of " + "; ".join(f"{kind.title}, {kind.line}" for kind in FORMATS.values() if kind.json)
    )


def _item(kind: Format, path: Path, number: int, line: str) -> Item:
    where = f"{path} line {number}"
    try:
        item = kind.read(_object(line, where) if kind.json else line)
    except Misfit as misfit:
        raise ValueError(f"{where} is no {kind.title}: expected {kind.line}, and {misfit}") from None
    if not item.text.strip():
        raise ValueError(f"{where} is no {kind.title}: its text is empty")
    return item if item.id else item._replace(id=str(number))


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no JSON object but a {type(value).__name__}: write one object a line")
    return value


# --- the formats -----------------------------------------------------------------------------------------------------


def _text(entry: Mapping[str, Any], key: str) -> str:
    if key not in entry:
        raise Misfit(f'"{key}" is missing')
    if not isinstance(entry[key], str):
        raise Misfit(f'"{key}" is no text but of type {type(entry[key]).__name__}')
    return entry[key]


def _turns(entry: Mapping[str, Any]) -> Item:
    """The first turn: later ones depend on what the model answers."""
    if "question_id" not in entry:
        raise Misfit('"question_id" is missing')
    turns = entry.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise Misfit('"turns" is no list of texts' if "turns" in entry else '"turns" is missing')
    known = entry.get("reference")
    first = known[0] if isinstance(known, list) and known and isinstance(known[0], str) else None
    return Item(turns[0], str(entry["question_id"]), _text(entry, "category"), first)


def _humaneval(entry: Mapping[str, Any]) -> Item:
    return Item(_text(entry, "prompt"), _text(entry, "task_id"), reference=_text(entry, "canonical_solution"))


def _gsm8k(entry: Mapping[str, Any]) -> Item:
    return Item(_text(entry, "question"), reference=_text(entry, "answer"))


def _prompt(entry: Mapping[str, Any]) -> Item:
    known = entry.get("reference")
    return Item(_text(entry, "prompt"), str(entry.get("id", "")), reference=known if isinstance(known, str) else None)


def _pair(line: str) -> Item:
    parts = line.split("\t")
    if len(parts) != 2:
        raise Misfit(f"it has {len(parts) - 1} tabs")
    return Item(parts[0], reference=parts[1])


TURNS = '{"question_id": ..., "category": text, "turns": [text, ...]}'
FORMATS: dict[str, Format] = {
    "mt-bench": Format("MT-bench question", TURNS, _turns, True, "chat"),
    "spec-bench": Format("Spec-Bench question", TURNS, _turns, True, "chat"),
    "humaneval": Format(
        "HumanEval problem", '{"task_id": text, "prompt": text, "canonical_solution": text}', _humaneval, True, "code"
    ),
    "gsm8k": Format("GSM8K question", '{"question": text, "answer": text}', _gsm8k, True, "maths"),
    "jsonl": Format("prompt", '{"prompt": text}', _prompt, True, "as-is"),
    "tsv": Format("pair", "a sentence, a tab, its translation", _pair, False, "translation"),
    "txt": Format("prompt", "a prompt", Item, False, "as-is"),
}
MARKS = {  # keys that tell a format; the first that fits. Spec-Bench's files are of MT-bench's format
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
      field, reference: columns of the prompts and of the answers, where there are any.

    Raises:
      ValueError: the package is not installed, or there is no such column.
    """
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(f"the data set {name} needs the package datasets (pip install datasets)") from None
    rows = datasets.load_dataset(name, config, split=split)
    items = []
    for number, row in enumerate(rows):
        for key in filter(None, (field, reference)):
            if not isinstance(row.get(key), str):
                raise ValueError(
                    f"data set {name}, row {number}: column {key!r} holds no text (columns: {', '.join(row)})"
                )
        items.append(Item(row[field], str(number), reference=row[reference] if reference else None))
    if not items:
        raise ValueError(f"data set {name} has no row in {split!r}")
    return items
