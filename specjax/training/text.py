"""`specjax train lm`: a language model from text, or a draft model distilled from its target."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from specjax import files
from specjax.training.run import Say, TrainingRun

END = 2  # </s> of tokenizers trained by this command
HEAD = 300  # characters of a document that include and exclude are searched in


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRun(TrainingRun):
    """Train a language model on text, or distill a draft model from a target. A new one has OPT's shape.

    specjax train lm --run runs/target --data books.txt.xz stories.jsonl.gz --width 256 --layers 6 --heads 4

    specjax train lm --run runs/draft --data books.txt.xz --tokenizer runs/target/tokenizer --width 64 --layers 1 \
--heads 2 --teacher runs/target/model --distill 0.9

    specjax train lm --run runs/draft --data answers.jsonl --start facebook/opt-125m --teacher facebook/opt-6.7b

    Stop it at any time with Ctrl-C or SIGTERM; the same command resumes it. When it ends, RUN/model is a Hugging Face
    folder, RUN/metrics.jsonl holds the metrics and RUN/curve.png the loss curve.
    """

    data: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")]
    """Text files (documents between lines of <|endofbook|>), JSONL with a "text" field, or answers that specjax train
    answers wrote; .gz and .xz are unpacked."""
    include: str = ""
    """Regular expression that must match the first 300 characters of a document."""
    exclude: str = ""
    """Regular expression that must not match them."""
    repeat: tuple[int, ...] = ()
    """Number of repetitions of each data file; default 1."""
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

    def train(self, say: Say = lambda text: None) -> Path | None:
        """Tokenizer, packed text, training and export; reuses what exists.

        Returns:
          The model's folder; None if the run was stopped before the end.

        Raises:
          ValueError, FileNotFoundError: invalid options, before any work; or a run that was started with others.
        """
        from specjax import hosts
        from specjax.models import opt
        from specjax.training import data, tasks, tokenizer

        self._check(tokenizer.OPT_SPECIALS)
        start = self.load_start(encoder_decoder=False)
        if start is not None and start.positions is not None and self.length >= start.positions:
            raise ValueError(
                f"length must be below the positions of {start.name}, {start.positions}, got {self.length}"
            )
        with self.preparing():
            self.check_record()
            texts = lambda: dict.fromkeys(data.split(self._documents(), self.held_out).train)
            bpe = self.load_tokenizer(start, texts, say, specials=tokenizer.OPT_SPECIALS, template="</s> $A")
            if start is None and bpe.id_to_token(END) != "</s>":
                raise ValueError(f"token {END} of {self.tokenizer_folder} must be '</s>', got {bpe.id_to_token(END)!r}")
            end = start.eos[0] if start is not None and start.eos else END
            packs = {name: self.run / f"{name}.bin" for name in ("train", "held_out")}
            if not all(file.is_file() for file in (self.record, *packs.values())):
                say("packing the text")
                self._pack(packs, bpe, end)
            packed = {name: data.tokens(file, bpe.get_vocab_size()) for name, file in packs.items()}
            for name, array in packed.items():
                if len(array) <= self.length + 1:
                    raise ValueError(
                        f"the {name} text has {len(array)} tokens, fewer than a window of length {self.length}"
                    )
            self.write_record()
            if hosts.leader():
                write_prompts(self.run / "prompts.txt", packed["held_out"], bpe)
        family, config = opt.FAMILY, self._config(bpe.get_vocab_size())
        if start is not None:
            family, config = start.family, start.config
        teacher = self.load_teacher(config.vocab_size, encoder_decoder=False, length=self.length)
        task = tasks.text_task(
            family, config, packed["train"], packed["held_out"], rows=self.rows, length=self.length,
            seed=self.recipe.seed, teacher=teacher, how=self.distillation,
        )  # fmt: skip
        return self.finish(task, family, config, start, say)

    def _check(self, specials: Any) -> None:
        self.check(("width", "layers", "heads", "positions"), ("rows", "length"), specials)
        self._config(self.vocab_size)
        if self.repeat and (len(self.repeat) != len(self.data) or min(self.repeat) < 1):
            raise ValueError(f"repeat must have one number of at least 1 for each of {len(self.data)} data files")
        for name in ("include", "exclude"):
            try:
                re.compile(getattr(self, name))
            except re.error as error:
                raise ValueError(f"{name} must be a regular expression, got {getattr(self, name)!r}: {error}") from None
        if self.start is None and self.length >= self.positions:
            raise ValueError(f"length must be below positions = {self.positions}, got {self.length}")

    def _config(self, vocab_size: int) -> Any:
        from specjax.models.opt import OPTConfig

        return OPTConfig(
            vocab_size=vocab_size, width=self.width, embed_width=self.width, layers=self.layers, heads=self.heads,
            mlp_width=4 * self.width, max_positions=self.positions,
        )  # fmt: skip

    def _documents(self) -> Iterator[str]:
        """The documents that are included, with repetitions."""
        from specjax.training import data

        for file, times in zip(self.data, self.repeat or (1,) * len(self.data), strict=True):
            for text in data.documents(file):
                excluded = self.exclude and re.search(self.exclude, text[:HEAD])
                if not excluded and re.search(self.include, text[:HEAD]):
                    yield from [text] * times

    def _pack(self, packs: dict[str, Path], bpe: Any, end: int) -> None:
        """Writes training text and held-out text as tokens, each document as the tokenizer begins it, and an end."""
        from specjax.training import data

        parts = data.split(self._documents(), self.held_out)
        texts = {"train": parts.train, "held_out": list(dict.fromkeys(parts.held_out))}
        for name, some in texts.items():
            if not some:
                raise ValueError(f"no documents left for {name}: add data, or change held_out, include or exclude")
        encode = lambda pieces: [one.ids for one in bpe.encode_batch(pieces, add_special_tokens=False)]
        before = [token for token in bpe.encode("").ids if token != end]
        for name, file in packs.items():
            data.pack(texts[name], encode, file, before=before, end=end, vocab_size=bpe.get_vocab_size())


def write_prompts(file: Path, held_out: np.ndarray, bpe: Any, *, count: int = 64, length: int = 32) -> None:
    """Writes evenly spaced beginnings of held-out text, one per line: prompts for `specjax sweep`."""
    starts = np.linspace(0, max(len(held_out) - length, 0), count, endpoint=False, dtype=np.int64)
    texts = [bpe.decode(held_out[start : start + length].tolist()) for start in starts]
    files.write_text(file, "".join(" ".join(text.split()) + "\n" for text in texts if text.strip()))
