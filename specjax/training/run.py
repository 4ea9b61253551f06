"""A training run in a folder: inputs that must not change, tokenizer, teacher, training, export. Resumable.

Importing this module does not import jax.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from specjax import checks, files
from specjax.config import Processes
from specjax.training.recipe import Distillation, Recipe

if TYPE_CHECKING:
    from specjax.model import Model
    from specjax.training.lm import TrainingTask

arg = tyro.conf.arg
Say = Callable[[str], None]
DTYPES = ("float32", "bfloat16")
BYTES = 256  # each is a token of a byte-level vocabulary
TRAINED = "of its own"  # in place of the hash of a given tokenizer
LARGEST_SIDE = 2**16  # of a model's or a batch's shape
LARGEST_VOCABULARY = 2**16  # of a trained tokenizer
KINDS = {True: "an encoder-decoder", False: "decoder-only"}
FREE = (
    "run",
    "data",
    "tokenizer",
    "start",
    "teacher",
    "dtype",
    "mesh",
    "hosts",
    "recipe",
    "distillation",
)  # may change on resumption


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """What all runs have; `TextRun` and `PairRun` add data and the shape of a model."""

    run: Annotated[Path, arg(metavar="FOLDER")]
    """Folder of the run."""
    data: Annotated[tuple[Path, ...], arg(metavar="FILE ...")]
    """Training data."""
    tokenizer: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: trained on the data)")] = None
    """Folder with a tokenizer.json."""
    vocab_size: int = 8192
    """Vocabulary size of a trained tokenizer."""
    held_out: float = 0.03
    """Fraction of the data that is held out, by hash."""
    start: Annotated[str | None, arg(metavar="MODEL", help_behavior_hint="(default: new weights)")] = None
    """A trained model to begin with, such as the published draft of a target. It keeps its shape and its tokenizer."""
    teacher: Annotated[str | None, arg(metavar="MODEL", help_behavior_hint="(default: none)")] = None
    """A model with the same tokenizer to distill from."""
    dtype: str = "bfloat16"
    """Dtype of the exported weights."""
    mesh: Annotated[str | None, arg(metavar="DATAxMODEL", help_behavior_hint="(default: one device)")] = None
    """Devices that rows and weights are split over, such as 2x4."""
    hosts: Processes = dataclasses.field(default_factory=Processes)
    distillation: Distillation = dataclasses.field(default_factory=Distillation)
    recipe: Recipe = dataclasses.field(default_factory=Recipe)

    def check(self, shape: Sequence[str], batch: Sequence[str], specials: Sequence[str]) -> None:
        """Raises ValueError or FileNotFoundError for invalid options, before any work.

        Args:
          shape: fields that are sizes of the model.
          batch: fields that are sizes of a batch.
          specials: special tokens of a trained tokenizer.
        """
        for name in (*shape, "vocab_size", "tokenizer") if self.start is not None else ():
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"{name} is that of the model to begin with: leave it out, or start")
        for file in self.data:
            if not file.is_file():
                raise FileNotFoundError(f"data: {file} does not exist")
        if not 0.0 < self.held_out < 1.0:
            raise ValueError(f"held_out must be between 0 and 1, got {self.held_out}")
        if self.run == Path():
            raise ValueError("run must be a folder of its own, such as runs/target")
        existing = next(folder for folder in (self.run, *self.run.absolute().parents) if folder.exists())
        if not existing.is_dir():
            raise ValueError(f"run must be a folder, but {existing} is a file")
        if not os.access(existing, os.W_OK):
            raise ValueError(f"run must be writable, but {existing} is not")
        checks.check_name(self.dtype, DTYPES, "dtype")
        if self.mesh is not None:
            checks.mesh_shape(self.mesh)
        for name in ("divergence", "texts"):
            if self.teacher is None and getattr(self.distillation, name) != getattr(Distillation, name):
                raise ValueError(f"{name} requires a teacher")
        for name in (*shape, *batch):
            checks.integer(name, getattr(self, name), least=1, most=LARGEST_SIDE)
        if self.tokenizer is None:  # all bytes must fit
            checks.integer("vocab_size", self.vocab_size, least=BYTES + len(specials), most=LARGEST_VOCABULARY)
        elif not (self.tokenizer / "tokenizer.json").is_file():
            raise FileNotFoundError(f"tokenizer: {self.tokenizer} contains no tokenizer.json")

    # --- the record of inputs that must not change, RUN/run.json; it contains no paths: runs move ---

    @property
    def record(self) -> Path:
        """The file of the record."""
        return self.run / "run.json"

    def inputs(self) -> dict[str, Any]:
        """Names and sizes of the data, hash of the tokenizer, seed, optimizer, and all fields but FREE."""
        found: dict[str, Any] = {
            "data": [[file.name, file.stat().st_size] for file in self.data],
            "tokenizer": TRAINED,
            "start": None if self.start is None else Path(self.start).name,
            "seed": self.recipe.seed,
            "muon": self.recipe.muon,
            "accumulate": self.recipe.accumulate,
        } | {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in FREE}
        if self.tokenizer is not None:
            content = (self.tokenizer / "tokenizer.json").read_bytes()
            found |= {"tokenizer": hashlib.blake2b(content, digest_size=8).hexdigest(), "vocab_size": None}
        return found

    def check_record(self) -> None:
        """Raises ValueError if the run was started with other inputs."""
        if not self.record.is_file():
            return
        try:
            started = dict(json.loads(files.read_text(self.record)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.record} is damaged: {error}: remove it to resume without this check") from None
        shown = lambda value: value if isinstance(value, str) else json.dumps(value)
        for name, value in json.loads(json.dumps(self.inputs())).items():
            if name in started and started[name] != value:
                was, now = shown(started[name]), shown(value)
                raise ValueError(f"{self.run} was started with {name} {was}, not {now}: use a new run folder")

    def write_record(self) -> None:
        """Call after the data was validated, so that a failed start can be repeated with other inputs."""
        from specjax import hosts

        if hosts.leader():
            files.write_text(self.record, json.dumps(self.inputs(), indent=1) + "\n")

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """The leader prepares the folder of the run, and then the other processes read it.

        Raises:
          ValueError: another folder on another process.
        """
        from specjax import hosts

        hosts.agree(inputs=self.inputs(), recipe=self.recipe, distillation=self.distillation)
        with hosts.leader_first():
            if not (hosts.leader() or self.record.is_file()):
                raise ValueError(f"{self.run} is not there: all processes must share the folder of the run")
            yield

    # --- tokenizer, teacher, training ---

    @property
    def tokenizer_folder(self) -> Path:
        """The folder of the given tokenizer, or of the trained one."""
        return self.tokenizer or self.run / "tokenizer"

    def load_tokenizer(
        self, start: "Model | None", texts: Callable[[], Iterable[str]], say: Say, *, specials: Any, template: str
    ) -> Any:
        """The tokenizer: that of the model to begin with, or trained on `texts()`. It is kept in the folder of the run,
        and made again if it is left over from a start that failed.

        Raises:
          ValueError: its file is damaged, or the model has none that `tokenizers` reads.
        """
        import tokenizers

        from specjax.training import tokenizer

        home = self.tokenizer_folder
        file = home / "tokenizer.json"
        if not file.is_file() or (self.tokenizer is None and not self.record.is_file()):
            if start is None:
                say("training the tokenizer")
                bpe = tokenizer.train_bpe(texts(), self.vocab_size, specials=specials, template=template)
                tokenizer.save_tokenizer(bpe, home, specials=specials)
            elif start.text is not None and start.text.save_pretrained is not None:
                home.mkdir(parents=True, exist_ok=True)
                start.text.save_pretrained(home)
            if not file.is_file():
                raise ValueError(f"start: {self.start} has no tokenizer.json, and none can be made of its tokenizer")
        try:
            found = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises bare Exceptions
            raise ValueError(f"{file} is damaged: {error}") from None
        found.no_padding()
        found.no_truncation()
        return found

    def load_start(self, *, encoder_decoder: bool) -> "Model | None":
        """The model to begin with, in the layout of training, or None.

        Raises:
          ValueError: it is of another kind.
        """
        from specjax.loading import load
        from specjax.training.lm import FORMAT

        if self.start is None:
            return None
        model = load(self.start, stacked=FORMAT.stacked, platform="gpu")  # which keeps kernels as they were published
        if model.encoder_decoder != encoder_decoder:
            other = "t5" if model.encoder_decoder else "lm"
            raise ValueError(f"start: {self.start} is {KINDS[model.encoder_decoder]}: see specjax train {other}")
        return dataclasses.replace(model, fmt=FORMAT)

    def load_teacher(self, vocab_size: int, *, encoder_decoder: bool, length: int = 0) -> "Model | None":
        """The model to distill from, or None.

        Args:
          vocab_size: of the student.
          encoder_decoder: whether the student is an encoder-decoder.
          length: positions that the teacher must have.

        Raises:
          ValueError: the teacher is of another kind, has another vocabulary, or too few positions.
        """
        from specjax.loading import load

        if self.teacher is None:
            return None
        mesh = make_mesh(self.mesh)
        dtype = "bfloat16" if self.recipe.half else "float32"  # a small student's step is mostly the teacher's pass
        model = load(self.teacher, dtype=dtype, mesh=mesh, replicate=mesh is not None)
        if model.vocab_size != vocab_size:
            raise ValueError(f"teacher {model.name} has {model.vocab_size} tokens, but the student {vocab_size}")
        if model.encoder_decoder != encoder_decoder:
            raise ValueError(
                f"teacher {model.name} is {KINDS[model.encoder_decoder]}, but the student is {KINDS[encoder_decoder]}"
            )
        if model.positions is not None and length > model.positions:
            raise ValueError(f"teacher {model.name} has {model.positions} positions, but length is {length}")
        return model

    def finish(self, task: "TrainingTask", family: Any, config: Any, start: "Model | None", say: Say) -> Path | None:
        """Trains to the end, draws the curve and exports the model.

        Args:
          start: the model to begin with.

        Returns:
          The model's folder, or None if the run was stopped before the end.
        """
        from specjax.training import lm

        report = lambda record: say(progress_line(record, self.recipe.steps))
        if start is not None:
            task = task._replace(start=start.params)
        task = lm.on_mesh(task, make_mesh(self.mesh), family.rules, config.kv_heads)
        state = lm.train(task, self.recipe, self.run, family=family.name, config=config, report=report)
        lm.draw_curve(self.run)
        if int(state.step) < self.recipe.steps:
            return None
        folder = self.run / "model"
        described = family.to_published(config) if start is None else start.described()
        lm.export(state.params, folder, described, dtype=self.dtype, tokenizer=self.tokenizer_folder)
        return folder


def make_mesh(text: str | None) -> Any:
    """The mesh of an option, None without it.

    Raises:
      ValueError: it has another number of devices than jax sees.
    """
    if text is None:
        return None
    from specjax import sharding

    return sharding.make_mesh(*checks.mesh_shape(text))


def progress_line(record: Mapping[str, Any], steps: int) -> str:
    """One record of a run as a line."""
    shown = {key: record[key] for key in ("loss", "held_out_perplexity", "held_out_overlap") if key in record}
    numbers = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in shown.items())
    return f"step {record['step']} of {steps}: {numbers}, {record['seconds_per_step']:.2f} s per step"
