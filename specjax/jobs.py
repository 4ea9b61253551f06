"""Jobs: many prompts to a folder of answers, in shards, resumable after any kill and split over independent slices.

    DIR/manifest.json       the options, hashes of the models and of the prompts; other settings are refused
    DIR/part-00007.jsonl    a finished shard, in the order of the prompts
    DIR/unfinished-00008    finished rows of a shard that is being decoded, in any order

A row of the result depends on the seed, its number and its prompt, not on the process that wrote it: a job that was
killed and resumed, or split over several slices, has the files of an uninterrupted one, byte for byte. A group may be
several processes (`specjax.hosts`), of which the leader writes; all of them must see the folder.

Importing this module does not import jax.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from specjax import checks, stores

if TYPE_CHECKING:
    from specjax.config import Run, RunConfig
    from specjax.engine import Served
    from specjax.model import Model

VERSION = 1
MANIFEST = "manifest.json"
SHARD = 512  # prompts
ROWS = 16  # prompts decoded together
FREE = ("mesh", "target", "draft")  # options that may change on resumption: models are compared by their content


class Item(NamedTuple):
    """One prompt of a job.

    Attributes:
      prompt: text or token ids; None if the line of the input is invalid.
      id: as in the input; None if it names none.
      error: why the prompt is invalid.
    """

    prompt: str | list[int] | None
    id: Any = None
    error: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """How a job is divided.

    Attributes:
      shard: prompts per shard.
      rows: prompts decoded together: slots, which are refilled as rows finish.
      of, index: process group `index` of `of` independent ones takes the shards s with s % of == index.
    """

    shard: int = SHARD
    rows: int = ROWS
    of: int = 1
    index: int = 0

    def __post_init__(self) -> None:
        checks.at_least(1, shard=self.shard, rows=self.rows, of=self.of)
        checks.integer("index", self.index, least=0, most=self.of - 1)


class Summary(NamedTuple):
    """What a call of `run` did.

    Attributes:
      finished: whether all shards of this group have their parts.
      rows: rows of this group that are done, those of earlier calls included; errors: how many are errors.
      decoded: rows decoded by this call; tokens: their new tokens; seconds: decoding them.
    """

    finished: bool
    rows: int
    errors: int
    decoded: int
    tokens: int
    seconds: float


Report = Callable[[str], None]


def run(
    job: "Run",
    items: Sequence[Item],
    out: str,
    *,
    split: Split | None = None,
    chat: bool = False,
    report: Report = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Decodes the prompts that the folder has no rows of yet.

    Args:
      job: from `specjax.config.build`.
      items: all prompts of the job, of every group.
      out: a folder, local or of an object store.
      split: shards, slots and process groups.
      chat: the prompts are messages to a chat model, by its own template.
      report: receives lines of progress.
      stop: asked whenever rows were written; True ends the call, with all files whole.

    Raises:
      ValueError: the folder was started with other settings, or sampled rows would depend on each other.

    >>> import tempfile
    >>> from specjax import config, jobs
    >>> job = config.build(config.RunConfig("bundled/opt-tiny", drafter="ngram", max_new_tokens=8))
    >>> items = [jobs.Item("Once upon a time"), jobs.Item("The old man", id="b"), jobs.Item([])]
    >>> done = jobs.run(job, items, tempfile.mkdtemp(), split=jobs.Split(rows=2))
    >>> done.finished, done.rows, done.errors
    (True, 3, 1)
    """
    from specjax import hosts
    from specjax.base import by_position

    exposed = not job.drafter.drafter.by_row and not isinstance(job.verifier.fn, by_position)
    if exposed and job.config.temperature != 0:
        raise ValueError(
            f"{job.drafter.name} drafts by the number of rows under way, so that a resumed job would write other rows "
            "than an uninterrupted one: use the verifier coupled"
        )
    split = Split() if split is None else split
    folder, leader = stores.folder(out), hosts.leader()
    count = -(-len(items) // split.shard)
    mine = {number: _numbers(number, items, split) for number in range(split.index, count, split.of)}
    wanted, there = manifest(job, items, split, chat), folder.names()
    if MANIFEST in there:
        check_manifest(folder, wanted)
    progress = _Progress(sum(map(len, mine.values())), report)
    unfinished: dict[int, dict[int, Row]] = {}
    for number, numbers in mine.items():
        if _part(number) in there:
            progress.known(_errors(folder.read(_part(number))), len(numbers))
        else:
            unfinished[number] = _rows(folder.appended(_unfinished(number)), set(numbers))
            progress.known(sum("error" in row for row in unfinished[number].values()), len(unfinished[number]))
    # All processes have read the folder, which all must see, before the leader writes to it.
    hosts.agree(job=wanted, split=split, done=[(number, sorted(rows)) for number, rows in unfinished.items()])
    if leader:
        if MANIFEST not in there:
            folder.write(MANIFEST, (json.dumps(wanted, indent=1) + "\n").encode())
            check_manifest(folder, wanted)  # another group may have written its own
        for number in mine.keys() - unfinished.keys():
            folder.discard(_unfinished(number))  # where a kill came between the part and this
    # Another process has at most written the last rows of a shard and the errors of the next one.
    together, step = hosts.StopTogether(stop, ahead=3), 0
    for number, done in unfinished.items():
        fresh: list[Row] = []  # rows that are not written yet
        for new in _decoded(job, {row: items[row] for row in mine[number]}, done, split, chat):
            done |= {row["row"]: row for row in new}
            fresh += new
            progress.add(new)
            step += 1
            last = together(step)
            if leader and (last or len(fresh) >= split.rows):
                folder.append(_unfinished(number), _lines(fresh))
                fresh = []
            if last:
                return progress.summary(finished=False)
        if leader:
            folder.write(_part(number), _lines([done[row] for row in mine[number]]))
            folder.discard(_unfinished(number))
    return progress.summary(finished=True)


def _numbers(shard: int, items: Sequence[Item], split: Split) -> range:
    """Numbers of the rows of a shard."""
    return range(shard * split.shard, min((shard + 1) * split.shard, len(items)))


def _part(shard: int) -> str:
    return f"part-{shard:05d}.jsonl"


def _unfinished(shard: int) -> str:
    return f"unfinished-{shard:05d}"


# --- rows ------------------------------------------------------------------------------------------------------------

Row = dict[str, Any]


def _decoded(
    job: "Run", items: Mapping[int, Item], done: Mapping[int, Row], split: Split, chat: bool
) -> Iterator[list[Row]]:
    """The rows of a shard that are not done, invalid prompts first."""
    prompts: dict[int, list[int]] = {}
    bad: list[Row] = []
    for row, item in items.items():
        try:
            prompts[row] = tokens_of(job, item, chat)
        except ValueError as error:
            why = " ".join(str(error).split()).replace("prompt 0", "the prompt")  # checked alone, it has number 0
            bad.append({"row": row} | _id(item) | {"error": why})
    if new := [row for row in bad if row["row"] not in done]:
        yield new
    for found in finished(job, prompts, done, split.rows):
        yield [{"row": row} | _id(items[row]) | one for row, one in found.items()]


def finished(job: "Run", prompts: Mapping[int, list[int]], done: Container[int], rows: int) -> Iterator[dict[int, Row]]:
    """Decodes the prompts of a shard that are not done, by continuous batching; yields rows by number as they finish.

    Prompts are read in groups of similar lengths, which are the same whatever is done, so that a resumed job has the
    numbers of an uninterrupted one. Rows that are done end at once where their group has others.
    """
    import numpy as np

    from specjax import engine, request
    from specjax.sharding import data_size

    most = job.config.max_new_tokens
    order = sorted(prompts, key=lambda row: (len(prompts[row]), row))
    data = data_size(job.target.mesh)
    rows = min(rows, max(-(-len(order) // data), 1) * data)
    size = engine.group_of(rows, data)
    groups = [order[at : at + size] for at in range(0, len(order), size)]
    left = [row for group in groups if any(row not in done for row in group) for row in group]
    if not left:
        return
    lengths = np.array([len(prompts[row]) for row in order])
    slots, _ = request.cache_size(job.target, lengths, lengths * 0 + most, None)
    budget = [1 if row in done else most for row in left]
    serving = job.serve([prompts[row] for row in left], rows=left, slots=rows, max_new_tokens=budget, cache_len=slots)
    for ended in serving.chunks():
        if new := {left[at]: row_of(served) for at, served in ended if left[at] not in done}:
            yield new


def row_of(served: "Served") -> Row:
    """Text, tokens and stop reason of a row."""
    text = {} if served.text is None else {"text": served.text}
    return text | {"tokens": served.tokens, "stop": served.stop_reason}


def tokens_of(job: "Run", item: Item, chat: bool) -> list[int]:
    """The tokens of a prompt.

    Raises:
      ValueError: an invalid prompt, or one that is too long for the model.
    """
    from specjax.prompts import tokenize
    from specjax.request import cache_size

    if item.prompt is None:
        raise ValueError(item.error)
    prompt = job.target.chat(item.prompt) if chat and isinstance(item.prompt, str) else item.prompt
    tokens, length = tokenize(job.target, [prompt])
    cache_size(job.target, length, length * 0 + job.config.max_new_tokens, None)
    return tokens[0, : length[0]].tolist()


def _id(item: Item) -> Row:
    return {} if item.id is None else {"id": item.id}


def _lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(errors="backslashreplace")


def _rows(content: bytes, numbers: set[int]) -> dict[int, Row]:
    """The whole rows of an unfinished shard by number. Lines that a crash cut off are left out."""
    found: dict[int, Row] = {}
    for line in content.split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("row") in numbers:
            found.setdefault(row["row"], row)
    return found


def _errors(part: bytes) -> int:
    return sum("error" in json.loads(line) for line in part.splitlines())


# --- the manifest ----------------------------------------------------------------------------------------------------


def manifest(job: "Run", items: Sequence[Item], split: Split, chat: bool) -> dict[str, Any]:
    """All that the rows depend on, as JSON values."""
    return json.loads(json.dumps({
        "version": VERSION, "prompts": _digest(json.dumps([tuple(item) for item in items]).encode()),
        "count": len(items), "shard": split.shard, "chat": chat,
        "target": fingerprint(job.target), "draft": checksum(job.drafter.params), "options": settings(job.config),
    }))  # fmt: skip


def settings(config: "RunConfig") -> dict[str, Any]:
    """The options of a run, with the drafter in full."""
    given = {name: value for name, value in dataclasses.asdict(config).items() if name not in FREE}
    return given | {"drafter": config.strategy.text}


def check_manifest(folder: stores.Folder, wanted: Mapping[str, Any]) -> None:
    """Compares the manifest of a folder.

    Raises:
      ValueError: the folder was started with other settings; names the first.
    """
    try:
        found = json.loads(folder.read(MANIFEST))
        started = {name: found[name] for name in wanted} | {"options": dict(found["options"])}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{folder.name}/{MANIFEST} is not the manifest of a job: choose another folder") from None
    flat = lambda record: {name: value for name, value in record.items() if name != "options"} | record["options"]
    was, now = flat(started), flat(wanted)
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            raise ValueError(
                f"{folder.name} was started with {name} {was.get(name)}, not {now.get(name)}: choose another folder, "
                "or the settings of its manifest.json"
            )


def fingerprint(model: "Model") -> str:
    """A hash of a model's weights, configuration and tokens."""
    pieces = [] if model.text is None else model.text.pieces()
    config = json.dumps(model.described(), sort_keys=True, default=str)
    known = f"{checksum(model.params)} {config} {model.eos} {model.vocab_size} "
    return _digest(known.encode() + b"\0".join(pieces))


def checksum(params: Any) -> int:
    """A sum over the bits of all arrays: the same on every mesh, in one pass on the devices."""
    import jax
    import jax.numpy as jnp

    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}

    def bits(leaf):
        leaf = leaf.astype(jnp.uint8) if leaf.dtype == jnp.bool_ else leaf
        return jax.lax.bitcast_convert_type(leaf, unsigned[leaf.dtype.itemsize]).astype(jnp.uint32)

    total = lambda leaves: sum((jnp.sum(bits(leaf), dtype=jnp.uint32) for leaf in leaves), start=jnp.uint32(0))
    return int(jax.jit(total)(jax.tree.leaves(params)))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


# --- progress --------------------------------------------------------------------------------------------------------


class _Progress:
    """Counts rows and tokens, and reports speed and the time that is left."""

    def __init__(self, total: int, report: Report, clock: Callable[[], float] = time.monotonic):
        self._total, self._report, self._clock = total, report, clock
        self._rows = self._errors = self._decoded = self._tokens = 0
        self._since = clock()

    def known(self, errors: int, rows: int) -> None:
        """Rows of earlier calls."""
        self._errors += errors
        self._rows += rows

    def add(self, new: Sequence[Row]) -> None:
        """Rows that were decoded now."""
        self.known(sum("error" in row for row in new), len(new))
        self._decoded += len(new)
        self._tokens += sum(len(row.get("tokens", ())) for row in new)
        seconds = self._clock() - self._since
        left = seconds / self._decoded * (self._total - self._rows)
        self._report(
            f"{self._rows:,} of {self._total:,} rows, {self._tokens / max(seconds, 1e-9):,.0f} tokens/s, "
            f"{duration(left)} left"
        )

    def summary(self, *, finished: bool) -> Summary:
        seconds = self._clock() - self._since
        return Summary(finished, self._rows, self._errors, self._decoded, self._tokens, seconds)


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(42.4), duration(750.0), duration(90000.0)
    ('42 s', '12 min', '25.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
