"""Prompts from the command line, a text file, a JSONL file or stdin, and the items of a job. Errors name the line."""

import contextlib
import json
import sys
from collections.abc import Sequence

from specjax import files, stores
from specjax.checks import is_integer
from specjax.jobs import Item

STDIN = "-"


Prompt = str | list[int]  # text, or token ids


def read_prompts(given: Sequence[str], file: str | None) -> list[Prompt]:
    """The prompts of the command line, followed by those of `file`.

    Raises:
      ValueError: no prompt, an empty prompt, text that is not UTF-8, a file that cannot be read, or an invalid line.
    """
    prompts: list[Prompt] = [_checked(prompt, f"prompt {number}") for number, prompt in enumerate(given, start=1)]
    if file is not None:
        prompts += read_file(file)
    if not prompts:
        raise ValueError('a prompt is required: specjax generate "Once upon a time", or --prompts FILE')
    return prompts


def read_file(file: str) -> list[Prompt]:
    """One prompt per line: text, or in JSONL also token ids.

    A file is JSONL if its name ends in .jsonl; stdin, if its first line starts with a brace.
    """
    name = "stdin" if file == STDIN else file
    if file == STDIN and sys.stdin is None:
        raise ValueError("--prompts -: stdin is closed: pass a file")
    lines = files.filled(files.decoded(sys.stdin.buffer, name) if file == STDIN else files.lines(file, "prompts"))
    if not lines:
        raise ValueError(f"--prompts {name} contains no prompt: write one per line")
    json_lines = lines[0][1].lstrip().startswith("{") if file == STDIN else file.endswith(".jsonl")
    if not json_lines:
        return [_checked(line, f"{name} line {number}") for number, line in lines]
    return [_from_json(line, f"{name} line {number}") for number, line in lines]


def read_items(file: str) -> list[Item]:
    """The prompts of a job: as `read_file` reads them, from a local file or an object store, with the `id` of each.

    An invalid line becomes an item with its error; blank lines are skipped.

    Raises:
      ValueError: a file that cannot be read, or without a prompt.
    """
    name = file.removesuffix(".gz").removesuffix(".xz")
    items = []
    for number, line in enumerate(stores.read(file, "prompts").removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            items.append(_item(line.rstrip(b"\r"), f"line {number}", json_lines=name.endswith(".jsonl")))
    if not items:
        raise ValueError(f"{file} contains no prompt: write one per line")
    return items


def _item(line: bytes, where: str, *, json_lines: bool) -> Item:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return Item(None, error=f"{where} is not UTF-8")
    found = None
    try:
        if not json_lines:
            return Item(_checked(text, where))
        with contextlib.suppress(ValueError, AttributeError):
            found = json.loads(text).get("id")
        return Item(_from_json(text, where), found)
    except (ValueError, RecursionError) as error:
        return Item(None, found, str(error))


def _from_json(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not valid JSON: {error}") from None
    prompt = record.get("prompt") if isinstance(record, dict) else None
    if isinstance(prompt, list) and prompt and all(map(is_integer, prompt)):
        return prompt
    if not isinstance(prompt, str):
        raise ValueError(
            f'{where} requires a "prompt", text or token ids, such as {{"prompt": "..."}} or {{"prompt": [2, 50, 60]}}'
        )
    return _checked(prompt, where)


def _checked(prompt: str, where: str) -> str:
    if not prompt.strip():
        raise ValueError(f"{where} is empty: pass at least one word")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} is not valid UTF-8") from None
    return prompt
