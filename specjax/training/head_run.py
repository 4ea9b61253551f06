"""`specjax train head`: a head for a target, from answers that the target wrote."""

import dataclasses
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

from specjax import checks, files
from specjax.training.recipe import Recipe
from specjax.training.run import DTYPES, Say, make_mesh, progress_line

if TYPE_CHECKING:
    from specjax.heads import Head
    from specjax.training.eagle import Batch
    from specjax.training.lm import TrainingTask

arg = tyro.conf.arg
BY_KIND = "(default: that of the kind)"
EVALUATIONS = 64  # most held-out batches
PARTS = ("train", "held_out")
# Options that not all kinds have.
OPTIONS = (
    "layers", "width", "mlp_width", "kv_heads", "draft_vocab", "own_matrices", "taps", "mask_token", "window", "start",
    "rank", "feature_loss", "glance", "kept", "features",
)  # fmt: skip
# Of these, those that a trained head has.
SHAPE = ("layers", "width", "mlp_width", "kv_heads", "draft_vocab", "own_matrices", "taps", "window")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadRun:
    """Train a head that drafts for a target, on answers that the target wrote.

    specjax train answers --target MODEL --prompts questions.jsonl --out answers.jsonl

    specjax train head eagle3 --target MODEL --data answers.jsonl --out runs/head

    specjax generate --target MODEL --head runs/head/head "Once upon a time"

    Stop it at any time with Ctrl-C or SIGTERM; the same command resumes it. When it ends, OUT/head is the head,
    OUT/metrics.jsonl the metrics and OUT/curve.png the loss.
    """

    kind: Annotated[
        Literal["eagle", "hass", "eagle3", "medusa", "medusa-2", "mlp", "peagle", "dflash", "falcon", "spire"],
        tyro.conf.Positional,
    ]
    """Kind of head. medusa-2 trains the target too: OUT/head is both. falcon and spire are experimental."""
    target: Annotated[str, arg(metavar="MODEL")]
    """The model that it drafts for."""
    data: Annotated[tuple[Path, ...], arg(metavar="FILE ...")]
    """Files of specjax train answers."""
    out: Annotated[Path, arg(metavar="FOLDER")]
    """Folder of the run."""
    layers: Annotated[int, arg(help_behavior_hint="(default: 4 of peagle, 5 of dflash, 2 of spire, else 1)")] = 0
    """Decoder layers, or residual blocks of each Medusa head."""
    width: Annotated[int, arg(help_behavior_hint="(default: the target's)")] = 0
    """EAGLE-3: width of the head, a multiple of the width of the target's attention heads, at most the target's. A
    narrower head drafts faster and has its own embedding."""
    mlp_width: Annotated[int, arg(help_behavior_hint="(default: 3 times the head's width, of mlp once)")] = 0
    """Width of the MLP of the layers; of an MLP speculator, of its state."""
    kv_heads: Annotated[int, arg(help_behavior_hint="(default: the target's)")] = 0
    """Key-value heads of the layers; fewer make a smaller head."""
    draft_vocab: Annotated[int, arg(help_behavior_hint="(default: all tokens)")] = 0
    """Tokens that EAGLE-3, Medusa, P-EAGLE and DFlash draft: the most frequent ones of the answers."""
    own_matrices: bool = False
    """Medusa: every head has its own output matrix, as in the paper. By default they use the target's, or share one
    over a draft vocabulary."""
    taps: Annotated[
        tuple[int, ...], arg(metavar="N ...", help_behavior_hint="(default: three; of spire the last)")
    ] = ()
    """Streams of the target that EAGLE-3, P-EAGLE and DFlash read: number k enters layer k. Of spire, the layers that
    it copies."""
    mask_token: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: the last token)")] = None
    """P-EAGLE and DFlash: token of positions that are not drafted yet; best one that texts do not contain."""
    window: Annotated[int, arg(help_behavior_hint="(default: 64)")] = 0
    """SPIRe: positions that attention reaches back, beside the first one."""
    start: Annotated[str, arg(metavar="FOLDER", help_behavior_hint="(default: a new head)")] = ""
    """EAGLE, HASS, EAGLE-3, SPIRe, Medusa and Medusa-2: a trained head to begin with."""
    rank: Annotated[int, arg(help_behavior_hint="(default: 32)")] = 0
    """Medusa-2: rank of the target's adapters (LoRA)."""
    unroll: Annotated[int, arg(help_behavior_hint=BY_KIND)] = 0
    """Drafted tokens that are trained at each position; the number of heads of Medusa, of stages of mlp; tokens that
    falcon drafts per pass."""
    divergence: Annotated[str, arg(help_behavior_hint=BY_KIND)] = ""
    """From the target's distribution: ce, kl, reverse-kl, jsd, tv, log-alpha, ce-tv (the mean of both), or lk (a hybrid
    of kl and tv); text: the cross-entropy with the tokens of the answers, for medusa, mlp and dflash; d-pace: weighted
    by place, for dflash."""
    feature_loss: Annotated[float | None, arg(metavar="X", help_behavior_hint=BY_KIND)] = None
    """EAGLE, HASS and Falcon: weight of the loss between drafted and true features; 0: none."""
    glance: Annotated[float | None, arg(metavar="X", help_behavior_hint="(default: 0.4)")] = None
    """Falcon: share of the wrongly drafted inputs that is replaced by the target's, at the start; 0: no glancing."""
    kept: Annotated[float | None, arg(metavar="X", help_behavior_hint="(default: 1; of peagle 0.7)")] = None
    """EAGLE, HASS, EAGLE-3, P-EAGLE and SPIRe: share of the positions at which the next drafted token is trained too;
    less is faster."""
    tokens: int = 1024
    """Tokens per step, including padding."""
    widths: tuple[int, ...] = (64, 128, 256)
    """Widths to which texts are padded, increasing; longer ones are cut."""
    held_out: float = 0.03
    """Fraction of the answers that is held out, by hash of the prompt."""
    dtype: str = "float32"
    """Of the target's weights during training."""
    head_dtype: str = "float32"
    """Dtype of the exported weights: those of OUT/head."""
    features: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: computed in each step)")] = (
        None
    )
    """Folder for what the target computes on the answers, so that it reads them once; several runs can use it. In the
    target's dtype: bfloat16 takes half of the disk."""
    mesh: Annotated[str | None, arg(metavar="DATAxMODEL", help_behavior_hint="(default: one device)")] = None
    """Devices that rows and weights are split over, such as 2x4."""
    recipe: Recipe = dataclasses.field(default_factory=Recipe)

    def train(self, say: Say = lambda text: None) -> Path | None:
        """Reads the answers, trains and writes the head.

        Returns:
          The head's folder; None if the run was stopped before the end.

        Raises:
          ValueError, FileNotFoundError: invalid options, before any work; or a run that was started with others.
        """
        self._check()
        import specjax
        from specjax.heads.kinds import KINDS
        from specjax.training import answers, lm
        from specjax.training.head_kinds import TRAINED

        say(f"loading {self.target}")
        mesh = make_mesh(self.mesh)
        target = specjax.load(self.target, dtype=self.dtype, mesh=mesh)
        say("reading the answers")
        every = answers.read(self.data, target)
        if target.encoder_decoder and not KINDS[TRAINED[self.kind].kind].encoder_decoder:
            raise ValueError(
                f"{self.kind} heads draft for decoder-only models, and {target.name} is an encoder-decoder"
            )
        parts = split(every, self.held_out)
        if not all(parts):
            raise ValueError(f"{len(every)} answers are too few for held_out {self.held_out}")
        start = target.config.start_token if target.encoder_decoder else None
        texts: Any = {name: bucketed(part, self.widths, start) for name, part in zip(PARTS, parts, strict=True)}
        for name, batches in texts.items():
            if not any(batch.answer.any() for batch in batches):
                raise ValueError(f"data: no answer of the {name} part has tokens within {self.widths[-1]} (widths)")
        head = self._new(target, parts[0])
        self._record({"answers": len(every), "tokens": sum(len(one.answer) for one in every)})
        if self.features is not None:
            from specjax.training import features

            texts = features.kept(head, texts, self.features, tokens=self.tokens, mesh=mesh, say=say)
            if texts is None:
                return None
        how = self._recipe(head)
        kind = TRAINED[self.kind]
        shardings = lambda params: kind.shardings(params, mesh, head.kind.rules)
        task = self._task(head, how, *texts.values())._replace(mesh=mesh, shardings=shardings)
        say("compiling")
        report = lambda record: say(progress_line(record, self.recipe.steps))
        state = lm.train(task, self.recipe, self.out, family=self.kind, config=head.config, report=report)
        lm.draw_curve(self.out)
        if int(state.step) < self.recipe.steps:
            return None
        folder = self.out / "head"
        stored = dataclasses.replace(head, fmt=dataclasses.replace(head.fmt, dtype=self.head_dtype))
        kind.save(stored, how, lm.halved(state.params) if self.head_dtype == "bfloat16" else state.params, folder)
        return folder

    def _check(self) -> None:
        for file in self.data:
            if not file.is_file():
                raise FileNotFoundError(f"data: {file} does not exist")
        if list(self.widths) != sorted(set(self.widths)) or not self.widths or self.widths[0] < 4:
            raise ValueError(f"widths must increase from 4 or more, got {' '.join(map(str, self.widths))}")
        checks.check_name(self.head_dtype, DTYPES, "head_dtype")
        checks.at_least(1, tokens=self.tokens)
        checks.at_least(
            0, layers=self.layers, width=self.width, mlp_width=self.mlp_width, kv_heads=self.kv_heads,
            draft_vocab=self.draft_vocab, unroll=self.unroll, rank=self.rank, window=self.window,
        )  # fmt: skip
        for name in ("feature_loss", "glance", "kept"):
            if getattr(self, name) is not None:
                checks.number(name, getattr(self, name), least=0, most=1)
        if self.mesh is not None:
            checks.mesh_shape(self.mesh)
        from specjax.training.head_kinds import TRAINED

        kind = TRAINED[self.kind]
        if self.divergence:
            checks.check_name(self.divergence, kind.divergences, f"divergence of {self.kind}")
        for name in SHAPE if self.start else ():
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"{name} is that of the head to begin with: leave it out, or start")
        for name in OPTIONS:
            if name not in kind.options and getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"{name} is not an option of {self.kind}: it has {', '.join(kind.options) or 'none'}")

    def _record(self, data: dict[str, int]) -> None:
        """Writes OUT/run.json, or raises ValueError if the run was started with other options."""
        free = ("out", "data", "recipe", "dtype", "head_dtype", "features", "mesh")
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in free} | data
        own |= {name: getattr(self.recipe, name) for name in ("seed", "muon", "accumulate")}
        own = json.loads(json.dumps(own))
        file = self.out / "run.json"
        if file.is_file():
            started = json.loads(files.read_text(file))
            for name, value in own.items():
                if name in started and started[name] != value:
                    raise ValueError(f"{self.out} was started with {name} {started[name]}, not {value}")
        self.out.mkdir(parents=True, exist_ok=True)
        files.write_text(file, json.dumps(own, indent=1) + "\n")

    def _new(self, target: Any, train: Sequence[Any]) -> "Head":
        """A head without parameters, or the one to begin with."""
        from specjax.heads.loading import load_head
        from specjax.training import eagle
        from specjax.training.head_kinds import TRAINED
        from specjax.training.lm import FORMAT

        kind = TRAINED[self.kind]
        if self.start:
            head = load_head(self.start, dataclasses.replace(target, fmt=FORMAT))  # in the layout of training
            if head.kind.name != kind.kind:
                raise ValueError(f"start: {self.start} is a head of kind {head.kind.name}, not {kind.kind}")
            return dataclasses.replace(head, target=target)
        chosen = None
        if self.draft_vocab > target.vocab_size:
            raise ValueError(f"draft_vocab is {self.draft_vocab}, and {target.name} has {target.vocab_size} tokens")
        if self.draft_vocab:
            counts = np.bincount(np.concatenate([one.answer for one in train]), minlength=target.vocab_size)
            chosen = eagle.with_draft_tokens(counts, self.draft_vocab, target.vocab_size)
        return kind.new(self, target, chosen)

    def _recipe(self, head: "Head") -> Any:
        """Steps, loss and more, of the kind of head."""
        from specjax.training.head_kinds import TRAINED

        stages = head.config.most if self.start and TRAINED[self.kind].kind == "medusa" else 0
        given = {
            "steps": self.unroll or stages or None, "divergence": self.divergence or None, "rank": self.rank or None,
            "features": self.feature_loss, "glance": self.glance, "kept": self.kept,
        }  # fmt: skip
        changed = {name: value for name, value in given.items() if value is not None}
        return dataclasses.replace(TRAINED[self.kind].recipe, **changed)

    def _task(self, head: "Head", how: Any, train: "Sequence[Batch]", held_out: "Sequence[Batch]") -> "TrainingTask":
        from specjax.training.head_kinds import TRAINED
        from specjax.training.lm import TrainingTask

        kind = TRAINED[self.kind]
        count = min(EVALUATIONS, -(-sum(part.tokens.size for part in held_out) // self.tokens))

        def batch(step: int) -> "Batch":
            progress = np.asarray(step / self.recipe.steps, np.float32)
            drawn = draw(train, seed=self.recipe.seed, step=step, tokens=self.tokens)
            return drawn._replace(progress=progress)

        return TrainingTask(
            init=functools.partial(kind.init, head, how),
            loss=functools.partial(kind.loss, head, how),
            measure=functools.partial(kind.measure, head, how),
            batch=batch,
            held_out=HeldOut(held_out, count, self.tokens),
            fixed=head.target.params,
            rate=None if kind.rate is None else functools.partial(kind.rate, how),
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The same held-out batches in every evaluation, drawn when they are read: features would not fit in memory."""

    parts: "Sequence[Batch]"
    count: int
    tokens: int

    def __iter__(self) -> Iterator["Batch"]:
        return (draw(self.parts, seed=1, step=step, tokens=self.tokens) for step in range(self.count))


def split(every: Sequence[Any], held_out: float) -> tuple[list[Any], list[Any]]:
    """(train, held out) by hash of the prompt."""
    from specjax.training.data import share

    parts: tuple[list[Any], list[Any]] = ([], [])
    for one in every:
        parts[share(" ".join(map(str, one.prompt))) < held_out].append(one)
    return parts


def bucketed(every: Sequence[Any], widths: Sequence[int], start: int | None = None) -> "tuple[Batch, ...]":
    """All texts, by the narrowest width that fits them; longer ones are cut at the last width.

    Args:
      start: start token of an encoder-decoder, which reads the prompt in its encoder.
    """
    from specjax.training.eagle import Batch

    def size(one: Any) -> int:
        return len(one.prompt) + len(one.answer) if start is None else max(len(one.prompt), 1 + len(one.answer))

    found: list[Batch] = []
    least = 0
    for width in widths:
        last = width == widths[-1]
        inside = [one for one in every if size(one) > least and (last or size(one) <= width)]
        least = width
        if not inside:
            continue
        before = [one.prompt[:width] if start is None else [start] for one in inside]
        texts = [(given + one.answer)[:width] for given, one in zip(before, inside, strict=True)]
        answer = np.zeros((len(inside), width), bool)
        for row, (given, text) in enumerate(zip(before, texts, strict=True)):
            answer[row, len(given) : len(text)] = True
        batch = Batch(padded(texts, width), answer)
        if start is not None:
            prompts = [one.prompt[:width] for one in inside]
            batch = batch._replace(source=padded(prompts, width), length=np.array([*map(len, prompts)], np.int32))
        found.append(batch)
    return tuple(found)


def padded(texts: Sequence[Sequence[int]], width: int) -> np.ndarray:
    """[rows, width] int32, with zeros behind the texts."""
    rows = np.zeros((len(texts), width), np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    return rows


def draw(parts: "Sequence[Batch]", *, seed: int, step: int, tokens: int) -> "Batch":
    """Random texts of one width, about `tokens` with their padding: a function of (seed, step)."""
    import jax

    rng = np.random.Generator(np.random.Philox(key=[seed, step]))
    rows = [max(1, tokens // part.tokens.shape[1]) for part in parts]
    batches = np.array([len(part.tokens) / count for part, count in zip(parts, rows, strict=True)])
    chosen = int(rng.choice(len(parts), p=batches / batches.sum()))
    at = rng.integers(0, len(parts[chosen].tokens), size=rows[chosen])
    return jax.tree.map(lambda array: array[at], parts[chosen])
