"""`specjax train t5`: an encoder-decoder from pairs of texts, or a draft model distilled from its target."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from specjax import checks, files
from specjax.cli import process, train
from specjax.cli.arguments import parse
from specjax.cli.train import Course

FIXED = (  # options that must not change when a run is resumed
    "held_out", "vocab_size", "width", "encoder_layers", "decoder_layers", "heads", "head_width", "tokens", "widths",
    "own_outputs", "prefix", "drop",
)  # fmt: skip
UNKNOWN = 2  # <unk> of tokenizers trained by this command


@dataclasses.dataclass(frozen=True)
class TrainT5:
    """Train a T5 model on pairs (source, tab, target on each line), or distill a draft model from a target.

    specjax train t5 --run runs/de --data deu.txt.gz --width 192 --encoder-layers 3 --decoder-layers 6 --heads 3

    specjax train t5 --run runs/de-draft --data deu.txt.gz --tokenizer runs/de/tokenizer --width 64 \
--encoder-layers 1 --decoder-layers 1 --heads 1 --teacher runs/de/model --distill 0.9

    Stop it at any time with Ctrl-C or SIGTERM; the same command resumes it. When it ends, RUN/model is a Hugging Face
    folder, RUN/held_out.tsv holds the held-out pairs (none of whose targets was trained on), RUN/metrics.jsonl the
    metrics and RUN/curve.png the loss curve.
    """

    run: Path
    """Folder of the run."""
    data: Path
    """Pairs, one per line; .gz and .xz are unpacked."""
    tokenizer: Path | None = None
    """Folder with a tokenizer.json; by default a tokenizer is trained on both sides of the data."""
    vocab_size: int = 4096
    """Vocabulary size of a trained tokenizer."""
    width: int = 192
    """Model width."""
    encoder_layers: int = 3
    """Number of encoder layers."""
    decoder_layers: int = 6
    """Number of decoder layers."""
    heads: int = 3
    """Number of attention heads."""
    head_width: int = 64
    """Width of an attention head."""
    tokens: int = 2048
    """Target tokens per step, including padding."""
    widths: tuple[int, ...] = (12, 24)
    """Widths to which batches are padded, increasing; longer pairs are dropped."""
    own_outputs: int = 0
    """Distill on the teacher's own greedy outputs for this many sources instead of the data's targets, which matches
    what the draft will have to predict. 0: use the data's targets."""
    prefix: str = ""
    """Text put before half of the sources, chosen by hash, such as "translate English to German: ": the model then
    reads sources with and without it."""
    drop: float = 0.0
    """Fraction of the input tokens, of both sides, replaced by the unknown token in training: against overfitting."""
    held_out: float = 0.02
    """Fraction of the sources that are held out, by hash."""
    course: Course = dataclasses.field(default_factory=Course)


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    options = parse(TrainT5, args, prog="specjax train t5")
    process.import_library()
    check(options)
    return train.report(lambda say: run(options, say))


def check(options: TrainT5) -> None:
    """Raises ValueError or FileNotFoundError for invalid options, before any work."""
    from specjax.training import tokenizer

    train.check_run(options.run, options.course, (options.data,), options.tokenizer, options.held_out)
    train.check_sides(options, "width", "encoder_layers", "decoder_layers", "heads", "head_width")
    checks.integer("tokens", options.tokens, least=1)
    if not options.widths or list(options.widths) != sorted(set(options.widths)) or options.widths[0] < 2:
        raise ValueError(f"widths must increase from 2 or more, got {' '.join(map(str, options.widths))}")
    train.check_vocab_size(options.vocab_size, options.tokenizer, tokenizer.T5_SPECIALS)
    checks.integer("own_outputs", options.own_outputs, least=0)
    checks.number("drop", options.drop, least=0, most=0.9)
    if options.own_outputs and options.course.teacher is None:
        raise ValueError("own_outputs requires a teacher")


def run(options: TrainT5, say: Callable[[str], None]) -> Path | None:
    """Tokenizer, encoded pairs, training and export; reuses what exists. None: stopped before the end."""
    from specjax.models import t5
    from specjax.training import data, tasks, tokenizer

    home = options.tokenizer or options.run / "tokenizer"
    record = train.RunRecord.of(options, (options.data,), FIXED)
    record.check()
    say("reading the pairs")
    parts = data.split_pairs(data.pairs(options.data), options.held_out)
    kept, held_out = (data.prefixed(part, options.prefix) for part in parts)
    if record.needs_tokenizer(home):
        say("training the tokenizer")
        texts = (side for pair in kept for side in pair)
        bpe = tokenizer.train_bpe(texts, options.vocab_size, specials=tokenizer.T5_SPECIALS, template="$A </s>")
        tokenizer.save_tokenizer(bpe, home, specials=tokenizer.T5_SPECIALS)
    bpe = train.read_tokenizer(home)
    encode = lambda texts: [one.ids for one in bpe.encode_batch(texts)]
    say("encoding the pairs")
    arrays = [data.encode_pairs(part, encode, width=options.widths[-1]) for part in (kept, held_out)]
    if any(len(array.source) == 0 for array in arrays):
        raise ValueError(f"{options.data}: no training pair or no held-out pair fits widths {options.widths}")
    options.run.mkdir(parents=True, exist_ok=True)
    files.write_text(options.run / "held_out.tsv", "".join(f"{a}\t{b}\n" for a, b in parts[1]))
    record.write()
    config = t5.T5Config(
        vocab_size=bpe.get_vocab_size(),
        width=options.width,
        head_width=options.head_width,
        heads=options.heads,
        mlp_width=4 * options.width,
        encoder_layers=options.encoder_layers,
        decoder_layers=options.decoder_layers,
    )
    teacher = train.load_teacher(options.course, config.vocab_size, encoder_decoder=True)
    if teacher is not None and options.own_outputs:
        arrays = [
            data.own_outputs(teacher, array, folder=options.run, name=name, most=options.own_outputs, say=say)
            for array, name in zip(arrays, ("train", "held_out"), strict=True)
        ]
    task = tasks.pair_task(
        config, *arrays, tokens=options.tokens, widths=options.widths, drop=options.drop, unknown=UNKNOWN,
        seed=options.course.seed, teacher=teacher,
    )  # fmt: skip
    say("compiling")
    return train.finish(
        options.course, task, options.run, family="t5", config=config, published=t5.to_published(config),
        tokenizer=home, say=say,
    )  # fmt: skip
