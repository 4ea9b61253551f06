"""Prompts from the command line, a text file, a JSONL file or stdin. Errors name the line."""

import json
import sys
from collections.abc import Sequence

from specjax import files

STDIN = "-"


def read_prompts(given: Sequence[str], file: str | None) -> list[str]:
    """The prompts of the command line, followed by those of `file`.

    Raises:
      ValueError: no prompt, an empty prompt, text that is not UTF-8, a file that cannot be read, or an invalid line.
    """
    prompts = [_checked(prompt, f"prompt {number}") for number, prompt in enumerate(given, start=1)]
    if file is not None:
        prompts += read_file(file)
    if not prompts:
        raise ValueError('a prompt is required: specjax generate "Once upon a time", or --prompts FILE')
    return prompts


def read_file(file: str) -> list[str]:
    """One prompt per line; JSONL if the name ends in .jsonl, or if the first line of stdin starts with a brace."""
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


def _from_json(line: str, where: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
        raise ValueError(f'{where} requires a text "prompt", such as {{"prompt": "..."}}')
    return _checked(record["prompt"], where)


def _checked(prompt: str, where: str) -> str:
    if not prompt.strip():
        raise ValueError(f"{where} is empty: pass at least one word")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} is not valid UTF-8") from None
    return prompt
