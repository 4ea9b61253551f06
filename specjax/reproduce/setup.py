"""Settings, presets and reports of experiments. Importing this module does not load jax."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specjax.bench import tasks
from specjax.bench.record import SMALLEST, Case, Row, check_sizes
from specjax.reproduce.checks import ClaimCheck
from specjax.reproduce.published import Source

SENTENCE = re.compile(r"(?<=[.?!])\s+")
FAMILIES = ("bundled", "original")


@dataclasses.dataclass(frozen=True)
class Setup:
    """Settings of an experiment."""

    models: str = "bundled"
    """bundled, or original: the published models, if their weights are available (downloads them)."""
    prompts: tuple[str, ...] = ()
    """TASK=FILE, or FILE if the experiment has one task; by default the prompts of the package."""
    dtype: str = "float32"
    """Format of the weights: float32, bfloat16 or float16."""
    count: int = 8
    """Prompts per task, spread over its file."""
    max_new_tokens: int = 64
    """Most new tokens per request."""
    batch: int = 8
    """Prompts decoded together when counting acceptance."""
    timed: int = 4
    """Prompts that are timed, one request at a time."""
    repeats: int = 3
    """Timed, interleaved runs of each strategy, of which the median counts."""
    gamma: int = 5
    """Draft length where the publication does not give one."""
    draws: int = 4
    """Samples of the target per text that unigrams and bigrams are counted from."""
    seed: int = 0
    """Seed of sampling."""

    def __post_init__(self) -> None:
        if self.models not in FAMILIES:
            raise ValueError(f"no models are named {self.models!r} (known: {', '.join(FAMILIES)})")
        check_sizes(self, (*SMALLEST, "gamma", "draws"))
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must lie in 0..{2**32 - 1}, got {self.seed!r}")

    def quick(self) -> "Setup":
        """The smallest size, which checks that everything runs but does not measure speed."""
        return dataclasses.replace(self, **SMALLEST, draws=1)

    def key(self, experiment: str, **own: Any) -> Row:
        """The key of a row: everything that it depends on."""
        return {"bench": "reproduce", "experiment": experiment, **dataclasses.asdict(self), **own, "prompts": None}


def read_prompts(given: Sequence[str], wanted: Sequence[str], count: int) -> dict[str, list[tasks.Item]]:
    """The items of each task, from its file if given, else those of the package.

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
        items = tasks.read(files[task])[1] if task in files else tasks.TASKS[task].samples
        found[task] = tasks.pick(items, count)
    return found


def other_texts(task: str) -> list[str]:
    """Sentences of the prompts of all other tasks: tables are not fitted on the texts that they are measured on."""
    texts = []
    for name, other in tasks.TASKS.items():
        if name not in (task, "code"):
            texts += [part for item in other.samples for part in SENTENCE.split(item.text)]
    return texts


def spelled(model: Any, task: str, texts: Sequence[str]) -> list[str]:
    """Prompts of a task with these texts, in the form that the model was trained on."""
    return tasks.prompts_for(model, task, [tasks.Item(text) for text in texts])


class Report(NamedTuple):
    """Result of an experiment.

    Attributes:
      table: rows with published and measured numbers; empty for a figure.
      checks: verdicts on the published claims.
      notes: conditions of the measurement, and reasons for differences.
      draw: matplotlib's Figure class -> figure; None without a figure.
    """

    title: str
    source: Source
    table: list[Row]
    checks: list[ClaimCheck]
    notes: list[str]
    draw: Callable[[Any], Any] | None = None


Items = Mapping[str, Sequence[tasks.Item]]


class Experiment(NamedTuple):
    """One table or figure.

    Attributes:
      about: one line of description.
      tasks: names of the tasks whose prompts it uses.
      cases: (setup, items of the tasks) -> cases to measure.
      report: (setup, rows of all cases) -> report; pure, and rows may be missing if a model is unavailable.
    """

    about: str
    source: Source
    tasks: tuple[str, ...]
    cases: Callable[[Setup, Items], list[Case]]
    report: Callable[[Setup, Sequence[Row]], Report]
