"""`specjax train lm`: a language model from text, or a draft from the target that it will serve. Resumable."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from specjax import files
from specjax.cli import training
from specjax.cli.arguments import parse
from specjax.cli.training import Course

END = 2  # </s> of tokenizers made by this command
LASTING = (  # what a run keeps from its beginning to its end
    "include", "exclude", "repeat", "held_out", "vocab_size", "width", "layers", "heads", "positions", "rows",
    "length",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TrainLM:
    """Train an OPT-shaped language model on text, or distill a draft from a target.

    specjax train lm --run runs/target --data books.txt.xz stories.jsonl.gz --width 256 --layers 6 --heads 4

    specjax train lm --run runs/draft --data books.txt.xz --tokenizer runs/target/tokenizer --width 64 --layers 1 \
--heads 2 --teacher runs/target/model --distill 0.9

    Stop it with Ctrl-C or SIGTERM at any time: the same command goes on where it stopped. When it ends, RUN/model is a
    Hugging Face folder, RUN/metrics.jsonl holds the numbers and RUN/curve.png the curve.
    """

    run: Path
    """Folder of the run."""
    data: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")]
    """Text files (documents between lines of <|endofbook|>) or JSONL with a "text" field; .gz and .xz are unpacked."""
    include: str = ""
    """Regular expression that the first 300 characters of a document must match to be used."""
    exclude: str = ""
    """Regular expression that they must not match."""
    repeat: tuple[int, ...] = ()
    """How often each data file is taken, one number a file; default once."""
    tokenizer: Path | None = None
    """Folder with a tokenizer.json; without it one is trained on the data."""
    vocab_size: int = 8192
    """Of a tokenizer trained here."""
    width: int = 256
    layers: int = 6
    heads: int = 4
    positions: int = 512
    """Longest text of the model, in tokens."""
    rows: int = 16
    """Windows of text a step."""
    length: int = 128
    """Tokens a window."""
    held_out: float = 0.03
    """Share of the documents that are held out, by hash."""
    course: Course = dataclasses.field(default_factory=Course)


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    options = parse(TrainLM, args, prog="specjax train lm")
    check(options)
    return training.report(lambda say: run(options, say))


def check(options: TrainLM) -> None:
    """Raises ValueError or FileNotFoundError for what cannot work, before any work."""
    training.check(options.run, options.course, options.data, options.tokenizer, options.held_out)
    training.within(
        1, training.LARGEST_SIDE, width=options.width, layers=options.layers, heads=options.heads,
        positions=options.positions, rows=options.rows, length=options.length,
    )  # fmt: skip
    from specjax.training import tokenizer

    training.check_vocab_size(options.vocab_size, options.tokenizer, tokenizer.OPT_SPECIALS)
    if options.width % options.heads:
        raise ValueError(f"--width {options.width} does not divide into --heads {options.heads}")
    if options.repeat and (len(options.repeat) != len(options.data) or min(options.repeat) < 1):
        raise ValueError(f"--repeat needs one number of at least 1 for each of {len(options.data)} data files")
    for name in ("include", "exclude"):
        try:
            re.compile(getattr(options, name))
        except re.error as error:
            raise ValueError(f"--{name} {getattr(options, name)!r} is no regular expression: {error}") from error
    if options.length >= options.positions:
        raise ValueError(f"--length {options.length} must be below --positions {options.positions}")


def write_prompts(file: Path, held_out: np.ndarray, bpe: Any, *, count: int = 64, length: int = 32) -> None:
    """Beginnings of held-out text, evenly spaced, one a line: what `specjax bench pair` measures acceptance on."""
    starts = np.linspace(0, max(len(held_out) - length, 0), count, endpoint=False, dtype=np.int64)
    texts = [bpe.decode(held_out[start : start + length].tolist()) for start in starts]
    files.write_text(file, "".join(" ".join(text.split()) + "\n" for text in texts if text.strip()))


def chosen(options: TrainLM) -> Iterator[str]:
    """The documents that train the model, those of a file repeated as often as asked."""
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
    """Tokenizer, packed text, training, export; skips what is there already. None: stopped before its end."""
    from specjax.models import opt
    from specjax.training import data, tasks, tokenizer

    note = training.Note.of(options, options.data, LASTING)
    note.check()
    home = options.tokenizer or options.run / "tokenizer"
    texts = lambda: chosen(options)
    if note.wants_tokenizer(home):
        say("training the tokenizer")
        kept = list(dict.fromkeys(data.split(texts(), options.held_out).train))
        bpe = tokenizer.train_bpe(kept, options.vocab_size, specials=tokenizer.OPT_SPECIALS, template="</s> $A")
        tokenizer.save_tokenizer(bpe, home, specials=tokenizer.OPT_SPECIALS)
    bpe = training.read_tokenizer(home)
    if bpe.id_to_token(END) != "</s>":
        raise ValueError(f"token {END} of the tokenizer in {home} is {bpe.id_to_token(END)!r}, and must be '</s>'")
    packs = {name: options.run / f"{name}.bin" for name in ("train", "held_out")}
    if not all(file.is_file() for file in (note.file, *packs.values())):
        say("packing the text")
        parts = data.split(texts(), options.held_out)
        parts = parts._replace(held_out=list(dict.fromkeys(parts.held_out)))._asdict()
        for name in packs:
            if not parts[name]:
                raise ValueError(
                    f"no document is left for the {name} text: give more, or change --held-out, --include, --exclude"
                )
        encode = lambda pieces: [one.ids for one in bpe.encode_batch(pieces, add_special_tokens=False)]
        for name, file in packs.items():
            data.pack(parts[name], encode, file, end=END)
    packed = {name: data.tokens(file) for name, file in packs.items()}
    for name, array in packed.items():
        if len(array) <= options.length + 1:
            raise ValueError(f"the {name} text has {len(array)} tokens: fewer than a window of {options.length}")
    note.write()
    write_prompts(options.run / "prompts.txt", packed["held_out"], bpe)
    config = opt.OPTConfig(
        vocab_size=bpe.get_vocab_size(),
        width=options.width,
        embed_width=options.width,
        layers=options.layers,
        heads=options.heads,
        mlp_width=4 * options.width,
        max_positions=options.positions,
    )
    teacher = training.teacher(options.course, config.vocab_size, encoder_decoder=False, length=options.length)
    task = tasks.text_task(
        config, packed["train"], packed["held_out"], rows=options.rows, length=options.length, seed=options.course.seed,
        teacher=teacher,
    )  # fmt: skip
    return training.finish(
        options.course, task, options.run, family="opt", config=config, published=opt.to_published(config),
        tokenizer=home, say=say,
    )  # fmt: skip
