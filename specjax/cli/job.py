"""`specjax job run`: the prompts of a file to a folder of answers, resumable and split over independent slices."""

import dataclasses
import os
import signal
from collections.abc import Sequence
from typing import Annotated

import tyro

from specjax import checks, jobs
from specjax.cli import INTERRUPTED, process
from specjax.cli.options import Configured, merged, read_options
from specjax.cli.prompts import read_items
from specjax.config import RunConfig, arg

PROG = "specjax job run"
INDEX = "JOB_INDEX"  # environment variable
STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class JobProcesses:
    """The processes of one group, each with its own devices, which a mesh spans. On TPU slices and in Slurm steps these
    options are not needed: start the command on every host."""

    coordinator: Annotated[str | None, arg(metavar="HOST:PORT", help_behavior_hint="(default: found)")] = None
    """Address of process 0, which prints and writes files."""
    processes: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: found)")] = None
    """Number of processes."""
    process_index: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: found)")] = None
    """Number of this process, from 0; --index is that of the group."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobOptions(Configured):
    """Continue the prompts of a file, in shards that become files of a folder.

    specjax job run prompts.jsonl --out answers

    specjax job run prompts.jsonl --out gs://bucket/answers --config configs/pods/opt_66b.py --mesh 2x8

    specjax job run prompts.jsonl --out answers --of 4 --index 1

    Kill it at any time: the same command goes on, and the files are those of an uninterrupted job, byte for byte. Row i
    depends on the seed and i alone. A prompt that is invalid becomes a row with an error.
    """

    file: Annotated[tyro.conf.Positional[str], arg(metavar="FILE")]
    """Prompts: text with one per line, or .jsonl with a "prompt" in each line, text or a list of token ids, and an "id"
    if it has one. Local, or of an object store, such as gs://bucket/prompts.jsonl."""
    out: Annotated[str, arg(metavar="FOLDER")]
    """Folder of the answers, part-00000.jsonl and so on; local, or of an object store."""
    rows: Annotated[int, arg(metavar="N")] = jobs.ROWS
    """Prompts decoded together."""
    shard: Annotated[int, arg(metavar="N")] = jobs.SHARD
    """Prompts per file of answers."""
    of: Annotated[int, arg(metavar="N")] = 1
    """Number of independent process groups, such as slices, that share the job."""
    index: Annotated[int | None, arg(metavar="I", help_behavior_hint=f"(default: the variable {INDEX}, else 0)")] = None
    """Number of this group, from 0: it takes the shards s with s modulo N equal to I."""
    hosts: JobProcesses = dataclasses.field(default_factory=JobProcesses)


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: bad input.
    """
    found = read_options(JobOptions, args, PROG)
    if found is None:
        return 0
    options, preset = found
    index = group_index(os.environ.get(INDEX), options.of) if options.index is None else options.index
    split = jobs.Split(shard=options.shard, rows=options.rows, of=options.of, index=index)
    config = merged(options, preset)
    checks_of_job(options, config)
    process.check_mesh(config.mesh)
    items = read_items(options.file)
    process.import_library()
    from specjax.cli.progress import Progress, open_console
    from specjax.config import build

    console = open_console(stderr=True)
    decoding = False

    def report(text: str) -> None:
        nonlocal decoding
        decoding = True
        progress.update(text)

    with Progress(console, show=True) as progress, process.deferred_interrupt(lambda: decoding, STOPPING) as stop:
        run = build(config, progress.update)
        progress.update("compiling")
        done = jobs.run(run, items, options.out, split=split, chat=options.chat, report=report, stop=stop)
    speed = f"{done.tokens / max(done.seconds, 1e-9):,.0f} tokens/s"
    errors = f", {done.errors:,} of them errors" if done.errors else ""
    line = f"{done.rows:,} rows{errors}; {done.decoded:,} decoded now, {speed}"
    if not done.finished:
        console.print(f"stopped: {line}: the same command goes on", markup=False, soft_wrap=True)
        return INTERRUPTED
    console.print(f"written: {options.out}: {line}", markup=False, soft_wrap=True)
    return 0


def group_index(variable: str | None, of: int) -> int:
    """The number of this group from the environment; without `--of` there is one group.

    Raises:
      ValueError: the variable is not a number.
    """
    if variable is None or of == 1:
        return 0
    if not variable.isdecimal():
        raise ValueError(f"{INDEX}={variable!r} is not a whole number: set it, or pass --index")
    return int(variable)


def checks_of_job(options: JobOptions, config: RunConfig) -> None:
    """Raises ValueError for options that single prompts have, and a job has not."""
    checks.number("--temperature", config.temperature)
    if not options.out.strip():
        raise ValueError("--out must name a folder")
