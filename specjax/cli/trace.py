"""`specjax trace`: every round of a request on record, in the terminal and as pictures."""

import dataclasses
import json
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from specjax import files, plotting
from specjax.cli import checks
from specjax.cli.arguments import parse
from specjax.cli.generate import told_help
from specjax.cli.options import Drafting, Flag, Models, Options, Sampling, Stopping, arg
from specjax.cli.prompts import read_prompts
from specjax.defaults import LARGEST_TREE
from specjax.naming.grammar import Spec
from specjax.streaming import interrupts_wait

PROG = "specjax trace"
DONE, BROKEN_MODEL, INTERRUPTED = 0, 1, 128 + signal.SIGINT
FILE, USUAL, OTHER = "rounds.jsonl", 3, 7


@dataclasses.dataclass(frozen=True)
class Tracing:
    """What is written where. Without --output and --json the pictures are drawn in the terminal alone."""

    output: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = None
    """Write rounds.jsonl and the pictures strip, walltime and depth into this folder (pictures need matplotlib)."""
    format: tuple[Literal["svg", "png"], ...] = ("svg", "png")
    """Of the pictures; one or both."""
    gammas: Annotated[
        tuple[int, ...], arg(metavar="N ...", help_behavior_hint="(default: that of the run, and 3)")
    ] = ()
    """Draft lengths of the walltime diagram: a lane each, above plain decoding."""
    repeats: Annotated[int, arg(metavar="N")] = 3
    """Runs that are timed; the median counts, round by round."""
    rounds: Annotated[int, arg(metavar="N")] = 40
    """Most rounds of a text that a strip shows."""
    json: Flag = False
    """Print the records on stdout and nothing else: one JSON object a line."""


@dataclasses.dataclass(frozen=True)
class TraceOptions:
    """Show what happens in every round: which tokens were drafted, accepted, refused and corrected, and where the
    time goes.

    specjax trace "Once upon a time"

    specjax trace "Once upon a time" --gamma 7 --gammas 7 3 --temperature 0 --output pictures

    specjax trace --target bundled/t5-target --draft bundled/t5-draft "translate English to German: Good morning."

    specjax trace --prompts questions.jsonl --drafter ngram --json > rounds.jsonl
    """

    prompt: Annotated[tyro.conf.Positional[tuple[str, ...]], arg(metavar="PROMPT ...", help_behavior_hint="")] = ()
    """Text to continue; several make a batch."""
    prompts: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """More prompts: a text file, one a line, or .jsonl with a "prompt" in each line; - reads stdin."""
    config: Annotated[Path | None, arg(metavar="FILE.py", help_behavior_hint="(default: none)")] = None
    """A preset, as in configs/: what it says holds where the command line says nothing. It is Python, and is run."""
    models: Models = dataclasses.field(default_factory=Models)
    drafting: Drafting = dataclasses.field(default_factory=Drafting)
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    stopping: Stopping = dataclasses.field(default_factory=Stopping)
    tracing: Tracing = Tracing()

    def request(self) -> Options:
        """The same as options of `specjax generate`."""
        own = {"tracing"}
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in own}
        return Options(**shared)


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: bad input; nothing has been decoded then.
    """
    options = parse(TraceOptions, args, prog=PROG)
    if told_help(options.drafting):
        return DONE
    request = options.request()
    if options.config is not None:
        with interrupts_wait(lambda: True):
            from specjax.cli import preset

        read = preset.read(options.config)
        given = preset.as_options(read)
        default = dataclasses.replace(
            TraceOptions(), models=given.models, drafting=given.drafting, sampling=given.sampling,
            stopping=given.stopping,
        )  # fmt: skip
        options = parse(TraceOptions, args, prog=PROG, default=default)
        request = preset.settle(options.request(), read)
    prompts = read_prompts(options.prompt, options.prompts)
    return run(request, options.tracing, prompts)


def run(request: Options, tracing: Tracing, prompts: Sequence[str]) -> int:
    """Checks, loads, traces and tells; jax is imported here, after the arguments have been read."""
    with interrupts_wait(lambda: True):  # an import of jax that Ctrl-C cuts short takes the process down with it
        from specjax import api
        from specjax.cli import record, report, setup
        from specjax.cli.progress import Progress, deferred_interrupt, open_console
        from specjax.naming import drafting
        from specjax.trace import rounds, strip
    chosen = setup.plan(request)
    check(tracing, chosen.drafter)
    drawn = tracing.output is not None or not tracing.json
    console, errors = open_console(), open_console(stderr=True)
    with Progress(errors, show=True) as progress:
        with interrupts_wait(lambda: False):
            target, drafts = setup.load_parts(request, chosen, progress.tell)
            guide = drafting.make(chosen.drafter, target, drafts)
        verifier = api.named_verifier(guide, chosen.verifier)
        work = Work(target, prompts, setup.decode_options(request, chosen), tracing.repeats, progress.tell)
        progress.tell("compiling, and decoding round by round")
        begun: list[bool] = []  # from the first round on there is something to keep
        with deferred_interrupt(once=lambda: bool(begun)) as asked:
            halt = lambda: begun.append(True) or asked()
            trace = rounds.record(target, prompts, guide, work.options, repeats=work.repeats, stop=halt)
            interrupted = asked()
        lanes = []
        if drawn and not interrupted:
            make = lambda gamma: drafting.make(drafting.with_gamma(chosen.drafter, gamma), target, drafts)
            own = trace.guide.drafter.tree.width - 1
            gammas = lane_gammas(own, tracing.gammas) if drafting.takes_gamma(chosen.drafter) else []
            lanes = measure_lanes(work, trace, make, gammas)
    about = header(request, target, guide, prompts, trace, verifier)
    content = [about, *rounds.records(trace, strip.speller(target.text)), closing(trace)]
    written = "\n".join(map(json_line, content))
    if tracing.json:
        record.tell(written)
    shown = Shown(trace, target, lanes, tracing.rounds, "" if verifier.lossless else ", LOSSY")
    if not tracing.json:
        in_terminal(console, shown)
        report.show(console, report.closing_table(trace.out, target, guide, verifier.name))
    for line in report.warnings(trace.out):
        errors.print(f"{PROG}: warning: {line}", style="yellow", soft_wrap=True, markup=False)
    if tracing.output is not None:
        tracing.output.mkdir(exist_ok=True)
        files.write_text(tracing.output / FILE, written + "\n")
        names = as_pictures(tracing.output, shown, tracing.format)
        if not tracing.json:
            console.print(f"\nwrote {', '.join([FILE, *names])} in {tracing.output}", soft_wrap=True, markup=False)
    if interrupted:
        return INTERRUPTED
    return BROKEN_MODEL if "nan" in trace.out.stop_reasons else DONE


def check(tracing: Tracing, drafter: Spec) -> None:
    """Raises ValueError for what cannot work, before any work."""
    from specjax.naming import drafting

    if any(gamma < 1 for gamma in tracing.gammas):
        raise ValueError(
            f"--gammas must be at least 1, got {min(tracing.gammas)}; a lane of plain decoding is always there"
        )
    if any(gamma >= LARGEST_TREE for gamma in tracing.gammas):
        raise ValueError(f"--gammas must be at most {LARGEST_TREE - 1}, got {max(tracing.gammas)}")
    checks.once(gammas=tracing.gammas)
    if tracing.gammas and not drafting.takes_gamma(drafter):
        raise ValueError(f"--gammas has no meaning for the drafter {drafting.label(drafter)!r}: leave it out")
    checks.at_least(1, rounds=tracing.rounds, repeats=tracing.repeats)
    checks.formats(tracing.format)
    if tracing.output is None:
        return
    checks.writable_folder("output", tracing.output)
    plotting.require()


# --- measuring -------------------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """The request, as `rounds.record` takes it."""

    target: Any
    prompts: Sequence[str]
    options: dict[str, Any]
    repeats: int
    tell: Callable[[str], None]


def lane_gammas(run: int, asked: Sequence[int]) -> list[int]:
    """Draft lengths of the walltime diagram: those asked for, else that of the run (0: plain) and another."""
    if asked or run == 0:
        return list(asked)
    return [run, OTHER if run == USUAL else USUAL]


def measure_lanes(work: Work, trace: Any, make: Callable[[int], Any], gammas: Sequence[int]) -> list[Any]:
    """The walltime of each draft length and of plain decoding, one lane each; the run's own is there already.

    Args:
      make: the drafter of a draft length.
      gammas: none where the drafter has no such choice; then its lane is called "drafted".
    """
    from specjax import drafters
    from specjax.trace import lanes, rounds

    def record(name: str, guide: Any, options: dict[str, Any]) -> Any:
        work.tell(f"decoding with {name} for the walltime diagram")
        return lanes.lane(name, rounds.record(work.target, work.prompts, guide, options, repeats=work.repeats))

    own = trace.guide.drafter.tree.width - 1
    found = [] if gammas or own == 0 else [lanes.lane("drafted", trace)]
    for gamma in gammas:
        name = f"\u03b3 = {gamma}"
        found.append(lanes.lane(name, trace) if gamma == own else record(name, make(gamma), work.options))
    if own == 0:
        return [*found, lanes.lane("plain", trace)]
    return [*found, record("plain", drafters.plain(), work.options | {"verifier": None})]


# --- telling ---------------------------------------------------------------------------------------------------------


def header(
    request: Options, target: Any, guide: Any, prompts: Sequence[str], trace: Any, verifier: Any
) -> dict[str, Any]:
    """The first record: what ran, on what, and what came before the first round."""
    from specjax import __version__
    from specjax.bench import machine
    from specjax.cli import record

    return {
        "kind": "run", "target": target.name, "drafter": guide.name,
        "draft": guide.source.name if guide.source is not None else None, "verifier": verifier.name,
        "lossless": verifier.lossless, "draft_calls": trace.calls, "prompts": list(prompts),
        "prompt_tokens": trace.prompts, "seconds": {"target": trace.reading.target, "draft": trace.reading.draft},
        "settings": record.settings(request), "versions": {"specjax": __version__, **machine.versions()},
    }  # fmt: skip


def closing(trace: Any) -> dict[str, Any]:
    """The last record: what came of it."""
    from specjax.trace import rounds

    return {
        "kind": "end", "texts": trace.out.texts, "tokens": trace.out.tokens, "stop_reasons": trace.out.stop_reasons,
        "stats": trace.out.stats.as_dict(),
        "by_depth": [{"depth": d.depth, "tested": d.tested, "accepted": d.accepted} for d in rounds.by_depth(trace)],
    }  # fmt: skip


def json_line(record: dict[str, Any]) -> str:
    """A record as strict JSON on a line of its own, for readers too that take more characters for line breaks."""
    line = json.dumps(record, ensure_ascii=False, allow_nan=False, default=str)
    for char in ("\x85", "\u2028", "\u2029"):
        line = line.replace(char, f"\\u{ord(char):04x}")
    return line


class Shown(NamedTuple):
    """What terminal and pictures show."""

    trace: Any
    target: Any
    lanes: list[Any]
    most: int
    warning: str

    @property
    def pair(self) -> str:
        return f"target {self.target.name}, drafter {self.trace.guide.name}{self.warning}"

    @property
    def models(self) -> str:
        """The pair without its draft length, which is each lane's own."""
        source = self.trace.guide.source
        return f"target {self.target.name}, " + (f"draft {source.name}" if source else f"drafter {self._drafter}")

    @property
    def _drafter(self) -> str:
        return self.trace.guide.name.rsplit(" x", 1)[0]

    def strip(self, row: int) -> tuple[list[Any], str, str]:
        """Lines, title, and a note of what is left out."""
        from specjax.trace import strip

        lines = strip.lines(self.trace, row, self.target.text, most=self.most)
        number = f"Text {row + 1}, round by round" if self.trace.rows > 1 else "Round by round"
        every = len(self.trace.blocks(row))
        note = f"the first {len(lines)} of {every} rounds" if len(lines) < every else ""
        return lines, f"{number}: {self.pair}", note


def in_terminal(console: Any, shown: Shown) -> None:
    """All pictures as text."""
    from specjax.cli import trace_drawing
    from specjax.trace import rounds

    for row in range(shown.trace.rows):
        lines, title, note = shown.strip(row)
        trace_drawing.strip(console, lines, title=title + (f" ({note})" if note else ""))
    if shown.lanes:
        trace_drawing.walltime(console, shown.lanes, title=f"Walltime: {shown.models}")
    found = rounds.by_depth(shown.trace)
    if found:
        trace_drawing.depths(console, found, title="Acceptance by depth")


def as_pictures(folder: Path, shown: Shown, formats: Sequence[str]) -> list[str]:
    """Writes the pictures, and returns their names."""
    from specjax.trace import pictures, rounds

    drawn: dict[str, Callable[[Any], Any]] = {}
    for row in range(shown.trace.rows):
        lines, title, note = shown.strip(row)
        name = "strip" if shown.trace.rows == 1 else f"strip_{row + 1}"
        if lines:
            drawn[name] = partial(pictures.strip, lines=lines, title=title, note=note)
    if shown.lanes:
        title = f"Walltime of one request, compiling apart: {shown.models}"
        drawn["walltime"] = partial(pictures.walltime, lanes=shown.lanes, title=title)
    found = rounds.by_depth(shown.trace)
    if found:
        drawn["depth"] = partial(pictures.depths, found=found, title=f"Acceptance by depth: {shown.pair}")
    for name, draw in drawn.items():
        for kind in formats:
            plotting.save(folder / f"{name}.{kind}", draw)
    return [f"{name}.{kind}" for name in drawn for kind in formats]
