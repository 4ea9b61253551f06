"""`specjax train t5`: an encoder-decoder from pairs of texts, or a draft from the target that it will serve."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from specjax import files
from specjax.cli import training
from specjax.cli.arguments import parse
from specjax.cli.training import Course

LASTING = (  # what a run keeps from its beginning to its end
    "held_out", "vocab_size", "width", "encoder_layers", "decoder_layers", "heads", "head_width", "tokens", "widths",
    "own_outputs",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TrainT5:
    """Train a T5-shaped model on pairs (source, tab, target on each line), or distill a draft from a target.

    specjax train t5 --run runs/de --data deu.txt.gz --width 192 --encoder-layers 3 --decoder-layers 6 --heads 3

    specjax train t5 --run runs/de-draft --data deu.txt.gz --tokenizer runs/de/tokenizer --width 64 \
--encoder-layers 1 --decoder-layers 1 --heads 1 --teacher runs/de/model --distill 0.9

    Stop it with Ctrl-C or SIGTERM at any time: the same command goes on where it stopped. When it ends, RUN/model is a
    Hugging Face folder, RUN/held_out.tsv the pairs that it has not seen (none of their targets either),
    RUN/metrics.jsonl the numbers and RUN/curve.png the curve.
    """

    run: Path
    """Folder of the run."""
    data: Path
    """Pairs, one a line; .gz and .xz are unpacked."""
    tokenizer: Path | None = None
    """Folder with a tokenizer.json; without it one is trained on both sides of the data."""
    vocab_size: int = 4096
    """Of a tokenizer trained here."""
    width: int = 192
    encoder_layers: int = 3
    decoder_layers: int = 6
    heads: int = 3
    head_width: int = 64
    tokens: int = 2048
    """Target tokens a step, padding included."""
    widths: tuple[int, ...] = (12, 24)
    """Batches are padded to one of these; longer pairs are left out."""
    own_outputs: int = 0
    """Distil on the teacher's own greedy outputs for this many sources, which are what the draft will have to guess,
    instead of the data's targets. 0: on the data's."""
    held_out: float = 0.02
    """Share of the sources that are held out, by hash."""
    course: Course = dataclasses.field(default_factory=Course)


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    options = parse(TrainT5, args, prog="specjax train t5")
    check(options)
    return training.report(lambda say: run(options, say))


def check(options: TrainT5) -> None:
    """Raises ValueError or FileNotFoundError for what cannot work, before any work."""
    training.check(options.run, options.course, (options.data,), options.tokenizer, options.held_out)
    training.within(
        1, training.LARGEST_SIDE, width=options.width, encoder_layers=options.encoder_layers,
        decoder_layers=options.decoder_layers, heads=options.heads, head_width=options.head_width,
    )  # fmt: skip
    training.within(1, training.LARGEST, tokens=options.tokens)
    if not options.widths or list(options.widths) != sorted(set(options.widths)) or options.widths[0] < 2:
        raise ValueError(f"--widths must rise from 2 or more, got {' '.join(map(str, options.widths))}")
    from specjax.training import tokenizer

    training.check_vocab_size(options.vocab_size, options.tokenizer, tokenizer.T5_SPECIALS)
    if options.own_outputs < 0 or (options.own_outputs and options.course.teacher is None):
        raise ValueError(f"--own-outputs {options.own_outputs}: must be at least 0, and needs a --teacher")


def run(options: TrainT5, say: Callable[[str], None]) -> Path | None:
    """Tokenizer, encoded pairs, training, export; skips what is there already. None: stopped before its end."""
    from specjax.models import t5
    from specjax.training import data, tasks, tokenizer

    home = options.tokenizer or options.run / "tokenizer"
    note = training.Note.of(options, (options.data,), LASTING)
    note.check()
    say("reading the pairs")
    train, held_out = data.split_pairs(data.pairs(options.data), options.held_out)
    if note.wants_tokenizer(home):
        say("training the tokenizer")
        texts = (side for pair in train for side in pair)
        bpe = tokenizer.train_bpe(texts, options.vocab_size, specials=tokenizer.T5_SPECIALS, template="$A </s>")
        tokenizer.save_tokenizer(bpe, home, specials=tokenizer.T5_SPECIALS)
    bpe = training.read_tokenizer(home)
    encode = lambda texts: [one.ids for one in bpe.encode_batch(texts)]
    say("encoding the pairs")
    arrays = [data.encode_pairs(part, encode, width=options.widths[-1]) for part in (train, held_out)]
    if any(len(array.source) == 0 for array in arrays):
        raise ValueError(f"{options.data}: no pair to train on or none to hold out within --widths {options.widths}")
    options.run.mkdir(parents=True, exist_ok=True)
    files.write_text(options.run / "held_out.tsv", "".join(f"{a}\t{b}\n" for a, b in held_out))
    note.write()
    config = t5.T5Config(
        vocab_size=bpe.get_vocab_size(),
        width=options.width,
        head_width=options.head_width,
        heads=options.heads,
        mlp_width=4 * options.width,
        encoder_layers=options.encoder_layers,
        decoder_layers=options.decoder_layers,
    )
    teacher = training.teacher(options.course, config.vocab_size, encoder_decoder=True)
    if teacher is not None and options.own_outputs:
        arrays = [
            data.own_outputs(teacher, array, folder=options.run, name=name, most=options.own_outputs, say=say)
            for array, name in zip(arrays, ("train", "held_out"), strict=True)
        ]
    task = tasks.pair_task(
        config, *arrays, tokens=options.tokens, widths=options.widths, seed=options.course.seed, teacher=teacher
    )
    say("compiling")
    return training.finish(
        options.course, task, options.run, family="t5", config=config, published=t5.to_published(config),
        tokenizer=home, say=say,
    )  # fmt: skip
