"""Where measurements are kept: JSONL that a later run goes on from, and a Markdown table."""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specjax import files

Row = dict[str, Any]


class Record:
    """A JSONL file of rows, each with the case that it belongs to, versions, device and revision.

    A case is written when all its rows are measured: one that was interrupted is measured again.

    Raises:
      ValueError: the file holds something else.
    """

    def __init__(self, file: Path | None, about: Mapping[str, str]):
        self.file = file
        self.about = dict(about) | {"revision": revision()}
        self.known: dict[str, list[Row]] = {}
        if file is None or not file.is_file():
            return
        for number, line in files.lines(file, "rows"):
            try:
                entry = json.loads(line)
                if entry["versions"] == self.about:
                    self.known.setdefault(name(entry["case"]), []).append(entry["row"])
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{file}, line {number} is no row of a benchmark: give another --json file") from None

    def rows(self, case: Mapping[str, Any]) -> list[Row]:
        """The rows that the file has of a case, measured with these versions and this revision."""
        return self.known.get(name(case), [])

    def add(self, case: Mapping[str, Any], rows: Iterable[Row]) -> Iterator[Row]:
        """Passes the rows on, and appends them to the file when the last one has come.

        Before the first is measured, the programs of earlier cases are forgotten if there are too many of them.
        """
        from specjax.bench import machine  # which imports jax: a file is checked without it

        machine.forget_programs()
        seen = []
        for row in rows:
            seen.append(row)
            yield row
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as stream:
            for row in seen:
                stream.write(json.dumps({"case": case, "row": row, "versions": self.about}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def name(case: Mapping[str, Any]) -> str:
    """A case as a key: tuples and lists are one."""
    return json.dumps(case, sort_keys=True)


def revision() -> str:
    """The git revision of the code that runs, "" outside a repository; a "+" says that files were changed."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        run = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True)
        return run.stdout.strip()

    try:
        if not git("ls-files", __file__):
            return ""
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def write_markdown(file: Path, rows: Sequence[Row]) -> None:
    """One table; columns in the order in which they first appear, numbers to three digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(show(row.get(column, "")) for column in columns) + " |" for row in rows]
    files.write_text(file, "\n".join(lines) + "\n")


def show(value: Any) -> str:
    """A value for people: numbers to three digits."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list | tuple):
        return "/".join(map(show, value))
    if isinstance(value, dict):
        return ",".join(f"{key}:{show(one)}" for key, one in value.items())
    return str(value)
