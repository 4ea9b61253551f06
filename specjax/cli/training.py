"""What the commands that train have in common: the course of a run, its progress, its end."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from specjax import files
from specjax.checks import check_name
from specjax.cli import checks
from specjax.cli.progress import open_console
from specjax.defaults import LARGEST_SEED

if TYPE_CHECKING:
    from specjax.model import Model

INTERRUPTED = 130
DTYPES = ("float32", "bfloat16")
BYTES = 256  # each is a token of a byte-level vocabulary
OWN = "of its own"  # in the place of a tokenizer's content
LARGEST = 2**30  # steps: they are counted in 32 bits
LARGEST_SIDE = 2**16  # of a model's or a batch's shape
LARGEST_VOCABULARY = 2**16  # texts are packed as uint16


@dataclasses.dataclass(frozen=True)
class Course:
    """How long it trains, how fast, and on whose word."""

    steps: int = 10_000
    """Of the whole run; a run that has ended is prolonged by a larger number."""
    rate: float = 1e-3
    """Peak learning rate: warm-up, constant, then linear decay to a tenth over the last third."""
    warmup: int = 100
    teacher: str | None = None
    """A model with the same tokenizer to distill from."""
    distill: float = 0.9
    """Weight of the divergence from the teacher, the rest being the data's own loss."""
    every: int = 300
    """Steps between evaluations and checkpoints."""
    muon: bool = False
    """Muon instead of AdamW on the layers' kernels: fewer steps for the same loss."""
    half: bool = False
    """Multiply in bfloat16; master weights stay float32."""
    dtype: str = "bfloat16"
    """Of the exported weights."""
    seed: int = 0


def within(least: int, most: int, **options: int) -> None:
    """Raises ValueError for numbers outside least..most; of options by name."""
    checks.at_least(least, **options)
    checks.at_most(most, **options)


def check_run(run: Path) -> None:
    """Raises ValueError for a folder that cannot be made, or that is the current one."""
    if run == Path():
        raise ValueError("--run must name a folder of its own, such as runs/target")
    there = next(folder for folder in (run, *run.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise ValueError(f"--run {run}: {there} is a file: name a folder")
    if not os.access(there, os.W_OK):
        raise ValueError(f"--run {run}: cannot write into the folder {there}")


def check(run: Path, course: Course, data: tuple[Path, ...], tokenizer: Path | None, held_out: float) -> None:
    """Raises ValueError or FileNotFoundError for what cannot work, before any work."""
    for file in data:
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such data file")
    if not 0.0 < held_out < 1.0:
        raise ValueError(f"--held-out must lie between 0 and 1, got {held_out}")
    check_run(run)
    within(1, LARGEST, steps=course.steps, every=course.every)
    within(0, LARGEST, warmup=course.warmup)
    within(0, LARGEST_SEED, seed=course.seed)
    if not 0.0 < course.rate < 1.0:
        raise ValueError(f"--rate must lie between 0 and 1, got {course.rate}")
    check_name(course.dtype, DTYPES, "dtype")
    if not 0.0 <= course.distill <= 1.0:
        raise ValueError(f"--distill must lie in 0..1, got {course.distill}")
    if tokenizer is not None and not (tokenizer / "tokenizer.json").is_file():
        raise FileNotFoundError(f"{tokenizer} holds no tokenizer.json")


def check_vocab_size(size: int, tokenizer: Path | None, specials: Sequence[str]) -> None:
    """Raises ValueError for a tokenizer to be trained that lacks room for every byte, or is too large to be packed."""
    least = BYTES + len(specials)
    if tokenizer is None and not least <= size <= LARGEST_VOCABULARY:
        raise ValueError(
            f"--vocab-size must lie in {least}..{LARGEST_VOCABULARY} (each byte and the special tokens), got {size}"
        )


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder.

    Raises:
      ValueError: its file is damaged, or it has more tokens than 16 bits tell apart.
    """
    import tokenizers

    file = folder / "tokenizer.json"
    try:
        found = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers has no class of its own for it
        raise ValueError(f"{file} is damaged: {error}") from None
    if found.get_vocab_size() > LARGEST_VOCABULARY:
        raise ValueError(
            f"{file} has {found.get_vocab_size()} tokens, and text is packed with at most {LARGEST_VOCABULARY}"
        )
    return found


def report(train: Callable[[Callable[[str], None]], Path | None]) -> int:
    """Runs `train(say)` with a line of progress; it returns the model's folder, or None where it was stopped."""
    console = open_console(stderr=True)
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        line = progress.add_task("starting", total=None)
        folder = train(lambda text: progress.update(line, description=text))
    if folder is None:
        console.print("stopped and saved: the same command goes on from there")
        return INTERRUPTED
    console.print(f"model: {folder}", markup=False, soft_wrap=True)
    return 0


@dataclasses.dataclass(frozen=True)
class Note:
    """What a run was begun with and has to go on with, in RUN/run.json; paths are not in it, for runs are moved."""

    run: Path
    given: Mapping[str, Any]

    @classmethod
    def of(cls, options: Any, data: Sequence[Path], lasting: Sequence[str]) -> "Note":
        """Names and sizes of the data, the tokenizer's content, the seed, the optimizer, and the options `lasting`."""
        given: dict[str, Any] = {
            "data": [[file.name, file.stat().st_size] for file in data],
            "tokenizer": OWN,
            "seed": options.course.seed,
            "muon": options.course.muon,
        } | {name: getattr(options, name) for name in lasting}
        if options.tokenizer is not None:
            content = (options.tokenizer / "tokenizer.json").read_bytes()
            given |= {"tokenizer": hashlib.blake2b(content, digest_size=8).hexdigest(), "vocab_size": None}
        return cls(options.run, given)

    @property
    def file(self) -> Path:
        return self.run / "run.json"

    def wants_tokenizer(self, home: Path) -> bool:
        """Whether the run's own is to be trained: there is none, or it is what a start that failed has left."""
        kept = self.file.is_file() or self.given["tokenizer"] != OWN
        return not (home / "tokenizer.json").is_file() or not kept

    def check(self) -> None:
        """Raises ValueError where the run was begun with something else, naming it."""
        if not self.file.is_file():
            return
        try:
            begun = dict(json.loads(files.read_text(self.file)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.file} is damaged: {error}: remove it, and the run goes on unchecked") from None
        for name, value in json.loads(json.dumps(self.given)).items():
            if name in begun and begun[name] != value:
                was, now = _shown(begun[name]), _shown(value)
                raise ValueError(f"{self.run} was begun with {name} {was}, not {now}: use a new --run folder")

    def write(self) -> None:
        """To be called when the data is found fit, so that a start that failed can be mended."""
        files.write_text(self.file, json.dumps(self.given, indent=1) + "\n")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def teacher(course: Course, vocab_size: int, *, encoder_decoder: bool, length: int = 0) -> "Model | None":
    """The model to distill from, where there is one.

    Args:
      length: positions that it must have.

    Raises:
      ValueError: it is of another kind, its vocabulary is another, or it has too few positions.
    """
    from specjax.loading import load

    if course.teacher is None:
        return None
    model = load(course.teacher)
    if model.vocab_size != vocab_size:
        raise ValueError(f"teacher {model.name} has {model.vocab_size} tokens, the student {vocab_size}")
    if model.encoder_decoder != encoder_decoder:
        kinds = {True: "an encoder-decoder", False: "a decoder alone"}
        raise ValueError(
            f"teacher {model.name} is {kinds[model.encoder_decoder]}, the student {kinds[encoder_decoder]}"
        )
    if model.positions is not None and length > model.positions:
        raise ValueError(
            f"teacher {model.name} has {model.positions} positions, and a window has {length}: lower --length"
        )
    return model


def finish(
    course: Course, task: Any, run: Path, *, family: str, config: Any, published: Mapping[str, Any], tokenizer: Path,
    say: Callable[[str], None],
) -> Path | None:  # fmt: skip
    """Trains to the end, draws the curve and exports the model; its folder, or None where it was stopped before.

    Args:
      task: of `training.tasks`. family, config: of the student. published: the same as Hugging Face's config.json.
    """
    from specjax.training import lm

    recipe = lm.Recipe(
        steps=course.steps, warmup=course.warmup, decay=course.steps // 3, rate=course.rate, half=course.half,
        distill=course.distill if course.teacher is not None else 0.0, every=course.every, seed=course.seed,
        muon=course.muon,
    )  # fmt: skip
    state = lm.train(
        task, recipe, run, family=family, config=config, report=lambda record: say(told(record, recipe.steps))
    )
    lm.draw_curve(run)
    if int(state.step) < recipe.steps:
        return None
    folder = run / "model"
    lm.export(state.params, folder, published, dtype=course.dtype, tokenizer=tokenizer)
    return folder


def told(record: Mapping[str, Any], steps: int) -> str:
    """One record of a run as a line."""
    shown = {key: record[key] for key in ("loss", "held_out_perplexity", "held_out_overlap") if key in record}
    numbers = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in shown.items())
    return f"step {record['step']} of {steps}: {numbers}, {record['seconds_a_step']:.2f} s a step"
