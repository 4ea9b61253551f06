"""`specjax train lm`: a language model from text, or a draft model distilled from its target. Resumable.

Also the parts shared with `specjax train t5`: the options of a run, its record in run.json, progress and export.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from specjax import checks, files
from specjax.cli import process
from specjax.cli.arguments import parse
from specjax.cli.progress import open_console

if TYPE_CHECKING:
    from specjax.model import Model
    from specjax.training.lm import Recipe

INTERRUPTED = 130
DTYPES = ("float32", "bfloat16")
BYTES = 256  # each is a token of a byte-level vocabulary
TRAINED = "of its own"  # in place of the hash of a given tokenizer
LARGEST_SIDE = 2**16  # of a model's or a batch's shape
LARGEST_VOCABULARY = 2**16  # text is packed as uint16
END = 2  # </s> of tokenizers trained by this command
FIXED_LM = (  # options that must not change when a run is resumed
    "include", "exclude", "repeat", "held_out", "vocab_size", "width", "layers", "heads", "positions", "rows",
    "length",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Course:
    """Length, learning rate and teacher of a run."""

    steps: int = 10_000
    """Total number of steps; a finished run is extended by a larger number."""
    rate: float = 1e-3
    """Peak learning rate: warm-up, constant, then linear decay to a tenth over the last third."""
    warmup: int = 100
    """Steps of warm-up."""
    teacher: str | None = None
    """A model with the same tokenizer to distill from."""
    distill: float = 0.9
    """Weight of the divergence from the teacher; the rest is cross-entropy on the data."""
    every: int = 300
    """Steps between evaluations and checkpoints."""
    muon: bool = False
    """Use Muon instead of AdamW for the layers' kernels: fewer steps for the same loss."""
    half: bool = False
    """Multiply in bfloat16; master weights stay float32."""
    dtype: str = "bfloat16"
    """Dtype of the exported weights."""
    seed: int = 0
    """Seed of the initialization and the batches."""

    def recipe(self) -> "Recipe":
        """The hyperparameters for `training.lm`, which validates them."""
        from specjax.training import lm

        return lm.Recipe(
            steps=self.steps, warmup=self.warmup, decay=self.steps // 3, rate=self.rate, half=self.half,
            distill=self.distill, every=self.every, seed=self.seed, muon=self.muon,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TrainLM:
    """Train an OPT model on text, or distill a draft model from a target.

    specjax train lm --run runs/target --data books.txt.xz stories.jsonl.gz --width 256 --layers 6 --heads 4

    specjax train lm --run runs/draft --data books.txt.xz --tokenizer runs/target/tokenizer --width 64 --layers 1 \
--heads 2 --teacher runs/target/model --distill 0.9

    Stop it at any time with Ctrl-C or SIGTERM; the same command resumes it. When it ends, RUN/model is a Hugging Face
    folder, RUN/metrics.jsonl holds the metrics and RUN/curve.png the loss curve.
    """

    run: Path
    """Folder of the run."""
    data: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")]
    """Text files (documents between lines of <|endofbook|>) or JSONL with a "text" field; .gz and .xz are unpacked."""
    include: str = ""
    """Regular expression that must match the first 300 characters of a document."""
    exclude: str = ""
    """Regular expression that must not match them."""
    repeat: tuple[int, ...] = ()
    """Number of repetitions of each data file; default 1."""
    tokenizer: Path | None = None
    """Folder with a tokenizer.json; by default a tokenizer is trained on the data."""
    vocab_size: int = 8192
    """Vocabulary size of a trained tokenizer."""
    width: int = 256
    """Model width."""
    layers: int = 6
    """Number of layers."""
    heads: int = 4
    """Number of attention heads."""
    positions: int = 512
    """Maximum text length of the model, in tokens."""
    rows: int = 16
    """Windows of text per step."""
    length: int = 128
    """Tokens per window."""
    held_out: float = 0.03
    """Fraction of the documents that are held out, by hash."""
    course: Course = dataclasses.field(default_factory=Course)


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    options = parse(TrainLM, args, prog="specjax train lm")
    process.import_library()
    check(options)
    return report(lambda say: run(options, say))


def check(options: TrainLM) -> None:
    """Raises ValueError or FileNotFoundError for invalid options, before any work."""
    from specjax.models import opt
    from specjax.training import tokenizer

    check_run(options.run, options.course, options.data, options.tokenizer, options.held_out)
    check_sides(options, "width", "layers", "heads", "positions", "rows", "length")
    check_vocab_size(options.vocab_size, options.tokenizer, tokenizer.OPT_SPECIALS)
    shape(options, opt.OPTConfig, options.vocab_size)
    if options.repeat and (len(options.repeat) != len(options.data) or min(options.repeat) < 1):
        raise ValueError(f"repeat must have one number of at least 1 for each of {len(options.data)} data files")
    for name in ("include", "exclude"):
        try:
            re.compile(getattr(options, name))
        except re.error as error:
            raise ValueError(f"{name} must be a regular expression, got {getattr(options, name)!r}: {error}") from error
    if options.length >= options.positions:
        raise ValueError(f"length must be below positions = {options.positions}, got {options.length}")


def shape(options: TrainLM, make: Callable[..., Any], vocab_size: int) -> Any:
    """The configuration of the model."""
    return make(
        vocab_size=vocab_size,
        width=options.width,
        embed_width=options.width,
        layers=options.layers,
        heads=options.heads,
        mlp_width=4 * options.width,
        max_positions=options.positions,
    )


def write_prompts(file: Path, held_out: np.ndarray, bpe: Any, *, count: int = 64, length: int = 32) -> None:
    """Writes evenly spaced beginnings of held-out text, one per line: prompts for `specjax bench`."""
    starts = np.linspace(0, max(len(held_out) - length, 0), count, endpoint=False, dtype=np.int64)
    texts = [bpe.decode(held_out[start : start + length].tolist()) for start in starts]
    files.write_text(file, "".join(" ".join(text.split()) + "\n" for text in texts if text.strip()))


def chosen(options: TrainLM) -> Iterator[str]:
    """The documents of the run, with repetitions."""
    from specjax.training import data

    repeats = options.repeat or (1,) * len(options.data)
    for file, times in zip(options.data, repeats, strict=True):
        for text in data.documents(file):
            head = text[:300]
            if options.exclude and re.search(options.exclude, head):
                continue
            if not options.include or re.search(options.include, head):
                yield from [text] * times


def run(options: TrainLM, say: Callable[[str], None]) -> Path | None:
    """Tokenizer, packed text, training and export; reuses what exists. None: stopped before the end."""
    from specjax.models import opt
    from specjax.training import data, tasks, tokenizer

    record = RunRecord.of(options, options.data, FIXED_LM)
    record.check()
    home = options.tokenizer or options.run / "tokenizer"
    texts = lambda: chosen(options)
    if record.needs_tokenizer(home):
        say("training the tokenizer")
        kept = list(dict.fromkeys(data.split(texts(), options.held_out).train))
        bpe = tokenizer.train_bpe(kept, options.vocab_size, specials=tokenizer.OPT_SPECIALS, template="</s> $A")
        tokenizer.save_tokenizer(bpe, home, specials=tokenizer.OPT_SPECIALS)
    bpe = read_tokenizer(home)
    if bpe.id_to_token(END) != "</s>":
        raise ValueError(f"token {END} of the tokenizer in {home} must be '</s>', got {bpe.id_to_token(END)!r}")
    packs = {name: options.run / f"{name}.bin" for name in ("train", "held_out")}
    if not all(file.is_file() for file in (record.file, *packs.values())):
        say("packing the text")
        parts = data.split(texts(), options.held_out)
        parts = parts._replace(held_out=list(dict.fromkeys(parts.held_out)))._asdict()
        for name in packs:
            if not parts[name]:
                raise ValueError(
                    f"no documents left for the {name} text: add data, or change held_out, include or exclude"
                )
        encode = lambda pieces: [one.ids for one in bpe.encode_batch(pieces, add_special_tokens=False)]
        for name, file in packs.items():
            data.pack(parts[name], encode, file, end=END)
    packed = {name: data.tokens(file) for name, file in packs.items()}
    for name, array in packed.items():
        if len(array) <= options.length + 1:
            raise ValueError(f"the {name} text has {len(array)} tokens, fewer than a window of length {options.length}")
    record.write()
    write_prompts(options.run / "prompts.txt", packed["held_out"], bpe)
    config = shape(options, opt.OPTConfig, bpe.get_vocab_size())
    teacher = load_teacher(options.course, config.vocab_size, encoder_decoder=False, length=options.length)
    task = tasks.text_task(
        config, packed["train"], packed["held_out"], rows=options.rows, length=options.length, seed=options.course.seed,
        teacher=teacher,
    )  # fmt: skip
    return finish(
        options.course, task, options.run, family="opt", config=config, published=opt.to_published(config),
        tokenizer=home, say=say,
    )  # fmt: skip


# --- shared with `specjax train t5` ----------------------------------------------------------------------------------


def check_run(run: Path, course: Course, data: Sequence[Path], tokenizer: Path | None, held_out: float) -> None:
    """Raises ValueError or FileNotFoundError for invalid files, folders or options of the course."""
    for file in data:
        if not file.is_file():
            raise FileNotFoundError(f"data: {file} does not exist")
    if not 0.0 < held_out < 1.0:
        raise ValueError(f"held_out must be between 0 and 1, got {held_out}")
    if run == Path():
        raise ValueError("run must be a folder of its own, such as runs/target")
    existing = next(folder for folder in (run, *run.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise ValueError(f"run must be a folder, but {existing} is a file")
    if not os.access(existing, os.W_OK):
        raise ValueError(f"run must be writable, but {existing} is not")
    course.recipe()
    checks.check_name(course.dtype, DTYPES, "dtype")
    if tokenizer is not None and not (tokenizer / "tokenizer.json").is_file():
        raise FileNotFoundError(f"tokenizer: {tokenizer} contains no tokenizer.json")


def check_sides(options: Any, *names: str) -> None:
    """Raises ValueError for sizes outside 1..LARGEST_SIDE."""
    for name in names:
        checks.integer(name, getattr(options, name), least=1, most=LARGEST_SIDE)


def check_vocab_size(size: int, tokenizer: Path | None, specials: Sequence[str]) -> None:
    """Raises ValueError if a trained tokenizer cannot have this size: all bytes must fit, and ids are uint16."""
    if tokenizer is None:
        checks.integer("vocab_size", size, least=BYTES + len(specials), most=LARGEST_VOCABULARY)


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder.

    Raises:
      ValueError: its file is damaged, or it has more than 65,536 tokens.
    """
    import tokenizers

    file = folder / "tokenizer.json"
    try:
        found = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises bare Exceptions
        raise ValueError(f"{file} is damaged: {error}") from None
    if found.get_vocab_size() > LARGEST_VOCABULARY:
        raise ValueError(f"{file} has {found.get_vocab_size()} tokens, at most {LARGEST_VOCABULARY} are supported")
    return found


def report(train: Callable[[Callable[[str], None]], Path | None]) -> int:
    """Runs `train(say)` with a progress line; `train` returns the model's folder, or None if it was stopped."""
    console = open_console(stderr=True)
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        line = progress.add_task("starting", total=None)
        folder = train(lambda text: progress.update(line, description=text))
    if folder is None:
        console.print("stopped and saved: the same command resumes the run")
        return INTERRUPTED
    console.print(f"model: {folder}", markup=False, soft_wrap=True)
    return 0


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The inputs of a run that must not change when it is resumed, in RUN/run.json. Contains no paths: runs move."""

    run: Path
    inputs: Mapping[str, Any]

    @classmethod
    def of(cls, options: Any, data: Sequence[Path], fixed: Sequence[str]) -> "RunRecord":
        """Names and sizes of the data, hash of the tokenizer, seed, optimizer, and the `fixed` options."""
        inputs: dict[str, Any] = {
            "data": [[file.name, file.stat().st_size] for file in data],
            "tokenizer": TRAINED,
            "seed": options.course.seed,
            "muon": options.course.muon,
        } | {name: getattr(options, name) for name in fixed}
        if options.tokenizer is not None:
            content = (options.tokenizer / "tokenizer.json").read_bytes()
            inputs |= {"tokenizer": hashlib.blake2b(content, digest_size=8).hexdigest(), "vocab_size": None}
        return cls(options.run, inputs)

    @property
    def file(self) -> Path:
        return self.run / "run.json"

    def needs_tokenizer(self, home: Path) -> bool:
        """Whether to train the tokenizer: it is missing, or left over from a start that failed."""
        kept = self.file.is_file() or self.inputs["tokenizer"] != TRAINED
        return not (home / "tokenizer.json").is_file() or not kept

    def check(self) -> None:
        """Raises ValueError if the run was started with other inputs."""
        if not self.file.is_file():
            return
        try:
            started = dict(json.loads(files.read_text(self.file)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.file} is damaged: {error}: remove it to resume without this check") from None
        for name, value in json.loads(json.dumps(self.inputs)).items():
            if name in started and started[name] != value:
                was, now = _shown(started[name]), _shown(value)
                raise ValueError(f"{self.run} was started with {name} {was}, not {now}: use a new run folder")

    def write(self) -> None:
        """Call after the data was validated, so that a failed start can be repeated with other inputs."""
        files.write_text(self.file, json.dumps(self.inputs, indent=1) + "\n")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def load_teacher(course: Course, vocab_size: int, *, encoder_decoder: bool, length: int = 0) -> "Model | None":
    """The model to distill from, or None.

    Args:
      course: names the teacher.
      vocab_size: of the student.
      encoder_decoder: whether the student is an encoder-decoder.
      length: positions that the teacher must have.

    Raises:
      ValueError: the teacher is of another kind, has another vocabulary, or too few positions.
    """
    from specjax.loading import load

    if course.teacher is None:
        return None
    model = load(course.teacher)
    if model.vocab_size != vocab_size:
        raise ValueError(f"teacher {model.name} has {model.vocab_size} tokens, but the student {vocab_size}")
    if model.encoder_decoder != encoder_decoder:
        kinds = {True: "an encoder-decoder", False: "decoder-only"}
        raise ValueError(
            f"teacher {model.name} is {kinds[model.encoder_decoder]}, but the student is {kinds[encoder_decoder]}"
        )
    if model.positions is not None and length > model.positions:
        raise ValueError(f"teacher {model.name} has {model.positions} positions, but length is {length}")
    return model


def finish(
    course: Course, task: Any, run: Path, *, family: str, config: Any, published: Mapping[str, Any], tokenizer: Path,
    say: Callable[[str], None],
) -> Path | None:  # fmt: skip
    """Trains to the end, draws the curve and exports the model.

    Args:
      course: options of the run.
      task: from `training.tasks`.
      run: its folder.
      family: of the student.
      config: of the student.
      published: the same as a Hugging Face config.json.
      tokenizer: folder whose tokenizer files are copied.
      say: shows progress.

    Returns:
      The model's folder, or None if the run was stopped before the end.
    """
    from specjax.training import lm

    recipe = course.recipe()
    recipe = recipe if course.teacher is not None else dataclasses.replace(recipe, distill=0.0)
    state = lm.train(
        task, recipe, run, family=family, config=config, report=lambda record: say(progress_line(record, recipe.steps))
    )
    lm.draw_curve(run)
    if int(state.step) < recipe.steps:
        return None
    folder = run / "model"
    lm.export(state.params, folder, published, dtype=course.dtype, tokenizer=tokenizer)
    return folder


def progress_line(record: Mapping[str, Any], steps: int) -> str:
    """One record of a run as a line."""
    shown = {key: record[key] for key in ("loss", "held_out_perplexity", "held_out_overlap") if key in record}
    numbers = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in shown.items())
    return f"step {record['step']} of {steps}: {numbers}, {record['seconds_per_step']:.2f} s per step"
