"""`specjax advise`: recommends a drafter, draft length or tree for this machine and these prompts."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from specjax import checks, files
from specjax.checks import check_name
from specjax.cli import INTERRUPTED, outputs, process
from specjax.cli.arguments import parse
from specjax.cli.prompts import Prompt, read_file
from specjax.config import Flag, Several, arg
from specjax.defaults import DRAFTS, TARGET

PROG = "specjax advise"
DONE = 0
SHOWN = 12  # rows of the table


@dataclasses.dataclass(frozen=True)
class AdviceModels:
    """A model is a Hugging Face id, a folder, a GGUF file, or bundled/NAME."""

    target: Annotated[str, arg(metavar="MODEL")] = TARGET
    draft: Annotated[Several, arg(metavar="MODEL", help_behavior_hint=f"(default: {DRAFTS[0]} for {TARGET})")] = ()
    """A smaller model with the same tokenizer. May be given twice, the larger first: each is considered, and both as a
    cascade."""
    head: Annotated[Several, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = ()
    """A trained head of the target, to be considered too. May be given several times."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


@dataclasses.dataclass(frozen=True)
class AdvicePrompts:
    """Typical prompts: acceptance depends on them."""

    prompts: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """A text file, one prompt per line, or .jsonl with a "prompt" in each line; - reads stdin."""
    task: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: story; translation for T5)")] = None
    """Prompts of the package instead of a file: translation, summarization, chat, code, maths, story."""
    style: Annotated[str, arg(metavar="NAME")] = "auto"
    """How the model is addressed, as for specjax sweep."""
    count: Annotated[int, arg(metavar="N")] = 8
    """Most prompts, spread over all available ones. Half of them are surveyed, the others decide among candidates."""


@dataclasses.dataclass(frozen=True)
class AdviceUse:
    """Intended use."""

    temperature: Annotated[float, arg(metavar="T")] = 0.0
    batch: Annotated[int, arg(metavar="N")] = 1
    """Prompts decoded together."""
    max_new_tokens: Annotated[int, arg(metavar="N")] = 64
    ignore_eos: Flag = False
    """Decode past the end of text, so that every text has --max-new-tokens."""
    seed: Annotated[int, arg(metavar="N")] = 0


@dataclasses.dataclass(frozen=True)
class AdviceMeasuring:
    """Measurement."""

    drafters: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: see text)")] = ()
    """Drafters to consider: model, tree, dynamic-tree, cascade, head, ngram, suffix, suffix-tree, lookahead,
    layer-skip, quantized. Default: all, the last two, which are made from the target, only without --draft."""
    verify: Annotated[int, arg(metavar="N")] = 3
    """Candidates to decode next to plain decoding; 0: predictions only."""
    repeats: Annotated[int, arg(metavar="N")] = 3
    """Timed turns, of which the median counts."""
    sweep: Flag = False
    """Afterwards decode all candidates at lengths 1 to 15, on every second prompt, which is kept for it, and report how
    far the advice is behind the fastest."""


@dataclasses.dataclass(frozen=True)
class AdviceOutput:
    """Output. Progress and warnings are printed on stderr."""

    json: Flag = False
    """Print one JSON object instead, with all measurements and conclusions."""
    output: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Write the JSON object into a file, atomically."""
    picture: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: none)")] = None
    """Draw speed-up by draft length and the cost of verification as .svg or .png; requires 'specjax[plot]'."""


@dataclasses.dataclass(frozen=True)
class AdviceOptions:
    """Recommend the drafter, draft length or tree that decodes these prompts fastest on this machine, if any helps.

    Measures the cost of verification and of each drafter, and its acceptance; predicts the speed-up of all strategies;
    decodes the best of them interleaved with plain decoding, and recommends the fastest.

    specjax advise

    specjax advise --target facebook/opt-1.3b --draft facebook/opt-125m --prompts questions.jsonl --temperature 0.8

    specjax advise --batch 8 --output advice.json --picture advice.svg
    """

    models: AdviceModels = AdviceModels()
    text: AdvicePrompts = AdvicePrompts()
    use: AdviceUse = AdviceUse()
    measuring: AdviceMeasuring = AdviceMeasuring()
    showing: AdviceOutput = AdviceOutput()


def main(args: Sequence[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
      ValueError, OSError: invalid input, before anything is measured.
    """
    options = parse(AdviceOptions, args, prog=PROG)
    check(options)
    given = given_prompts(options.text)

    process.import_library()
    from specjax.advisor import advise, report
    from specjax.cli.progress import Progress, tables_and_errors
    from specjax.cli.report import print_json

    use, measuring, showing = options.use, options.measuring, options.showing
    console, errors = tables_and_errors()
    with Progress(errors, show=True) as progress:
        target, drafts = load(options.models, progress.update)
        style, prompts = addressed(options.text, target, given)
        lines: list[str] = []

        def on_progress(line: str) -> None:
            lines.append(line)
            progress.update(line)

        with process.deferred_interrupt(once=lambda: len(lines) > 1) as stopped:
            advice = advise(
                target, drafts, prompts, heads=options.models.head, **vars(use), kinds=measuring.drafters or None,
                verify=measuring.verify, turns=measuring.repeats, sweep=measuring.sweep, progress=on_progress,
                stop=stopped,
            )  # fmt: skip
    file = options.text.prompts
    command = advice.command(dtype=options.models.dtype, prompts=file, chat=style == "own")
    given_options = {"style": style, "dtype": options.models.dtype, "prompts_file": file, "texts": list(prompts)}
    content = files.to_json(advice.to_dict() | {"command": command} | given_options)
    if showing.output is not None:
        files.write_text(showing.output, content + "\n")
    if showing.picture is not None and advice.measured is not None:
        report.write_figure(showing.picture, advice)
    if showing.json:
        print_json(content)
    else:
        show(console, advice, command)
    if advice.interrupted:
        errors.print(f"{PROG}: interrupted; finished measurements are kept", style="yellow", soft_wrap=True)
    return INTERRUPTED if advice.interrupted else DONE


# --- input -----------------------------------------------------------------------------------------------------------


def check(options: AdviceOptions) -> None:
    """Raises ValueError for invalid options, before a model is loaded."""
    use, measuring, text = options.use, options.measuring, options.text
    checks.distinct(drafters=measuring.drafters, draft=draft_names(options.models))
    checks.decoding(temperature=use.temperature, max_new_tokens=use.max_new_tokens, seed=use.seed)
    checks.at_least(1, count=text.count, batch=use.batch, repeats=measuring.repeats)
    checks.at_least(0, verify=measuring.verify)
    names = draft_names(options.models)
    for name in measuring.drafters:
        from specjax.advisor.rank import HEAD, KINDS
        from specjax.strategy import Strategy

        check_name(name, KINDS, "drafter")
        if name == HEAD:
            if not options.models.head:
                raise ValueError("drafter 'head' requires --head")
            continue
        needed = Strategy.of(name).needs
        if needed > len(names):
            raise ValueError(f"drafter {name!r} requires {needed} --draft models, got {len(names)}")
    if len(names) > 2:
        raise ValueError(f"--draft may be given at most twice, got {len(names)}")
    if text.prompts is not None and text.task is not None:
        raise ValueError("pass either --prompts or --task, not both")
    outputs.writable(output=options.showing.output)
    outputs.picture(picture=options.showing.picture)
    from specjax.bench import tasks

    check_name(text.style, tasks.STYLES, "style")
    if text.task is not None:
        check_name(text.task, [name for name, task in tasks.TASKS.items() if task.samples], "task")


def draft_names(models: AdviceModels) -> tuple[str, ...]:
    """The draft models; by default that of the bundled target."""
    return models.draft or (DRAFTS[:1] if models.target == TARGET else ())


def given_prompts(text: AdvicePrompts) -> list[Prompt] | None:
    """`count` prompts of the file; None without a file."""
    if text.prompts is None:
        return None
    from specjax.bench import tasks

    return tasks.spread(read_file(text.prompts), text.count)


def addressed(text: AdvicePrompts, target: Any, given: list[Prompt] | None) -> tuple[str, list[Prompt]]:
    """The style and the prompts in it: given ones, or those of a task from the package."""
    from specjax.bench import tasks

    if given is not None:
        name, items = tasks.AS_IS, [tasks.Item(prompt) for prompt in given if isinstance(prompt, str)]
        if len(items) < len(given):  # token ids have no style
            return name, given
    else:
        name = text.task or ("translation" if target.encoder_decoder else "story")
        items = tasks.spread(tasks.TASKS[name].samples, text.count)
    style = tasks.style_of(target, name, text.style)
    return style, [*tasks.prompts_for(target, name, items, style)]


def load(models: AdviceModels, notify: Any) -> tuple[Any, list[Any]]:
    """Target and drafts."""
    from specjax.config import load_model

    with process.interrupts_wait(lambda: False):
        names = (models.target, *draft_names(models))
        target, *drafts = [load_model(name, dtype=models.dtype, progress=notify) for name in names]
    return target, drafts


# --- in the terminal -------------------------------------------------------------------------------------------------


def show(console: Any, advice: Any, command: str) -> None:
    """The tables, the verdict with its explanation, and the commands to copy."""
    from specjax.advisor.report import reasons
    from specjax.bench.record import terminal_table

    def table(title: str, rows: Sequence[dict[str, Any]], bold: Sequence[int] = ()) -> None:
        text = lambda value: "" if value is None else value if isinstance(value, str) else f"{value:.2f}"
        console.print(terminal_table(rows, text, bold=bold, title=title, title_style="bold"))

    first, *others = reasons(advice)
    whole = "speed-up of whole requests over plain decoding"
    used = lambda trials: [place for place, one in enumerate(trials) if one.strategy == advice.strategy]
    if advice.measured is not None:
        curve = advice.measured.curve
        steps = {str(width): took / curve.step for width, took in zip(curve.widths, curve.seconds, strict=True)}
        table("verification of several tokens, in steps of plain decoding", [steps])
        rows = [strategy_row(advice, one.candidate, one) for one in advice.trials]
        rows += [strategy_row(advice, one) for one in untried(advice)]
        plain = ("plain", 1.0, 1.0 if advice.trials else None, 1.0, "1.00", "1.00" if advice.trials else None, "")
        table(f"candidates: {whole}", [*rows, dict(zip(COLUMNS, plain, strict=True))], used(advice.trials))
    if advice.swept:
        table(f"sweep: {whole}", [strategy_row(advice, one.candidate, one) for one in advice.swept], used(advice.swept))
    console.print(first, style="bold", soft_wrap=True, markup=False)
    for line in others:
        console.print(line, soft_wrap=True, markup=False)
    if advice.measured is not None:
        console.print(f"\n    {command}\n    {advice.python}", soft_wrap=True, markup=False)


COLUMNS = (
    "strategy", "tokens\npredicted", "tokens\nmeasured", "steps\npredicted", "speed-up\npredicted",
    "speed-up\nmeasured", "turns",
)  # fmt: skip


def strategy_row(advice: Any, one: Any, trial: Any = None) -> dict[str, Any]:
    """A candidate, and its trial if it was tried."""
    both = lambda found: f"{found.speedup:.2f} \u00b1 {found.error:.2f}"
    measured = (None, "") if trial is None else (both(trial), f"{trial.least:.2f}-{trial.most:.2f}")
    values = (
        advice.label(one.strategy), one.tokens, None if trial is None else trial.tokens,
        one.seconds / advice.measured.curve.step, both(one), *measured,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def untried(advice: Any) -> list[Any]:
    """Candidates that were not tried: the best of each family, then the next best of all."""
    from specjax.advisor.rank import family

    tried = [one.strategy for one in advice.trials]
    left = [one for one in advice.candidates if one.strategy not in tried]
    first = {family(one.strategy): one for one in reversed(left)}
    room = max(SHOWN - len(tried) - len(first), 0)
    chosen = [*first.values(), *[one for one in left if one not in first.values()][:room]]
    return [one for one in left if one in chosen]
