"""What an experiment is, what it is run with, and what it tells. Nothing here loads jax."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specjax.bench import formats, tasks
from specjax.bench.record import Row
from specjax.bench.runner import SMALLEST, Case, check_sizes
from specjax.reproduce.checks import Check
from specjax.reproduce.published import Source

SENTENCE = re.compile(r"(?<=[.?!])\s+")
FAMILIES = ("bundled", "original")


@dataclasses.dataclass(frozen=True)
class Setup:
    """What an experiment is run with."""

    models: str = "bundled"
    """bundled, or original: those of the publication, where their weights can be had (downloads them)."""
    prompts: tuple[str, ...] = ()
    """TASK=FILE, or FILE alone where the experiment has one task; else the few prompts that come along."""
    dtype: str = "float32"
    """Of the weights: float32, bfloat16 or float16."""
    count: int = 8
    """Prompts of a task, spread over its file."""
    max_new_tokens: int = 64
    """Of a request."""
    batch: int = 8
    """Prompts decoded together where acceptance is counted."""
    timed: int = 4
    """Prompts that are timed, one request at a time."""
    repeats: int = 3
    """Timed runs of each way, in turns; medians count."""
    gamma: int = 5
    """Draft tokens a round where the publication does not say."""
    draws: int = 4
    """Times that the target is asked for each text that unigrams and bigrams are counted from."""
    seed: int = 0
    """Of the random draws."""

    def __post_init__(self) -> None:
        if self.models not in FAMILIES:
            raise ValueError(f"no models are named {self.models!r} (known: {', '.join(FAMILIES)})")
        check_sizes(self, (*SMALLEST, "gamma", "draws"))
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must lie in 0..{2**32 - 1}, got {self.seed!r}")

    def quick(self) -> "Setup":
        """The same in its smallest size, which shows that everything runs and says nothing about speed."""
        return dataclasses.replace(self, **SMALLEST, draws=1)

    def key(self, experiment: str, **own: Any) -> Row:
        """What a row depends on."""
        return {"bench": "reproduce", "experiment": experiment, **dataclasses.asdict(self), **own, "prompts": None}


def read_prompts(given: Sequence[str], wanted: Sequence[str], count: int) -> dict[str, list[formats.Item]]:
    """The items of each wanted task: of its file where one is given, else those that come with the package.

    Args:
      given: TASK=FILE, or FILE where one task is wanted.

    Raises:
      ValueError, OSError: an unknown task, a file for none or several tasks, a task given twice, a file of no format.
    """
    files: dict[str, str] = {}
    for one in given:
        head, mark, tail = one.partition("=")
        known = bool(mark) and head in tasks.TASKS
        if mark and not known and not Path(one).is_file():
            raise ValueError(f"--prompts {one}: no task is named {head!r} (known: {', '.join(tasks.TASKS)})")
        if not known and len(wanted) != 1:
            raise ValueError(
                f"--prompts {one} does not say its task: write TASK=FILE, with {' or '.join(wanted) or 'none'}"
            )
        task, file = (head, tail) if known else (wanted[0], one)
        if task in files:
            raise ValueError(f"--prompts names the task {task!r} twice")
        files[task] = file
    found = {}
    for task in wanted:
        items = formats.read(files[task])[1] if task in files else tasks.TASKS[task].samples
        found[task] = tasks.pick(items, count)
    return found


def other_texts(task: str) -> list[str]:
    """Sentences of the prompts of all other tasks: what a table is fitted on is not what it is measured on."""
    texts = []
    for name, other in tasks.TASKS.items():
        if name not in (task, "code"):
            texts += [part for item in other.samples for part in SENTENCE.split(item.text)]
    return texts


def spelled(task: str, texts: Sequence[str], *, encoder_decoder: bool) -> list[str]:
    """Prompts of a task about these texts, in the form that the model takes."""
    build = tasks.builder(tasks.TASKS[task], tasks.AUTO, encoder_decoder=encoder_decoder, own=str)
    return [build(formats.Item(text)) for text in texts]


class Report(NamedTuple):
    """What came of an experiment.

    Attributes:
      table: rows side by side, published and here; empty where a figure is all there is.
      checks: what of the published shape shows here. notes: what it was measured with, and why it differs.
      draw: matplotlib's Figure class -> figure; None without a figure.
    """

    title: str
    source: Source
    table: list[Row]
    checks: list[Check]
    notes: list[str]
    draw: Callable[[Any], Any] | None = None


Items = Mapping[str, Sequence[formats.Item]]


class Experiment(NamedTuple):
    """One table or figure.

    Attributes:
      about: one line for people.
      tasks: names of the tasks whose prompts it takes.
      cases: (setup, items of the tasks) -> what is measured. report: (setup, rows of all cases) -> what came of it;
        pure, and it takes rows that are not there (models that cannot be had).
    """

    about: str
    source: Source
    tasks: tuple[str, ...]
    cases: Callable[[Setup, Items], list[Case]]
    report: Callable[[Setup, Sequence[Row]], Report]
