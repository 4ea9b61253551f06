"""Settings, presets and prompts of the experiments, and what an experiment is. Importing this does not load jax."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specjax import presets
from specjax.bench import tasks
from specjax.bench.record import SMALLEST, Case, Row, check_sizes
from specjax.checks import check_name, integer
from specjax.defaults import LARGEST_SEED, TARGET
from specjax.reproduce.report import Report

SENTENCE = re.compile(r"(?<=[.?!])\s+")
FAMILIES = ("bundled", "original")
SHAPES = ("", "real")
OPT_SHAPES = ("opt-13b", "opt-6.7b", "opt-2.7b", "opt-1.3b")  # targets of the report on OPT, and of the paper on T5
T5_SHAPES = ("t5-v1_1-xxl", "t5-v1_1-xl", "t5-v1_1-large", "t5-v1_1-base")
Items = Mapping[str, Sequence[tasks.Item]]


@dataclasses.dataclass(frozen=True)
class Setup:
    """Settings of an experiment."""

    models: str = "bundled"
    """bundled, or original: the published models, if their weights are available (downloads them)."""
    shapes: str = ""
    """real: random weights of the published shapes, and simulated acceptance at the published rates."""
    targets: tuple[str, ...] = ()
    """Targets of --shapes real: opt-13b, opt-6.7b, opt-2.7b, opt-1.3b, t5-v1_1-xxl, -xl, -large, -base; by default the
    largest OPT and the largest T5 that fit into memory."""
    heads: tuple[str, ...] = ()
    """NAME=FOLDER of trained heads, for the experiment heads; by default those of the package."""
    head_target: str = TARGET
    """Their target."""
    prompts: tuple[str, ...] = ()
    """TASK=FILE, or FILE if the experiment has one task; by default the prompts of the package."""
    style: str = tasks.AUTO
    """How the models are addressed, as in specjax sweep: auto, as-is, plain, prefix, own, chatml, ...."""
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
        check_name(self.models, FAMILIES, "models")
        check_name(self.shapes, SHAPES, "shapes")
        check_name(self.style, tasks.STYLES, "style")
        for name in self.targets:
            check_name(name, (*OPT_SHAPES, *T5_SHAPES), "target")
        check_sizes(self, (*SMALLEST, "gamma", "draws"))
        integer("seed", self.seed, least=0, most=LARGEST_SEED)

    def quick(self) -> "Setup":
        """The smallest size, which checks that everything runs but does not measure speed."""
        return dataclasses.replace(self, **SMALLEST, draws=1)

    def key(self, experiment: str, **own: Any) -> Row:
        """The key of a row: everything that it depends on."""
        given = dataclasses.asdict(self) | {"prompts": None}
        if self.style == tasks.AUTO:  # rows of before this setting are of this style
            del given["style"]
        return {"bench": "reproduce", "experiment": experiment, **given, **own}


@dataclasses.dataclass(frozen=True)
class Preset(Setup):
    """A table or figure, and what it is measured with: `REPRODUCE = Preset(name="table-2", count=64)` in a file."""

    name: str = ""

    @property
    def setup(self) -> Setup:
        return Setup(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Setup)})


def read_preset(file: Path | str) -> Preset:
    """The preset of a Python file. Raises FileNotFoundError or ValueError, in one line."""
    return presets.bound(file, "REPRODUCE", Preset)


class Experiment(NamedTuple):
    """One table or figure.

    Attributes:
      title: one line.
      source: publication and place.
      tasks: names of the tasks whose prompts it uses.
      cases: (setup, items of the tasks) -> cases to measure.
      report: (setup, rows of all cases) -> report; pure, and rows may be missing if a model is unavailable.
    """

    title: str
    source: str
    tasks: tuple[str, ...]
    cases: Callable[[Setup, Items], list[Case]]
    report: Callable[[Setup, Sequence[Row]], Report]


def computed(experiment: str, rows: Callable[[], list[Row]]) -> Callable[[Setup, Items], list[Case]]:
    """The cases of an experiment that computes closed forms and runs no model."""
    case = Case({"bench": "reproduce", "experiment": experiment}, experiment, lambda shelf: rows())
    return lambda setup, items: [case]


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
        if not mark and len(wanted) != 1:
            raise ValueError(f"--prompts {one} requires a task: write TASK=FILE, with {' or '.join(wanted) or 'none'}")
        task, file = (head, tail) if mark else (wanted[0], one)
        check_name(task, tasks.TASKS, "task of --prompts")
        if task in files:
            raise ValueError(f"--prompts names the task {task!r} twice")
        files[task] = file
    found = {task: tasks.read(files[task])[1] if task in files else tasks.TASKS[task].samples for task in wanted}
    return {task: tasks.pick(items, count) for task, items in found.items()}


def other_texts(task: str) -> list[str]:
    """Sentences of the prompts of all other tasks: tables are not fitted on the texts that they are measured on."""
    others = [other for name, other in tasks.TASKS.items() if name not in (task, "code")]
    return [part for other in others for item in other.samples for part in SENTENCE.split(item.text)]
