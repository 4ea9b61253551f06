"""`specjax train t5`: an encoder-decoder from pairs of texts, or a draft model distilled from its target."""

import dataclasses
import itertools
from pathlib import Path
from typing import Annotated, Any

import tyro

from specjax import checks, files
from specjax.training.run import Say, TrainingRun

UNKNOWN = 2  # <unk> of tokenizers trained by this command


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairRun(TrainingRun):
    """Train a T5 model on pairs (source, tab, target on each line), or distill a draft model from a target.

    specjax train t5 --run runs/de --data deu.txt.gz --width 192 --encoder-layers 3 --decoder-layers 6 --heads 3

    specjax train t5 --run runs/de-draft --data deu.txt.gz --tokenizer runs/de/tokenizer --width 64 \
--encoder-layers 1 --decoder-layers 1 --heads 1 --teacher runs/de/model --distill 0.9

    specjax train t5 --run runs/de-draft --data deu.txt.gz --start google-t5/t5-small --teacher google-t5/t5-large

    Stop it at any time with Ctrl-C or SIGTERM; the same command resumes it. When it ends, RUN/model is a Hugging Face
    folder, RUN/held_out.tsv holds the held-out pairs (none of whose targets was trained on), RUN/metrics.jsonl the
    metrics and RUN/curve.png the loss curve.
    """

    data: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")]
    """Files of pairs, one per line; .gz and .xz are unpacked."""
    vocab_size: int = 4096
    """Vocabulary size of a trained tokenizer."""
    held_out: float = 0.02
    """Fraction of the sources that are held out, by hash."""
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

    def train(self, say: Say = lambda text: None) -> Path | None:
        """Tokenizer, encoded pairs, training and export; reuses what exists.

        Returns:
          The model's folder; None if the run was stopped before the end.

        Raises:
          ValueError, FileNotFoundError: invalid options, before any work; or a run that was started with others.
        """
        from specjax import hosts
        from specjax.models import t5
        from specjax.training import data, tasks, tokenizer

        self._check(tokenizer.T5_SPECIALS)
        start = self.load_start(encoder_decoder=True)
        with self.preparing():
            self.check_record()
            say("reading the pairs")
            parts = data.split_pairs(itertools.chain.from_iterable(map(data.pairs, self.data)), self.held_out)
            kept, held_out = (data.prefixed(part, self.prefix) for part in parts)
            texts = lambda: (side for pair in kept for side in pair)
            bpe = self.load_tokenizer(start, texts, say, specials=tokenizer.T5_SPECIALS, template="$A </s>")
            encode = lambda texts: [one.ids for one in bpe.encode_batch(texts)]
            say("encoding the pairs")
            arrays = [data.encode_pairs(part, encode, width=self.widths[-1]) for part in (kept, held_out)]
            if any(len(array.source) == 0 for array in arrays):
                raise ValueError(f"data: no training pair or no held-out pair fits widths {self.widths}")
            self.run.mkdir(parents=True, exist_ok=True)
            if hosts.leader():
                files.write_text(self.run / "held_out.tsv", "".join(f"{a}\t{b}\n" for a, b in parts[1]))
            self.write_record()
        config = t5.T5Config(
            vocab_size=bpe.get_vocab_size(), width=self.width, head_width=self.head_width, heads=self.heads,
            mlp_width=4 * self.width, encoder_layers=self.encoder_layers, decoder_layers=self.decoder_layers,
        ) if start is None else start.config  # fmt: skip
        teacher = self.load_teacher(config.vocab_size, encoder_decoder=True)
        if teacher is not None and self.own_outputs:
            arrays = [
                data.own_outputs(teacher, array, folder=self.run, name=name, most=self.own_outputs, say=say)
                for array, name in zip(arrays, ("train", "held_out"), strict=True)
            ]
        task = tasks.pair_task(
            config, *arrays, tokens=self.tokens, widths=self.widths, drop=self.drop, unknown=UNKNOWN,
            seed=self.recipe.seed, teacher=teacher, how=self.distillation,
        )  # fmt: skip
        say("compiling")
        return self.finish(task, t5.FAMILY, config, start, say)

    def _check(self, specials: Any) -> None:
        self.check(("width", "encoder_layers", "decoder_layers", "heads", "head_width"), (), specials)
        checks.at_least(1, tokens=self.tokens)
        if not self.widths or list(self.widths) != sorted(set(self.widths)) or self.widths[0] < 2:
            raise ValueError(f"widths must increase from 2 or more, got {' '.join(map(str, self.widths))}")
        checks.at_least(0, own_outputs=self.own_outputs)
        checks.number("drop", self.drop, least=0, most=0.9)
        if self.own_outputs and self.teacher is None:
            raise ValueError("own_outputs requires a teacher")
