"""Measurements as rows: cases that are measured once, a JSONL file that a stopped run resumes from, and tables."""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from specjax import files
from specjax.checks import check_name, integer

Row = dict[str, Any]
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # per parameter
SMALLEST = {"count": 2, "max_new_tokens": 8, "batch": 1, "timed": 1, "repeats": 1}  # shows that everything runs


# --- the file --------------------------------------------------------------------------------------------------------


class Record:
    """A JSONL file of rows, each with its case, versions, device and revision.

    A case is written when all of its rows are measured; an interrupted case is measured again.

    Args:
      file: the file to resume from and to append to; None: rows are not stored.
      about: versions and device; rows of the file that differ are measured again.
      writes: whether new rows are appended to the file; of several processes, only the leader does.

    Raises:
      ValueError: the file contains something else.
    """

    def __init__(self, file: Path | None, about: Mapping[str, str], *, writes: bool = True):
        self.file, self.writes = file, writes
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
                raise ValueError(f"{file}, line {number} is not a benchmark row: choose another --json file") from None

    def rows(self, case: Mapping[str, Any]) -> list[Row]:
        """The rows of a case, measured with these versions and this revision."""
        return self.known.get(name(case), [])

    def add(self, case: Mapping[str, Any], rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows, and appends them to the file after the last one."""
        seen = []
        for row in rows:
            seen.append(row)
            yield row
        self.known[name(case)] = seen
        if self.file is None or not self.writes:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as stream:
            for row in seen:
                stream.write(json.dumps({"case": case, "row": row, "versions": self.about}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def name(case: Mapping[str, Any]) -> str:
    """A case as a key: tuples and lists are equal."""
    return json.dumps(case, sort_keys=True)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are measured, the kind of device, and the number of processes if
    there are several."""
    import jax  # not at the top: options are checked without it

    from specjax import hosts

    found = {"python": platform.python_version(), "device": jax.devices()[0].device_kind}
    if hosts.count() > 1:
        found["processes"] = str(hosts.count())
    for package in ("specjax", "jax", "jaxlib", "flax", "torch", "transformers"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def revision() -> str:
    """The git revision of the running code, "" outside a repository; "+" marks modified files."""
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


# --- cases -----------------------------------------------------------------------------------------------------------


class Missing(Exception):
    """A model that is not available, or a combination that is not supported; the reason in one line."""


class Case(NamedTuple):
    """One measurement.

    Attributes:
      key: everything that its rows depend on; rows of the same key are not measured again.
      title: for people.
      measure: Shelf -> rows; raises Missing.
    """

    key: Row
    title: str
    measure: Callable[["Shelf"], Iterable[Row]]


class Shelf:
    """Loaded models by name, and other values that cases share (`keep`).

    Args:
      dtype: of all models.
      notify: receives what is being loaded.
      sizes: parameters of models whose size is known; such a model is not downloaded if it does not fit.
      mesh: that targets are split over; drafts are whole on each of its devices.
    """

    def __init__(
        self, dtype: str, notify: Callable[[str], None], *, sizes: dict[str, float] | None = None, mesh: Any = None
    ):
        self._dtype, self._notify, self._sizes, self._mesh = dtype, notify, sizes or {}, mesh
        self._models: dict[str, Any] = {}
        self._kept: dict[Any, Any] = {}
        self.missing: dict[str, str] = {}

    def draft(self, name: str) -> Any:
        """`model`, under a mesh whole on each device."""
        return self.model(name, replicate=self._mesh is not None)

    def model(self, name: str, *, replicate: bool = False) -> Any:
        """Raises Missing if the model is not available: no such files, no network, or too little memory."""
        if name in self.missing:
            raise Missing(self.missing[name])
        place = f"{name}, replicated" if replicate else name
        if place not in self._models:
            from specjax import loading  # not at the top: options are checked without jax

            try:
                self._check_memory(name)
                self._notify(f"loading {name}")
                self._models[place] = loading.load(name, dtype=self._dtype, mesh=self._mesh, replicate=replicate)
            except (OSError, Missing) as error:
                self.missing[name] = f"{name} is not available: {' '.join(str(error).split())}"
                raise Missing(self.missing[name]) from None
        return self._models[place]

    def keep(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value of `make`, made once for each key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def clear(self, *, but: Sequence[str] = ()) -> None:
        """Drops all models but these, and all values that were kept."""
        self._models = {name: model for name, model in self._models.items() if name in but}
        self._kept.clear()

    def _check_memory(self, name: str) -> None:
        if name not in self._sizes:
            return
        needed, free = self._sizes[name] * BYTES[self._dtype], free_memory()
        if free is not None and needed > free:
            raise Missing(f"its weights take {needed / 1e9:,.0f} GB in {self._dtype}; {free / 1e9:,.0f} GB are free")


def free_memory() -> float | None:
    """Bytes free for arrays: of the first accelerator, or of the machine on a CPU; None where unknown."""
    import jax

    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = dict(line.split(":") for line in lines)
        return 1024.0 * float(found["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None


def check_sizes(settings: Any, names: Sequence[str]) -> None:
    """Raises ValueError for an unknown dtype, or for a setting of these names below 1."""
    check_name(settings.dtype, BYTES, "dtype")
    for size in names:
        integer(size, getattr(settings, size), least=1)


def run(
    cases: Sequence[Case], kept: Record, shelf: Shelf, notify: Callable[[str], None], left_out: list[str]
) -> Iterator[tuple[Case, list[Row]]]:
    """Yields each case with its rows, known or measured; reasons for cases without rows are added to `left_out`."""
    for number, case in enumerate(cases, start=1):
        notify(f"{number} of {len(cases)}: {case.title}")
        rows = kept.rows(case.key)
        if not rows:
            try:
                rows = list(kept.add(case.key, case.measure(shelf)))
            except Missing as missing:
                if str(missing) not in left_out:
                    left_out.append(str(missing))
        yield case, rows


# --- tables ----------------------------------------------------------------------------------------------------------


def to_text(value: Any) -> str:
    """A value for people: numbers to three digits, None left empty."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list | tuple):
        return "/".join(map(to_text, value))
    if isinstance(value, dict):
        return ",".join(f"{key}:{to_text(one)}" for key, one in value.items())
    return str(value)


def write_markdown(file: Path, rows: Sequence[Row]) -> None:
    """One table, atomically."""
    files.write_text(file, "\n".join(markdown_table(rows)) + "\n")


def markdown_table(rows: Sequence[Row], show: Callable[[Any], str] = to_text) -> list[str]:
    """Lines of a table; columns in the order in which they first appear."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    line = lambda values: "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"
    body = [line((show)(row.get(column, "")) for column in columns) for row in rows]
    return [line(columns), "|" + "---|" * len(columns), *body]


def terminal_table(
    rows: Sequence[Row], show: Callable[[Any], str] = to_text, *, bold: Sequence[int] = (), **options: Any
) -> Any:
    """A rich table of rows with the same columns; text is aligned left, and folded in a narrow terminal.

    Args:
      bold: numbers of the rows to highlight.
      options: of `rich.table.Table`.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, title_justify="left", **options)
    for name in rows[0]:
        words = all(isinstance(row[name], str | None) for row in rows)
        table.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for number, row in enumerate(rows):
        table.add_row(*map(show, row.values()), style="bold" if number in bold else None)
    return table
