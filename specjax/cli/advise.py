"""`specjax advise`: which drafter, draft length or tree to use on this machine and for these prompts, if any."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from specjax import files
from specjax.checks import check_name
from specjax.cli import INTERRUPTED, checks
from specjax.cli.arguments import parse
from specjax.cli.options import DRAFT, TARGET, Flag, Several, arg

PROG = "specjax advise"
DONE = 0
NEEDING = ("model", "tree", "dynamic-tree", "cascade")  # a draft model
KINDS = (*NEEDING, "ngram", "suffix", "suffix-tree", "lookahead", "layer-skip", "quantized")
SHOWN = 12  # rows of the table


@dataclasses.dataclass(frozen=True)
class Models:
    """A model is a Hugging Face id, a folder, a GGUF file, or bundled/NAME."""

    target: Annotated[str, arg(metavar="MODEL")] = TARGET
    draft: Annotated[Several, arg(metavar="MODEL", help_behavior_hint=f"(default: {DRAFT} for {TARGET})")] = ()
    """A smaller model with the same tokenizer; twice, the larger first: each is weighed, and both as a cascade."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


@dataclasses.dataclass(frozen=True)
class Text:
    """The prompts, of the kind that will be decoded: acceptance depends on them."""

    prompts: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """A text file, one prompt a line, or .jsonl with a "prompt" in each line; - reads stdin."""
    task: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: story; translation for T5)")] = None
    """Instead of a file, prompts that come with the package: translation, summarization, chat, code, maths, story."""
    count: Annotated[int, arg(metavar="N")] = 8
    """At most so many prompts, spread over all that there are."""


@dataclasses.dataclass(frozen=True)
class Use:
    """How it will be used: the answer holds for this."""

    temperature: Annotated[float, arg(metavar="T")] = 0.0
    batch: Annotated[int, arg(metavar="N")] = 1
    """Prompts decoded together."""
    max_new_tokens: Annotated[int, arg(metavar="N")] = 64
    ignore_eos: Flag = False
    """Go on past the end of text, so that every text has --max-new-tokens."""
    seed: Annotated[int, arg(metavar="N")] = 0


@dataclasses.dataclass(frozen=True)
class Measuring:
    """How it is measured."""

    drafters: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: see there)")] = ()
    """Those that are weighed: model, tree, dynamic-tree, cascade, ngram, suffix, suffix-tree, lookahead, layer-skip,
    quantized. Without it all, but the last two, where the target drafts for itself, only if there is no --draft."""
    verify: Annotated[int, arg(metavar="N")] = 3
    """Ways that are really decoded, beside plain decoding; 0: the answer is theory's alone."""
    repeats: Annotated[int, arg(metavar="N")] = 3
    """Timed turns; medians count."""
    sweep: Flag = False
    """Afterwards decode all that was weighed, at lengths of 1 to 15, and say how far the answer is behind the best."""


@dataclasses.dataclass(frozen=True)
class Showing:
    """Where the answer goes. Progress and warnings go to stderr."""

    json: Flag = False
    """Print one JSON object instead: all that was measured, weighed, tried and concluded."""
    output: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Write that JSON object to a file too; the file appears whole or not at all."""
    picture: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Draw speed-up against draft length and the verify-cost curve, as .svg or .png; needs 'specjax[plot]'."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """Say which drafter, draft length or tree decodes these prompts fastest on this machine, or that none does.

    Measures what checking several tokens costs here and what each drafter costs and has accepted, ranks all ways by
    theory, decodes the best of them in turns with plain decoding, and names the fastest.

    specjax advise

    specjax advise --target facebook/opt-1.3b --draft facebook/opt-125m --prompts questions.jsonl --temperature 0.8

    specjax advise --batch 8 --output advice.json --picture advice.svg
    """

    models: Models = Models()
    text: Text = Text()
    use: Use = Use()
    measuring: Measuring = Measuring()
    showing: Showing = Showing()


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: bad input; nothing has been measured then.
    """
    ask = parse(Ask, args, prog=PROG)
    check(ask)
    given = given_prompts(ask.text)

    from specjax.advisor import desk, pictures, say
    from specjax.cli import record
    from specjax.cli.progress import Progress, deferred_interrupt, tables_and_errors

    console, errors = tables_and_errors()
    with Progress(errors, show=True) as progress:
        target, drafts = load(ask.models, progress.tell)
        prompts = given if given is not None else sample_prompts(ask.text, target)
        told: list[str] = []

        def tell(line: str) -> None:
            told.append(line)
            progress.tell(line)

        with deferred_interrupt(once=lambda: len(told) > 1) as asked:  # from then on there is something to keep
            advice = desk.advise(
                target, drafts, prompts, temperature=ask.use.temperature, batch=ask.use.batch,
                max_new_tokens=ask.use.max_new_tokens, ignore_eos=ask.use.ignore_eos, seed=ask.use.seed,
                kinds=ask.measuring.drafters or None, verify=ask.measuring.verify, turns=ask.measuring.repeats,
                sweep=ask.measuring.sweep, tell=tell, stop=asked,
            )  # fmt: skip
    command = say.command_line(advice, dtype=ask.models.dtype, prompts=ask.text.prompts)
    asked_for = {"dtype": ask.models.dtype, "prompts_file": ask.text.prompts, "texts": list(prompts)}
    content = record.to_json(record.finite(advice.as_dict() | {"command": command} | asked_for))
    if ask.showing.output is not None:
        files.write_text(ask.showing.output, content + "\n")
    if ask.showing.picture is not None and advice.measured is not None:
        pictures.write(ask.showing.picture, advice)
    if ask.showing.json:
        record.tell(content)
    else:
        show(console, advice, command)
    if advice.interrupted:
        errors.print(f"{PROG}: interrupted: what had been measured by then is kept", style="yellow", soft_wrap=True)
    return INTERRUPTED if advice.interrupted else DONE


# --- input -----------------------------------------------------------------------------------------------------------


def check(ask: Ask) -> None:
    """Raises ValueError for what cannot work, before any work."""
    for name in ask.measuring.drafters:
        check_name(name, KINDS, "drafter that is weighed")
    checks.once(drafters=ask.measuring.drafters)
    checks.request(temperature=ask.use.temperature, max_new_tokens=ask.use.max_new_tokens, seed=ask.use.seed)
    checks.at_least(1, count=ask.text.count, batch=ask.use.batch, repeats=ask.measuring.repeats)
    checks.at_least(0, verify=ask.measuring.verify)
    needing = [name for name in ask.measuring.drafters if name in NEEDING]
    names = draft_names(ask.models)
    if needing and not names:
        raise ValueError(
            f"the drafter {needing[0]!r} needs --draft, a smaller model with {ask.models.target}'s tokenizer"
        )
    if "cascade" in needing and len(names) < 2:
        raise ValueError("the drafter 'cascade' needs --draft twice: the middle model, then the smaller one")
    if len(names) > 2:
        raise ValueError(
            f"--draft is given {len(names)} times: at most two are weighed, leave the least likely ones out"
        )
    checks.once(draft=names)
    if ask.text.prompts is not None and ask.text.task is not None:
        raise ValueError("--prompts and --task both bring prompts: leave one of them out")
    checks.writable(output=ask.showing.output)
    checks.picture(picture=ask.showing.picture)
    from specjax.bench import tasks

    if ask.text.task is not None:
        check_name(ask.text.task, [name for name, task in tasks.TASKS.items() if task.samples], "task")


def draft_names(models: Models) -> tuple[str, ...]:
    """The draft models; that of the bundled target where none is named."""
    return models.draft or ((DRAFT,) if models.target == TARGET else ())


def given_prompts(text: Text) -> list[str] | None:
    """The prompts of the file, `count` of them; None without a file."""
    if text.prompts is None:
        return None
    from specjax.cli.prompts import read_prompts

    return spread(read_prompts([], text.prompts), text.count)


def sample_prompts(text: Text, target: Any) -> list[str]:
    """Prompts of a task that come with the package."""
    from specjax.bench import tasks

    task = tasks.TASKS[text.task or ("translation" if target.encoder_decoder else "story")]
    build = tasks.builder(task, tasks.AUTO, encoder_decoder=target.encoder_decoder, own=str)
    return [build(item) for item in spread(task.samples, text.count)]


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of them, evenly over all; all where there are fewer."""
    count = min(count, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def load(models: Models, tell: Any) -> tuple[Any, list[Any]]:
    """Target and drafts."""
    import specjax  # `load` is looked up when it is called
    from specjax.streaming import interrupts_wait

    loaded = []
    with interrupts_wait(lambda: False):
        for name in (models.target, *draft_names(models)):
            tell(f"loading {name}")
            loaded.append(specjax.load(name, dtype=models.dtype))
    return loaded[0], loaded[1:]


# --- in the terminal -------------------------------------------------------------------------------------------------


def show(console: Any, advice: Any, command: str) -> None:
    """The verdict, the tables, the reasons, and the lines to be copied."""
    from specjax.advisor import say

    first, *others = say.reasons(advice)
    if advice.measured is not None:
        console.print(curve_table(advice))
        console.print(candidate_table(advice))
    if advice.swept:
        console.print(sweep_table(advice))
    console.print(first, style="bold", soft_wrap=True, markup=False)
    for line in others:
        console.print(line, soft_wrap=True, markup=False)
    if advice.measured is not None:
        console.print(f"\n    {command}\n    {say.python_line(advice)}", soft_wrap=True, markup=False)


def titled(title: str) -> Any:
    """A table without columns."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE, title=title, title_justify="left", title_style="bold")


def ways_table(what: str, *columns: str) -> Any:
    """A table of ways of decoding without rows."""
    table = titled(f"{what}, whole requests against plain decoding")
    table.add_column("drafter", overflow="fold")  # gives way in a narrow terminal: numbers are shown whole
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def curve_table(advice: Any) -> Any:
    """What a call of the target costs by its tokens."""
    curve = advice.measured.curve
    table = titled("checking several tokens in one call, in steps of plain decoding")
    for width in curve.widths:
        table.add_column(str(width), justify="right", no_wrap=True)
    table.add_row(*(f"{took / curve.step:.2f}" for took in curve.seconds))
    return table


def candidate_table(advice: Any) -> Any:
    """Those that were tried, and the best of the others of each kind."""
    from specjax.advisor import ways

    table = ways_table("ways of decoding", "tokens/\nround", "round in\nsteps", "predicted", "measured", "turns")
    step = advice.measured.curve.step

    def row(one: Any, *measured: str, style: str | None = None) -> None:
        table.add_row(
            ways.label(one.way, advice.drafts), f"{one.tokens:.2f}", f"{one.seconds / step:.2f}",
            f"{one.speedup:.2f} \u00b1 {one.error:.2f}", *measured, style=style,
        )  # fmt: skip

    for one in advice.trials:
        used = one.way == advice.way
        row(one.candidate, f"{one.speedup:.2f}", f"{one.least:.2f}-{one.most:.2f}", style="bold" if used else None)
    for one in others(advice):
        row(one, "", "")
    table.add_row("plain", "1.00", "1.00", "1.00", "1.00" if advice.trials else "", "")
    return table


def sweep_table(advice: Any) -> Any:
    """Everything that was decoded after the answer, the fastest first."""
    from specjax.advisor import ways

    table = ways_table("swept afterwards", "tokens/\nround", "predicted", "measured", "turns")
    for one in advice.swept:
        table.add_row(
            ways.label(one.way, advice.drafts), f"{one.tokens:.2f}", f"{one.candidate.speedup:.2f}",
            f"{one.speedup:.2f}", f"{one.least:.2f}-{one.most:.2f}", style="bold" if one.way == advice.way else None,
        )  # fmt: skip
    return table


def others(advice: Any) -> list[Any]:
    """Candidates that were not tried: the best of each kind and model, then the next best of all."""
    tried = [one.way for one in advice.trials]
    left = [one for one in advice.candidates if one.way not in tried]
    first = {(one.way.kind, one.way.drafts): one for one in reversed(left)}
    room = max(SHOWN - len(tried) - len(first), 0)
    chosen = [*first.values(), *[one for one in left if one not in first.values()][:room]]
    return [one for one in left if one in chosen]
