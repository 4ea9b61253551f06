"""`specjax trace`: every round of a request, in the terminal, as figures and as JSON."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from specjax import checks, files, plotting
from specjax.cli import INTERRUPTED, outputs, process
from specjax.cli.options import Request, read_request
from specjax.cli.prompts import Prompt
from specjax.config import Flag, Run, RunConfig, arg, build
from specjax.strategy import Strategy

PROG = "specjax trace"
DONE, BROKEN_MODEL = 0, 1
FILE = "rounds.jsonl"
LANES = (3, 7)  # draft lengths of the walltime diagram next to that of the request: the first that differs


@dataclasses.dataclass(frozen=True)
class Tracing:
    """Output. Without --output and --json the figures are drawn in the terminal only."""

    output: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = None
    """Write rounds.jsonl and the figures strip, walltime and depth into this folder (figures require matplotlib)."""
    format: tuple[Literal["svg", "png"], ...] = ("svg", "png")
    """Formats of the figures."""
    gammas: Annotated[
        tuple[int, ...], arg(metavar="N ...", help_behavior_hint="(default: that of the request, and 3)")
    ] = ()
    """Draft lengths of the walltime diagram, one lane each above plain decoding."""
    repeats: Annotated[int, arg(metavar="N")] = 3
    """Timed runs; the median of each round counts."""
    rounds: Annotated[int, arg(metavar="N")] = 40
    """Most rounds per text in a strip."""
    json: Flag = False
    """Print only the records on stdout: one JSON object per line."""


@dataclasses.dataclass(frozen=True)
class TraceOptions(Request):
    """Show every round of a request: tokens that were drafted, accepted, rejected and corrected, and the time spent.

    specjax trace "Once upon a time"

    specjax trace "Once upon a time" --gamma 7 --gammas 7 3 --temperature 0 --output pictures

    specjax trace --target bundled/t5-target --draft bundled/t5-draft "Good morning."

    specjax trace --prompts questions.jsonl --drafter ngram --json > rounds.jsonl
    """

    tracing: Tracing = Tracing()


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: invalid input, before anything is decoded.
    """
    found = read_request(TraceOptions, args, PROG)
    if found is None:
        return DONE
    options, config, prompts = found
    check(options.tracing, config.strategy)
    return run(config, options.tracing, prompts, chat=options.chat)


def run(config: RunConfig, tracing: Tracing, prompts: Sequence[Prompt], *, chat: bool) -> int:
    """Loads, traces and prints."""
    from specjax.cli import report
    from specjax.cli.progress import Progress, open_console
    from specjax.trace import rounds, strip

    console, errors = open_console(), open_console(stderr=True)
    with Progress(errors, show=True) as progress:
        with process.interrupts_wait(lambda: False):
            built = build(config, progress.update)
        strategy, target = config.strategy, built.target
        prompts = [target.chat(one) for one in prompts if isinstance(one, str)] if chat else prompts
        trace_with = partial(rounds.record, target, prompts, repeats=tracing.repeats)
        progress.update("compiling, and decoding round by round")
        begun: list[bool] = []  # from the first round on there is something to keep
        with process.deferred_interrupt(once=lambda: bool(begun)) as stopped:
            trace = trace_with(built.drafter, config.options, stop=lambda: begun.append(True) or stopped())
            interrupted = stopped()
        lanes = []
        if (tracing.output is not None or not tracing.json) and not interrupted:
            make = lambda gamma: strategy.replace_settings(gamma=gamma).build(target, built.drafts)
            gammas = lane_gammas(strategy.gamma, tracing.gammas) if strategy.takes_gamma else []
            lanes = measure_lanes(trace, gammas, make, trace_with, config.options, progress.update)
    content = [header(built, trace, prompts), *rounds.records(trace, strip.speller(target.text)), closing(trace)]
    written = "\n".join(map(json_line, content))
    drawn = figures(trace, target, lanes, most=tracing.rounds, warning="" if built.verifier.lossless else ", LOSSY")
    if tracing.json:
        report.print_json(written)
    else:
        for figure in drawn:
            figure.in_terminal(console)
        report.show(console, report.closing_table(built, trace.out))
    report.warn(errors, PROG, trace.out)
    if tracing.output is not None:
        tracing.output.mkdir(exist_ok=True)
        files.write_text(tracing.output / FILE, written + "\n")
        names = [f"{figure.name}.{kind}" for figure in drawn for kind in tracing.format]
        for figure in drawn:
            for kind in tracing.format:
                plotting.save(tracing.output / f"{figure.name}.{kind}", figure.as_picture)
        if not tracing.json:
            console.print(f"\nwrote {', '.join([FILE, *names])} in {tracing.output}", soft_wrap=True, markup=False)
    if interrupted:
        return INTERRUPTED
    return BROKEN_MODEL if "nan" in trace.out.stop_reasons else DONE


def check(tracing: Tracing, strategy: Strategy) -> None:
    """Raises ValueError for invalid options, before any work."""
    checks.decoding(gammas=tracing.gammas)
    checks.distinct(gammas=tracing.gammas)
    checks.distinct(least=1, format=tracing.format)
    if tracing.gammas and not strategy.takes_gamma:
        raise ValueError(f"gammas does not apply to drafter {strategy.text!r}, which has no draft length")
    checks.at_least(1, rounds=tracing.rounds, repeats=tracing.repeats)
    outputs.writable_folder(output=tracing.output)


# --- lanes of the walltime diagram -----------------------------------------------------------------------------------


def lane_gammas(own: int | None, given: Sequence[int]) -> list[int]:
    """Draft lengths of the walltime diagram: as given, else that of the request and one other."""
    if given or not own:
        return list(given)
    return [own, next(gamma for gamma in LANES if gamma != own)]


def measure_lanes(
    trace: Any,
    gammas: Sequence[int],
    make: Callable[[int], Any],
    trace_with: Callable[..., Any],
    options: dict[str, Any],
    notify: Callable[[str], None],
) -> list[Any]:
    """One lane per draft length and one of plain decoding; that of the request itself is already measured.

    Args:
      gammas: empty for drafters without a draft length, whose lane is named "drafted".
      make: the drafter with a given draft length.
      trace_with: (drafter, options) -> Trace.
    """
    from specjax import drafters
    from specjax.trace import lanes

    own = trace.drafter.drafter.tree.width - 1

    def lane(name: str, drafter: Any, options: dict[str, Any]) -> Any:
        notify(f"decoding with {name} for the walltime diagram")
        return lanes.lane(name, trace_with(drafter, options))

    found = [] if gammas or own == 0 else [lanes.lane("drafted", trace)]
    for gamma in gammas:
        name = f"\u03b3 = {gamma}"
        found.append(lanes.lane(name, trace) if gamma == own else lane(name, make(gamma), options))
    if own == 0:
        return [*found, lanes.lane("plain", trace)]
    return [*found, lane("plain", drafters.plain(), options | {"verifier": None})]


# --- output ----------------------------------------------------------------------------------------------------------


def header(run: Run, trace: Any, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """The first record: models, settings, prompts and their prefill time."""
    from specjax.bench.record import versions

    drafter, verifier = trace.drafter, run.verifier
    return {
        "kind": "run", "target": run.target.name, "drafter": drafter.name,
        "draft": drafter.source.name if drafter.source is not None else None, "verifier": verifier.name,
        "lossless": verifier.lossless, "draft_steps": trace.draft_steps, "prompts": list(prompts),
        "prompt_tokens": trace.prompts, "seconds": trace.prefill._asdict(),
        "settings": dataclasses.asdict(run.config), "versions": versions(),
    }  # fmt: skip


def closing(trace: Any) -> dict[str, Any]:
    """The last record: texts and statistics."""
    from specjax.trace import rounds

    return {
        "kind": "end", **trace.out.to_dict(),
        "by_depth": [{"depth": d.depth, "tested": d.tested, "accepted": d.accepted} for d in rounds.by_depth(trace)],
    }  # fmt: skip


def json_line(record: dict[str, Any]) -> str:
    """A record as strict JSON on one line, also for readers that treat U+0085, U+2028 and U+2029 as line breaks."""
    line = json.dumps(record, ensure_ascii=False, allow_nan=False, default=str)
    for char in ("\x85", "\u2028", "\u2029"):
        line = line.replace(char, f"\\u{ord(char):04x}")
    return line


class TraceFigure(NamedTuple):
    """A figure by file name: console -> None draws it in the terminal, and matplotlib's Figure class -> figure."""

    name: str
    in_terminal: Callable[[Any], None]
    as_picture: Callable[[Any], Any]


def figures(trace: Any, target: Any, lanes: Sequence[Any], *, most: int, warning: str) -> list[TraceFigure]:
    """A strip of at most `most` rounds for each text, the walltime of the lanes, and acceptance by depth."""
    from specjax.cli import trace_drawing
    from specjax.trace import pictures, rounds, strip

    drafter, several, found = trace.drafter, len(trace.prompts) > 1, []
    pair = f"target {target.name}, drafter {drafter.name}{warning}"

    def add(name: str, draw: Any, data: Any, title: str, note: str = "") -> None:
        in_terminal, as_picture = draw
        more = {"note": note} if note else {}
        found.append(
            TraceFigure(
                name,
                lambda console: in_terminal(console, data, title=title + (f" ({note})" if note else "")),
                lambda new_figure: as_picture(new_figure, data, title=title, **more),
            )
        )

    for row in range(len(trace.prompts)):
        lines, every = strip.lines(trace, row, target.text, most=most), len(trace.row(row))
        title = f"Text {row + 1}, round by round" if several else "Round by round"
        note = f"the first {len(lines)} of {every} rounds" if len(lines) < every else ""
        if lines:
            name = f"strip_{row + 1}" if several else "strip"
            add(name, (trace_drawing.strip, pictures.strip), lines, f"{title}: {pair}", note)
    if lanes:  # each has a draft length of its own
        draft = f"draft {drafter.source.name}" if drafter.source else f"drafter {drafter.name.rsplit(' x', 1)[0]}"
        title = f"Walltime of one request without compilation: target {target.name}, {draft}"
        add("walltime", (trace_drawing.walltime, pictures.walltime), lanes, title)
    depths = rounds.by_depth(trace)
    if depths:
        add("depth", (trace_drawing.depths, pictures.depths), depths, f"Acceptance by depth: {pair}")
    return found
