"""`specjax train answers`: answers that the target writes itself, the data that heads are trained on. Resumable."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from specjax import checks, files, jobs, stores
from specjax.bench import tasks

if TYPE_CHECKING:
    from specjax.model import Model

arg = tyro.conf.arg
KIND = "specjax answers"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswersRun:
    """Write the answers of a target to prompts: the training data of its heads.

    specjax train answers --target MODEL --prompts questions.jsonl --out answers.jsonl

    The first line of the file says what wrote it, each other line holds a prompt and an answer as tokens and text. Stop
    it at any time; the same command resumes it, and the file is the same as that of an uninterrupted run: row i depends
    on the seed and i alone.
    """

    target: Annotated[str, arg(metavar="MODEL")]
    """The model that answers."""
    prompts: Annotated[tuple[Path, ...], arg(metavar="FILE ...")]
    """Prompts, in the formats of specjax sweep --file; .txt has one prompt per line."""
    out: Annotated[Path, arg(metavar="FILE")]
    """The file of answers, .jsonl."""
    task: Annotated[str, arg(metavar="NAME", help_behavior_hint="(default: that of each file)")] = ""
    """How a text becomes a prompt, as in specjax sweep --tasks."""
    style: Annotated[str, arg(metavar="NAME")] = "own-or-as-is"
    """How the target is addressed, as in specjax sweep --style; own-or-as-is: by its chat template if it has one."""
    dtype: str = "float32"
    """Of the weights."""
    temperature: float = 0.7
    """Of sampling."""
    max_new_tokens: int = 256
    """Longest answer."""
    most: Annotated[int, arg(help_behavior_hint="(default: all)")] = 0
    """At most this many prompts, spread over all."""
    repeats: int = 1
    """Answers to each prompt, with different random numbers."""
    rows: int = 16
    """Prompts decoded together."""
    seed: int = 0
    """Of the random numbers."""

    def train(self, say: Callable[[str], None] = lambda text: None) -> Path:
        """Writes the answers that the file does not have yet, and returns the file.

        Raises:
          ValueError, FileNotFoundError: invalid options, or a file that was started with others.
        """
        checks.at_least(1, rows=self.rows, repeats=self.repeats)
        checks.at_least(0, most=self.most)
        checks.decoding(temperature=self.temperature, max_new_tokens=self.max_new_tokens, seed=self.seed)
        items = [(name, item) for file in self.prompts for name, item in self._read(file)]
        items = tasks.spread(items, self.most or len(items)) * self.repeats
        import specjax

        model = specjax.load(self.target, dtype=self.dtype)
        done = begin(self.out, self._header(model, items))
        folder = stores.Folder(self.out.parent)
        for lines in self._answers(model, items, done):
            folder.append(self.out.name, "".join(json.dumps(line) + "\n" for line in lines).encode())
            done += len(lines)
            say(f"{done} of {len(items)} answers")
        return self.out

    def _read(self, file: Path) -> Iterator[tuple[str, tasks.Item]]:
        form, items = tasks.read(file)
        name = self.task or tasks.FORMATS[form].task
        checks.check_name(name, tasks.TASKS, "task")
        yield from ((name, item) for item in items)

    def _header(self, model: "Model", items: list[tuple[str, tasks.Item]]) -> dict[str, Any]:
        given = ("style", "dtype", "temperature", "max_new_tokens", "repeats", "rows", "seed")
        return {
            "kind": KIND, "target": self.target, "vocabulary": vocabulary_of(model), "count": len(items),
            "prompts": tasks.digest([item for _, item in items]), **{name: getattr(self, name) for name in given},
        }  # fmt: skip

    def _answers(
        self, model: "Model", items: list[tuple[str, tasks.Item]], done: int
    ) -> Iterator[list[dict[str, Any]]]:
        """The lines that follow the first `done`, in order, as soon as all before them are known."""
        if done == len(items):
            return
        from specjax import engine
        from specjax.prompts import tokenize
        from specjax.request import cache_size

        prompts = [self._prompt(model, name, item) for name, item in items]
        tokens, length = tokenize(model, prompts)
        ids = [row[:count].tolist() for row, count in zip(tokens, length, strict=True)]
        slots, _ = cache_size(model, length, length * 0 + self.max_new_tokens, None)
        serving = engine.serve_batch(
            model, ids[done:], slots=min(self.rows, len(items)), rows=range(done, len(items)), seed=self.seed,
            temperature=self.temperature, max_new_tokens=self.max_new_tokens, cache_len=slots,
        )  # fmt: skip
        waiting: dict[int, dict[str, Any]] = {}
        row = done
        for ended in serving.chunks():
            waiting |= {done + at: jobs.row_of(served) for at, served in ended}
            lines = []
            while row in waiting:
                one = waiting.pop(row)
                lines.append({
                    "row": row, "id": items[row][1].id, "prompt": prompts[row], "answer": one["text"],
                    "prompt_tokens": ids[row], "answer_tokens": one["tokens"], "stop": one["stop"],
                })  # fmt: skip
                row += 1
            if lines:
                yield lines

    def _prompt(self, model: "Model", name: str, item: tasks.Item) -> str:
        style = self.style
        if style == type(self).style:
            chat = model.text is not None and model.text.chat is not None
            style = tasks.OWN if chat else tasks.style_of(model, name)
        return tasks.prompts_for(model, name, [item], style)[0]


def vocabulary_of(model: "Model") -> str:
    """A hash of the tokens, which must be those of the target that a head is trained for."""
    pieces = [] if model.text is None else model.text.pieces()
    return hashlib.blake2b(b"\0".join(pieces) + str(model.vocab_size).encode(), digest_size=8).hexdigest()


def begin(file: Path, header: dict[str, Any]) -> int:
    """Makes the file ready to be continued; returns how many answers it has. A line that a crash cut off is removed.

    Raises:
      ValueError: the file was started with other options, or holds something else.
    """
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(file, json.dumps(header) + "\n")
        return 0
    text = file.read_text(encoding="utf-8", errors="replace")
    kept = text[: text.rfind("\n") + 1].splitlines()
    if not text:
        files.write_text(file, json.dumps(header) + "\n")
        return 0
    try:
        found = json.loads(kept[0]) if kept else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{file} is not a file of answers: choose another file")
    for name, value in header.items():
        if found.get(name) != value:
            raise ValueError(f"{file} was started with {name} {found.get(name)}, not {value}: choose another file")
    done = len(kept) - 1
    if done < header["count"]:
        from specjax.engine import group_of

        slots = min(header["rows"], header["count"])
        done -= done % group_of(slots, 1)  # prompts are read in the groups of an uninterrupted run
    files.write_text(file, "".join(line + "\n" for line in kept[: done + 1]))
    return done


class Answer(NamedTuple):
    """Tokens of a prompt and of the answer to it."""

    prompt: list[int]
    answer: list[int]


def read(paths: tuple[Path, ...], model: "Model") -> list[Answer]:
    """The answers of files written by `specjax train answers`.

    Raises:
      ValueError: not such a file, an empty one, or answers of another tokenizer.
    """
    found: list[Answer] = []
    for path in paths:
        lines = files.filled(files.lines(path, "answers"))
        try:
            header = json.loads(lines[0][1]) if lines else {}
        except ValueError:
            header = {}
        if not isinstance(header, dict) or header.get("kind") != KIND:
            raise ValueError(f"{path} was not written by specjax train answers: its first line does not say so")
        if header.get("vocabulary") != vocabulary_of(model):
            author = header.get("target", "an unknown model")
            raise ValueError(f"{path} holds tokens of {author}, and {model.name} has another tokenizer")
        for number, line in lines[1:]:
            try:
                entry = json.loads(line)
                one = Answer(entry["prompt_tokens"], entry["answer_tokens"])
                tokens = [*one.prompt, *one.answer]
                if set(map(type, tokens)) - {int} or not 0 <= min(tokens) <= max(tokens) < model.vocab_size:
                    raise ValueError("not tokens of the model")
                found.append(one)
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{path} line {number} is damaged: remove it, or run train answers again") from None
    if not found:
        raise ValueError(f"{', '.join(map(str, paths))}: no answers")
    return found
